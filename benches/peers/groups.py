"""Times three exact quantiles for each group in `dfq` and in other systems: see compare.py for data and programs.

    python benches/peers/groups.py --data /tmp/bench --dfq target/release/dfq

Groupings: 10, 1000 and 1 000 000 groups, 1e7 groups of 3 rows each, and 1 000 000 groups of which one has 90% of the
rows. The base of the ratios is `sum` with the same GROUP BY in dfq.
"""

from compare import ClickHouse, DataFusion, Dfq, DuckDb, Polars, best_times, head, options, parsed, systems

# Name, expression in SQL, in ClickHouse, in Polars.
GROUPINGS = [
    ("10 groups", "g1000 % 10", "g1000 % 10", lambda pl: pl.col("g1000") % 10),
    ("1000 groups", "g1000", "g1000", lambda pl: pl.col("g1000")),
    ("1M groups", "g1m", "g1m", lambda pl: pl.col("g1m")),
    ("1e7 groups", "id // 3", "intDiv(id, 3)", lambda pl: pl.col("id") // 3),
    ("one with 90%", "CASE WHEN g1000 < 900 THEN -1 ELSE g1m END", "if(g1000 < 900, -1, g1m)",
     lambda pl: pl.when(pl.col("g1000") < 900).then(-1).otherwise(pl.col("g1m"))),
]
QUANTILES = [0.5, 0.9, 0.99]
LISTED = "[" + ", ".join(map(str, QUANTILES)) + "]"


class DfqGroups(Dfq):
    def queries(self):
        for name, group, _, _ in GROUPINGS:
            # DataFusion divides integers by `/`.
            group = group.replace("//", "/")
            for label, call in [("sum", "sum(price)"), ("3 quantiles", f"exact_quantiles(price, {LISTED})")]:
                yield label, name, lambda n, g=group, c=call: self.sql(
                    f"SELECT count(v) FROM (SELECT {g} AS g, {c} AS v FROM '{self.file}' GROUP BY 1)", n)


class DuckDbGroups(DuckDb):
    def queries(self):
        for name, group, _, _ in GROUPINGS:
            for label, call in [("sum", "sum(price)"), ("3 quantiles", f"quantile_disc(price, {LISTED})")]:
                yield label, name, lambda n, g=group, c=call: self.sql(
                    f"SELECT count(v) FROM (SELECT {g} AS g, {c} AS v FROM '{self.file}' GROUP BY 1)", n)


class PolarsGroups(Polars):
    def queries(self):
        pl = self.polars
        wanted = [pl.col("price").quantile(q, "nearest").alias(str(q)) for q in QUANTILES]
        for name, _, _, group in GROUPINGS:
            if name in ("1M groups", "1e7 groups", "one with 90%"):
                continue  # Minutes, or out of memory.
            yield "3 quantiles", name, lambda n, g=group(pl): self.best(
                lambda: pl.scan_parquet(self.file).group_by(g.alias("g")).agg(wanted).collect(), n)


class ClickHouseGroups(ClickHouse):
    def queries(self):
        levels = ", ".join(map(str, QUANTILES))
        for name, _, group, _ in GROUPINGS:
            yield "3 quantiles", name, lambda n, g=group: self.statement(
                f"SELECT count(v) FROM (SELECT {g} AS g, quantilesExact({levels})(price) AS v FROM {self.source} GROUP BY g)", n)

    def statement(self, statement, repeat):
        return self.best(lambda: str(self.session.query(f"{statement} SETTINGS max_threads = {self.threads}", "CSV")), repeat)


class DataFusionGroups(DataFusion):
    def queries(self):
        for name, group, _, _ in GROUPINGS:
            group = group.replace("//", "/")
            yield "median alone", name, lambda n, g=group: self.best(lambda: self.context.sql(
                f"SELECT count(v) FROM (SELECT {g} AS g, median(price) AS v FROM bench GROUP BY 1)").collect(), n)


def main():
    parser = options(__doc__, repeat=3)
    parser.add_argument("--rounds", type=int, default=2, help="times that the whole list is gone through")
    arguments, file = parsed(parser)
    measured = list(systems(arguments, file, DfqGroups, (DuckDbGroups, PolarsGroups, ClickHouseGroups, DataFusionGroups)))
    best = best_times(measured, arguments.rounds, arguments.repeat)
    head(arguments, measured, file)
    print(f"\n{'groups':14} {'query':14} {'system':20} {'seconds':>8} {'x dfq sum':>10} {'x dfq':>7}")
    for (name, label, system), seconds in sorted(best.items(), key=lambda item: [g[0] for g in GROUPINGS].index(item[0][0])):
        base = best.get((name, "sum", "dfq"), float("nan"))
        own = best.get((name, "3 quantiles", "dfq"), float("nan"))
        print(f"{name:14} {label:14} {system:20} {seconds:8.3f} {seconds / base:10.2f} {seconds / own:7.2f}")


if __name__ == "__main__":
    main()
