package strictjson

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

type line struct {
	ID      json.RawMessage `json:"id"`
	Tokens  []int32         `json:"tokens"`
	Weights []float32       `json:"weights,omitempty"`
}

func TestDecode(t *testing.T) {
	want := line{ID: json.RawMessage(`{"a":[1,null]}`), Tokens: []int32{1, -2}, Weights: []float32{0, .5}}
	var got line
	err := Decode([]byte(` {"id":{"a":[1,null]}, "tokens":[1,-2], "weights":[null,0.5]} `), &got, "weights[0]")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := Decode([]byte(`{"tokens":null}`), &got); err != nil {
		t.Errorf("a null value is an absent one: %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for in, want := range map[string]string{
		``:                          "ends too early",
		`{"tokens":[1`:              "ends too early",
		`{"tokens":[1]`:             "ends too early",
		`{"id"`:                     "ends too early",
		`{"tokens":[1]}}`:           "text after",
		`{"tokens":[1]} {}`:         "text after",
		`[1]`:                       "want a JSON object with the keys id, tokens, weights",
		`null`:                      "want a JSON object",
		`x`:                         "bad JSON at byte 1",
		`{"tokens":[1,]}`:           "bad JSON at byte",
		`{"tokens" [1]}`:            "bad JSON at byte",
		`{"Tokens":[1]}`:            `unknown key "Tokens"; known here: id, tokens, weights`,
		`{"hidden":1}`:              `unknown key "hidden"`,
		`{"tokens":[1],"tokens":2}`: `key "tokens" stands twice`,
		`{"tokens":[1,null]}`:       "tokens[1] is null",
		`{"weights":[1,null]}`:      "weights[1] is null",
		`{"tokens":[1.5]}`:          `key "tokens": got number 1.5, want a whole number of 32 bits`,
		`{"tokens":[8589934593]}`:   `key "tokens": got number 8589934593, want a whole number of 32 bits`,
		`{"tokens":["1"]}`:          `key "tokens": got a text, want a whole number`,
		`{"tokens":"abc"}`:          `key "tokens": got a text, want a list`,
		`{"tokens":{}}`:             `key "tokens": got an object, want a list`,
		`{"weights":[1e39]}`:        `key "weights": got number 1e39, want a number that fits float32`,
		"{\"id\":\"\xff\"}":         "UTF-8",
		strings.Repeat("[", 20000):  "want a JSON object",
	} {
		var l line
		err := Decode([]byte(in), &l, "weights[0]")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", in, err, want)
		} else if strings.Contains(err.Error(), "Go ") || strings.Contains(err.Error(), "json:") {
			t.Errorf("%.40q: the error speaks Go: %v", in, err)
		}
	}
}

// FuzzDecode: what passes is what encoding/json reads from valid JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":1,"tokens":[1,2],"weights":[null,1]}`))
	f.Add([]byte(`{"id":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want line
		if Decode(data, &got, "weights[0]") != nil {
			return
		}
		if err := json.Unmarshal(data, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, encoding/json %+v, %v", data, got, want, err)
		}
	})
}
