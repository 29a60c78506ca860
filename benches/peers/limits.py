"""Times exact quantiles under a memory limit in `dfq` and in DuckDB, and takes the peak resident memory of each process.

    python benches/peers/limits.py --data /tmp/bench --dfq target/release/dfq --limit 200MB

Besides the file of compare.py it reads two that it makes beside it, in the folder `limits`, unless they are there: 1e8
Float64 values, and 1e7 strings of 32 bytes that share their first 20. A process answers a statement `--repeat` times; its
best time counts, and its peak memory over all of them. Answers with and without a limit are compared.
"""

import os
import re
import subprocess
import sys
import tempfile

from compare import PERCENTILES, head, listed, options, parsed

THREE = [0.5, 0.9, 0.99]
SKEWED = "CASE WHEN g1000 < 900 THEN -1 ELSE g1m END"
# What runs in a child of its own, so that its memory is its own: statement, threads and limit are arguments.
DUCKDB = """
import sys, time, duckdb
statement, threads, limit, repeat, folder = sys.argv[1:]
c = duckdb.connect()
c.execute(f"SET threads = {threads}; SET temp_directory = '{folder}'")
if limit != "none":
    c.execute(f"SET memory_limit = '{limit}'")
for _ in range(int(repeat)):
    start = time.perf_counter()
    print(c.execute(statement).fetchall())
    print(f"Elapsed {time.perf_counter() - start:.3f} seconds", file=sys.stderr)
"""


def make(folder):
    """The paths of the numbers and of the strings."""
    import numpy
    import pyarrow
    import pyarrow.parquet
    os.makedirs(folder, exist_ok=True)
    random = numpy.random.default_rng(20261122)
    paths = [os.path.join(folder, name) for name in ("numbers.parquet", "strings.parquet")]
    for path, rows in zip(paths, (100_000_000, 10_000_000)):
        if os.path.exists(path):
            continue
        writer = None
        for _ in range(0, rows, 1_000_000):
            if "numbers" in path:
                column = random.lognormal(3, 1.5, 1_000_000)
            else:
                column = [f"behind this prefix: {value:012d}" for value in random.integers(0, 10**12, 1_000_000)]
            table = pyarrow.table({"x": column})
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=False)
            writer.write_table(table)
        writer.close()
    return paths


def measured(command):
    """Least seconds, peak resident MB and what was printed; or why there is no answer."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        out, err = out.read(), err.read()
    seconds = [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", err)]
    if child.returncode != 0:
        lines = [line for line in err.strip().splitlines() if line.strip()]
        named = [line for line in lines if "rror" in line]
        return None, usage.ru_maxrss / 1024, (named or lines or ["?"])[0][:100]
    return min(seconds), usage.ru_maxrss / 1024, out


def statements(file, numbers, strings):
    """Name, statement of dfq, statement of DuckDB."""
    # In cents: sums of integers are the same in every order.
    sums = ", ".join(f"sum(CAST(round(v[{i}] * 100) AS BIGINT))" for i in (1, 2, 3))
    by = f"SELECT count(v), {sums} FROM (SELECT {{}} AS g, CALL AS v FROM '{file}' GROUP BY 1)"
    for name, template, column, q in [
        ("3 of 1e8 Float64", f"SELECT CALL FROM '{numbers}'", "x", THREE),
        ("99 of 1e8 Float64", f"SELECT CALL FROM '{numbers}'", "x", PERCENTILES),
        ("3 by 1M groups", by.format("g1m"), "price", THREE),
        ("3, one group of 90%", by.format(SKEWED), "price", THREE),
        ("99 of 1e7 strings", f"SELECT CALL FROM '{strings}'", "x", PERCENTILES),
    ]:
        yield name, *(template.replace("CALL", f"{call}({column}, {listed(q)})") for call in ("exact_quantiles", "quantile_disc"))


def main():
    parser = options(__doc__, repeat=3)
    parser.add_argument("--limit", default="200MB")
    arguments, file = parsed(parser)
    threads, repeat, limits = str(arguments.threads), arguments.repeat, ["none", arguments.limit]
    folder = os.path.join(arguments.data, "limits")
    numbers, strings = make(folder)

    class Peer:
        name = "DuckDB"
        version = __import__("duckdb").__version__

    head(arguments, [type("Own", (), {"name": "dfq"}), Peer], file)
    print(f"\n{'query':22} {'system':8} {'limit':>7} {'seconds':>8} {'x none':>7} {'peak MB':>8}")
    for name, own, peer in statements(file, numbers, strings):
        for system, statement in (("dfq", own), ("DuckDB", peer)):
            base = answer = None
            for limit in limits:
                if system == "dfq":
                    command = [arguments.dfq, "sql", "--partitions", threads, "--format", "csv"]
                    command += ["--memory-limit", limit] if limit != "none" else []
                    command += ["-c", statement] * repeat
                else:
                    command = [sys.executable, "-c", DUCKDB, statement, threads, limit, "1", folder]
                seconds, peak, said = measured(command)
                if seconds is None:
                    print(f"{name:22} {system:8} {limit:>7} no answer {peak:16.0f}  {said}", flush=True)
                    continue
                same = "" if answer in (None, said) else "  ANOTHER ANSWER"
                base, answer = base or seconds, answer or said
                print(f"{name:22} {system:8} {limit:>7} {seconds:8.3f} {seconds / base:7.2f} {peak:8.0f}{same}", flush=True)


if __name__ == "__main__":
    main()
