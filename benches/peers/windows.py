"""Times moving medians in `dfq` and in other systems, over frames of several widths, on one file, in one run.

    pip install -r benches/peers/requirements.txt
    cargo build --release
    target/release/dfq generate synthetic --rows 1e6 --output /tmp/windows
    python benches/peers/windows.py --data /tmp/windows --dfq target/release/dfq

The median of `price` over the last rows by `id`; every system sums the medians up, so that none writes a million
rows. DataFusion's own `median`, whose cost of a row grows with the frame, is measured up to frames of 1000.
"""

import argparse
import datetime
import glob
import os
import platform
import sys

from compare import Dfq, DuckDb, Polars

WIDTHS = [10, 1000, 100_000]


def statement(call, file, width):
    over = f"OVER (ORDER BY id ROWS BETWEEN {width - 1} PRECEDING AND CURRENT ROW)"
    return f"SELECT sum(m) FROM (SELECT {call} {over} AS m FROM '{file}') AS moved"


def rolling(polars, file, width):
    median = polars.col("price").rolling_median(width, min_samples=1)
    return polars.scan_parquet(file).sort("id").select(median.sum()).collect()


def queries(system, file):
    """Label, width, and a function from the number of runs to the best time."""
    for width in WIDTHS:
        if isinstance(system, Polars):
            yield "moving", width, lambda n, w=width: system.best(lambda: rolling(system.polars, file, w), n)
            continue
        calls = {"moving": "quantile_cont(price, 0.5)"}
        if isinstance(system, Dfq) and width <= 1000:
            calls["built in"] = "median(price)"
        for label, call in calls.items():
            yield label, width, lambda n, c=call, w=width: system.sql(statement(c, file, w), n)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with one Parquet file of dfq generate synthetic")
    parser.add_argument("--dfq", default="target/release/dfq", help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="runs of a query in a row; the best counts")
    arguments = parser.parse_args()
    files = glob.glob(os.path.join(arguments.data, "*.parquet"))
    if len(files) != 1:
        sys.exit(f"{arguments.data}: one Parquet file expected, found {len(files)}")

    systems = [Dfq(arguments.dfq, files[0], arguments.threads)]
    for peer in (DuckDb, Polars):
        try:
            systems.append(peer(files[0], arguments.threads))
        except ImportError as error:
            print(f"not measured: {peer.name} ({error})")
    print(f"{datetime.date.today()}, {platform.machine()}, {arguments.threads} threads")
    print("versions: " + ", ".join(f"{s.name} {getattr(s, 'version', '')}".strip() for s in systems))
    print(f"\n{'system':20} {'call':10} {'frame':>8} {'seconds':>8} {'x dfq':>7}")
    own = {}
    for system in systems:
        for label, width, run in queries(system, files[0]):
            seconds = run(arguments.repeat)
            own.setdefault(width, seconds)
            print(f"{system.name:20} {label:10} {width:8} {seconds:8.3f} {seconds / own[width]:7.2f}")


if __name__ == "__main__":
    main()
