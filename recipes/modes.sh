#!/usr/bin/env bash
# The controls side by side: every rescue mode at the same number of rollouts, from the same policy, several seeds.
#
#   recipes/modes.sh OUT [MODE...]      SEEDS="1 2 3" ROLLOUTS=4000 JOBS=2 TASKS=200 recipes/modes.sh runs/modes
#
# Writes OUT/table.md: H0 Avg@3 and Pass@3 on held-out tasks after training, a run each and their mean with the half width
# of a 95% t interval. A run that is complete is not repeated; an interrupted one is resumed.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: recipes/modes.sh OUT [MODE...]}
shift
modes=("$@")
[ ${#modes[@]} -gt 0 ] || modes=(off resample random repeat fixed mixture prefix routed)
seeds=${SEEDS:-1 2 3} rollouts=${ROLLOUTS:-4000} jobs=${JOBS:-2} tasks=${TASKS:-200}
bin=${BIN:-bin/harness-s}
mkdir -p "$out"

run() { # mode seed
  local dir="$out/$1-$2" resume=()
  [ -s "$dir/summary.json" ] && return
  [ -e "$dir/config.yaml" ] && resume=(--resume)
  "$bin" train "${CONFIG:-recipes/quickstart.yaml}" --run "$dir" "${resume[@]}" \
    --set rescue.mode="$1" --set seed="$2" --set threads="$threads" --set budget.rollouts="$rollouts" \
    --set data.test="$tasks" --set eval.ends=h0 --set eval.every=0 --set checkpoint.every=25 >>"$out/$1-$2.log" 2>&1 ||
    { echo "$1, seed $2: failed, see $out/$1-$2.log" >&2; return 1; }
  echo "$1, seed $2: done" >&2
}
cores=$(nproc)
threads=$((cores / jobs > 0 ? cores / jobs : 1))
export -f run
export out bin rollouts tasks threads CONFIG

for seed in $seeds; do for mode in "${modes[@]}"; do printf '%s %s\n' "$mode" "$seed"; done; done |
  xargs -P "$jobs" -L 1 bash -c 'run "$0" "$1"'

# field FILE before|after KEY: a number of the h0 entry of a summary.json
field() { tr -d ' \n' <"$1" | sed -E "s/.*\"$2\":\{[^}]*\"h0\":\{([^}]*)\}.*/\1/" | tr ',' '\n' | sed -n "s/\"$3\"://p"; }
whole() { tr -d ' \n' <"$1" | grep -oE "\"$2\":[0-9.]+" | cut -d: -f2; }
{
  echo "| mode | Avg@3 before | Avg@3 after, by seed | mean ± 95% | Pass@3 after | rescued groups with a success | steps |"
  echo "|---|---|---|---|---|---|---|"
  for mode in "${modes[@]}"; do
    for seed in $seeds; do
      s="$out/$mode-$seed/summary.json"
      echo "$(field "$s" before avg@3) $(field "$s" after avg@3) $(field "$s" after pass@3) $(whole "$s" rescued_share) $(whole "$s" steps)"
    done | awk -v mode="$mode" '
      function t95(n) { split("0 12.71 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262", t, " "); return n in t ? t[n] : 1.96 }
      { b += $1; a[NR] = $2; sum += $2; p += $3; r += $4; st += $5 }
      END {
        m = sum / NR
        for (i = 1; i <= NR; i++) { list = list " " sprintf("%.2f", a[i]); v += (a[i] - m) ^ 2 }
        half = ""; if (NR > 1) half = sprintf(" ± %.2f", t95(NR) * sqrt(v / (NR - 1) / NR))
        printf "| %s | %.2f |%s | %.2f%s | %.2f | %.2f | %.0f |\n", mode, b / NR, list, m, half, p / NR, r / NR, st / NR
      }'
  done
} >"$out/table.md"
cat "$out/table.md"
