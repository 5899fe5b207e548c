package trainer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"harness-s/internal/strictjson"
)

// state is what a checkpoint holds besides weights and moments: state.json. There is no generator state; all
// randomness is derived from the seed and these counts.
type state struct {
	Step     int `json:"step"`     // completed steps; also the weight version
	Updates  int `json:"updates"`  // AdamW updates
	Rollouts int `json:"rollouts"` // training attempts, replaced ones included
	Dealt    int `json:"dealt"`    // training tasks dealt

	Groups  int `json:"groups"`  // base groups
	Failed  int `json:"failed"`  // of them, all attempts failed
	Rescued int `json:"rescued"` // of them, rescued
	Saved   int `json:"saved"`   // of them, with a success

	Fixed   string           `json:"fixed,omitempty"` // mode fixed: the sibling
	Probe   []int32          `json:"probe,omitempty"` // token row that checks a weight sync
	Before  map[string]Score `json:"before,omitempty"`
	Router  json.RawMessage  `json:"router,omitempty"`
	Anchors int              `json:"anchors,omitempty"` // measurements that the router rests on
	WallS   float64          `json:"wall_s"`            // so far, over all processes
}

const stateName = "state.json"

func readState(dir string) (state, error) {
	var s state
	path := filepath.Join(dir, stateName)
	data, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read checkpoint: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read checkpoint %s: %w", path, strictjson.Explain(err))
	}
	return s, nil
}
