package warmstart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"harness-s/internal/atomicfile"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
)

// FiguresFile is what Make adds to the folder: the config that made it and what the policy does.
const FiguresFile = "warmstart.json"

// newFolder makes the folder's stand-in beside it; publish renames it, discard removes it.
func newFolder(dir string) (tmp string, publish func() error, discard func(), err error) {
	if _, err := os.Lstat(dir); err == nil {
		return "", nil, nil, fmt.Errorf("%s exists already; remove it or name another folder", dir)
	}
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, nil, err
	}
	if tmp, err = os.MkdirTemp(parent, "."+filepath.Base(dir)+".tmp*"); err != nil {
		return "", nil, nil, err
	}
	discard = func() { os.RemoveAll(tmp) }
	if err := os.Chmod(tmp, 0o755); err != nil {
		discard()
		return "", nil, nil, err
	}
	publish = func() error {
		if err := os.Rename(tmp, dir); err != nil {
			return err
		}
		return atomicfile.SyncDir(parent)
	}
	return tmp, publish, discard, nil
}

// write puts a Hugging Face folder's files into dir.
func write(dir string, m *model.Model, tok *tokenizer.Tokenizer) error {
	end, _ := tok.ID(chat.EOS) // chat.NewRenderer has checked that it is there
	pad, _ := tok.ID(chat.Pad)
	generation, err := json.MarshalIndent(map[string]any{"do_sample": true, "temperature": 1.0, "eos_token_id": []int32{end, pad}, "pad_token_id": pad}, "", "  ")
	if err != nil {
		return err
	}
	if err := tok.WriteFiles(dir, tokenizer.Config{EOS: chat.EOS, Pad: chat.Pad, ChatTemplate: chat.Template, MaxLength: m.Config.MaxPosition}); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, "generation_config.json"), append(generation, '\n')); err != nil {
		return err
	}
	return m.WriteInto(dir, model.SaveOptions{})
}

// writeFigures says how the policy was made and what it does. The instruction set belongs to it: another one gives
// other last bits, and after a thousand updates another policy.
func writeFigures(dir string, cfg Config, be kernels.Backend, f Figures) error {
	made := be.Name()
	if cpu, ok := be.(interface{ ISA() string }); ok {
		made += " " + cpu.ISA()
	}
	j, err := json.MarshalIndent(struct {
		Backend string  `json:"backend"`
		Config  Config  `json:"config"`
		Figures Figures `json:"figures"`
	}{made, cfg, f}, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, FiguresFile), append(j, '\n'))
}
