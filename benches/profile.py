"""Times the profile of a file beside DuckDB's SUMMARIZE of the same file.

    dfq generate tpch --scale 5 --tables lineitem --output /tmp/bench
    python benches/profile.py --dfq target/release/dfq --file /tmp/bench/lineitem.parquet --cores 2 --memory-limit 512MB

Each run is a process of its own, bound to so many cores, in turns; a time is the median of `--repeat` runs, and memory is the most that
a process held. DuckDB's percentiles and numbers of distinct values are estimates; those of `dfq profile` are exact (distinct values up to
100 000, or as the memory limit allows). With --peers none, dfq alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

DUCKDB = """
import sys, duckdb
con = duckdb.connect(config={"threads": int(sys.argv[2])})
if sys.argv[3]:
    con.execute(f"SET memory_limit = '{sys.argv[3]}'")
print(len(con.execute(f"SUMMARIZE SELECT * FROM '{sys.argv[1]}'").fetchall()))
"""


def bound(cores):
    """The first `cores` of the cores that this process may use, for `taskset`."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:cores])


def run(command, cores):
    """Seconds, and MiB of memory, of a process."""
    start = time.monotonic()
    process = subprocess.Popen(["taskset", "-c", bound(cores), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status != 0 or not out:
        return None, err.decode().strip().splitlines()[-1:]
    return seconds, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory-limit", default="")
    parser.add_argument("--peers", choices=["duckdb", "none"], default="duckdb")
    args = parser.parse_args()
    limit = ["--memory-limit", args.memory_limit] if args.memory_limit else []
    commands = {
        "dfq profile": [args.dfq, "profile", args.file, "--json", "--partitions", str(args.cores), *limit],
        "DuckDB SUMMARIZE": [sys.executable, "-c", DUCKDB, args.file, str(args.cores), args.memory_limit],
    }
    if args.peers == "none":
        del commands["DuckDB SUMMARIZE"]
    found = {name: [] for name in commands}
    for _ in range(args.repeat):
        for name, command in commands.items():
            found[name].append(run(command, args.cores))
    print(f"{args.file}: {os.path.getsize(args.file) / 1e6:.0f} MB, {args.cores} cores, memory limit {args.memory_limit or 'none'}")
    base = None
    for name, runs in found.items():
        failed = [message for seconds, message in runs if seconds is None]
        if failed:
            print(f"| {name} | failed: {failed[0]} | |")
            continue
        seconds = statistics.median(seconds for seconds, _ in runs)
        memory = max(memory for _, memory in runs)
        base = base or seconds
        print(f"| {name} | {seconds:.2f} s ({seconds / base:.2f}) | {memory:.0f} MiB |")


if __name__ == "__main__":
    main()
