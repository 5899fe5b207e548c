package pylit

import (
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
)

func i(n int64) *big.Int { return big.NewInt(n) }

// The right-hand sides were printed by CPython's ast.literal_eval and repr.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want any
	}{
		{"None", nil}, {" True ", true}, {"(False)", false}, {"-7", i(-7)}, {"+-7", i(-7)}, {"1_000", i(1000)}, {"0x_fF", i(255)}, {"0b11", i(3)}, {"00", i(0)},
		{"1.", 1.0}, {".5", 0.5}, {"1e3", 1000.0}, {"1_0.0_1e+1_0", 10.01e10}, {"1e999", math.Inf(1)}, {"-0.0", math.Copysign(0, -1)},
		{`'a'`, "a"}, {`"a'b"`, "a'b"}, {`'a' "b"`, "ab"}, {`'''a'b
c'''`, "a'b\nc"}, {`r'\n'`, `\n`}, {`'\x41\u0042\103\q\n'`, "ABC\\q\n"}, {`b'\xff'`, Bytes("\xff")}, {`''`, ""},
		{"[]", List{}}, {"[1, 'a',]", List{i(1), "a"}}, {"()", Tuple{}}, {"(1,)", Tuple{i(1)}}, {"(1)", i(1)}, {"[('a',), (None, 1.5)]", List{Tuple{"a"}, Tuple{nil, 1.5}}},
		{"{1: 'a', }", Dict{{i(1), "a"}}},
	} {
		got, err := Parse(c.in)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %#v %v, want %#v", c.in, got, err, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, in := range []string{
		"", "x", "1+1", "f'x'", "[1", "[1 2]", "(,)", "[,]", "'a", "'a\nb'", "__import__('os')", "{1}", "1j", "0x", "0b2", "1__0", "1_", "_1", "007", "1e", ".", "- ", "-'a'",
		"'\\x4'", "b'é'", "'a' b'b'", "nan", "Decimal('1')", "[1][0]", "1 # c", "0x1p3", strings.Repeat("[", 100) + strings.Repeat("]", 100), strings.Repeat("-", 100) + "1",
	} {
		if v, err := Parse(in); err == nil {
			t.Errorf("%.40s: read as %#v", in, v)
		}
	}
}

func TestRepr(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, "None"}, {true, "True"}, {int64(-3), "-3"}, {1.0, "1.0"}, {0.1, "0.1"}, {1e16, "1e+16"}, {123456789012345680.0, "1.2345678901234568e+17"}, {9007199254740993.0, "9007199254740992.0"},
		{0.0001, "0.0001"}, {0.00001, "1e-05"}, {math.Inf(-1), "-inf"}, {math.NaN(), "nan"}, {math.Copysign(0, -1), "-0.0"},
		{"a", "'a'"}, {"it's", `"it's"`}, {`it's "x"`, `'it\'s "x"'`}, {`a\b`, `'a\\b'`}, {"a\nb\x00\x7f\u00a0\u200b\U000e0001", `'a\nb\x00\x7f\xa0\u200b\U000e0001'`}, {"Đ–é\u0301", "'Đ–é\u0301'"},
		{Bytes("a'\xff\n"), `b"a'\xff\n"`}, {List{}, "[]"}, {List{Tuple{"a"}, Tuple{nil, int64(1)}}, "[('a',), (None, 1)]"}, {Tuple{}, "()"}, {Dict{{"a", int64(1)}, {"b", nil}}, "{'a': 1, 'b': None}"},
	} {
		if got := Repr(c.v); got != c.want {
			t.Errorf("%#v: %s, want %s", c.v, got, c.want)
		}
	}
	if Str("a") != "a" || Str(nil) != "None" {
		t.Error("Str")
	}
}

// FuzzParse: what parses is written back to a text that parses to the same value.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"[('a',), (None, 1.5)]", `{'a': b"\xff"}`, "-0x1f", `'\u00e9' "x"`, "[[[1]]]", "1_0e-3", "r'\\'", "\xff'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := Parse(s)
		if err != nil {
			return
		}
		text := Repr(v)
		if strings.Contains(text, "inf") {
			return // inf is no literal
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", s, text, err)
		}
		if Repr(again) != text {
			t.Fatalf("%q becomes %q becomes %q", s, text, Repr(again))
		}
	})
}
