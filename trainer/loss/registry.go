package loss

import (
	"fmt"
	"sort"
	"strings"
	"sync"
)

var (
	registryMu sync.Mutex
	registered = map[string]Loss{}
)

// Register adds an objective of the user's own under its name, for `loss.name` in a config. It runs Check
// first: derivatives that disagree with finite differences, a masked token that leaks, or parts that do not
// add up are an error, and the name stays free.
func Register(l Loss) error {
	if l.Eval == nil || l.Name == "" || l.Name == "expression" {
		return fmt.Errorf("register loss %q: it needs a name of its own and an Eval function", l.Name)
	}
	if l.Normalise == "" {
		l.Normalise = PerRollout
	}
	if l.Advantage == "" {
		l.Advantage = "grpo"
	}
	if _, err := Estimator(l.Advantage); err != nil {
		return fmt.Errorf("register loss %q: %w", l.Name, err)
	}
	if err := Check(l, DefaultConfig()); err != nil {
		return fmt.Errorf("register loss %q: %w", l.Name, err)
	}
	registryMu.Lock()
	defer registryMu.Unlock()
	if _, taken := lookup(l.Name); taken {
		return fmt.Errorf("register loss %q: the name is taken", l.Name)
	}
	registered[l.Name] = l
	return nil
}

// New is the objective a config names. An expression is compiled and checked by finite differences here.
func New(c Config) (Loss, error) {
	if err := c.Validate(); err != nil {
		return Loss{}, err
	}
	if c.Name == "expression" {
		l, err := compile(c)
		if err != nil {
			return Loss{}, fmt.Errorf("loss.expression: %w", err)
		}
		if err := Check(l, c); err != nil {
			return Loss{}, fmt.Errorf("loss.expression: %w", err)
		}
		return l, nil
	}
	registryMu.Lock()
	defer registryMu.Unlock()
	if l, ok := lookup(c.Name); ok {
		return l, nil
	}
	return Loss{}, fmt.Errorf("loss.name: no loss %q; there are %s and expression", c.Name, strings.Join(names(), ", "))
}

// Advantages is the estimator a config names, or the loss's own.
func (c Config) Advantages(l Loss) AdvantageFunc {
	name := c.Advantage
	if name == "" {
		name = l.Advantage
	}
	f, err := Estimator(name)
	if err != nil {
		panic(err) // Validate and Register refuse it
	}
	return f
}

func lookup(name string) (Loss, bool) {
	for _, l := range builtins {
		if l.Name == name {
			return l, true
		}
	}
	l, ok := registered[name]
	return l, ok
}

func names() []string {
	var out []string
	for _, l := range builtins {
		out = append(out, l.Name)
	}
	for n := range registered {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}
