"""Times exact quantiles in `dfq` and in other systems, on one file, in one run: ratios count, not seconds.

    pip install -r benches/peers/requirements.txt
    cargo build --release
    target/release/dfq generate synthetic --rows 3e7 --output /tmp/bench
    python benches/peers/compare.py --data /tmp/bench --dfq target/release/dfq

Every system reads the same Parquet file with the same number of threads. Each query runs `--repeat` times in turn
with all others, and the best time stands; systems that are not installed are left out and named.
"""

import argparse
import datetime
import glob
import os
import platform
import re
import subprocess
import sys
import time

PERCENTILES = [round(i / 100, 2) for i in range(1, 100)]
PERMILLES = [round(i / 1000, 3) for i in range(1, 1000)]
COLUMNS = ["lognormal", "uniform_i64", "zipf"]


def listed(quantiles):
    return "[" + ",".join(map(str, quantiles)) + "]"


class Dfq:
    """Statements in one process; the time is the one that the program prints after each."""

    name = "dfq"

    def __init__(self, path, file, threads):
        self.path, self.file, self.threads = path, file, threads

    def sql(self, statement, repeat):
        command = [self.path, "sql", "--partitions", str(self.threads), "--format", "csv"]
        for _ in range(repeat):
            command += ["-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)]
        assert len(seconds) == repeat, done.stderr
        return min(seconds)

    def queries(self):
        f = self.file
        for column in COLUMNS:
            yield "sum", column, lambda n, c=column: self.sql(f"SELECT sum({c}) FROM '{f}'", n)
            for label, q in [("median", 0.5), ("99 quantiles", listed(PERCENTILES)), ("999 quantiles", listed(PERMILLES))]:
                yield label, column, lambda n, c=column, q=q: self.sql(f"SELECT exact_quantiles({c}, {q}) FROM '{f}'", n)
        yield "percentile_cont (built in)", "lognormal", lambda n: self.sql(
            f"SELECT percentile_cont(lognormal, 0.5) FROM '{f}'", n)


class InProcess:
    """A system that Python calls: a query is a function, and the wall clock its time."""

    def best(self, function, repeat):
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)


class DuckDb(InProcess):
    name = "DuckDB"

    def __init__(self, file, threads):
        import duckdb
        self.file, self.connection = file, duckdb.connect()
        self.connection.execute(f"SET threads = {threads}")
        self.version = duckdb.__version__

    def sql(self, statement, repeat):
        return self.best(lambda: self.connection.execute(statement).fetchall(), repeat)

    def queries(self):
        f = self.file
        for column in COLUMNS:
            for label, q in [("sum", None), ("median", 0.5), ("99 quantiles", listed(PERCENTILES))]:
                call = f"quantile_disc({column}, {q})" if q else f"sum({column})"
                yield label, column, lambda n, call=call: self.sql(f"SELECT {call} FROM '{f}'", n)


class Polars(InProcess):
    name = "Polars"

    def __init__(self, file, threads):
        os.environ["POLARS_MAX_THREADS"] = str(threads)
        import polars
        self.polars, self.file, self.version = polars, file, polars.__version__

    def frame(self, column, q, repeat):
        expression = self.polars.col(column)
        expression = expression.sum() if q is None else expression.quantile(q, "nearest")
        return self.best(lambda: self.polars.scan_parquet(self.file).select(expression).collect(), repeat)

    def queries(self):
        for column in COLUMNS:
            for label, q in [("sum", None), ("median", 0.5), ("99 quantiles", PERCENTILES)]:
                yield label, column, lambda n, c=column, q=q: self.frame(c, q, n)


class ClickHouse(InProcess):
    name = "ClickHouse"

    def __init__(self, file, threads):
        from chdb import session
        import chdb
        self.session, self.threads = session.Session(), threads
        self.source, self.version = f"file('{file}', Parquet)", chdb.__version__

    def sql(self, call, repeat):
        statement = f"SELECT {call} FROM {self.source} SETTINGS max_threads = {self.threads}"
        return self.best(lambda: str(self.session.query(statement, "CSV")), repeat)

    def queries(self):
        levels = ",".join(map(str, PERCENTILES))
        for column in COLUMNS:
            yield "sum", column, lambda n, c=column: self.sql(f"sum({c})", n)
            yield "median", column, lambda n, c=column: self.sql(f"quantileExact(0.5)({c})", n)
            yield "99 quantiles", column, lambda n, c=column: self.sql(f"quantilesExact({levels})({c})", n)


