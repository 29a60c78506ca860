"""Times moving medians in `dfq` and in other systems, over frames of several widths, on one file, in one run.

    pip install -r benches/peers/requirements.txt
    cargo build --release
    target/release/dfq generate synthetic --rows 1e6 --output /tmp/windows
    python benches/peers/windows.py --data /tmp/windows --dfq target/release/dfq

The median of `price` over the last rows by `id`; every system sums the medians up, so that none writes a million
rows. DataFusion's own `median`, whose cost of a row grows with the frame, is measured up to frames of 1000.
"""

from compare import Dfq, DuckDb, Polars, head, options, parsed, systems

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
    arguments, file = parsed(options(__doc__, repeat=3))
    measured = list(systems(arguments, file, Dfq, (DuckDb, Polars)))
    head(arguments, measured)
    print(f"\n{'system':20} {'call':10} {'frame':>8} {'seconds':>8} {'x dfq':>7}")
    own = {}
    for system in measured:
        for label, width, run in queries(system, file):
            seconds = run(arguments.repeat)
            own.setdefault(width, seconds)
            print(f"{system.name:20} {label:10} {width:8} {seconds:8.3f} {seconds / own[width]:7.2f}")


if __name__ == "__main__":
    main()
