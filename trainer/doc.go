// Package trainer is the loop: it collects groups of rollouts, has failed groups rescued under sibling
// harnesses, forms advantages, updates the policy, and keeps the run folder.
//
// Start at step.go, which reads as one step. train.go is the run around it, parts.go what the loop is wired
// to, batch.go how rollouts become micro-batches, update.go the optimizer step, eval.go evaluation, state.go
// what a checkpoint holds. trainer/loss has the objectives, trainer/runfolder the files.
package trainer
