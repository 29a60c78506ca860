"""Times the functions that stand beside quantiles (ranks, weights, spread, shape) as multiples of the median, and beside DuckDB where it has them.

    dfq generate synthetic --rows 3e7 --output DIR
    pip install duckdb
    python benches/neighbours.py --dfq target/release/dfq --file DIR/synthetic.parquet --partitions 2

Every statement runs in a process of its own, `--repeat` times in turns with all others; a row has the least of the times that the system tells (what
a virtual machine's host does with memory that was given back comes on top of the others), and the most memory that the process of `dfq` took. `--by g1m` asks for each group of that column. `--limit 200MB` is the memory limit of both systems.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time

X, W = "price", "zipf"
CDF = "[" + ", ".join(f"{1000 ** ((i + 0.5) / 20):.3f}" for i in range(20)) + "]"
# Name, call here, call of DuckDB's.
CALLS = [
    ("sum", f"sum({X})", f"sum({X})"),
    ("median", f"exact_quantiles({X}, 0.5)", f"quantile_disc({X}, 0.5)"),
    ("exact_cdf of 20", f"exact_cdf({X}, {CDF})", None),
    ("median with weights", f"exact_quantiles({X}, 0.5, 'disc', {W})", None),
    ("iqr", f"iqr({X})", f"quantile_cont({X}, 0.75) - quantile_cont({X}, 0.25)"),
    ("mad", f"mad({X})", f"mad({X})"),
    ("trimmed_mean", f"trimmed_mean({X}, 0.1)", None),
    ("winsorized_mean", f"winsorized_mean({X}, 0.1)", None),
    ("histogram of 100 bins", f"histogram({X}, 100)", None),
    ("100 bins of one width", f"histogram({X}, 100, 'equi-width')", None),
    ("mode", f"mode({X})", f"mode({X})"),
    ("top 10 values", f"top_values({X}, 10)", None),
    ("count(DISTINCT), DataFusion's", f"count(DISTINCT {X})", f"count(DISTINCT {X})"),
    ("count_distinct_exact", f"count_distinct_exact({X})", f"count(DISTINCT {X})"),
    ("count_distinct_exact of integers", "count_distinct_exact(uniform_i64)", "count(DISTINCT uniform_i64)"),
    ("mode of few values", "mode(g1000)", "mode(g1000)"),
]
PEER = """
import sys, time, duckdb
file, partitions, limit, sql = sys.argv[1:]
with duckdb.connect() as con:
    con.execute(f"SET threads = {partitions}")
    if limit:
        con.execute(f"SET memory_limit = '{limit}'")
    con.execute(f"CREATE VIEW t AS SELECT * FROM '{file}'")
    start = time.perf_counter()
    con.execute(sql).fetchall()
    print(f"Elapsed {time.perf_counter() - start:.4f} seconds")
"""


def peak(process):
    """Runs a process to its end; its output, exit status and peak of resident memory in MiB."""
    most = 0
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(process, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while child.poll() is None:
            try:
                with open(f"/proc/{child.pid}/status") as status:
                    lines = [line for line in status if line.startswith("VmHWM:")]
                most = max([most] + [int(line.split()[1]) for line in lines])
            except OSError:
                pass
            time.sleep(0.002)
        out.seek(0)
        return out.read().decode(), child.returncode, most >> 10


def timed(process):
    """The seconds that a process tells, or None with the end of what it said; and its peak of memory."""
    text, status, memory = peak(process)
    seconds = re.findall(r"Elapsed ([0-9.]+) seconds", text)
    if status or not seconds:
        said = "refused" if "Resources exhausted" in text else text.strip().splitlines()[-1]
        return None, [said], memory
    return float(seconds[-1]), [], memory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--file", required=True)
    parser.add_argument("--partitions", default="2")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--by")
    parser.add_argument("--limit", default="")
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()

    def statement(call, table):
        if args.by:
            return f"SELECT count(*), count(a) FROM (SELECT {args.by}, {call} AS a FROM {table} GROUP BY {args.by})"
        return f"SELECT {call} FROM {table}"

    def here(call):
        limit = ["--memory-limit", args.limit] if args.limit else []
        return [args.dfq, "sql", "--partitions", args.partitions, *limit, "-c", statement(call, f"'{args.file}'")]

    def peer(call):
        return [sys.executable, "-c", PEER, args.file, args.partitions, args.limit, statement(call, "t")]

    times, peers, memory, said = {}, {}, {}, {}
    for _ in range(args.repeat):
        for name, call, other in CALLS:
            seconds, error, most = timed(here(call))
            memory[name] = max(most, memory.get(name, 0))
            times.setdefault(name, []).append(seconds)
            said.setdefault(name, []).extend(error)
            if other and not args.no_peer:
                peers.setdefault(name, []).append(timed(peer(other))[0])

    def least(all_times, name):
        known = [seconds for seconds in all_times.get(name, []) if seconds is not None]
        return min(known) if known and len(known) == len(all_times[name]) else None

    median = least(times, "median")
    print("| function | ms | times the median | most memory, MiB | DuckDB ms | DuckDB / dfq |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, _, other in CALLS:
        own, their = least(times, name), least(peers, name)
        shown = f"{1000 * own:.0f} | {own / median:.2f}" if own else f"{said[name][0][:60]} | "
        beside = f"{1000 * their:.0f} | {their / own:.1f}" if own and their else ("fails | " if other and name in peers and not their else " | ")
        print(f"| `{name}` | {shown} | {memory[name]} | {beside} |")


if __name__ == "__main__":
    main()
