#!/usr/bin/env python3
"""Times of the Python package beside NumPy, Polars, pandas and DuckDB: each measurement in a process of its own.

    pip install ./python polars pandas pyarrow duckdb
    python benches/python.py [--rows 3e7] [--runs 5] [--output FILE]

Seconds are medians of several runs after one that does not count. Extra memory is the peak of resident memory during the runs above that
before them, the first included; the peak beside it is all of the process. All use as many threads as they choose by themselves; set the
cores by `taskset`. Where memory is limited, each answer is compared with one by a sort of all values.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20


def resident(field):
    """A field of the process's status in bytes: VmRSS, or its peak VmHWM."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def array(rows):
    import numpy as np

    return np.random.default_rng(0).normal(size=rows)


def percentiles():
    return [percent / 100 for percent in range(1, 100)]


def frame(rows):
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    return pl.DataFrame({"g": rng.integers(0, 1000, rows), "x": rng.normal(size=rows)})


def array_dfq(rows):
    import dfq

    x, q = array(rows), percentiles()
    return lambda: dfq.quantiles(x, q)


def array_numpy(rows):
    import numpy as np

    x, q = array(rows), percentiles()
    return lambda: np.quantile(x, q)


def array_polars(rows):
    import polars as pl

    series, q = pl.Series(array(rows)), percentiles()
    return lambda: series.quantile(q, "linear")


def array_pandas(rows):
    import pandas as pd

    series, q = pd.Series(array(rows)), percentiles()
    return lambda: series.quantile(q)


def array_duckdb(rows):
    import duckdb
    import pyarrow as pa

    con = duckdb.connect()
    con.register("t", pa.table({"x": array(rows)}))
    return lambda: con.sql(f"SELECT quantile_cont(x, {percentiles()}) FROM t").fetchall()


def groups_dfq(rows):
    import dfq

    data, con = frame(rows), dfq.connect()
    return lambda: con.quantiles(data, "x", [0.1, 0.5, 0.9], by="g").to_polars()


def groups_dfq_sql(rows):
    import dfq

    con = dfq.connect()
    con.register("t", frame(rows))
    sql = "SELECT g, exact_quantiles(x, [0.1, 0.5, 0.9], 'linear') AS q FROM t GROUP BY g"
    return lambda: con.sql(sql).to_polars()


def groups_polars(rows):
    import polars as pl

    lazy = frame(rows).lazy()
    asked = [pl.col("x").quantile(q, "linear").alias(str(q)) for q in (0.1, 0.5, 0.9)]
    return lambda: lazy.group_by("g").agg(asked).collect()


def groups_pandas(rows):
    data = frame(rows).to_pandas()
    return lambda: data.groupby("g")["x"].quantile([0.1, 0.5, 0.9])


def groups_duckdb(rows):
    import duckdb

    con, data = duckdb.connect(), frame(rows).to_arrow()
    con.register("t", data)
    return lambda: con.sql("SELECT g, quantile_cont(x, [0.1, 0.5, 0.9]) FROM t GROUP BY g").pl()


GROUPED = [0.1, 0.5, 0.9]
LIMIT = "100MB"
# The folder of the file that is read within a limit, for processes of one measurement.
FOLDER = "DFQ_BENCH_FOLDER"


