"""Compares the answers of `dfq` with those of other systems, function by function, for five groups of 1000 rows; no times.

    pip install -r benches/peers/requirements.txt
    cargo build
    python benches/peers/answers.py --dfq target/debug/dfq [--postgres "host=/tmp dbname=postgres"]

Systems that are not installed are left out and named. An empty cell of the table: the system has no such function, or its answer is no
exact one. The exit status is 1 if an answer differs.
"""

import argparse
import csv
import importlib
import json
import math
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = 1000
GROUPS = 5
TABLE = "t"
OVER = "ORDER BY id ROWS BETWEEN 6 PRECEDING AND CURRENT ROW"
NUMPY_METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "linear",
    "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]


def rows():
    """(id, g, x, f, w): x has many repeats, of different counts; f has none, apart from NULLs; w is 0 to 6."""
    for i in range(ROWS):
        mixed = i * 7919 % 1009
        x = None if i % 97 == 13 else mixed * mixed % 53 % 17
        f = None if i % 89 == 7 else (mixed - 500) / 8 + i / 1024
        yield i, i % GROUPS, x, f, i * 31 % 7


def by_groups(call):
    return f"SELECT g, {call} AS a FROM {TABLE} GROUP BY g ORDER BY g"


def whole(call):
    """The statement for a call, which may be a statement itself."""
    return call if call.startswith("SELECT") else by_groups(call)


class Dfq:
    name = "dfq"

    def __init__(self, path, file):
        self.path, self.file = path, file
        self.version = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout.strip()

    def ask(self, call):
        view = f"CREATE VIEW {TABLE} AS SELECT * FROM '{self.file}'"
        command = [self.path, "sql", "--quiet", "--format", "nd-json", "-c", view, "-c", whole(call)]
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode != 0:
            raise ValueError(out.stderr.strip())
        return [json.loads(line).get("a") for line in out.stdout.splitlines()]


class DuckDb:
    name = "DuckDB"

    def __init__(self, file):
        module = importlib.import_module("duckdb")
        self.version = module.__version__
        self.session = module.connect()
        self.session.execute(f"CREATE TABLE {TABLE} AS SELECT * FROM '{file}'")

    def ask(self, call):
        return [row[-1] for row in self.session.execute(whole(call)).fetchall()]


class ClickHouse:
    name = "ClickHouse"

    def __init__(self, file):
        self.module, self.file = importlib.import_module("chdb"), file
        self.version = str(self.module.query("SELECT version()", "TSVRaw")).strip()

    def ask(self, call):
        with_table = whole(call).replace(f"FROM {TABLE}", f"FROM file('{self.file}', Parquet)")
        out = self.module.query(with_table + " SETTINGS output_format_json_quote_64bit_integers = 0", "JSONEachRow")
        return [json.loads(line)["a"] for line in str(out).splitlines()]


class Postgres:
    name = "Postgres"

    def __init__(self, where, folder):
        if not where:
            raise ImportError("no --postgres")
        self.where = where
        self.version = self.psql("SHOW server_version").strip()
        file = Path(folder) / "t.csv"
        with open(file, "w", newline="") as out:
            csv.writer(out).writerows(rows())
        self.setup = (
            f"CREATE TEMP TABLE {TABLE}(id BIGINT, g BIGINT, x BIGINT, f DOUBLE PRECISION, w BIGINT);\n"
            f"\\copy {TABLE} FROM '{file}' CSV\n"
        )

    def psql(self, text):
        command = ["psql", self.where, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]
        return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout

    def ask(self, call):
        out = self.psql(self.setup + f"SELECT to_json(a) FROM ({whole(call)}) AS answers;\n")
        return [json.loads(line) for line in out.splitlines()]


class Spark:
    name = "Spark"

    def __init__(self, file):
        sql = importlib.import_module("pyspark.sql")
        self.version = importlib.import_module("pyspark").__version__
        builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        self.session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
        self.session.sparkContext.setLogLevel("OFF")
        self.session.read.parquet(str(file)).createOrReplaceTempView(TABLE)

    def ask(self, call):
        return [row["a"] for row in self.session.sql(whole(call)).collect()]


