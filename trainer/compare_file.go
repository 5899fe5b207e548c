package trainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"harness-s/trainer/config"
)

// Arm is one way of using a rollout budget. A frozen arm trains nothing: it is the policy of the base config, used through
// the pool.
type Arm struct {
	Name   string   `yaml:"name" json:"name"`     // letters, digits, - and _: also a folder
	Label  string   `yaml:"label" json:"label"`   // for tables; empty: the name
	Frozen string   `yaml:"frozen" json:"frozen"` // empty: the arm trains; routed or best: the policy as it is, under this name
	Set    []string `yaml:"set" json:"set"`       // overrides of the config, a.b=c
}

// ComparePlan is a comparison file: arms over one run config, each under every seed.
type ComparePlan struct {
	File      string   `yaml:"-" json:"file"`              // what it was read from
	Base      string   `yaml:"base" json:"base"`           // run config; in the file relative to it
	Seeds     []int64  `yaml:"seeds" json:"seeds"`         // a run an arm and seed
	Parallel  int      `yaml:"parallel" json:"-"`          // runs side by side; 0: one a core (one on a GPU). Results do not depend on it
	Reference string   `yaml:"reference" json:"reference"` // arm that the others' differences are taken to, seed by seed; empty: the first
	Set       []string `yaml:"set" json:"set"`             // overrides of every arm
	Arms      []Arm    `yaml:"arms" json:"arms"`
}

// What an arm is measured under besides H0.
var compareNames = []string{"h0", bestName, routedName, "rank2", "rank3"}

// LoadComparePlan reads a comparison file, or takes a run config for one: every rescue mode is then an arm.
func LoadComparePlan(path string) (ComparePlan, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return ComparePlan{}, fmt.Errorf("read comparison: %w", err)
	}
	if !regexp.MustCompile(`(?m)^arms:`).Match(data) {
		return modesPlan(path), nil
	}
	var p ComparePlan
	if err := config.Parse(path, data, &p); err != nil {
		return ComparePlan{}, err
	}
	p.File = path
	if p.Base != "" && !filepath.IsAbs(p.Base) {
		p.Base = filepath.Join(filepath.Dir(path), p.Base)
	}
	if err := p.Check(); err != nil {
		return ComparePlan{}, fmt.Errorf("comparison %s: %w", path, err)
	}
	return p, nil
}

// modesPlan compares the rescue modes over a run config.
func modesPlan(path string) ComparePlan {
	p := ComparePlan{File: path, Base: path, Seeds: []int64{1, 2, 3}, Reference: ModeOff}
	for _, mode := range modes {
		p.Arms = append(p.Arms, Arm{Name: mode, Set: []string{"rescue.mode=" + mode}})
	}
	return p
}

// Only keeps the arms named, in the plan's order.
func (p ComparePlan) Only(names []string) (ComparePlan, error) {
	for _, n := range names {
		if !slices.ContainsFunc(p.Arms, func(a Arm) bool { return a.Name == n }) {
			return p, fmt.Errorf("compare: no arm %q; there are %s", n, strings.Join(p.names(), ", "))
		}
	}
	p.Arms = slices.DeleteFunc(slices.Clone(p.Arms), func(a Arm) bool { return !slices.Contains(names, a.Name) })
	if !slices.Contains(names, p.Reference) {
		p.Reference = ""
	}
	return p, nil
}

func (p ComparePlan) names() []string {
	var out []string
	for _, a := range p.Arms {
		out = append(out, a.Name)
	}
	return out
}

var armName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Check says what is wrong with a plan.
func (p ComparePlan) Check() error {
	switch {
	case p.Base == "":
		return errors.New("base: name the run config that the arms share")
	case len(p.Seeds) == 0 || len(p.Seeds) > 1000:
		return fmt.Errorf("seeds: %d; want 1 to 1000", len(p.Seeds))
	case len(p.Arms) == 0 || len(p.Arms) > 1000:
		return fmt.Errorf("arms: %d; want 1 to 1000", len(p.Arms))
	case p.Parallel < 0 || p.Parallel > 1024:
		return fmt.Errorf("parallel: %d is outside 0..1024", p.Parallel)
	}
	for i, seed := range p.Seeds {
		if slices.Contains(p.Seeds[:i], seed) {
			return fmt.Errorf("seeds: %d stands twice", seed)
		}
	}
	for i, a := range p.Arms {
		if !armName.MatchString(a.Name) || a.Name == frozenFolder {
			return fmt.Errorf("arms[%d].name: %q: want letters, digits, - and _, and not %s", i, a.Name, frozenFolder)
		}
		if slices.Contains(p.names()[:i], a.Name) {
			return fmt.Errorf("arms[%d].name: %q stands twice", i, a.Name)
		}
		if a.Frozen != "" && a.Frozen != routedName && a.Frozen != bestName {
			return fmt.Errorf("arm %s: frozen: %q: want routed or best, or nothing for an arm that trains", a.Name, a.Frozen)
		}
		if a.Frozen != "" && len(a.Set) > 0 {
			return fmt.Errorf("arm %s: set: a frozen arm is the policy as it is; overrides of all arms stand in the comparison's own set", a.Name)
		}
	}
	if r := p.Reference; r != "" && !slices.Contains(p.names(), r) {
		return fmt.Errorf("reference: no arm %q; there are %s", r, strings.Join(p.names(), ", "))
	}
	return nil
}

// reference is the arm that differences are taken to.
func (p ComparePlan) reference() string {
	if p.Reference == "" {
		return p.Arms[0].Name
	}
	return p.Reference
}

// mayDiffer are the sections that an arm may override: how it learns. What it learns on, what it is measured on and how many
// rollouts it may spend are the same for all.
var mayDiffer = []string{"rescue.", "router.", "loss.", "optim.", "rollout.n", "rollout.tasks"}

// config is the run config of an arm under a seed; of the frozen policy where arm is nil.
func (p ComparePlan) config(arm *Arm, seed int64) (Config, error) {
	common, err := LoadConfig(p.Base, append(slices.Clone(p.Set), fmt.Sprint("seed=", seed)))
	if err != nil {
		return Config{}, err
	}
	common.Eval.Before, common.Eval.After, common.Eval.Ends = false, false, []string{"h0"} // measured apart, see job
	if arm == nil {
		return common, nil
	}
	c := common
	if err := config.Override(arm.Set, &c); err != nil {
		return c, fmt.Errorf("arm %s: %w", arm.Name, err)
	}
	for _, key := range config.Diff(common, c) {
		if !slices.ContainsFunc(mayDiffer, func(s string) bool { return key == s || strings.HasSuffix(s, ".") && strings.HasPrefix(key, s) }) {
			return c, fmt.Errorf("arm %s: set: %s: arms share policy, pool, tasks, budget and evaluation; an arm may change %s", arm.Name, key, strings.Join(mayDiffer, ", "))
		}
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("arm %s: %w", arm.Name, err)
	}
	return c, nil
}
