package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadNamesWhatIsNoConfig(t *testing.T) {
	var into struct {
		A int `yaml:"a"`
	}
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, bytes.Repeat([]byte("# x\n"), maxBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{large: "larger than", dir: "is a directory", filepath.Join(dir, "absent"): "no such file"} {
		if err := Read(path, nil, &into); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}
