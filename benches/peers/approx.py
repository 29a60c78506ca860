"""Times approximate percentiles, and exact ones of distinct values, in `dfq` and in other systems: see compare.py for data
and programs.

    python benches/peers/approx.py --data /tmp/bench --dfq target/release/dfq

The base of the ratios is `sum` of the same column (with the same GROUP BY) in dfq. Bounds differ: approx_percentile_gk and
ClickHouse's quantilesGK promise a rank error of n / accuracy, the t-digest promises none.
"""

import argparse
import datetime
import glob
import os
import platform
import sys

from compare import ClickHouse, DataFusion, Dfq, DuckDb

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


def systems(arguments, file):
    yield DfqApprox(arguments.dfq, file, arguments.threads)
    for system in (DuckDbApprox, ClickHouseApprox, DataFusionApprox):
        try:
            yield system(file, arguments.threads)
        except ImportError as error:
            print(f"not measured: {system.name} ({error})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with one Parquet file of dfq generate synthetic")
    parser.add_argument("--dfq", default="target/release/dfq", help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="runs of a query in a row; the best counts")
    parser.add_argument("--rounds", type=int, default=2, help="times that the whole list is gone through")
    arguments = parser.parse_args()
    files = glob.glob(os.path.join(arguments.data, "*.parquet"))
    if len(files) != 1:
        sys.exit(f"{arguments.data}: one Parquet file expected, found {len(files)}")
    measured, best = list(systems(arguments, files[0])), {}
    for turn in range(arguments.rounds):
        for system in measured:
            for label, column, run in system.queries():
                key = (column, label, system.name)
                if turn > 0 and best.get(key, 0) > 3:
                    continue  # A slow peer need not be asked again to be seen as slow.
                try:
                    seconds = run(1)
                    if seconds < 2.0:
                        seconds = min(seconds, run(arguments.repeat))
                except Exception as error:  # A peer that runs out of memory is a result too.
                    print(f"{key}: {str(error)[:100]}")
                    continue
                best[key] = min(seconds, best.get(key, seconds))
    print(f"{datetime.date.today()}, {platform.machine()}, {arguments.threads} threads, {os.path.basename(files[0])}")
    print("versions: " + ", ".join(f"{s.name} {getattr(s, 'version', '')}".strip() for s in measured))
    print(f"\n{'column':12} {'query':20} {'system':20} {'seconds':>8} {'x dfq sum':>10}")
    for (column, label, system), seconds in sorted(best.items(), key=lambda item: (COLUMNS + ["1M groups"]).index(item[0][0])):
        base = best.get((column, "sum", "dfq"), float("nan"))
        print(f"{column:12} {label:20} {system:20} {seconds:8.3f} {seconds / base:10.2f}")


if __name__ == "__main__":
    main()
