package strictyaml

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

type all struct {
	S string   `yaml:"s"`
	I int64    `yaml:"i"`
	F float64  `yaml:"f"`
	B bool     `yaml:"b"`
	P *leaf    `yaml:"p,omitempty"`
	L []leaf   `yaml:"l,omitempty"`
	T []string `yaml:"t,omitempty"`
	A []Field  `yaml:"a,omitempty"`
}

type leaf struct {
	S string `yaml:"s"`
	O string `yaml:"o,omitempty"`
	I int    `yaml:"i,omitempty"`
}

// hardText leans towards what YAML writers get wrong.
var hardText = rapid.OneOf(
	rapid.SampledFrom([]string{"", " ", "\n", "a\n", "a\n\n", "\na", " a\nb", "a \nb", "a\n  b\n c", "- a", "a: b", "#x\ny", "true", "12",
		"1.5", "null", "'", `"`, `\`, "|", ">", "{{question}}", "a\n\tb", "a\n\nb", "x # y", "é\u2028\U0001F600", "%", "@a", "*a", "&a", "---\na", "a\n---\nb", "...\nb\n"}),
	rapid.StringMatching(`[ a-c:#\-'"\\\n\t{}\[\],&*!|>%@é]{0,24}`),
)

func TestEncodeDecodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mk := func(i int) leaf {
			return leaf{hardText.Draw(t, "s"), hardText.Draw(t, "o"), rapid.IntRange(-3, 3).Draw(t, "i")}
		}
		want := all{S: hardText.Draw(t, "s"), I: rapid.Int64().Draw(t, "i"), B: rapid.Bool().Draw(t, "b"),
			F: rapid.Float64Range(-1e300, 1e300).Draw(t, "f")}
		if rapid.Bool().Draw(t, "p") {
			l := mk(0)
			want.P = &l
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "n") {
			want.L = append(want.L, mk(i))
			want.T = append(want.T, hardText.Draw(t, "t"))
		}
		if rapid.Bool().Draw(t, "a") {
			j, _ := Marshal([]string{hardText.Draw(t, "av")})
			want.A = append(want.A, Field{"k", j}, Field{"answers it", []byte("null")})
		}
		text := Encode(&want)
		var got all
		_, problems := Decode("rt", text, &got)
		if len(problems) != 0 {
			t.Fatalf("%v\n%s", problems, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %#v\nwant %#v\n%s", got, want, text)
		}
	})
}
