package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"harness-s/internal/atomicfile"
	"harness-s/internal/strictyaml"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/trainer/config"
)

// Files of a job's folder besides the run's own.
const (
	frozenFolder = "frozen"
	jobName      = "job.json"    // what the folder was made by
	resultName   = "result.json" // written last: the job is done
	logName      = "log.txt"     // the run's progress
)

// job is one run of a comparison: an arm under a seed, or the measurement of the policy before training.
type job struct {
	arm     *Arm // nil: the policy before training
	name    string
	seed    int64
	cfg     Config
	dir     string
	build   Builder
	id      jobID
	poolIDs []string // H0 first
}

// jobID is what a job's result follows from.
type jobID struct {
	Hash   string `json:"hash"`   // of the two below
	Config string `json:"config"` // YAML, without the keys that change no result
	Pool   string `json:"pool"`   // hash of the harnesses
}

// identify works out the job's hash. Keys that change neither rollouts nor weights are not in it.
func (j *job) identify() error {
	pool, err := harness.LoadPool(j.cfg.Pool.Path)
	if err != nil {
		return fmt.Errorf("pool.path: %w", err)
	}
	h := sha256.New()
	for _, s := range pool.Specs {
		fmt.Fprintln(h, s.ID, s.Hash())
		j.poolIDs = append(j.poolIDs, s.ID)
	}
	c, d := j.cfg, Default()
	c.Threads, c.Backend, c.Devices, c.Evolve, c.Checkpoint = d.Threads, d.Backend, d.Devices, d.Evolve, d.Checkpoint
	c.Rollout.Concurrency, c.Rollout.DeadlineS, c.Rollout.Retries = d.Rollout.Concurrency, d.Rollout.DeadlineS, d.Rollout.Retries
	c.Optim.MicrobatchTok, c.Model.Recompute, c.Model.Offload = d.Optim.MicrobatchTok, d.Model.Recompute, d.Model.Offload
	j.id = jobID{Config: string(strictyaml.Encode(c)), Pool: hex.EncodeToString(h.Sum(nil))}
	all := sha256.Sum256([]byte(j.id.Config + j.id.Pool))
	j.id.Hash = hex.EncodeToString(all[:])
	return nil
}

// load reads the result, if the job is done. A folder made by other settings is refused, unless nothing was made in it yet.
func (j *job) load() (r Result, done bool, err error) {
	var was jobID
	if known, err := readJSON(filepath.Join(j.dir, jobName), &was); err != nil {
		return r, false, err
	} else if !known && j.begun() {
		return r, false, fmt.Errorf("%s holds a run that no comparison made; compare into another --run", j.dir)
	}
	if was.Hash != j.id.Hash && j.begun() {
		return r, false, fmt.Errorf("%s was made with other settings (%s); compare into another --run, or remove that folder to make it again", j.dir, j.changed(was))
	}
	if was.Hash != j.id.Hash {
		return r, false, nil
	}
	done, err = readJSON(filepath.Join(j.dir, resultName), &r)
	return r, done, err
}

// begun says whether the folder has anything of the job in it.
func (j *job) begun() bool {
	for _, name := range []string{"config.yaml", resultName} {
		if _, err := os.Stat(filepath.Join(j.dir, name)); err == nil {
			return true
		}
	}
	return false
}

// changed names the keys that differ from what the folder was made by.
func (j *job) changed(was jobID) string {
	before, now := Default(), Default()
	if err := errors.Join(config.Parse(jobName, []byte(was.Config), &before), config.Parse(jobName, []byte(j.id.Config), &now)); err != nil {
		return "by another version of this program"
	}
	keys := config.Diff(before, now)
	if was.Pool != j.id.Pool {
		keys = append(keys, "the harnesses in the pool")
	}
	if len(keys) == 0 {
		return "by another version of this program"
	}
	return strings.Join(keys, ", ")
}

// do trains where the arm trains, and measures.
func (j *job) do(ctx context.Context, threads int, p *compareProgress) (Result, error) {
	if err := os.MkdirAll(j.dir, 0o755); err != nil {
		return Result{}, err
	}
	log, err := os.OpenFile(filepath.Join(j.dir, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Result{}, err
	}
	defer log.Close()
	if err := putJSON(filepath.Join(j.dir, jobName), j.id); err != nil {
		return Result{}, err
	}
	build := p.counting(j)
	sum := Summary{Seed: j.seed}
	cfg := j.cfg
	cfg.Threads = threads
	if j.arm != nil {
		if sum, err = j.train(ctx, cfg, Options{RunDir: j.dir, Set: []string{fmt.Sprint("threads=", threads)}, Out: log, Build: build}); err != nil {
			return Result{}, err
		}
	}
	o := EvalOptions{Config: cfg, Harness: compareNames, Anchor: true, K: cfg.Eval.K, Split: cfg.Eval.Split, Out: log, Build: build}
	if j.arm != nil {
		o.RunDir = j.dir
	}
	return j.measure(ctx, o, sum)
}

// train is the summary of the run, which is trained or goes on where it is not done yet.
func (j *job) train(ctx context.Context, cfg Config, o Options) (Summary, error) {
	var sum Summary
	if done, err := readJSON(filepath.Join(j.dir, "summary.json"), &sum); err != nil || done {
		return sum, err
	}
	_, err := os.Stat(filepath.Join(j.dir, "config.yaml"))
	o.Resume = err == nil
	return Train(ctx, cfg, o)
}

// measure evaluates the policy as it is now, and reads from the run's metrics how it came there.
func (j *job) measure(ctx context.Context, o EvalOptions, sum Summary) (Result, error) {
	clock := clock{}
	clock.start()
	eval, err := Eval(ctx, o)
	if err != nil {
		return Result{}, err
	}
	r := Result{Summary: sum, AfterChoice: Choice{Best: eval.Best, H0Share: *eval.H0Share}}
	if j.arm != nil {
		if err := r.readMetrics(filepath.Join(j.dir, "metrics.jsonl")); err != nil {
			return r, err
		}
	}
	r.After = eval.Scores
	r.EvalRollouts += eval.Rollouts
	r.MeasureRollouts = eval.RouterRollouts
	m := metrics{}
	clock.lap(m)
	r.WallS += m["time/step"]
	return r, putJSON(filepath.Join(j.dir, resultName), r)
}

func readJSON(path string, into any) (there bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

func putJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'))
}

// countedActor tells of each attempt that ends.
type countedActor struct {
	Actor
	ended func(n int)
}

// Collect makes the attempts.
func (c countedActor) Collect(ctx context.Context, jobs []rollout.Job, ended func(n int)) ([]*rollout.Record, error) {
	told := 0
	records, err := c.Actor.Collect(ctx, jobs, func(n int) {
		c.ended(n - told)
		told = n
		if ended != nil {
			ended(n)
		}
	})
	c.ended(len(records) - told)
	return records, err
}
