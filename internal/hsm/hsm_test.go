package hsm

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestEncodeDecode(t *testing.T) {
	images := []Image{{"sm_80", bytes.Repeat([]byte("abc"), 1000)}, {"sm_90a", nil}, {PTXArch, []byte(".version 8.8\n")}}
	data, err := Encode(images)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := Encode(images); !bytes.Equal(data, again) {
		t.Error("two encodings differ")
	}
	got, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range images {
		if got[i].Arch != want.Arch || !bytes.Equal(got[i].Data, want.Data) {
			t.Errorf("image %d is %s of %d bytes, want %s of %d", i, got[i].Arch, len(got[i].Data), want.Arch, len(want.Data))
		}
	}
}

// A damaged container is an error, never a wrong image: zstd's checksum stands behind it.
func TestDecodeDamaged(t *testing.T) {
	data, err := Encode([]Image{{"sm_80", bytes.Repeat([]byte("code "), 100)}, {"sm_90a", []byte("more")}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 0x41
		if images, err := Decode(bad); err == nil && (len(images) != 2 || string(images[1].Data) != "more") {
			t.Errorf("byte %d changed: %d images and no error", i, len(images))
		}
		if _, err := Decode(data[:i]); err == nil {
			t.Errorf("cut to %d bytes: no error", i)
		}
	}
}

func TestTableRoundTrip(t *testing.T) {
	table := Table{NVRTC: NVRTC, Options: Options()}
	table.Set(File{Name: "b.cu", Sources: "12", Includes: []string{"x.cuh"}, Module: "34",
		Kernels: []Kernel{{Name: "b_f32", Arch: "sm_80", Registers: 40, Shared: 128, Constant: 400, Params: 48, MaxThreads: 256}}})
	table.Set(File{Name: "a.cu", Sources: "old"})
	table.Set(File{Name: "a.cu", Sources: "56", Includes: []string{}, Module: "78", Kernels: []Kernel{}})
	got, err := ParseTable(table.Format())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, table) {
		t.Errorf("got  %+v\nwant %+v", got, table)
	}
	if k, ok := got.Kernel("b_f32", "sm_80"); !ok || k.Registers != 40 {
		t.Errorf("kernel: %+v, %v", k, ok)
	}
	if _, ok := got.File("c.cu"); ok {
		t.Error("found a file that is not there")
	}
}

func TestSourcesAreTransitive(t *testing.T) {
	dir := fstest.MapFS{
		"k.cu":  {Data: []byte("#include \"a.cuh\"\n")},
		"a.cuh": {Data: []byte("#pragma once\n # include \"b.cuh\"\n#include \"a.cuh\"\n#include \"host.h\"\n")},
		"b.cuh": {Data: []byte("// b\n")},
		"c.cuh": {Data: []byte("// not included\n")},
		"x.cu":  {Data: []byte("#include \"missing.cuh\"\n")},
	}
	hash := func() string {
		text, headers, err := Sources(dir, "k.cu")
		if err != nil || len(headers) != 2 {
			t.Fatalf("%d headers, %v", len(headers), err)
		}
		return SourceHash("k.cu", text, headers)
	}
	before := hash()
	dir["c.cuh"].Data = []byte("// changed\n")
	if hash() != before {
		t.Error("a file that is not included counts")
	}
	dir["b.cuh"].Data = []byte("// changed\n")
	if hash() == before {
		t.Error("an included file does not count")
	}
	if _, _, err := Sources(dir, "x.cu"); err == nil || !strings.Contains(err.Error(), "x.cu includes missing.cuh") {
		t.Errorf("a missing include: %v", err)
	}
}

// What NVRTC 12.9 says, shortened.
const ptxasLog = `rmsnorm.cu(12): warning #177-D: variable "x" was declared but never referenced

ptxas info    : 12 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function 'tt_bf16' for 'sm_80'
ptxas info    : Function properties for tt_bf16
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 57 registers, used 1 barriers, 128 bytes smem, 376 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 20.556 ms
ptxas info    : Compiling entry function 'callee' for 'sm_90a'
ptxas info    : Function properties for callee
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 264 bytes cumulative stack size
ptxas info    : Function properties for _ZN4deepEPfi
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
`

func TestParseReport(t *testing.T) {
	reports, rest, err := ParseReport(ptxasLog)
	if err != nil {
		t.Fatal(err)
	}
	want := []Report{{Name: "tt_bf16", Registers: 57, Shared: 128}, {Name: "callee", Registers: 32, Stack: 272, SpillStores: 16, SpillLoads: 12}}
	if !reflect.DeepEqual(reports, want) {
		t.Errorf("got %+v, want %+v", reports, want)
	}
	if !strings.Contains(rest, "#177-D") || strings.Contains(rest, "ptxas") {
		t.Errorf("other lines: %q", rest)
	}
	if _, _, err := ParseReport("ptxas info    : Used 57 registers\n"); err == nil {
		t.Error("registers of no kernel: no error")
	}
}

func TestInspectPTX(t *testing.T) {
	const text = `.version 8.8
.target sm_80
.visible .entry tt_f32(
	.param .align 8 .b8 tt_f32_param_0[24]
)
.maxntid 128, 1, 1
{
	ret;
}
.visible .entry two(
	.param .u64 two_param_0,
	.param .f32 two_param_1
)
{
`
	got, err := Inspect(Image{PTXArch, []byte(text)})
	want := map[string]Entry{"tt_f32": {Params: 24, MaxThreads: 128}, "two": {Params: 12}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := Inspect(Image{PTXArch, []byte("\x7fELF")}); err == nil {
		t.Error("ELF read as PTX")
	}
	if _, err := Inspect(Image{"sm_80", []byte(text)}); err == nil {
		t.Error("PTX read as ELF")
	}
}
