package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What the engine itself finds, without the checked build, under every seed.
func TestFaultsAreErrors(t *testing.T) {
	in := count(1024)
	for _, c := range []struct {
		launch
		want []string
	}{
		{launch{kernel: "divergent_barrier", threads: 64}, []string{"divergent barrier", "cu/faults.cu"}},
		{launch{kernel: "skipped_barrier", threads: 64}, []string{"missing barrier", "thread 40 has ended", "__syncthreads of cu/faults.cu"}},
		{launch{kernel: "divergent_shuffle"}, []string{"divergent warp", "shuffle", "cu/faults.cu"}},
		{launch{kernel: "half_shuffle", threads: 64}, []string{"divergent warp", "shuffle with mask ffffffff", "__syncthreads"}},
		{launch{kernel: "ended_lane"}, []string{"divergent warp", "thread 5 has ended"}},
		{launch{kernel: "lane_not_in_mask"}, []string{"not in the mask 0000ffff"}},
		{launch{kernel: "reads_other_half"}, []string{"reads lane 20", "0000ffff"}},
		{launch{kernel: "shuffles", threads: 24, p: [4]int{16}, out: 120}, []string{"shuffle", "not in the block"}},
		{launch{kernel: "misaligned_ldmatrix"}, []string{"ldmatrix", "16-byte aligned"}},
		{launch{kernel: "ldmatrix_of_global"}, []string{"ldmatrix", "shared memory"}},
		{launch{kernel: "part_of_a_warp", threads: 16}, []string{"ldmatrix needs a whole warp", "16 threads"}},
		{launch{kernel: "misaligned_load"}, []string{"misaligned", "multiple of 16"}},
		{launch{kernel: "misaligned_copy"}, []string{"cp.async", "source", "16-byte aligned"}},
		{launch{kernel: "copy_to_global"}, []string{"cp.async", "destination", "shared memory"}},
		{launch{kernel: "past_dynamic", dynamic: 100, p: [4]int{32, 0}}, []string{"past the end of its 100 bytes of dynamic"}},
		{launch{kernel: "past_dynamic", dynamic: 128, p: [4]int{32, 1}}, []string{"past the end of its 128 bytes of dynamic"}},
		{launch{kernel: "past_dynamic", dynamic: 100, p: [4]int{26, 1}}, []string{"wrote past the end of its 100 bytes"}},
		{launch{kernel: "past_dynamic", dynamic: 100, p: [4]int{-58800, 1}}, []string{"outside its shared memory"}},
		{launch{kernel: "too_little_dynamic", dynamic: 396}, []string{"declares 400 bytes", "launched with 396"}},
		{launch{kernel: "past_dynamic", dynamic: 230 << 10}, []string{"at most 232448"}},
		{launch{kernel: "too_much_static"}, []string{"52000 static bytes", "at most 49152"}},
		{launch{kernel: "null_pointer", p: [4]int{16}}, []string{"illegal address 0x"}},
		{launch{kernel: "division"}, []string{"division by zero"}},
		{launch{kernel: "deep_stack", p: [4]int{1000}}, []string{"stack", "full"}},
		{launch{kernel: "arrival", threads: 65}, []string{"launched with 65 threads", "made for 64"}},
	} {
		for _, seed := range []uint64{0, 1, 2, 3} {
			c.launch.seed, c.in, c.launch.out = seed, in, max(c.launch.out, 1024)
			_, _, err := c.run(t)
			if err == nil {
				t.Errorf("%s, seed %d: no error", c.kernel, seed)
				continue
			}
			for _, w := range append(c.want, "kernel "+c.kernel) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s, seed %d: %q lacks %q", c.kernel, seed, err, w)
				}
			}
		}
	}
}

// A launch that failed leaves the engine fit for the next one.
func TestLaunchAfterFault(t *testing.T) {
	l := launch{kernel: "past_dynamic", dynamic: 128, in: count(4), out: 4, repeat: 10}
	l.must(t)
	l.p[0] = 32
	if _, _, err := l.run(t); err == nil {
		t.Error("no error")
	}
}

// A missing barrier gives a wrong sum under most random orders; poison makes sure that it is not nearly right.
func TestRandomOrderShowsMissingBarrier(t *testing.T) {
	in := make([]uint32, 128)
	for i := range in {
		in[i] = 1
	}
	wrong := 0
	for seed := range uint64(8) {
		out, _ := launch{kernel: "missing_barrier", threads: 128, in: in, out: 1, seed: seed}.must(t)
		if seed == 0 && out[0] != 128 {
			t.Errorf("ascending order hides it, got %d", out[0])
		}
		if out[0] != 128 {
			wrong++
		}
	}
	if wrong < 6 {
		t.Errorf("%d of 7 random orders show it", wrong)
	}
}

