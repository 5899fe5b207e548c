package llm

import (
	"testing"

	"harness-s/internal/strictyaml"
)

func TestSchemaOf(t *testing.T) {
	type part struct {
		Text string             `json:"text"`
		Args []strictyaml.Field `json:"args,omitempty"`
		Skip string             `json:"-"`
	}
	type whole struct {
		Z     int               `json:"z"`
		A     []part            `json:"a,omitempty"`
		One   *part             `json:"one,omitempty"`
		On    bool              `json:"on,omitempty"`
		Facts map[string]string `json:"facts,omitempty"`
	}
	const part1 = `{"type":"object","properties":{"text":{"type":"string"},"args":{"type":"object"}},"required":["text"],"additionalProperties":false}`
	want := `{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"array","items":` + part1 + `},"one":` + part1 +
		`,"on":{"type":"boolean"},"facts":{"type":"object","additionalProperties":{"type":"string"}}},"required":["z"],"additionalProperties":false}`
	if got := string(SchemaOf[whole]()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
