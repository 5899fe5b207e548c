package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
)

// MaxPool bounds the number of specs in one pool.
const MaxPool = 1024

// Pool is H0 and its siblings, frozen while a policy trains.
type Pool struct {
	Specs []*Spec // H0 first, then siblings by id
}

// Base is H0.
func (p *Pool) Base() *Spec { return p.Specs[0] }

// Siblings are all but H0, by id.
func (p *Pool) Siblings() []*Spec { return p.Specs[1:] }

// Get finds a spec by id.
func (p *Pool) Get(id string) (*Spec, bool) {
	for _, s := range p.Specs {
		if s.ID == id {
			return s, true
		}
	}
	return nil, false
}

// RequireK is an error wrapping ErrPoolTooSmall when the pool has fewer than k siblings.
func (p *Pool) RequireK(k int) error {
	if n := len(p.Siblings()); n < k {
		return fmt.Errorf("%w: %d siblings, but K is %d; lower K or add siblings", ErrPoolTooSmall, n, k)
	}
	return nil
}

// Save writes every spec into dir as <id>.yaml, canonical. The folder is made when it does not exist.
func (p *Pool) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save pool: %w", err)
	}
	for _, s := range p.Specs {
		if err := s.Save(filepath.Join(dir, s.ID+".yaml")); err != nil {
			return err
		}
	}
	return nil
}

// NewPool orders and checks specs: one H0, ids and contents unique, parents known, no cycle.
func NewPool(specs []*Spec) (*Pool, error) {
	p, problems := assemble("pool", specs)
	return p, first(problems)
}

// LoadPool reads every *.yaml of dir. The error is the first problem; CheckPool lists all.
func LoadPool(dir string) (*Pool, error) {
	p, problems := CheckPool(dir, nil)
	if err := first(problems); err != nil {
		return nil, err
	}
	return p, nil
}

// CheckPool reads every *.yaml of dir and returns all problems with their places; with env also those that need the
// environment's tools. The pool is nil when there is a problem.
func CheckPool(dir string, env []chat.Tool) (*Pool, []strictyaml.Problem) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []strictyaml.Problem{{File: dir, Text: err.Error()}}
	}
	var specs []*Spec
	var problems []strictyaml.Problem
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".yaml" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if len(specs) == MaxPool {
			return nil, []strictyaml.Problem{{File: dir, Text: fmt.Sprintf("more than %d specs", MaxPool)}}
		}
		s, found := read(filepath.Join(dir, e.Name()))
		if len(found) == 0 {
			found = s.problems(env)
			if stem := strings.TrimSuffix(e.Name(), ".yaml"); s.ID != stem {
				found = append(found, s.doc.Problem("id", "id: %q differs from the file's name", s.ID))
			}
		}
		problems = append(problems, found...)
		if s != nil && s.ID != "" {
			specs = append(specs, s)
		}
	}
	p, found := assemble(dir, specs)
	problems = append(problems, found...)
	if len(problems) > 0 {
		return nil, problems
	}
	return p, nil
}

// assemble checks what only shows in company.
func assemble(dir string, specs []*Spec) (*Pool, []strictyaml.Problem) {
	specs = slices.Clone(specs)
	slices.SortStableFunc(specs, func(a, b *Spec) int {
		if (a.ID == BaseID) != (b.ID == BaseID) {
			if a.ID == BaseID {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
	var problems []strictyaml.Problem
	fail := func(s *Spec, path, format string, args ...any) {
		doc := s.doc
		if doc == nil {
			doc = &strictyaml.Doc{File: "harness " + s.ID}
		}
		problems = append(problems, doc.Problem(path, path+": "+format, args...))
	}
	if len(specs) == 0 || specs[0].ID != BaseID {
		problems = append(problems, strictyaml.Problem{File: dir, Text: "no spec has the id " + BaseID})
	}
	byID, byHash := map[string]*Spec{}, map[string]*Spec{}
	for _, s := range specs {
		if _, twice := byID[s.ID]; twice {
			fail(s, "id", "%q is taken by another spec", s.ID)
		} else if other, twice := byHash[s.Hash()]; twice {
			fail(s, "id", "same content as %s; siblings must differ", other.ID)
		}
		byID[s.ID], byHash[s.Hash()] = s, s
	}
	for _, s := range specs {
		if s.Parent != "" && byID[s.Parent] == nil {
			fail(s, "parent", "no spec has the id %q", s.Parent)
		} else if !reachesBase(s, byID) {
			fail(s, "parent", "its line of parents never reaches %s", BaseID)
		}
	}
	return &Pool{Specs: specs}, problems
}

// reachesBase follows parents to the base; false on a cycle.
func reachesBase(s *Spec, byID map[string]*Spec) bool {
	for range len(byID) + 1 {
		if s.Parent == "" {
			return true // a missing parent is reported where it is missing
		}
		up := byID[s.Parent]
		if up == nil {
			return true
		}
		s = up
	}
	return false
}
