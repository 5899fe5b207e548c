#!/usr/bin/env bash
# gpu-check: everything that only a GPU can show, in at most 12 minutes on one device. Needs NVIDIA's driver, cuBLASLt
# (any PyTorch or vLLM install has it; or HARNESS_S_CUBLASLT) and nothing else: programs and tests lie beside this file.
#
#   ./run [OUT]                        results in OUT (default: results beside this file)
#   GPU_CHECK_BACKEND=sim ./run        a rehearsal on the simulator, with tiny shapes
#
# Every stage has its own time limit, and what it wrote stays when it fails or runs out of time:
# OUT/STAGE.log, OUT/STAGE.json (benchmarks), OUT/summary.json, OUT/table.txt. Ends non-zero when a stage did not pass.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/results}
backend=${GPU_CHECK_BACKEND:-cuda}
total=720
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
rm -f "$out"/*.log "$out"/*.json "$out"/table.txt
export HARNESS_S_TEST_DEVICE=$backend

sizes=(0.8b 4b 9b) tokens=32768 ranks=8 repeat=5
[ "$backend" = sim ] && sizes=(tiny) tokens=128 ranks=1 repeat=1

start=$SECONDS failed=0 stages=""

# stage NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, and no longer than what is left of the whole.
stage() {
  local name=$1 limit=$2 begin=$SECONDS rc left=$((total - SECONDS + start))
  shift 2
  [ "$limit" -gt "$left" ] && limit=$left
  printf '%-18s ' "$name"
  if [ "$limit" -le 0 ]; then
    rc=124
    echo "out of time" >"$out/$name.log"
  else
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    rc=$?
  fi
  local verdict=ok
  [ $rc -eq 124 ] && verdict="out of time"
  [ $rc -ne 0 ] && [ $rc -ne 124 ] && verdict="FAILED ($rc)"
  [ $rc -ne 0 ] && failed=$((failed + 1))
  printf '%-14s %4d s of %4d\n' "$verdict" $((SECONDS - begin)) "$limit"
  [ $rc -ne 0 ] && tail -n 15 "$out/$name.log" | sed 's/^/    /'
  stages+="${stages:+,}
  {\"stage\": \"$name\", \"rc\": $rc, \"seconds\": $((SECONDS - begin)), \"limit\": $limit}"
  printf '{"backend": "%s", "failed": %d, "seconds": %d, "stages": [%s]}\n' "$backend" "$failed" $((SECONDS - start)) "$stages" >"$out/summary.json"
  return 0
}

# tests PACKAGE ARGS...: a package's tests, run where their data lies.
tests() { (cd "$here/tree/$1" && exec "$here/$1.test" -test.v -test.count=1 "${@:2}"); }
export -f tests
export here

stage doctor 20 "$here/harness-s" doctor
stage modules 30 bash -c 'tests "$@"' tests kernels -test.run '^TestDeviceLoadsEveryKernel$'
stage goldens 60 bash -c 'tests "$@"' tests model -test.run '^TestGolden(OnDevice|InBF16)$'
stage ops 120 bash -c 'tests "$@"' tests kernels -test.run '^TestDevice' -test.skip '^TestDevice(AgainstCPU|LoadsEveryKernel|Mutants)$'
stage ops-real 150 bash -c 'tests "$@"' tests kernels -test.run '^TestDeviceAgainstCPU$'
for size in "${sizes[@]}"; do
  stage "kernels-$size" 50 "$here/harness-s" bench kernels --backend "$backend" --size "$size" --tokens $tokens --repeat $repeat --limit 40s --json "$out/kernels-$size.json"
done
for size in "${sizes[@]}"; do
  stage "step-$size" 60 "$here/harness-s" bench step --backend "$backend" --size "$size" --tokens $tokens --ranks $ranks --repeat $repeat --limit 25s --json "$out/step-$size.json"
done

{
  echo "gpu-check on $backend: $((SECONDS - start)) s, $failed stage(s) not passed"
  cat "$out"/kernels-*.log "$out"/step-*.log 2>/dev/null
} >"$out/table.txt"
cat "$out/table.txt"
echo "results in $out"
[ "$failed" -eq 0 ]
