package harness

import (
	"fmt"
	"os"

	"harness-s/internal/atomicfile"
	"harness-s/internal/strictyaml"
)

// MaxFileBytes bounds one spec file.
const MaxFileBytes = 64 << 10

// Load reads one spec and checks what can be checked without an environment. The error is the first problem, with
// its place, and how many more there are.
func Load(path string) (*Spec, error) {
	s, problems := read(path)
	if len(problems) == 0 {
		problems = s.problems(nil)
	}
	if err := first(problems); err != nil {
		return nil, err
	}
	return s, nil
}

// Save writes the spec as canonical YAML: same content, same bytes.
func (s *Spec) Save(path string) error {
	if err := first(s.problems(nil)); err != nil {
		return err
	}
	return atomicfile.Write(path, s.YAML())
}

// YAML is the spec as canonical YAML.
func (s *Spec) YAML() []byte { return strictyaml.Encode(s) }

// Parse reads a spec from text; name stands in messages for the file's.
func Parse(name string, data []byte) (*Spec, error) {
	s, problems := parse(name, data)
	if len(problems) == 0 {
		problems = s.problems(nil)
	}
	if err := first(problems); err != nil {
		return nil, err
	}
	return s, nil
}

func read(path string) (*Spec, []strictyaml.Problem) {
	data, err := readBounded(path)
	if err != nil {
		return nil, []strictyaml.Problem{{File: path, Text: err.Error()}}
	}
	return parse(path, data)
}

func parse(name string, data []byte) (*Spec, []strictyaml.Problem) {
	if len(data) > MaxFileBytes {
		return nil, []strictyaml.Problem{{File: name, Text: fmt.Sprintf("larger than %d bytes", MaxFileBytes)}}
	}
	s := &Spec{}
	doc, problems := strictyaml.Decode(name, data, s)
	s.doc = doc
	return s, problems
}

func readBounded(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file")
	}
	if st.Size() > MaxFileBytes {
		return nil, fmt.Errorf("%d bytes; a spec has at most %d", st.Size(), MaxFileBytes)
	}
	return os.ReadFile(path)
}

// first is the first problem as an error, nil when there is none.
func first(problems []strictyaml.Problem) error {
	switch len(problems) {
	case 0:
		return nil
	case 1:
		return problems[0]
	}
	return fmt.Errorf("%w (and %d more)", problems[0], len(problems)-1)
}
