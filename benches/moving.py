#!/usr/bin/env python3
"""Moving medians of 1e6 rows by dfq, DuckDB and Polars: medians of RUNS runs, in seconds, each with reading the Parquet file.

    python3 benches/moving.py --dfq target/release/dfq [--old OTHER_DFQ] [--partitions 2] [--rows 1000000]

DuckDB and Polars are measured where they are installed (pip install duckdb polars). Polars interpolates between the two values in the middle of an
even number of them, and knows frames of rows without partitions only; the others give the lower one.
"""

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

RUNS = 5
SHAPES = {
    "ROWS 10": "ORDER BY i ROWS BETWEEN 9 PRECEDING AND CURRENT ROW",
    "ROWS 1000": "ORDER BY i ROWS BETWEEN 999 PRECEDING AND CURRENT ROW",
    "ROWS 100 000": "ORDER BY i ROWS BETWEEN 99999 PRECEDING AND CURRENT ROW",
    "ROWS, growing": "ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE 1000": "ORDER BY i RANGE BETWEEN 999 PRECEDING AND CURRENT ROW",
    "ROWS 1000 by 1000 groups": "PARTITION BY g ORDER BY i ROWS BETWEEN 999 PRECEDING AND CURRENT ROW",
}


def statement(function, over, path):
    return f"SELECT sum(m) FROM (SELECT {function} OVER ({over}) AS m FROM '{path}')"


def dfq_seconds(dfq, sql, partitions):
    command = [dfq, "sql", "--partitions", str(partitions)] + ["-c", sql] * (RUNS + 1)
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    elapsed = [float(x) for x in re.findall(r"Elapsed ([0-9.]+) s", out.stdout + out.stderr)]
    return statistics.median(elapsed[1:])


def seconds(run):
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--old", help="another dfq to compare with")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.parquet"
        make = (
            f"COPY (SELECT value AS i, random() * 1000 AS x, value * 31 % 1000 AS g FROM generate_series(1, {args.rows}) "
            f"ORDER BY i) TO '{path}' STORED AS PARQUET"
        )
        subprocess.run([args.dfq, "sql", "-c", make], check=True, capture_output=True)
        programs = {"dfq": lambda over: dfq_seconds(args.dfq, statement("exact_quantiles(x, 0.5)", over, path), args.partitions)}
        if args.old:
            programs["old dfq"] = lambda over: dfq_seconds(
                args.old, statement("exact_quantiles(x, 0.5)", over, path), args.partitions
            )
        try:
            import duckdb

            con = duckdb.connect()
            con.execute(f"SET threads = {args.partitions}")
            programs[f"DuckDB {duckdb.__version__}"] = lambda over: seconds(
                lambda: con.execute(statement("quantile_disc(x, 0.5)", over, path)).fetchall()
            )
        except ImportError:
            pass
        try:
            import polars

            def rolling(over):
                found = re.fullmatch(r"ORDER BY i ROWS BETWEEN (\d+) PRECEDING AND CURRENT ROW", over)
                if not found:
                    return None
                rows = int(found[1]) + 1
                return seconds(
                    lambda: polars.read_parquet(path).select(polars.col("x").rolling_median(rows, min_samples=1)).sum()
                )

            programs[f"Polars {polars.__version__}"] = rolling
        except ImportError:
            pass
        print("| frame | " + " | ".join(programs) + " |")
        print("| --- |" + " --- |" * len(programs))
        for name, over in SHAPES.items():
            cells = [run(over) for run in programs.values()]
            print(f"| {name} | " + " | ".join("-" if cell is None else f"{cell:.3f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
