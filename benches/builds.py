"""Times two builds of `dfq` against each other on the same data, in turns.

    dfq generate synthetic --rows 30000000 --output /tmp/bench
    python benches/builds.py --old OLD/dfq --new NEW/dfq --file /tmp/bench/synthetic.parquet --partitions 2 --pairs 7

A time is the least of `--repeat` runs in one process; the ratio is the median over pairs of processes, one of each build. `--only`
takes the statements whose names contain a text.
"""

import argparse
import re
import statistics
import subprocess

PERCENTILES = "[" + ", ".join(f"{i / 100:.2f}" for i in range(1, 100)) + "]"
THREE = "[0.5, 0.9, 0.99]"


def quantiles(column, q=PERCENTILES):
    return f"SELECT exact_quantiles({column}, {q}) FROM T"


def groups(by, calls):
    return f"SELECT {', '.join(f'count(v{i})' for i in range(len(calls)))} FROM (SELECT {by} AS g, " + ", ".join(
        f"{call} AS v{i}" for i, call in enumerate(calls)
    ) + " FROM T GROUP BY 1)"


def numbered(by, k, order="price DESC"):
    window = f"row_number() OVER (PARTITION BY {by} ORDER BY {order})"
    return f"SELECT count(*), sum(id) FROM (SELECT id, {window} AS n FROM T) WHERE n <= {k}"


TEXT = "('behind this prefix: ' || id)"
TOP = "topk_by(id, price, 10)"
# Name, memory limit or none, statement. Those with a limit spill at 3e7 rows.
STATEMENTS = [
    ("sum", None, "SELECT sum(price) FROM T"),
    ("median", None, quantiles("price", "[0.5]")),
    ("median zipf", None, quantiles("zipf", "[0.5]")),
    ("99 quantiles price", None, quantiles("price")),
    ("99 quantiles int64", None, quantiles("uniform_i64")),
    ("99 quantiles lognormal", None, quantiles("lognormal")),
    ("99 distinct int64", None, "SELECT exact_quantiles(DISTINCT uniform_i64, " + PERCENTILES + ") FROM T"),
    ("99 quantiles strings", None, quantiles(TEXT)),
    ("gk", None, "SELECT approx_percentile_gk(price, [0.5, 0.99]) FROM T"),
    ("gk_select", None, "SET quantiles.strategy = 'gk_select'; " + quantiles("price", THREE)),
    ("dibms", None, "SET quantiles.strategy = 'dibms'; " + quantiles("price", THREE)),
    ("3 quantiles 10 groups", None, groups("g1000 % 10", [f"exact_quantiles(price, {THREE})"])),
    ("3 quantiles 1000 groups", None, groups("g1000", [f"exact_quantiles(price, {THREE})"])),
    ("3 quantiles 1M groups", None, groups("g1m", [f"exact_quantiles(price, {THREE})"])),
    ("1000 groups with sum, max", None, groups("g1000", [f"exact_quantiles(price, {THREE})", "sum(price)", "max(id)"])),
    ("1M groups with sum, max", None, groups("g1m", [f"exact_quantiles(price, {THREE})", "sum(price)", "max(id)"])),
    ("topk_by 1M k=10", None, groups("g1m", [TOP])),
    ("topk_by 10 k=1000", None, groups("g1000 % 10", ["topk_by(id, price, 1000)"])),
    ("row_number 1M k=10", None, numbered("g1m", 10)),
    ("row_number 10 k=1000", None, numbered("g1000 % 10", 1000)),
    ("order by limit 10", None, "SELECT sum(id) FROM (SELECT * FROM T ORDER BY price DESC LIMIT 10)"),
    ("order by limit 1e6", None, "SELECT sum(id) FROM (SELECT id, price FROM T ORDER BY price DESC LIMIT 1000000)"),
    ("moving median", None, "SELECT sum(m) FROM (SELECT median(price) OVER (ORDER BY id ROWS 99 PRECEDING) AS m FROM T WHERE id < 1000000)"),
    ("99 quantiles, 100MB", "100MB", quantiles("price")),
    ("1M groups, 200MB", "200MB", groups("g1m", [f"exact_quantiles(price, {THREE})"])),
    ("topk_by 1M k=10, 170MB", "170MB", groups("g1m", [TOP])),
    ("row_number strings, 300MB", "300MB", numbered("g1m", 10, TEXT)),
    ("99 quantiles strings, 300MB", "300MB", quantiles(TEXT)),
]


def seconds(dfq, options, limit, statement):
    *settings, query = statement.replace("FROM T", f"FROM '{options.file}'").split("; ")
    command = [dfq, "sql", "--partitions", str(options.partitions), "--format", "csv"]
    command += ["--memory-limit", limit] if limit else []
    for text in settings + [query] * options.repeat:
        command += ["-c", text]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1][:120]
    times = [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)]
    answers = done.stdout.split("\n", len(settings))[-1]
    return min(times[len(settings):]), answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for dfq in (options.old, options.new):
        if "failpoints" in subprocess.run([dfq, "--version"], capture_output=True, text=True, check=True).stdout:
            parser.error(f"{dfq} was built together with tests: build it alone")
    print("| statement | old s | new s | new/old (median of pairs) |\n| --- | --- | --- | --- |")
    for name, limit, statement in STATEMENTS:
        if options.only not in name:
            continue
        pairs = []
        for pair in range(options.pairs):
            builds = [options.old, options.new][:: 1 if pair % 2 == 0 else -1]
            both = [seconds(dfq, options, limit, statement) for dfq in builds][:: 1 if pair % 2 == 0 else -1]
            if both[0][0] is None or both[1][0] is None:
                print(f"| {name} | {both[0]} | {both[1]} | no answer |", flush=True)
                break
            if both[0][1] != both[1][1]:
                print(f"| {name} | {both[0][1][:60]} | {both[1][1][:60]} | ANSWERS DIFFER |", flush=True)
                break
            pairs.append((both[0][0], both[1][0]))
        else:
            ratio = statistics.median(new / old for old, new in pairs)
            print(f"| {name} | {min(p[0] for p in pairs):.3f} | {min(p[1] for p in pairs):.3f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
