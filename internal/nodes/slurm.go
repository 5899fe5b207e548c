package nodes

import (
	"fmt"
	"strings"
)

// firstHost is the first host of a Slurm node list: "gpu[03-05,9],login" means gpu03, gpu04, gpu05, gpu9, login. A name may
// have several brackets; the first host has the first of each.
func firstHost(list string) (string, error) {
	var host strings.Builder
	for rest := list; rest != ""; {
		i := strings.IndexAny(rest, "[],")
		if i < 0 {
			i = len(rest)
		}
		host.WriteString(rest[:i])
		if rest = rest[i:]; rest == "" || rest[0] == ',' {
			break
		}
		choices, after, closed := strings.Cut(rest[1:], "]")
		if rest[0] == ']' || !closed || strings.Contains(choices, "[") {
			return "", fmt.Errorf("node list %q: brackets do not match", list)
		}
		if j := strings.IndexAny(choices, ",-"); j >= 0 {
			choices = choices[:j]
		}
		if choices == "" {
			return "", fmt.Errorf("node list %q: empty brackets", list)
		}
		host.WriteString(choices)
		rest = after
	}
	if name := host.String(); name != "" && !strings.ContainsAny(name, " \t/:") {
		return name, nil
	}
	return "", fmt.Errorf("node list %q has no first host", list)
}
