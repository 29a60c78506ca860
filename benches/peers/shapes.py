"""Times `dfq` on data that misleads a sample, and on growing data: ratios count, not seconds.

    pip install numpy pyarrow
    cargo build --release
    python benches/peers/shapes.py --dfq target/release/dfq --data /tmp/shapes

Writes Parquet files into the folder (about 2 GB, kept for the next time): one of 3e7 rows with a column of 64-bit
integers for each pattern, and files of 1e6, 1e7 and 1e8 random floating-point numbers.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 30_000_000
SIZES = [1_000_000, 10_000_000, 100_000_000]
QUERIES = [("median", 0.5), ("99 quantiles", [round(i / 100, 2) for i in range(1, 100)])]


def runs(rng):
    """Neighbours that resemble each other: 256 values within 1000."""
    starts = rng.integers(-(2**60), 2**60, ROWS // 256 + 1).repeat(256)[:ROWS]
    return starts + rng.integers(0, 1000, ROWS)


def clusters(rng):
    """88% in 150 adjacent values, 7% within 2^20, the rest anywhere."""
    kind = rng.random(ROWS)
    near = 1_000_003 + rng.integers(0, 150, ROWS)
    wide = rng.integers(0, 1 << 20, ROWS)
    anywhere = rng.integers(-(2**63), 2**63 - 1, ROWS)
    return np.where(kind < 0.88, near, np.where(kind < 0.95, wide, anywhere))


PATTERNS = {
    "random": lambda rng: rng.integers(-(2**63), 2**63 - 1, ROWS),
    # Row groups, and so partitions, hold disjoint ranges.
    "sorted": lambda rng: np.sort(rng.integers(-(2**63), 2**63 - 1, ROWS)),
    "reversed": lambda rng: np.sort(rng.integers(-(2**63), 2**63 - 1, ROWS))[::-1],
    "periodic": lambda rng: ((np.arange(ROWS) & 0xFFFF) << 32) + rng.integers(0, 1 << 16, ROWS),
    "runs": runs,
    "clusters": clusters,
    "half_equal": lambda rng: np.where(rng.random(ROWS) < 0.5, 7, rng.integers(-(2**63), 2**63 - 1, ROWS)),
    "few_distinct": lambda rng: rng.integers(0, 16, ROWS) << 40,
}


def write(path, columns):
    if not os.path.exists(path):
        table = pa.table(columns())
        pq.write_table(table, path + ".part", compression="none", use_dictionary=False, row_group_size=1 << 20)
        os.rename(path + ".part", path)


def seconds(arguments, statements):
    """The best time of each statement: they take turns."""
    command = [arguments.dfq, "sql", "--partitions", str(arguments.threads), "--format", "csv"]
    for _ in range(arguments.repeat):
        for statement in statements:
            command += ["-c", statement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    times = [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)]
    return [min(times[i :: len(statements)]) for i in range(len(statements))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", default="target/release/dfq", help="the program")
    parser.add_argument("--data", required=True, help="folder for the files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9, help="runs of each query; the best counts")
    arguments = parser.parse_args()
    os.makedirs(arguments.data, exist_ok=True)
    shapes = os.path.join(arguments.data, "shapes.parquet")
    rng = np.random.default_rng(1)
    write(shapes, lambda: {name: make(rng) for name, make in PATTERNS.items()})

    print(f"{datetime.date.today()}, {arguments.threads} threads\n")
    print(f"{'query':14} {'pattern':14} {'seconds':>8} {'x random':>9}")
    for label, q in QUERIES:
        best = seconds(arguments, [f"SELECT exact_quantiles({name}, {q}) FROM '{shapes}'" for name in PATTERNS])
        for name, time in zip(PATTERNS, best):
            print(f"{label:14} {name:14} {time:8.3f} {time / best[0]:9.2f}")

    print(f"\n{'query':14} {'rows':>10} {'seconds':>8} {'ns a row':>9}")
    for rows in SIZES:
        path = os.path.join(arguments.data, f"lognormal-{rows}.parquet")
        write(path, lambda: {"x": rng.lognormal(3.0, 1.5, rows)})
        calls = ["sum(x)"] + [f"exact_quantiles(x, {q})" for _, q in QUERIES]
        best = seconds(arguments, [f"SELECT {call} FROM '{path}'" for call in calls])
        for label, time in zip(["sum"] + [label for label, _ in QUERIES], best):
            print(f"{label:14} {rows:10} {time:8.3f} {time / rows * 1e9:9.2f}")


if __name__ == "__main__":
    main()
