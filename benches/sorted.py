"""Times the median and 99 quantiles of a column that is sorted in a Parquet file against its sum.

    python benches/sorted.py --dfq target/release/dfq --rows 1e8 --folder /tmp/bench --partitions 16

Writes the file if it is not there: ascending integers, and timestamps of milliseconds.
"""

import argparse
import os
import re
import statistics
import subprocess

PERCENTILES = "[" + ", ".join(f"{i / 100:.2f}" for i in range(1, 100)) + "]"
CALLS = [
    ("sum(id)", "sum(id)"),
    ("median, Int64", "exact_quantiles(id, 0.5)"),
    ("median, timestamps", "exact_quantiles(at, 0.5)"),
    ("99 quantiles, Int64", f"exact_quantiles(id, {PERCENTILES})"),
]


def sql(dfq, partitions, commands):
    parts = [part for command in commands for part in ("-c", command)]
    command = [dfq, "sql", "--partitions", str(partitions), "--format", "csv"]
    done = subprocess.run(command + parts, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    file = os.path.join(args.folder, f"sorted-{args.rows:.0e}.parquet")
    if not os.path.exists(file):
        values = f"generate_series(1, {int(args.rows)}) AS g(value)"
        columns = "value AS id, to_timestamp_millis(value * 37) AS at"
        sql(args.dfq, 1, [f"COPY (SELECT {columns} FROM {values}) TO '{file}' STORED AS PARQUET"])
    statements = [f"SELECT {call} FROM '{file}'" for _, call in CALLS]
    output = sql(args.dfq, args.partitions, statements * args.repeat)
    elapsed = [float(seconds) for seconds in re.findall(r"Elapsed ([0-9.]+) seconds", output)]
    if len(elapsed) != len(CALLS) * args.repeat:
        raise SystemExit(f"{len(elapsed)} times: {output}")
    times = [elapsed[i :: len(CALLS)] for i in range(len(CALLS))]
    base = statistics.median(times[0])
    print("| statement | median ms | times sum | rows left out |")
    print("| --- | --- | --- | --- |")
    for (name, _), own, statement in zip(CALLS, times, statements):
        plan = sql(args.dfq, args.partitions, [f"EXPLAIN ANALYZE {statement}"])
        left_out = re.search(r"rows_left_out=([^,\]]*)", plan)
        middle = statistics.median(own)
        print(f"| {name} | {1000 * middle:.1f} | {middle / base:.3f} | {left_out.group(1) if left_out else ''} |")


if __name__ == "__main__":
    main()
