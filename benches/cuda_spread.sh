#!/usr/bin/env bash
# Groups of a table on one GPU and on all GPUs of the machine, from SQL to the printed rows, by dfq's own clock: medians and least of 6 after 1, in
# milliseconds, and once on the CPU. Says whether all answers are equal; sums of floats may differ in the last digits, as DataFusion adds in any order.
#
#   benches/cuda_spread.sh target/release/dfq [ROWS]
set -euo pipefail
dfq="$1"
rows="${2:-134217728}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export QUANTILES_CUDA_CACHE="$work/kernels"

three="exact_quantiles(x, [0.5, 0.9, 0.99])"
statements=(
    "SELECT sum(g * 1.0 + a[1] + 2 * a[2] + 3 * a[3]), count(*) FROM (SELECT g, $three AS a FROM t GROUP BY g)"
    "SELECT sum(m * 1.0 + a[1] + 2 * a[2] + 3 * a[3]), count(*) FROM (SELECT m, $three AS a FROM t GROUP BY m)"
    "SELECT sum(g * 1.0 + a[1] + 2 * a[2] + 3 * a[10]), count(*) FROM (SELECT g, topk_by(id, u, 10) AS a FROM t GROUP BY g)"
    "SELECT sum(m * 1.0 + a[1] + 2 * a[2] + 3 * a[10]), count(*) FROM (SELECT m, topk_by(id, u, 10) AS a FROM t GROUP BY m)"
    "SELECT sum(zipf * 1.0 + a[1] + 2 * a[2]), count(*) FROM (SELECT zipf, topk_by(id, u, 1000) AS a FROM t WHERE g < 500 GROUP BY zipf)"
    "SELECT sum(id * n), count(*) FROM (SELECT id, row_number() OVER (PARTITION BY m ORDER BY u) AS n FROM t) WHERE n <= 3"
    "SELECT sum(id), count(*) FROM (SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY u DESC) <= 100)"
)
{
    echo "CREATE TABLE t AS SELECT CAST(random() AS REAL) AS x, CAST(floor(random() * 1000) AS INT) AS g,
        CAST(floor(random() * 1000000) AS INT) AS m, CAST(floor(1 / (random() + 0.001)) AS INT) AS zipf, CAST(value AS INT) AS id,
        CAST(value * 7919 % 2147483647 AS INT) AS u FROM generate_series(1, $rows);"
    echo "SET quantiles.device = 'cpu';"
    printf '%s;\n' "${statements[@]}"
    for device in cuda:0 cuda:all; do
        echo "SET quantiles.device = '$device'; PIN TABLE t (x, g, m, zipf, id, u);"
        for statement in "${statements[@]}"; do
            for _ in $(seq 7); do echo "$statement;"; done
        done
        echo "UNPIN TABLE t;"
    done
} > "$work/all.sql"
# What runs while kernels are compiled on all cores is another question.
"$dfq" cuda warm --device cuda:all > /dev/null
"$dfq" sql --no-config --format csv < "$work/all.sql" > "$work/answers" 2> "$work/times"
python3 - "$work/times" "$work/answers" "${statements[@]}" <<'PY'
import math, re, sys
times = [1000 * float(text) for text in re.findall(r"Elapsed ([0-9.]+) s", open(sys.argv[1]).read())]
answers = [line for line in open(sys.argv[2]).read().split("\n") if re.match(r"^[-0-9.e+]+,\d+$", line)]
statements = sys.argv[3:]
count = len(statements)


def numbers(answer):
    return [float(text) for text in answer.split(",")]


def equal(one, other):
    return one == other or all(math.isclose(a, b, rel_tol=1e-14) for a, b in zip(numbers(one), numbers(other)))


if len(answers) != 15 * count or len(times) != 2 + 15 * count + 6:
    sys.exit(f"{len(answers)} answers, {len(times)} times: see {sys.argv[1]}")
cpu, cards = answers[:count], answers[count:]
of_cpu, rest = times[2 : 2 + count], times[2 + count :]
for device in range(2):
    own = rest[device * (7 * count + 3) :][2:]
    for at, statement in enumerate(statements):
        later = sorted(own[7 * at + 1 : 7 * at + 7])
        start = 7 * (device * count + at)
        same = all(equal(answer, cpu[at]) for answer in cards[start : start + 7])
        name = ["one GPU ", "all GPUs"][device]
        print(f"{name} {later[3]:6.0f} (least {later[0]:.0f}), CPU {of_cpu[at]:.0f}, {'equal' if same else 'DIFFERENT'}: {statement}")
PY
