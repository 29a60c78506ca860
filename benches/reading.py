"""Times quantiles that are selected while their input is read, against those of kept keys and against sum, in one process; and ranks of
values, which are counted while it is read.

    dfq generate synthetic --rows 3e7 --output /tmp/bench
    python benches/reading.py --dfq target/release/dfq --file /tmp/bench/synthetic.parquet --partitions 2

Every statement runs in turn, `--repeat` times; a row has the median and the least of the times, and both as multiples of those of sum.
`--memory` reads the file into a table in memory first. `--limit 200MB` is the memory limit of all statements.
"""

import argparse
import re
import statistics
import subprocess

PERCENTILES = "[" + ", ".join(f"{i / 100:.2f}" for i in range(1, 100)) + "]"
QUANTILES = [("median", "[0.5]"), ("3 quantiles", "[0.5, 0.9, 0.99]"), ("99 quantiles", PERCENTILES)]
READ_AGAIN = ["never", "auto", "always"]
RANKED = [("exact_cdf of 1", 1), ("exact_cdf of 20", 20), ("exact_cdf of 100", 100)]


def statements(table, column, options):
    """Name, option and statement of every row of the table."""
    yield "sum", None, f"SELECT sum({column}) FROM {table}"
    for name, list_ in QUANTILES:
        for option in options:
            yield name, option, f"SELECT exact_quantiles({column}, {list_}) FROM {table}"
    for name, count in RANKED:
        # From 1 to 1000, the same number in each power of ten, as prices are.
        list_ = "[" + ", ".join(f"{1000 ** ((i + 0.5) / count):.3f}" for i in range(count)) + "]"
        yield name, None, f"SELECT exact_cdf({column}, {list_}) FROM {table}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--file", required=True)
    parser.add_argument("--column", default="price")
    parser.add_argument("--partitions", default="2")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--options", default=",".join(READ_AGAIN), help="values of quantiles.read_again; none: it is not set")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--limit")
    args = parser.parse_args()
    command = [args.dfq, "sql", "--partitions", args.partitions, "--format", "csv"]
    if args.limit:
        command += ["--memory-limit", args.limit]
    table, script = f"'{args.file}'", []
    if args.memory:
        script.append(f"CREATE TABLE t AS SELECT {args.column} FROM {table}")
        table = "t"
    rows = list(statements(table, args.column, [o for o in args.options.split(",") if o] or [None]))
    for _ in range(args.repeat):
        for _, option, sql in rows:
            if option:
                script.append(f"SET quantiles.read_again = '{option}'")
            script.append(sql)
    commands = [part for sql in script for part in ("-c", sql)]
    done = subprocess.run(command + commands, capture_output=True, text=True, check=True)
    elapsed = [float(seconds) for seconds in re.findall(r"Elapsed ([0-9.]+) seconds", done.stdout + done.stderr)]
    if len(elapsed) != len(script):
        raise SystemExit(f"{len(elapsed)} times of {len(script)} statements: {done.stdout}{done.stderr}")
    timed = [seconds for sql, seconds in zip(script, elapsed) if sql.startswith("SELECT")]
    times = [timed[i :: len(rows)] for i in range(len(rows))]
    base = times[0]
    print("| statement | read_again | median ms | least ms | times sum (median, least) |")
    print("| --- | --- | --- | --- | --- |")
    for (name, option, _), own in zip(rows, times):
        middle, least = statistics.median(own), min(own)
        ratios = f"{middle / statistics.median(base):.2f}, {least / min(base):.2f}"
        print(f"| {name} | {option or ''} | {1000 * middle:.0f} | {1000 * least:.0f} | {ratios} |")


if __name__ == "__main__":
    main()
