/* Bodies of the token-mixing and inference ops, one include a file. */
