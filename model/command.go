package model

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"harness-s/kernels"
)

// operation is what a Group can be asked for: the same code does it on every node.
type operation int

const (
	opOpen     operation = iota // Setup
	opJoin                      // ID, First, World
	opLoad                      // Path of the policy's folder; replies Digest
	opForward                   // Batches, Forward; replies Stats
	opBackward                  // Coefs
	opLearn                     // Batches, Forward, Objectives; replies Stats
	opZeroGrad                  //
	opNorm                      // replies Norm, Bad
	opUpdate                    // AdamW
	opWeights                   // Path of a folder, Save
	opMoments                   // Path of a file
	opResume                    // Path of a file of moments; replies Digest
	opEnd                       //
)

// command is an operation with one node's part of its arguments.
type command struct {
	Op           operation
	Setup        Setup
	ID           kernels.CommID
	First, World int
	Path         string
	Batches      []Batch // one a rank of the node
	Forward      ForwardOptions
	Coefs        [][]float32 // one a rank, empty where there is nothing to take backwards
	Objectives   []Objective // one a batch
	AdamW        kernels.AdamWParams
	Save         SaveOptions
}

// reply is what a node says to a command.
type reply struct {
	Err    string // what went wrong there
	Bytes  int64  // memory that the node's devices hold
	Digest []byte // of the files read
	Stats  []Stats
	Norm   float64
	Bad    int
}

// execute does a command on the node's ranks.
func (n *node) execute(c *command) (r reply, err error) {
	switch c.Op {
	case opOpen:
		err = n.open(c.Setup)
	case opJoin:
		err = n.join(c.ID, c.First, c.World)
	case opLoad:
		if err = n.load(c.Path); err == nil {
			r.Digest, err = digest(c.Path)
		}
	case opForward:
		r.Stats, err = n.forward(c.Batches, c.Forward)
	case opBackward:
		err = n.backward(c.Coefs)
	case opLearn:
		r.Stats, err = n.learn(c.Batches, c.Forward, c.Objectives)
	case opZeroGrad:
		n.zeroGrad()
	case opNorm:
		r.Norm, r.Bad, err = n.gradStats()
	case opUpdate:
		err = n.each(func(_ int, m *Model) error { return m.Update(c.AdamW) })
	case opWeights, opMoments:
		err = n.write(c)
	case opResume:
		if err = n.each(func(_ int, m *Model) error { return m.ReadOptimizer(c.Path) }); err == nil {
			r.Digest, err = digest(c.Path)
		}
	case opEnd:
		err = n.close()
	default:
		err = fmt.Errorf("no operation %d", c.Op)
	}
	r.Bytes = n.deviceBytes()
	return r, err
}

// digestBytes are those of a file's two ends that a digest looks at.
const digestBytes = 1 << 20

// digest tells a file, or a folder's weight files, from others: of each the name, the size and both ends. Training changes
// all weights, so that one step's files differ from another's there too.
func digest(path string) ([]byte, error) {
	files := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.safetensors")); err != nil {
			return nil, err
		}
	}
	h := sha256.New()
	for _, name := range files {
		if err := digestFile(h, name); err != nil {
			return nil, err
		}
	}
	return h.Sum(nil), nil
}

func digestFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%q %d\n", filepath.Base(path), info.Size())
	for _, at := range []int64{0, max(0, info.Size()-digestBytes)} {
		if _, err := io.Copy(h, io.NewSectionReader(f, at, digestBytes)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
