"""Times the best rows of each group in `dfq` and in other systems: see compare.py for data and programs.

    python benches/peers/topk.py --data /tmp/bench --dfq target/release/dfq

The ids of the 10 greatest prices for each of 1M groups, of 1000 for each of 10, of one for each of 1e7; the same as rows,
by `ROW_NUMBER() <= 10`; and the newest row for each of 1M keys with all 7 columns. The base of the ratios is `sum` with
the same GROUP BY in dfq. `dfq, off` is dfq with `quantiles.topk = false`: what DataFusion does by itself.
"""

from compare import ClickHouse, DataFusion, Dfq, DuckDb, Polars, best_times, head, options, parsed, systems

# Name, expression in SQL, in Polars, rows of a group.
SHAPES = [
    ("1M groups, k=10", "g1m", lambda pl: pl.col("g1m"), 10),
    ("10 groups, k=1000", "g1000 % 10", lambda pl: pl.col("g1000") % 10, 1000),
    ("1e7 groups, k=1", "id // 3", lambda pl: pl.col("id") // 3, 1),
]
COLUMNS = ["lognormal", "uniform_i64", "price", "zipf", "g1000", "g1m", "id"]
NEWEST = "newest of 1M keys"
ALL = ", ".join(f"max({column})" for column in COLUMNS)


def grouped(source, group, call):
    return f"SELECT count(v) FROM (SELECT {group} AS g, {call} AS v FROM {source} GROUP BY 1)"


def numbered(source, group, k):
    window = f"row_number() OVER (PARTITION BY {group} ORDER BY price DESC)"
    return f"SELECT count(*), sum(id) FROM (SELECT id, {window} AS n FROM {source}) WHERE n <= {k}"


def newest(source):
    window = "row_number() OVER (PARTITION BY g1m ORDER BY id DESC)"
    return f"SELECT {ALL} FROM (SELECT *, {window} AS n FROM {source}) WHERE n = 1"


class DfqTopK(Dfq):
    def __init__(self, path, file, threads, on=True):
        super().__init__(path, file, threads)
        self.on, self.name = on, "dfq" if on else "dfq, off"

    def sql(self, statement, repeat):
        import re
        import subprocess
        command = [self.path, "sql", "--partitions", str(self.threads), "--format", "csv"]
        command += ["-c", f"SET quantiles.topk = {str(self.on).lower()}"] + ["-c", statement] * repeat
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)]
        assert len(seconds) == repeat + 1, done.stderr
        return min(seconds[1:])

    def queries(self):
        source = f"'{self.file}'"
        for name, group, _, k in SHAPES:
            # DataFusion divides integers by `/`.
            group = group.replace("//", "/")
            if self.on:
                yield "sum", name, lambda n, g=group: self.sql(grouped(source, g, "sum(price)"), n)
                yield "topk_by", name, lambda n, g=group, k=k: self.sql(grouped(source, g, f"topk_by(id, price, {k})"), n)
            yield "row_number", name, lambda n, g=group, k=k: self.sql(numbered(source, g, k), n)
        yield "row_number", NEWEST, lambda n: self.sql(newest(source), n)
        if self.on:
            yield "sum", NEWEST, lambda n: self.sql(grouped(source, "g1m", "sum(price)"), n)


class DuckDbTopK(DuckDb):
    def queries(self):
        source = f"'{self.file}'"
        for name, group, _, k in SHAPES:
            yield "topk_by", name, lambda n, g=group, k=k: self.sql(grouped(source, g, f"max_by(id, price, {k})"), n)
            yield "row_number", name, lambda n, g=group, k=k: self.sql(numbered(source, g, k), n)
        yield "row_number", NEWEST, lambda n: self.sql(newest(source), n)


class PolarsTopK(Polars):
    def queries(self):
        pl = self.polars
        for name, _, group, k in SHAPES:
            if k == 1:
                continue  # Minutes.
            best = pl.col("id").top_k_by("price", k)
            yield "topk_by", name, lambda n, g=group(pl), best=best: self.best(
                lambda: pl.scan_parquet(self.file).group_by(g.alias("g")).agg(best).collect(), n)


class ClickHouseTopK(ClickHouse):
    def queries(self):
        for name, group, _, k in SHAPES:
            group = group.replace("id // 3", "intDiv(id, 3)")
            limit = f"SELECT {group} AS g, id FROM {self.source} ORDER BY price DESC LIMIT {k} BY g"
            yield "row_number", name, lambda n, s=limit: self.statement(f"SELECT count(), sum(id) FROM ({s})", n)
        limit = f"SELECT * FROM {self.source} ORDER BY id DESC LIMIT 1 BY g1m"
        yield "row_number", NEWEST, lambda n: self.statement(f"SELECT {ALL} FROM ({limit})", n)

    def statement(self, statement, repeat):
        return self.best(lambda: str(self.session.query(f"{statement} SETTINGS max_threads = {self.threads}", "CSV")), repeat)


class DataFusionTopK(DataFusion):
    def queries(self):
        for name, group, _, k in SHAPES:
            group = group.replace("//", "/")
            yield "row_number", name, lambda n, g=group, k=k: self.best(
                lambda: self.context.sql(numbered("bench", g, k)).collect(), n)
        yield "row_number", NEWEST, lambda n: self.best(lambda: self.context.sql(newest("bench")).collect(), n)


def measured_best(doc, own, peers):
    """Best times of dfq, of dfq without its operators, and of peers; printed with date and versions."""
    parser = options(doc, repeat=3)
    parser.add_argument("--rounds", type=int, default=2, help="times that the whole list is gone through")
    parser.add_argument("--only", default="", help="names of systems, separated by ;")
    arguments, file = parsed(parser)
    measured = list(systems(arguments, file, own, peers))
    measured.insert(1, own(arguments.dfq, file, arguments.threads, on=False))
    wanted = [name.strip() for name in arguments.only.split(";") if name.strip()]
    measured = [system for system in measured if not wanted or system.name in wanted]
    best = best_times(measured, arguments.rounds, arguments.repeat)
    head(arguments, measured, file)
    print(f"\n{'shape':20} {'query':12} {'system':20} {'seconds':>8} {'x dfq sum':>10} {'x dfq':>7}")
    for (name, label, system), seconds in sorted(best.items()):
        base = best.get((name, "sum", "dfq"), float("nan"))
        same = best.get((name, label, "dfq"), float("nan"))
        print(f"{name:20} {label:12} {system:20} {seconds:8.3f} {seconds / base:10.2f} {seconds / same:7.2f}")


if __name__ == "__main__":
    measured_best(__doc__, DfqTopK, (DuckDbTopK, PolarsTopK, ClickHouseTopK, DataFusionTopK))
