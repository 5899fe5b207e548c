// Package demo scripts demonstrations of the generated SQL tasks, from which the embedded policy is cloned.
//
// Start at Play. A demonstration is an ordinary rollout (rollout.Run, the same harness rules, the same rendering) whose
// policy is a script. Under H0 the script is naive and never does what a sibling asks for; under a sibling it does each
// thing asked with probability Obedience and nothing else. That leaves the situation rescue needs: the policy can do the
// right thing, but only where the context asks for it, and not always.
package demo
