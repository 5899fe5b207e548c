#!/usr/bin/env bash
# make gpu-check-bundle: bin/gpu-check with all that `run` needs on a machine without Go: copy the folder there.
set -euo pipefail
cd "$(dirname "$0")/../.."
to=bin/gpu-check
go=${GO:-go}
rm -rf "$to" && mkdir -p "$to/tree"
"$go" build -trimpath -o "$to/harness-s" ./cmd/harness-s
for package in kernels model; do
  "$go" test -c -trimpath -o "$to/$package.test" "./$package"
  mkdir -p "$to/tree/$package"
  [ ! -d "$package/testdata" ] || cp -r "$package/testdata" "$to/tree/$package/"
done
cp go.mod "$to/tree/" # marks the root that tests look for
if [ -d ../shared/data/golden ]; then mkdir -p "$to/shared/data" && cp -r ../shared/data/golden "$to/shared/data/"; fi
cp internal/gpucheck/run.sh "$to/run"
du -sh "$to" | cut -f1 | sed "s|\$| in $to; on a machine with a GPU: $to/run|"