def write_limited(rows, folder):
    """A file with a column of `rows` values in 1000 groups, and the answers by a sort."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    g, x = rng.integers(0, 1000, rows), rng.normal(size=rows)
    pq.write_table(pa.table({"g": g, "x": x}), f"{folder}/{rows}.parquet", compression="none", row_group_size=1 << 20)
    np.save(f"{folder}/{rows}-all.npy", picked(np.sort(x), percentiles()))
    x = x[np.lexsort((x, g))]
    ends = np.cumsum(np.bincount(g))
    starts = np.concatenate([[0], ends[:-1]])
    np.save(f"{folder}/{rows}-groups.npy", [picked(x[start:end], GROUPED) for start, end in zip(starts, ends) if start < end])


def picked(ascending, quantiles):
    """The values that SQL's percentile_disc picks; quantiles are of two decimals."""
    return [ascending[max(-(-round(q * 100) * len(ascending) // 100), 1) - 1] for q in quantiles]


def limited(con, function, rows, quantiles, kind, by=""):
    """One statement over the file. Answers are compared with those by a sort, DuckDB's too: both pick values."""
    import numpy as np

    file = f"{os.environ[FOLDER]}/{rows}"
    expected = np.load(f"{file}-{kind}.npy")
    sql = f"SELECT {function}(x, {quantiles}) FROM '{file}.parquet' {by}"

    def run():
        answers = [row[0] for row in con.sql(sql).fetchall()]
        assert np.array_equal(np.ravel(answers), np.ravel(expected)), "a wrong answer"

    return run


def dfq_within_limit():
    import dfq

    return dfq.connect(memory_limit=LIMIT)


def duckdb_within_limit():
    import duckdb

    return duckdb.connect(config={"memory_limit": LIMIT})


def limited_dfq(rows):
    return limited(dfq_within_limit(), "exact_quantiles", rows, percentiles(), "all")


def limited_duckdb(rows):
    return limited(duckdb_within_limit(), "quantile_disc", rows, percentiles(), "all")


def grouped_dfq(rows):
    return limited(dfq_within_limit(), "exact_quantiles", rows, GROUPED, "groups", "GROUP BY g ORDER BY g")


def grouped_duckdb(rows):
    return limited(duckdb_within_limit(), "quantile_disc", rows, GROUPED, "groups", "GROUP BY g ORDER BY g")


def overhead(function):
    """Many calls as one, in seconds for each."""

    def repeated():
        for _ in range(1000):
            function()

    return repeated


def call_dfq(_rows):
    import dfq

    x = array(1000)
    return overhead(lambda: dfq.quantiles(x, 0.5))


def call_numpy(_rows):
    import numpy as np

    x = array(1000)
    return overhead(lambda: np.quantile(x, 0.5))


KINDS = ("array_", "groups_", "limited_", "grouped_", "call_")
MEASURED = {name: value for name, value in list(globals().items()) if name.startswith(KINDS)}


def measure(name, rows, runs):
    """One measurement, in this process."""
    # Loads what the function needs, which is no memory of its data.
    MEASURED[name](2000)()
    run = MEASURED[name](rows)
    before = resident("VmRSS")
    forget_peak()
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
        # A kind of measurement that takes minutes is run once.
        if seconds[0] > 120:
            break
    calls = 1000 if name.startswith("call_") else 1
    return {
        "seconds": statistics.median(seconds[1:] or seconds) / calls,
        "least": min(seconds) / calls,
        "extra": resident("VmHWM") - before,
        "peak": resident("VmHWM"),
    }


def child(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        # The exception is the first line that is not indented, after those of the calls.
        lines = done.stderr.strip().splitlines()[1:]
        return {"error": next((line for line in lines if not line.startswith(" ")), "it ended")}
    return json.loads(done.stdout)


def import_seconds(module):
    code = f"import time; s = time.perf_counter(); import {module}; print(time.perf_counter() - s)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    return statistics.median(times)


def versions():
    import importlib.metadata as metadata

    found = {}
    for name in ("datafusion-quantiles", "numpy", "polars", "pandas", "pyarrow", "duckdb"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "from the clone"
    return ", ".join(f"{name} {version}" for name, version in found.items())


def report(rows, runs):
    cores = len(os.sched_getaffinity(0))
    yield f"{rows:,} rows, {cores} cores, Python {platform.python_version()}, {versions()}; median of {runs} runs\n"
    for kind, title in [
        ("array_", "99 quantiles of a Float64 array"),
        ("groups_", "3 quantiles of each of 1000 groups of a Polars frame"),
        ("limited_", f"99 quantiles of a Parquet column within {LIMIT}"),
        ("grouped_", f"3 quantiles of each of 1000 groups of it within {LIMIT}"),
        ("call_", "one quantile of 1000 values, by call"),
    ]:
        yield f"| {title} | median seconds | least seconds | to dfq | extra memory, MiB | peak, MiB |\n| --- | --- | --- | --- | --- | --- |"
        ours = None
        for name in (name for name in MEASURED if name.startswith(kind)):
            found = child(__file__, "--child", name, "--rows", str(rows), "--runs", str(runs))
            label = name.removeprefix(kind)
            if "error" in found:
                yield f"| {label} | {found['error']} | | | | |"
                continue
            ours = ours or found["seconds"]
            yield (
                f"| {label} | {found['seconds']:.3g} | {found['least']:.3g} | {found['seconds'] / ours:.2f} "
                f"| {found['extra'] / MIB:.1f} | {found['peak'] / MIB:.0f} |"
            )
        yield ""
    yield "| import | median seconds |\n| --- | --- |"
    for module in ("dfq", "numpy", "polars", "pandas", "duckdb"):
        yield f"| {module} | {import_seconds(module):.3f} |"
    yield f"\nThe array itself takes {rows * 8 / MIB:.0f} MiB."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=30_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", help="file for the report, besides standard output")
    parser.add_argument("--child", choices=MEASURED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.rows, options.runs)))
        return
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        # Two thousand rows are those that a process begins with.
        for rows in (2000, options.rows):
            write_limited(rows, folder)
        for line in report(options.rows, options.runs):
            print(line, flush=True)
            lines.append(line)
    if options.output:
        with open(options.output, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
