"""Times quantiles and top-k on growing numbers of cores, beside sums of the same column and the same groups.

    dfq generate synthetic --rows 1e8 --output /tmp/bench
    python benches/cores.py --dfq target/release/dfq --file /tmp/bench/synthetic.parquet --cores 2,4,8,16

Each number of cores is a process of its own, bound to that many cores, with as many partitions. A time is the median of `--repeat` runs
in turns; in parentheses stands its ratio to the sum that the row is measured against. `--plans` prints the metrics of the operators as
well, once each. `--peers duckdb,polars` times the same questions there, with as many threads.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

PERCENTILES = "[" + ", ".join(f"{i / 100:.2f}" for i in range(1, 100)) + "]"
THREE = "[0.5, 0.9, 0.99]"


def grouped(by, call):
    return f"SELECT count(v) FROM (SELECT {by} AS g, {call} AS v FROM T GROUP BY 1)"


# Name, the row that it is measured against, whether the table is in memory, statement, and what DuckDB and Polars are asked.
ROWS = [
    ("sum", None, False, "SELECT sum(lognormal) FROM T"),
    ("median", "sum", False, "SELECT exact_quantiles(lognormal, [0.5]) FROM T"),
    ("99 quantiles", "sum", False, f"SELECT exact_quantiles(lognormal, {PERCENTILES}) FROM T"),
    ("sum by 1000 groups", None, False, grouped("g1000", "sum(price)")),
    ("3 quantiles by 1000 groups", "sum by 1000 groups", False, grouped("g1000", f"exact_quantiles(price, {THREE})")),
    ("sum by 1M groups", None, False, grouped("g1m", "sum(price)")),
    ("3 quantiles by 1M groups", "sum by 1M groups", False, grouped("g1m", f"exact_quantiles(price, {THREE})")),
    ("top 10 by 1M groups", "sum by 1M groups", False, grouped("g1m", "topk_by(id, price, 10)")),
    ("sum, in memory", None, True, "SELECT sum(lognormal) FROM T"),
    ("median, in memory", "sum, in memory", True, "SELECT exact_quantiles(lognormal, [0.5]) FROM T"),
    ("99 quantiles, in memory", "sum, in memory", True, f"SELECT exact_quantiles(lognormal, {PERCENTILES}) FROM T"),
]
DUCKDB = {
    "exact_quantiles(lognormal, [0.5])": "quantile_cont(lognormal, 0.5)",
    f"exact_quantiles(lognormal, {PERCENTILES})": f"quantile_cont(lognormal, {PERCENTILES})",
    f"exact_quantiles(price, {THREE})": f"quantile_cont(price, {THREE})",
    "topk_by(id, price, 10)": "max_by(id, price, 10)",
}


def bound(cores):
    """The first `cores` of the cores that this process may use, for `taskset`."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:cores])


def timed_by_dfq(args, cores, rows):
    script = ["CREATE TABLE m AS SELECT lognormal FROM T"] if any(row[2] for row in rows) else []
    script += [sql.replace("FROM T", "FROM m") if in_memory else sql for _, _, in_memory, sql in rows] * args.repeat
    script = [sql.replace("FROM T", f"FROM '{args.file}'") for sql in script]
    command = ["taskset", "-c", bound(cores), args.dfq, "sql", "--partitions", str(cores), "--format", "csv"]
    done = subprocess.run(command + [part for sql in script for part in ("-c", sql)], capture_output=True, text=True)
    elapsed = [float(seconds) for seconds in re.findall(r"Elapsed ([0-9.]+) seconds", done.stdout + done.stderr)]
    if done.returncode != 0 or len(elapsed) != len(script):
        raise SystemExit(f"{len(elapsed)} times of {len(script)} statements: {done.stdout}{done.stderr}")
    elapsed = elapsed[len(script) - len(rows) * args.repeat :]
    return [statistics.median(elapsed[i :: len(rows)]) for i in range(len(rows))]


def print_plans(args, cores, rows):
    for name, _, in_memory, sql in rows:
        explained = "EXPLAIN ANALYZE " + sql.replace("FROM T", "FROM m" if in_memory else f"FROM '{args.file}'")
        script = [f"CREATE TABLE m AS SELECT lognormal FROM '{args.file}'"] if in_memory else []
        script += [explained] * 3
        command = ["taskset", "-c", bound(cores), args.dfq, "sql", "--partitions", str(cores), "--format", "csv"]
        done = subprocess.run(command + [part for sql in script for part in ("-c", sql)], capture_output=True, text=True)
        lines = [line.strip() for line in done.stdout.split("Plan with Metrics")[-1].splitlines()]
        print(f"\n{name}, {cores} cores")
        print("\n".join(line[:1200] for line in lines if "Exec" in line))


DUCKDB_PROGRAM = """
import sys, time, duckdb
cores, repeat, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
con = duckdb.connect(config={"threads": cores})
for statement in script:
    if statement.startswith("CREATE"):
        con.execute(statement)
        continue
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        con.execute(statement).fetchall()
        times.append(time.perf_counter() - start)
    print(sorted(times)[len(times) // 2])
"""

