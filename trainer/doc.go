// Package trainer is the loop: it collects groups of rollouts, has failed groups rescued under sibling
// harnesses, forms advantages, updates the policy, and keeps the run folder.
//
// Start at step.go, which reads as one step; phases.go has its later phases. train.go is the run around it,
// resume.go how it continues, parts.go what the loop is wired to (build.go wires the real parts), batch.go how
// rollouts become micro-batches, update.go the optimizer step, eval.go evaluation, state.go what a checkpoint
// holds. trainer/loss has the objectives, trainer/runfolder the files, trainer/config how configs are read.
package trainer
