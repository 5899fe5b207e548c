package warmstart

import (
	"harness-s/model"
	"harness-s/model/tokenizer"
)

func save(m *model.Model, tok *tokenizer.Tokenizer, dir string) error {
	return m.Save(dir, model.SaveOptions{})
}