POLARS_PROGRAM = """
import sys, time, polars as pl
repeat, file, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
q = [i / 100 for i in range(1, 100)]
quantile = lambda column, q: pl.col(column).quantile(q, "linear")
three = [quantile("price", q).alias(str(q)) for q in (0.5, 0.9, 0.99)]
top = pl.col("id").top_k_by("price", 10)
scan, memory = pl.scan_parquet(file), None
asked = {
    "sum": lambda t: t.select(pl.col("lognormal").sum()),
    "median": lambda t: t.select(quantile("lognormal", 0.5)),
    "99 quantiles": lambda t: t.select([quantile("lognormal", q).alias(str(q)) for q in q]),
    "sum by 1000 groups": lambda t: t.group_by("g1000").agg(pl.col("price").sum()),
    "3 quantiles by 1000 groups": lambda t: t.group_by("g1000").agg(three),
    "sum by 1M groups": lambda t: t.group_by("g1m").agg(pl.col("price").sum()),
    "3 quantiles by 1M groups": lambda t: t.group_by("g1m").agg(three),
    "top 10 by 1M groups": lambda t: t.group_by("g1m").agg(top),
}
for name in names:
    table = scan
    if name.endswith(", in memory"):
        memory = scan.select("lognormal").collect().lazy() if memory is None else memory
        table = memory
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        asked[name.removesuffix(", in memory")](table).collect()
        times.append(time.perf_counter() - start)
    print(sorted(times)[len(times) // 2], flush=True)
"""


def timed_by_peer(peer, args, cores, rows):
    """Median times of the peer's runs; `None` for what it did not answer."""
    if peer == "duckdb":
        script = []
        for _, _, in_memory, sql in rows:
            for ours, theirs in DUCKDB.items():
                sql = sql.replace(ours, theirs)
            table = "m" if in_memory else f"'{args.file}'"
            script.append(sql.replace("FROM T", f"FROM {table}"))
        if any(row[2] for row in rows):
            script.insert(0, f"CREATE TABLE m AS SELECT lognormal FROM '{args.file}'")
        program = [DUCKDB_PROGRAM, str(cores), str(args.peer_repeat), *script]
    else:
        program = [POLARS_PROGRAM, str(args.peer_repeat), args.file, *(row[0] for row in rows)]
    command = ["taskset", "-c", bound(cores), sys.executable, "-c", *program]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(cores)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=args.peer_seconds)
        output, error = done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        output, error = (expired.stdout or b"").decode(), f"ended after {args.peer_seconds} s"
    times = [float(line) for line in output.split()]
    if len(times) < len(rows):
        print(f"{peer}, {cores} cores: {len(times)} of {len(rows)} rows: {error.strip()[-300:]}", file=sys.stderr)
    return times + [None] * (len(rows) - len(times))


def print_table(program, rows, cores, times):
    """`times`: for each number of cores, the seconds of each row."""
    print(f"\n| {program} | " + " | ".join(f"{n} cores" for n in cores) + f" | {cores[0]} to {cores[-1]} |")
    print("| --- |" + " --- |" * (len(cores) + 1))
    index = {row[0]: at for at, row in enumerate(rows)}
    for at, (name, base, _, _) in enumerate(rows):
        shown = []
        for own in times:
            if own[at] is None:
                shown.append("")
                continue
            ratio = f" ({own[at] / own[index[base]]:.2f})" if base in index and own[index[base]] else ""
            shown.append(f"{1000 * own[at]:.0f} ms{ratio}")
        first, last = times[0][at], times[-1][at]
        speed = f"{first / last:.1f}x" if first and last else ""
        print(f"| {name} | " + " | ".join(shown) + f" | {speed} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--file", required=True)
    parser.add_argument("--cores", default="2,16")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="names of rows, with semicolons between; those they are measured against are added")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--peers", default="")
    parser.add_argument("--peer-repeat", type=int, default=3)
    parser.add_argument("--peer-seconds", type=int, default=300, help="most seconds of a peer on one number of cores")
    args = parser.parse_args()
    cores = [int(n) for n in args.cores.split(",")]
    chosen = {name.strip() for name in args.only.split(";") if name.strip()} or {row[0] for row in ROWS}
    chosen |= {row[1] for row in ROWS if row[0] in chosen and row[1]}
    rows = [row for row in ROWS if row[0] in chosen]
    print_table("dfq", rows, cores, [timed_by_dfq(args, n, rows) for n in cores])
    if args.plans:
        for n in {cores[0], cores[-1]}:
            print_plans(args, n, rows)
    for peer in [peer for peer in args.peers.split(",") if peer]:
        print_table(peer, rows, cores, [timed_by_peer(peer, args, n, rows) for n in cores])


if __name__ == "__main__":
    main()
