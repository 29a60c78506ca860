"""Times approximate percentiles, and exact ones of distinct values, in `dfq` and in other systems: see compare.py for data
and programs.

    python benches/peers/approx.py --data /tmp/bench --dfq target/release/dfq

The base of the ratios is `sum` of the same column (with the same GROUP BY) in dfq. Bounds differ: approx_percentile_gk and
ClickHouse's quantilesGK promise a rank error of n / accuracy, the t-digest promises none.
"""

from compare import ClickHouse, DataFusion, Dfq, DuckDb, best_times, head, options, parsed, systems

COLUMNS = ["lognormal", "uniform_i64", "zipf"]
PERCENTILES = "[" + ", ".join(f"{i / 100:.2f}" for i in range(1, 100)) + "]"


class DfqApprox(Dfq):
    def queries(self):
        for c in COLUMNS:
            for label, call in [
                ("sum", f"sum({c})"),
                ("99, accuracy 10000", f"approx_percentile_gk({c}, {PERCENTILES}, 10000)"),
                ("1, accuracy 10000", f"approx_percentile_gk({c}, 0.5, 10000)"),
                ("99, accuracy 100", f"approx_percentile_gk({c}, {PERCENTILES}, 100)"),
                ("99 exact, distinct", f"exact_quantiles(DISTINCT {c}, {PERCENTILES})"),
            ]:
                yield label, c, lambda n, call=call: self.sql(f"SELECT {call} FROM '{self.file}'", n)
        for label, call in [("sum", "sum(price)"), ("3, accuracy 100", "approx_percentile_gk(price, [0.1, 0.5, 0.9], 100)")]:
            yield label, "1M groups", lambda n, call=call: self.sql(
                f"SELECT count(v) FROM (SELECT g1m, {call} AS v FROM '{self.file}' GROUP BY 1)", n)


class DuckDbApprox(DuckDb):
    def queries(self):
        for c in COLUMNS:
            yield "99 t-digest", c, lambda n, c=c: self.sql(
                f"SELECT approx_quantile({c}, {PERCENTILES}) FROM '{self.file}'", n)
            yield "99 exact, distinct", c, lambda n, c=c: self.sql(
                f"SELECT quantile_disc(DISTINCT {c}, {PERCENTILES}) FROM '{self.file}'", n)


class ClickHouseApprox(ClickHouse):
    def queries(self):
        levels = PERCENTILES[1:-1]
        for c in COLUMNS:
            yield "99, accuracy 10000", c, lambda n, c=c: self.sql(f"quantilesGK(10000, {levels})({c})", n)


class DataFusionApprox(DataFusion):
    def queries(self):
        for c in COLUMNS:
            yield "1 t-digest", c, lambda n, c=c: self.sql(f"approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY {c})", n)


def main():
    parser = options(__doc__, repeat=3)
    parser.add_argument("--rounds", type=int, default=2, help="times that the whole list is gone through")
    arguments, file = parsed(parser)
    measured = list(systems(arguments, file, DfqApprox, (DuckDbApprox, ClickHouseApprox, DataFusionApprox)))
    best = best_times(measured, arguments.rounds, arguments.repeat)
    head(arguments, measured, file)
    print(f"\n{'column':12} {'query':20} {'system':20} {'seconds':>8} {'x dfq sum':>10}")
    for (column, label, system), seconds in sorted(best.items(), key=lambda item: (COLUMNS + ["1M groups"]).index(item[0][0])):
        base = best.get((column, "sum", "dfq"), float("nan"))
        print(f"{column:12} {label:20} {system:20} {seconds:8.3f} {seconds / base:10.2f}")


if __name__ == "__main__":
    main()