class DataFusion:
    name = "DataFusion"

    def __init__(self, file):
        module = importlib.import_module("datafusion")
        self.version = module.__version__
        self.session = module.SessionContext()
        self.session.register_parquet(TABLE, str(file))

    def ask(self, call):
        return [row["a"] for row in self.session.sql(whole(call)).to_pylist()]


class Polars:
    """Expressions of Polars, `pl`, over one group after the other."""

    name = "Polars"

    def __init__(self):
        self.module = importlib.import_module("polars")
        self.version = self.module.__version__
        self.frame = self.module.DataFrame(list(rows()), schema=["id", "g", "x", "f", "w"], orient="row")

    def ask(self, call):
        if call.startswith("frame["):
            return eval(call, {"frame": self.frame, "pl": self.module}).to_list()
        groups = self.frame.partition_by("g", maintain_order=True)
        return [eval(call, {"x": frame["x"].drop_nulls(), "f": frame["f"].drop_nulls(), "pl": self.module}) for frame in groups]


class NumPy:
    """Expressions of NumPy and SciPy, `np` and `stats`, over the values of one group after the other, with the weights of the rows."""

    name = "NumPy, SciPy"

    def __init__(self):
        self.module = importlib.import_module("numpy")
        self.stats = importlib.import_module("scipy.stats")
        self.version = f"{self.module.__version__}, {importlib.import_module('scipy').__version__}"

    def ask(self, call):
        found = []
        for group in range(GROUPS):
            kept = [row for row in rows() if row[1] == group]
            named = {"np": self.module, "stats": self.stats}
            for name, at in [("x", 2), ("f", 3)]:
                named[name] = self.module.array([row[at] for row in kept if row[at] is not None])
                named["w" + name] = self.module.array([row[4] for row in kept if row[at] is not None])
            found.append(eval(call, named))
        return found


def within(function, column, desc=False):
    return f"{function} WITHIN GROUP (ORDER BY {column}{' DESC' if desc else ''})"