// With seed 0 every copy is as late as it may be; with random ones it is seldom all there before the wait.
func TestReadBeforeWaitSeesPoison(t *testing.T) {
	for seed := range uint64(4) {
		out, _ := launch{kernel: "read_before_wait", in: count(128), out: 32, seed: seed}.must(t)
		if !slices.Contains(out, 0xffffffff) {
			t.Errorf("seed %d: every copy was there before its wait", seed)
		}
	}
	bad := 0
	for seed := range uint64(8) {
		out, _ := launch{kernel: "wait_without_barrier", threads: 128, in: count(512), out: 128, seed: seed + 1}.must(t)
		if slices.Contains(out, 0xffffffff) {
			bad++
		}
	}
	if bad != 8 {
		t.Errorf("%d of 8 orders show that a neighbour's copy was not waited for", bad)
	}
}

func TestSharedMemoryIsPoisoned(t *testing.T) {
	out, _ := launch{kernel: "uninitialised", out: 32, repeat: 3}.must(t)
	for i, w := range out {
		if w&0x7fffffff <= 0x7f800000 {
			t.Fatalf("lane %d reads %08x from memory that nobody wrote", i, w)
		}
	}
}

// What only the checked build finds, whatever the order: it names both places.
func TestCheckedBuild(t *testing.T) {
	checked := Options{Checked: true}
	in := count(1024)
	line := func(kernel, text string) string { return lineOf(t, "testdata/cu/faults.cu", kernel, text) }
	for _, c := range []struct {
		launch
		want []string
	}{
		{launch{kernel: "missing_barrier", threads: 128}, []string{"shared memory part", line("missing_barrier", "s += part[i]")}},
		{launch{kernel: "missing_syncwarp"}, []string{"race", line("missing_syncwarp", "part[threadIdx.x] ="), line("missing_syncwarp", "part[v]")}},
		{launch{kernel: "reused_too_early", threads: 128}, []string{"race", line("reused_too_early", "value = i"), line("reused_too_early", "= value;")}},
		{launch{kernel: "two_blocks_write", blocks: 2}, []string{"race", "global memory", "of block number", line("two_blocks_write", "a.out")}},
		{launch{kernel: "read_before_wait"}, []string{"race", "the copy of thread", "under way", line("read_before_wait", "cp_async16"), line("read_before_wait", "m[threadIdx.x].w[0]")}},
		{launch{kernel: "wait_without_barrier", threads: 128}, []string{line("wait_without_barrier", "m[threadIdx.x ^ 64]")}},
		{launch{kernel: "uninitialised"}, []string{"uninitialised", "shared memory m", line("uninitialised", "+ 1")}},
		{launch{kernel: "past_dynamic", dynamic: 128, p: [4]int{-30}}, []string{"outside", line("past_dynamic", "else")}},
		{launch{kernel: "past_array", p: [4]int{5}}, []string{"index outside its array", line("past_array", "x[a.p[0] & 7]")}},
		{launch{kernel: "int_offset", p: [4]int{1 << 20, 1 << 12}}, []string{"overflow of a signed product", line("int_offset", "a.p[1]")}},
	} {
		for _, seed := range []uint64{0, 1} {
			c.launch.seed, c.in, c.launch.out, c.options = seed, in, 1024, checked
			_, _, err := c.run(t)
			if err == nil {
				t.Errorf("%s, seed %d: no error", c.kernel, seed)
				continue
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s, seed %d: %q lacks %q", c.kernel, seed, err, w)
				}
			}
		}
	}
}

// Kernels that are right pass the checked build.
func TestCheckedBuildIsQuiet(t *testing.T) {
	checked := Options{Checked: true}
	for _, l := range []launch{
		{kernel: "with_syncwarp", out: 32},
		{kernel: "sums", blocks: 3, threads: 128, out: 3},
		{kernel: "instantiations", threads: 64, out: 128},
		{kernel: "copies", threads: 64, dynamic: 4096, out: 768, p: [4]int{4, 1}},
		{kernel: "product_nt_bf16", threads: 128, dynamic: productBytes("nt", "bf16"), out: 4096},
		{kernel: "product_tn_f32", threads: 128, dynamic: productBytes("tn", "f32"), out: 4096},
		{kernel: "tiles_bf16", threads: 128, dynamic: 4096, out: 160, p: [4]int{10, 7}},
	} {
		l.in, l.options, l.repeat = make([]uint32, 4096), checked, 3
		l.must(t)
	}
}

// lineOf is "cu/FILE:LINE" of the first line after a kernel's start that holds text.
func lineOf(t *testing.T, file, kernel, text string) string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for i, line := range strings.Split(string(source), "\n") {
		inside = inside || strings.HasPrefix(line, "KERNEL("+kernel+",")
		if inside && strings.Contains(line, text) {
			return fmt.Sprintf("cu/%s:%d", filepath.Base(file), i+1)
		}
	}
	t.Fatalf("%s has no %q in %s", file, text, kernel)
	return ""
}