class DataFusion(InProcess):
    name = "DataFusion (Python)"

    def __init__(self, file, threads):
        import datafusion
        config = datafusion.SessionConfig().with_target_partitions(threads)
        self.context, self.version = datafusion.SessionContext(config), datafusion.__version__
        self.context.register_parquet("bench", file)

    def sql(self, call, repeat):
        return self.best(lambda: self.context.sql(f"SELECT {call} FROM bench").collect(), repeat)

    def queries(self):
        for column in COLUMNS:
            yield "sum", column, lambda n, c=column: self.sql(f"sum({c})", n)
        yield "median", "lognormal", lambda n: self.sql("median(lognormal)", n)


def options(doc, repeat):
    """The arguments that all of these programs take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with one Parquet file of dfq generate synthetic")
    parser.add_argument("--dfq", default="target/release/dfq", help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=repeat, help="runs of a query in a row; the best counts")
    return parser


def parsed(parser):
    """The arguments, and the one Parquet file."""
    arguments = parser.parse_args()
    files = glob.glob(os.path.join(arguments.data, "*.parquet"))
    if len(files) != 1:
        sys.exit(f"{arguments.data}: one Parquet file expected, found {len(files)}")
    return arguments, files[0]


def systems(arguments, file, own, peers):
    """dfq, and the peers that are installed."""
    yield own(arguments.dfq, file, arguments.threads)
    for peer in peers:
        try:
            yield peer(file, arguments.threads)
        except ImportError as error:
            print(f"not measured: {peer.name} ({error})")


def best_times(measured, rounds, repeat):
    """Least seconds by (what, label, system), of queries that may fail or take long."""
    best = {}
    for turn in range(rounds):
        for system in measured:
            for label, what, run in system.queries():
                key = (what, label, system.name)
                if turn > 0 and best.get(key, 0) > 3:
                    continue  # A slow peer need not be asked again to be seen as slow.
                try:
                    seconds = run(1)
                    if seconds < 2.0:
                        seconds = min(seconds, run(repeat))
                except Exception as error:  # A peer that runs out of memory is a result too.
                    print(f"{key}: {str(error)[:100]}")
                    continue
                best[key] = min(seconds, best.get(key, seconds))
    return best


def head(arguments, measured, file=None):
    """Date, machine, data and versions."""
    data = f", {os.path.basename(file)}" if file else ""
    print(f"{datetime.date.today()}, {platform.machine()}, {arguments.threads} threads{data}")
    print("versions: " + ", ".join(f"{s.name} {getattr(s, 'version', '')}".strip() for s in measured))


def main():
    parser = options(__doc__, repeat=5)
    parser.add_argument("--rounds", type=int, default=2, help="times that the whole list is gone through")
    parser.add_argument("--only", default="", help="names of systems, separated by commas")
    arguments, file = parsed(parser)

    wanted = [name.strip().lower() for name in arguments.only.split(",") if name.strip()]
    measured = [s for s in systems(arguments, file, Dfq, (DuckDb, Polars, ClickHouse, DataFusion)) if not wanted or s.name.lower() in wanted]
    best = {}
    for _ in range(arguments.rounds):
        for system in measured:
            for label, column, run in system.queries():
                # A slow peer need not be asked five times to be seen as slow.
                seconds = run(1)
                if seconds < 1.0:
                    seconds = min(seconds, run(arguments.repeat))
                key = (label, column, system.name)
                best[key] = min(seconds, best.get(key, seconds))

    head(arguments, measured, file)
    print(f"\n{'query':28} {'column':12} {'system':20} {'seconds':>8} {'x dfq sum':>10} {'x dfq':>7}")
    for (label, column, name), seconds in best.items():
        base = best.get(("sum", column, "dfq"), float("nan"))
        own = best.get((label, column, "dfq"), float("nan"))
        print(f"{label:28} {column:12} {name:20} {seconds:8.3f} {seconds / base:10.2f} {seconds / own:7.2f}")


if __name__ == "__main__":
    main()