def cases():
    """What is asked: the call of dfq, and that of each system that has the function."""
    disc, cont = within("percentile_disc(0.3)", "x"), within("percentile_cont(0.3)", "f")
    yield "quantile_disc(x, 0.3)", {
        "DuckDB": "quantile_disc(x, 0.3)", "ClickHouse": "quantileExactWeighted(0.3)(x, 1)", "Postgres": disc, "Spark": disc,
        "Polars": "x.quantile(0.3, 'equiprobable')", "NumPy, SciPy": "np.quantile(x, 0.3, method='inverted_cdf')",
    }
    yield "quantile_cont(f, 0.3)", {
        "DuckDB": "quantile_cont(f, 0.3)", "ClickHouse": "quantileExactInclusive(0.3)(f)", "Postgres": cont, "Spark": cont,
        "Polars": "f.quantile(0.3, 'linear')", "NumPy, SciPy": "np.quantile(f, 0.3)",
    }
    yield within("percentile_cont(0.25)", "f", True), {
        "DuckDB": within("percentile_cont(0.25)", "f", True), "Postgres": within("percentile_cont(0.25)", "f", True),
        "Spark": within("percentile_cont(0.25)", "f", True), "DataFusion": within("percentile_cont(0.25)", "f", True),
    }
    yield "quantile_disc(x, [0.1, 0.5, 0.9])", {
        "DuckDB": "quantile_disc(x, [0.1, 0.5, 0.9])", "ClickHouse": "quantilesExactWeighted(0.1, 0.5, 0.9)(x, 1)",
        "Postgres": within("percentile_disc(ARRAY[0.1, 0.5, 0.9])", "x"),
        "Spark": within("percentile_disc(array(0.1, 0.5, 0.9))", "x"),
        "NumPy, SciPy": "np.quantile(x, [0.1, 0.5, 0.9], method='inverted_cdf')",
    }
    yield "median(f)", {
        "DuckDB": "median(f)", "ClickHouse": "quantileExactInclusive(0.5)(f)", "Spark": "median(f)", "Polars": "f.median()",
        "NumPy, SciPy": "np.median(f)", "DataFusion": "median(f)",
    }
    yield "percentile(x, 0.3)", {"Spark": "percentile(x, 0.3)"}
    yield "percentile(x, [0.1, 0.77], w)", {"Spark": "percentile(x, array(0.1, 0.77), w)"}
    yield "exact_quantiles(x, 0.3, 'disc', w)", {
        "ClickHouse": "quantileExactWeighted(0.3)(x, toUInt64(w))",
        "NumPy, SciPy": "np.quantile(x, 0.3, weights=wx, method='inverted_cdf')",
    }
    for method in NUMPY_METHODS:
        calls = {"NumPy, SciPy": f"np.quantile(x, 0.37, method='{method}')"}
        if method in ("linear", "lower", "higher", "midpoint"):
            calls["Polars"] = f"x.quantile(0.37, '{method}')"
        yield f"exact_quantiles(x, 0.37, '{method}')", calls
    for call in [
        "quantileExact(0.3)(x)", "medianExact(x)", "quantilesExact(0.2, 0.5)(x)", "quantileExactLow(0.5)(x)", "quantilesExactLow(0.5, 0.2)(x)",
        "quantileExactHigh(0.5)(x)", "quantileExactInclusive(0.37)(f)", "quantileExactExclusive(0.37)(f)", "medianExactWeighted(x, w)",
        "quantilesExactWeighted(0.2, 0.7)(x, w)",
    ]:
        yield call, {"ClickHouse": call.replace(", w)", ", toUInt64(w))")}
    yield "exact_rank(x, 5)", {
        "DuckDB": "count(*) FILTER (x <= 5)", "ClickHouse": "countIf(x <= 5)", "Postgres": "count(*) FILTER (WHERE x <= 5)",
        "Polars": "(x <= 5).sum()", "NumPy, SciPy": "np.searchsorted(np.sort(x), 5, side='right')",
    }
    yield "exact_cdf(x, 5)", {"Polars": "(x <= 5).mean()", "NumPy, SciPy": "stats.percentileofscore(x, 5, kind='weak') / 100"}
    for name in ["rank", "dense_rank", "percent_rank", "cume_dist"]:
        yield within(f"{name}(5)", "x"), {"Postgres": within(f"{name}(5)", "x")}
        yield within(f"{name}(5)", "x", True), {"Postgres": within(f"{name}(5)", "x", True)}
    yield "mode(x)", {
        "Postgres": within("mode()", "x"), "Spark": "mode(x, true)", "Polars": "min(x.mode())", "NumPy, SciPy": "stats.mode(x).mode",
    }
    counted = "sorted(x.value_counts().rows(), key=lambda row: (-row[1], row[0]))[:3]"
    # Without ties, of which the smaller value comes first here, and any value there.
    yield "approx_top_k(x % 3, 2)", {"DuckDB": "approx_top_k(x % 3, 2)", "ClickHouse": "topK(2)(x % 3)"}
    yield "top_values(x, 3)", {"Polars": f"[dict(value=value, count=count) for value, count in {counted}]"}
    yield "mad(f)", {"DuckDB": "mad(f)", "NumPy, SciPy": "stats.median_abs_deviation(f)"}
    yield "iqr(f)", {"NumPy, SciPy": "stats.iqr(f)"}
    yield "trimmed_mean(f, 0.1)", {"NumPy, SciPy": "stats.trim_mean(f, 0.1)"}
    yield "winsorized_mean(f, 0.1)", {"NumPy, SciPy": "stats.mstats.winsorize(f, (0.1, 0.1)).mean()"}
    bins = "[dict(low=low, high=high, count=n) for low, high, n in zip(edges, edges[1:], counts)]"
    # No value lies on an edge, which NumPy counts in the bin above.
    yield "histogram(f, 7, 'equi-width')", {"NumPy, SciPy": f"(lambda counts, edges: {bins})(*np.histogram(f, 7))"}
    yield "max(f, 3)", {"DuckDB": "max(f, 3)", "Polars": "f.top_k(3).sort(descending=True).to_list()"}
    yield "min(f, 3)", {"DuckDB": "min(f, 3)", "ClickHouse": "groupArraySorted(3)(f)", "Polars": "f.bottom_k(3).sort().to_list()"}
    for name, clickhouse in [("max_by", "argMax"), ("min_by", "argMin"), ("arg_max", "argMax"), ("arg_min", "argMin")]:
        yield f"{name}(id, f)", {"DuckDB": f"{name}(id, f)", "ClickHouse": f"{clickhouse}(id, f)"} | (
            {"Spark": f"{name}(id, f)"} if name.endswith("_by") else {}
        )
    for name in ["max_by", "min_by"]:
        yield f"{name}(id, f, 3)", {"DuckDB": f"{name}(id, f, 3)", "Spark": f"{name}(id, f, 3)"}
    yield f"SELECT quantile_cont(f, 0.5) OVER ({OVER}) AS a FROM t ORDER BY id", {
        "DuckDB": f"SELECT quantile_cont(f, 0.5) OVER ({OVER}) AS a FROM t ORDER BY id",
        "DataFusion": f"SELECT median(f) OVER ({OVER}) AS a FROM t ORDER BY id",
        "Polars": "frame['f'].rolling_median(7, min_samples=1)",
    }
    windowed = "SELECT {} OVER (PARTITION BY g) AS a FROM t ORDER BY id"
    yield windowed.format(within("percentile_cont(0.25)", "f", True)), {
        "DuckDB": windowed.format("quantile_cont(f, 0.75)"), "Spark": windowed.format(within("percentile_cont(0.25)", "f", True)),
        "DataFusion": windowed.format("percentile_cont(f, 0.75)"),
    }


