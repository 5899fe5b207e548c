package main

import (
	"os"

	"harness-s/model/tokenizer"
)

type tokenizeCmd struct {
	Model string `help:"Hugging Face folder with tokenizer.json." required:"" placeholder:"DIR"`
}

// Run answers lines of stdin: {"text","special"} or {"ids"}.
func (c *tokenizeCmd) Run() error {
	t, err := tokenizer.Load(c.Model)
	if err != nil {
		return err
	}
	return tokenizer.RunTokenize(t, os.Stdin, os.Stdout)
}
