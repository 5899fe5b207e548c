package evolve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"harness-s/rollout/harness"
)

// maxLineage bounds a lineage file.
const maxLineage = 64 << 20

// ReadLineage reads lineage.json and checks that it is a tree: the base first, ids unique, each parent before its children.
func ReadLineage(path string) (Lineage, error) {
	var l Lineage
	f, err := os.Open(path)
	if err != nil {
		return l, fmt.Errorf("read lineage: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLineage+1))
	switch {
	case err != nil:
		return l, fmt.Errorf("read lineage %s: %w", path, err)
	case len(data) > maxLineage:
		return l, fmt.Errorf("lineage %s: larger than %d bytes", path, maxLineage)
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("lineage %s: %w", path, err)
	}
	if err := l.check(); err != nil {
		return l, fmt.Errorf("lineage %s: %w", path, err)
	}
	return l, nil
}

func (l *Lineage) check() error {
	if len(l.Nodes) == 0 || l.Nodes[0].ID != harness.BaseID {
		return fmt.Errorf("the first node must be %s", harness.BaseID)
	}
	generation := map[string]int{}
	for i, n := range l.Nodes {
		if _, twice := generation[n.ID]; twice || n.ID == "" {
			return fmt.Errorf("node %d: id %q is empty or taken", i, n.ID)
		}
		up, known := generation[n.Parent]
		switch {
		case i == 0 && n.Parent != "":
			return fmt.Errorf("node %s: the base has no parent", n.ID)
		case i > 0 && !known:
			return fmt.Errorf("node %s: its parent %q does not come before it", n.ID, n.Parent)
		case i > 0 && n.Generation <= up:
			return fmt.Errorf("node %s: generation %d, and its parent's is %d", n.ID, n.Generation, up)
		}
		generation[n.ID] = n.Generation
	}
	return nil
}

// FindPool says where the specs and the lineage of a folder are: the folder may be a pool, with or without a lineage beside
// or in it, or the run folder of an evolution. lineage is "" where there is none.
func FindPool(dir string) (pool, lineage string) {
	pool = dir
	if !exists(filepath.Join(dir, harness.BaseID+".yaml")) && exists(filepath.Join(dir, PoolName, harness.BaseID+".yaml")) {
		pool = filepath.Join(dir, PoolName)
	}
	places := []string{filepath.Join(pool, LineageName)}
	if filepath.Base(filepath.Clean(pool)) == PoolName {
		places = append(places, filepath.Join(filepath.Dir(filepath.Clean(pool)), LineageName))
	}
	for _, p := range places {
		if exists(p) {
			return pool, p
		}
	}
	return pool, ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// Compare lists where a pool is no longer what its lineage says: specs edited, added or taken out by hand since. That is
// allowed, and good to know.
func (l *Lineage) Compare(p *harness.Pool) []string {
	var notes []string
	known := map[string]bool{}
	for _, n := range l.Nodes {
		known[n.ID] = true
		s, ok := p.Get(n.ID)
		switch {
		case !ok:
			notes = append(notes, n.ID+": in the lineage, not in the pool")
		case s.Hash() != n.Hash:
			notes = append(notes, n.ID+": edited since the evolution measured it")
		case s.Parent != n.Parent:
			notes = append(notes, fmt.Sprintf("%s: its parent is %q, in the lineage %q", n.ID, s.Parent, n.Parent))
		}
	}
	for _, s := range p.Specs {
		if !known[s.ID] {
			notes = append(notes, s.ID+": not in the lineage: written by hand")
		}
	}
	return notes
}
