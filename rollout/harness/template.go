package harness

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var variable = regexp.MustCompile(`\{\{([a-z][a-z0-9_]*)\}\}`)

// Variables lists the variables a template uses, each once, in order of first use. Braces that form no variable are
// an error: a typing mistake must not reach a policy.
func Variables(template string) ([]string, error) {
	var names []string
	for _, m := range variable.FindAllStringSubmatch(template, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	rest := variable.ReplaceAllString(template, "")
	for _, braces := range []string{"{{", "}}"} {
		if i := strings.Index(rest, braces); i >= 0 {
			return nil, fmt.Errorf("%q is no variable; write {{name}} with lower-case letters, digits and _", excerpt(rest[i:]))
		}
	}
	return names, nil
}

// expand replaces each {{name}} by the task's value, once: braces inside a value stay as they are.
func expand(template string, vars map[string]string) (string, error) {
	var missing []string
	out := variable.ReplaceAllStringFunc(template, func(m string) string {
		v, ok := vars[m[2:len(m)-2]]
		if !ok {
			missing = append(missing, m)
		}
		return v
	})
	if len(missing) > 0 {
		have := make([]string, 0, len(vars))
		for k := range vars {
			have = append(have, k)
		}
		slices.Sort(have)
		return "", fmt.Errorf("the task has no variable %s; it has: %s", strings.Join(missing, ", "), strings.Join(have, ", "))
	}
	return out, nil
}

func excerpt(s string) string {
	if len(s) > 24 {
		return strings.ToValidUTF8(s[:24], "") + "..."
	}
	return s
}
