#!/usr/bin/env bash
# Groups of a table in the memory of a GPU, from SQL to the printed rows, by dfq's own clock: medians of 15 after 2, and the operator's metrics.
# Then the first questions after PIN TABLE of a process whose cache of kernels is empty.
#
#   benches/cuda_groups.sh target/release/dfq [ROWS [DEVICE]]
set -euo pipefail
dfq="$1"
rows="${2:-268435456}"
device="${3:-auto}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export QUANTILES_CUDA_CACHE="$work/kernels"

cat > "$work/setup.sql" <<SQL
SET quantiles.device = '$device';
CREATE TABLE t AS SELECT CAST(random() AS REAL) AS x, CAST(floor(random() * 1000) AS INT) AS g, CAST(floor(random() * 1000000) AS INT) AS m,
    CAST(floor(random() * 10000) AS INT) AS h, CAST(CASE WHEN random() < 0.9 THEN 7 ELSE floor(random() * 1000) END AS INT) AS giant,
    CAST(floor(1 / (random() + 0.001)) AS INT) AS zipf, CAST(value AS INT) AS id FROM generate_series(1, $rows);
PIN TABLE t (x, g, m, h, giant, zipf, id);
SQL
three="exact_quantiles(x, [0.5, 0.9, 0.99])"
statements=(
    "SELECT g, $three FROM t GROUP BY g"
    "SELECT m, $three FROM t GROUP BY m"
    "SELECT giant, $three FROM t GROUP BY giant"
    "SELECT zipf, $three FROM t GROUP BY zipf"
    "SELECT g, topk_by(id, x, 10) FROM t GROUP BY g"
    "SELECT m, topk_by(id, x, 10) FROM t GROUP BY m"
    "SELECT h, topk_by(id, x, 100) FROM t GROUP BY h"
    "SELECT m, id, x FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY m ORDER BY x DESC) <= 10"
)
cp "$work/setup.sql" "$work/all.sql"
for statement in "${statements[@]}"; do
    for _ in $(seq 17); do echo "$statement;" >> "$work/all.sql"; done
done
for statement in "${statements[@]}"; do echo "EXPLAIN ANALYZE $statement;" >> "$work/all.sql"; done
# What runs while kernels are compiled on all cores is another question, below.
"$dfq" cuda warm > /dev/null
"$dfq" sql --no-config --maxrows 5 < "$work/all.sql" > "$work/answers" 2> "$work/times"
python3 - "$work/times" "${statements[@]}" <<'PY'
import re, sys
times = [1000 * float(text) for text in re.findall(r"Elapsed ([0-9.]+) s", open(sys.argv[1]).read())][3:]
for at, statement in enumerate(sys.argv[2:]):
    later = sorted(times[17 * at + 2 : 17 * at + 17])
    print(f"{later[7]:6.0f} ms (least {later[0]:.0f})  {statement}")
PY
grep -o "PinnedExec: .*" "$work/answers" | grep -oE "gby=\[[^]]*\], calls=\[[^|]*\], fallback|elapsed_compute=[^,]*|device_time=[^,]*|second_reads=[^,]*"

rm -rf "$QUANTILES_CUDA_CACHE"
{
    echo "SET quantiles.device = '$device';"
    echo "CREATE TABLE t AS SELECT CAST(random() AS REAL) AS x, CAST(floor(random() * 1000) AS INT) AS g, CAST(value AS INT) AS id FROM generate_series(1, $rows);"
    echo "PIN TABLE t (x, g, id);"
    echo "SELECT exact_quantiles(x, 0.5) FROM t;"
    echo "SELECT count(*) FROM (SELECT g, $three FROM t GROUP BY g);"
    echo "SELECT count(*) FROM (SELECT g, topk_by(id, x, 10) FROM t GROUP BY g);"
} > "$work/cold.sql"
echo "cold: table, PIN, median, three quantiles by 1000 groups, ten best of 1000 groups"
"$dfq" sql --no-config < "$work/cold.sql" 2>&1 > /dev/null