def plain(value):
    """A value as numbers, lists and dictionaries of Python."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if type(value).__name__ == "Decimal":
        return float(value)
    return value


def same(one, other):
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
    return one == other


def peers(args, file, folder):
    makers = [
        lambda: DuckDb(file), lambda: ClickHouse(file), lambda: Postgres(args.postgres, folder), lambda: Spark(file), Polars, NumPy,
        lambda: DataFusion(file),
    ]
    for make in makers:
        try:
            yield make()
        except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError) as failure:
            print(f"left out: {failure}", file=sys.stderr)


def compared(ours, peer, call):
    """A cell of the table: whether the system's answer is ours."""
    try:
        found = [plain(value) for value in peer.ask(call)]
    except Exception as failure:  # What fails is a cell that says so.
        return f"error: {str(failure).splitlines()[0][:80]}"
    if same(ours, found):
        return "="
    at = next((i for i, pair in enumerate(zip(ours, found)) if not same(*pair)), 0)
    return f"{ours[at]} here, {found[at]} there" if len(ours) == len(found) else f"{len(ours)} rows here, {len(found)} there"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--postgres", help="where a server of Postgres is, as psql takes it")
    args = parser.parse_args()
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.parquet"
        columns = zip(["id", "g", "x", "f", "w"], zip(*rows()))
        parquet.write_table(pyarrow.table({name: pyarrow.array(values) for name, values in columns}), file)
        dfq, others = Dfq(args.dfq, file), list(peers(args, file, folder))
        print(f"Python {platform.python_version()}; {dfq.version}; " + "; ".join(f"{peer.name} {peer.version}" for peer in others))
        print(f"\n| {dfq.name} | " + " | ".join(peer.name for peer in others) + " |")
        print("| --- |" + " --- |" * len(others))
        differ = 0
        for call, calls in cases():
            ours = [plain(value) for value in dfq.ask(call)]
            cells = [compared(ours, peer, calls[peer.name]) if peer.name in calls else "" for peer in others]
            differ += sum(cell not in ("", "=") for cell in cells)
            print(f"| `{call}` | " + " | ".join(cells) + " |", flush=True)
        print(f"\n{differ} answers differ", file=sys.stderr)
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
