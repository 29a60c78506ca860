"""Times the first k rows of an order in `dfq` and in other systems: see compare.py for data and programs.

    python benches/peers/top.py --data /tmp/bench --dfq target/release/dfq

Two columns of k = 1, 10, 100, 10 000, 1e6 rows, by a random one of f64, a random one of i64, two, and by one whose order in
the file is that of the query or its reverse. The base of the ratios is `sum` of the column that rows are ordered by, in dfq.
`dfq, off` is dfq with `quantiles.topk = false`: what DataFusion does by itself.
"""

from compare import ClickHouse, DataFusion, DuckDb, Polars
from topk import DfqTopK, measured_best

# Name, columns to order by and whether they descend, and the other column.
ORDERS = [
    ("random f64", [("price", True)], "id"),
    ("random i64", [("uniform_i64", False)], "id"),
    ("two keys", [("g1000", True), ("price", False)], "id"),
    ("sorted", [("id", False)], "price"),
    ("reversed", [("id", True)], "price"),
]
ROWS = [1, 10, 100, 10_000, 1_000_000]


def label(k):
    return f"k={k}"


def first(source, by, other, k):
    """A sum over the rows, so that no system has to hand them out."""
    columns = ", ".join([column for column, _ in by] + [other])
    order = ", ".join(f"{column} DESC" if descends else column for column, descends in by)
    sums = ", ".join(f"sum({column})" for column in columns.split(", "))
    return f"SELECT {sums} FROM (SELECT {columns} FROM {source} ORDER BY {order} LIMIT {k})"


def statements(source):
    for name, by, other in ORDERS:
        for k in ROWS:
            yield name, label(k), first(source, by, other, k)


class DfqTop(DfqTopK):
    def queries(self):
        source = f"'{self.file}'"
        for name, k, statement in statements(source):
            yield k, name, lambda n, s=statement: self.sql(s, n)
        for name, by, _ in ORDERS if self.on else []:
            total = f"SELECT sum({by[0][0]}) FROM {source}"
            yield "sum", name, lambda n, s=total: self.sql(s, n)


class DuckDbTop(DuckDb):
    def queries(self):
        for name, k, statement in statements(f"'{self.file}'"):
            yield k, name, lambda n, s=statement: self.sql(s, n)


class PolarsTop(Polars):
    def queries(self):
        for name, by, other in ORDERS:
            columns, descends = zip(*by)
            for k in ROWS:
                rows = lambda columns=columns, descends=descends, other=other, k=k: (
                    self.polars.scan_parquet(self.file).select(*columns, other)
                    .sort(list(columns), descending=list(descends)).head(k).sum().collect())
                yield label(k), name, lambda n, rows=rows: self.best(rows, n)


class ClickHouseTop(ClickHouse):
    def queries(self):
        for name, k, statement in statements(self.source):
            limited = f"{statement} SETTINGS max_threads = {self.threads}"
            yield k, name, lambda n, s=limited: self.best(lambda: str(self.session.query(s, "CSV")), n)


class DataFusionTop(DataFusion):
    def queries(self):
        for name, k, statement in statements("bench"):
            yield k, name, lambda n, s=statement: self.best(lambda: self.context.sql(s).collect(), n)


if __name__ == "__main__":
    measured_best(__doc__, DfqTop, (DuckDbTop, PolarsTop, ClickHouseTop, DataFusionTop))
