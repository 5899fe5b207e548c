package hsm

import (
	"fmt"
	"regexp"
	"strings"
)

// Report is what ptxas says about one function under --ptxas-options=-v.
type Report struct {
	Name                                              string
	Registers, Shared, Stack, SpillStores, SpillLoads int
}

var (
	ptxasEntry = regexp.MustCompile(`Compiling entry function '(\w+)' for`)
	ptxasStack = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	ptxasUsed  = regexp.MustCompile(`Used (\d+) registers`)
	ptxasSmem  = regexp.MustCompile(`(\d+) bytes smem`)
	ptxasDeep  = regexp.MustCompile(`(\d+) bytes cumulative stack size`)
)

// ParseReport reads the assembler's part of a compilation's log; rest are the other lines, warnings among them. What a
// function that a kernel calls spills counts as the kernel's.
func ParseReport(log string) (reports []Report, rest string, err error) {
	var other []string
	var k *Report
	for _, line := range strings.Split(log, "\n") {
		if m := ptxasEntry.FindStringSubmatch(line); m != nil {
			reports = append(reports, Report{Name: m[1]})
			k = &reports[len(reports)-1]
			continue
		}
		if !strings.HasPrefix(line, "ptxas") {
			if strings.TrimSpace(line) != "" {
				other = append(other, line)
			}
			continue
		}
		stack, used := ptxasStack.FindStringSubmatch(line), ptxasUsed.FindStringSubmatch(line)
		switch {
		case (stack != nil || used != nil) && k == nil:
			return nil, "", fmt.Errorf("hsm: the assembler reports on no kernel: %q", line)
		case stack != nil:
			k.Stack += number([]byte(stack[1]))
			k.SpillStores += number([]byte(stack[2]))
			k.SpillLoads += number([]byte(stack[3]))
		case used != nil:
			k.Registers = number([]byte(used[1]))
			if m := ptxasSmem.FindStringSubmatch(line); m != nil {
				k.Shared = number([]byte(m[1]))
			}
			if m := ptxasDeep.FindStringSubmatch(line); m != nil {
				k.Stack = max(k.Stack, number([]byte(m[1])))
			}
		case strings.Contains(line, "warning") || strings.Contains(line, "error"):
			other = append(other, line)
		}
	}
	return reports, strings.Join(other, "\n"), nil
}
