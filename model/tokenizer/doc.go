// Package tokenizer reads and writes tokenizer.json files of the Qwen family (byte-level BPE) and gives the token ids
// that Hugging Face tokenizers gives.
//
// Text goes through five steps: added tokens are cut out (where the caller trusts the text), the rest is brought into
// NFC, split into pieces by the family's regex, each piece is taken as bytes, and the bytes are merged by rank.
// A file that asks for anything else is refused: a tokenizer that is almost right trains on the wrong tokens.
//
// Start at Load and Tokenizer.EncodeParts.
package tokenizer
