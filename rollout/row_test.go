package rollout

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drawRow makes a valid row: context and policy turns in turn.
func drawRow(t *rapid.T) Row {
	var r Row
	for range rapid.IntRange(0, 4).Draw(t, "turns") {
		r.appendContext(rapid.SliceOfN(rapid.Int32Min(0), 0, 5).Draw(t, "context"))
		tokens := rapid.SliceOfN(rapid.Int32Min(0), 1, 6).Draw(t, "sampled")
		lp := rapid.SliceOfN(rapid.Float32Max(0), len(tokens), len(tokens)).Draw(t, "logprobs")
		if rapid.Bool().Draw(t, "tiny") {
			lp[0] = -math.SmallestNonzeroFloat32
		}
		r.appendPolicy(tokens, lp)
	}
	return r
}

func TestRowJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRow(t)
		if err := want.Validate(); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Row
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		if len(got.Tokens) != len(want.Tokens) {
			t.Fatal("length")
		}
		for i := range want.Tokens {
			if got.Tokens[i] != want.Tokens[i] || got.Mask[i] != want.Mask[i] || math.Float32bits(got.Logprobs[i]) != math.Float32bits(want.Logprobs[i]) {
				t.Fatalf("token %d differs: %s", i, data)
			}
		}
		if len(want.TurnBounds) > 0 && !reflect.DeepEqual(got.TurnBounds, want.TurnBounds) {
			t.Fatalf("bounds %v, want %v", got.TurnBounds, want.TurnBounds)
		}
	})
}

func TestRowJSONForm(t *testing.T) {
	var r Row
	r.appendContext([]int32{5, 6})
	r.appendPolicy([]int32{7, 8}, []float32{-0.1, 0})
	const want = `{"tokens":[5,6,7,8],"mask":[0,0,1,1],"logprobs":[null,null,-0.1,0],"turn_bounds":[[2,4]]}`
	if got, err := json.Marshal(r); err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	if got, _ := json.Marshal(&Record{Rows: []Row{r}}); !strings.Contains(string(got), want) {
		t.Errorf("a record must hold the same form: %s", got)
	}
	for _, bad := range []string{
		`{"tokens":[1],"mask":[1],"logprobs":[null],"turn_bounds":[]}`,
		`{"tokens":[1],"mask":[0],"logprobs":[-1],"turn_bounds":[]}`,
		`{"tokens":[1],"mask":[2],"logprobs":[-1],"turn_bounds":[]}`,
		`{"tokens":[1],"mask":"AQ==","logprobs":[-1],"turn_bounds":[]}`,
		`{"tokens":[1,2],"mask":[0],"logprobs":[null,null],"turn_bounds":[]}`,
		`{"tokens":[3000000000],"mask":[0],"logprobs":[null],"turn_bounds":[]}`,
		`{"tokens":[1],"mask":[1],"logprobs":[-1e99],"turn_bounds":[]}`,
	} {
		if err := json.Unmarshal([]byte(bad), new(Row)); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
	r.Logprobs[2] = float32(math.NaN())
	if _, err := json.Marshal(r); err == nil {
		t.Error("NaN must not be written")
	}
}

func TestRowValidate(t *testing.T) {
	good := func() Row {
		var r Row
		r.appendContext([]int32{1})
		r.appendPolicy([]int32{2, 3}, []float32{-1, -2})
		r.appendContext([]int32{4})
		r.appendPolicy([]int32{5}, []float32{-3})
		return r
	}
	if r := good(); r.Validate() != nil {
		t.Fatal(r.Validate())
	}
	for name, spoil := range map[string]func(*Row){
		"short mask":       func(r *Row) { r.Mask = r.Mask[1:] },
		"short log-probs":  func(r *Row) { r.Logprobs = r.Logprobs[1:] },
		"mask in context":  func(r *Row) { r.Mask[0] = 1 },
		"mask off in turn": func(r *Row) { r.Mask[1] = 0 },
		"mask 2":           func(r *Row) { r.Mask[1] = 2 },
		"bounds outside":   func(r *Row) { r.TurnBounds[1][1] = 6 },
		"bounds overlap":   func(r *Row) { r.TurnBounds[1][0] = 2 },
		"empty bounds":     func(r *Row) { r.TurnBounds[1] = [2]int{5, 5} },
		"missing bounds":   func(r *Row) { r.TurnBounds = r.TurnBounds[:1] },
		"nan":              func(r *Row) { r.Logprobs[1] = float32(math.NaN()) },
		"infinite":         func(r *Row) { r.Logprobs[1] = float32(math.Inf(-1)) },
		"positive":         func(r *Row) { r.Logprobs[1] = 0.1 },
		"context log-prob": func(r *Row) { r.Logprobs[0] = -0.1 },
		"negative id":      func(r *Row) { r.Tokens[0] = -1 },
	} {
		r := good()
		spoil(&r)
		if r.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	r := Record{ID: "x", Success: true, Status: TurnLimit}
	if err := r.Validate(); err == nil || !strings.Contains(err.Error(), "rollout x") {
		t.Errorf("success without completion: %v", err)
	}
}

// The values were computed apart, with Python's hashlib, from the definition in Seed's comment.
func TestSeedGolden(t *testing.T) {
	for _, c := range []struct {
		run           int64
		phase         string
		step          int
		task          string
		attempt, turn int
		want          int64
	}{
		{0, "train", 0, "t", 0, 0, 3557802100176359485},
		{1, "train", 3, "gen/test/7", 2, 1, 5396553437672886079},
		{1, "train", 3, "gen/test/7", 2, 2, 6569452373653608434},
		{-5, "eval", 0, "", 8, 0, 2441068463384826012},
		{1, "anchor", 12, "é", 0, 0, 8587827952626153299},
	} {
		if got := Seed(c.run, c.phase, c.step, c.task, c.attempt, c.turn); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	seen := map[int64]string{}
	for _, phase := range []string{"train", "eval"} {
		for step := range 5 {
			for attempt := range 20 {
				for turn := range 10 {
					for _, task := range []string{"a", "b", "ab"} {
						s := Seed(1, phase, step, task, attempt, turn)
						at := ID(phase, step, task, "h", attempt)
						if s < 0 || seen[s] != "" {
							t.Fatalf("seed %d of %s is negative or that of %s", s, at, seen[s])
						}
						seen[s] = at
					}
				}
			}
		}
	}
}
