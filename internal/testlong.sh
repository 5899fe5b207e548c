#!/usr/bin/env bash
# make test-long: what is too slow for every change. Ends at the first failure; FUZZ=SECONDS sets each fuzz target's time.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzz_s=${FUZZ:-20}
cflags=${CGO_CFLAGS:--O2 -g}

step() { printf '\n== %s\n' "$*"; }

# Thread sanitizer of gcc 12 cannot place its shadow memory under randomised addresses of newer kernels.
fixed_addresses() { if setarch -R true 2>/dev/null; then setarch -R "$@"; else "$@"; fi; }

step "Go race detector, every package"
go test -race -timeout 60m ./...

step "C kernels under the address sanitizer"
go test -asan -timeout 30m ./kernels ./model

step "C kernels under the undefined-behaviour sanitizer"
CGO_CFLAGS="$cflags -fsanitize=undefined -fno-sanitize-recover=all" CGO_LDFLAGS="-fsanitize=undefined" \
  go test -timeout 30m ./kernels ./model

# Without the tests on simulated devices: the simulator is not built with the sanitizer, and the memory that it keeps for each of
# the simulator's short-lived threads comes to more than 20 GB. Races in device kernels are the checked build's matter, below.
step "C kernels under the thread sanitizer"
CGO_CFLAGS="$cflags -fsanitize=thread" CGO_LDFLAGS="-fsanitize=thread" TSAN_OPTIONS="halt_on_error=1" \
  fixed_addresses go test -timeout 40m -skip '^TestDevice' ./kernels

step "device kernels in the simulator's checked build: races, unwritten memory, undefined behaviour"
HARNESS_S_SIM_CHECKED=1 go test -timeout 60m -run '^TestDevice' ./kernels

step "device kernels: each barrier and wait removed in turn is seen"
HARNESS_S_LONG=1 go test -timeout 60m -count=1 -run '^TestDeviceMutants$' ./kernels

step "crash soak: kill -9 at more moments, with every real part"
HARNESS_S_LONG=1 go test -timeout 60m -count=1 ./trainer

step "gpu-check, rehearsed on the simulator"
HARNESS_S_LONG=1 go test -timeout 30m -count=1 ./internal/gpucheck

step "fuzzing, $fuzz_s s a target"
go list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r pkg dir; do
  { grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null || true; } | sed 's/^func //' | sort -u | while read -r target; do
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${fuzz_s}s" "$pkg"
  done
done

step "all of it passed"
