"""Random data and questions, judged by NumPy, Polars and counting.

`DFQ_RANDOM_CASES=100000 pytest -s tests/test_random.py` runs more, and says how many of each kind; `DFQ_RANDOM_SEED` gives others. A failure
prints the number of its case, which alone runs with `DFQ_RANDOM_CASE`.
"""

import os
from collections import Counter
from fractions import Fraction
from math import ceil

import datafusion
import dfq
import numpy as np
import polars as pl
import pytest

CASES = int(os.environ.get("DFQ_RANDOM_CASES", "300"))
SEED = int(os.environ.get("DFQ_RANDOM_SEED", "0"))
ONE = int(os.environ["DFQ_RANDOM_CASE"]) if "DFQ_RANDOM_CASE" in os.environ else None
TYPES = ["f8", "f4", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]
TIMES = ["M8[ms]", "M8[ns]", "m8[us]"]
PICKING = ["lower", "higher", "nearest", "inverted_cdf"]
METHODS = ["linear", "midpoint", "hazen", "weibull", "median_unbiased", *PICKING]


def values(rng, types=TYPES):
    n = int(rng.choice([1, 2, 3, 10, 100, 1000, 20_000], p=[0.1, 0.1, 0.15, 0.2, 0.2, 0.2, 0.05]))
    dtype = np.dtype(rng.choice(types))
    distinct = int(rng.choice([1, 3, 100, 1 << 30]))
    low = 0 if dtype.kind == "u" else -50
    x = rng.integers(low, min(distinct, 100), n, endpoint=True).astype(dtype)
    if dtype.kind == "f":
        x = (x * rng.choice([1, 1e-3, 1e6]) + rng.normal(0, distinct > 3, n)).astype(dtype)
    return np.sort(x) if rng.random() < 0.2 else x


def fractions(rng, most=7):
    """Decimals of few digits, as people write them."""
    digits = int(rng.integers(1, 5))
    count = int(rng.integers(1, most, endpoint=True))
    return [int(rng.integers(0, 10**digits, endpoint=True)) / 10**digits for _ in range(count)]


def close(ours, theirs, x):
    single = x.dtype == np.float32
    finite = np.abs(x[np.isfinite(x)].astype("f8"))
    scale = max(float(finite.max(initial=0.0)), 1e-300)
    atol = scale * (1e-6 if single else 1e-13)
    return np.allclose(np.asarray(ours, "f8"), np.asarray(theirs, "f8"), rtol=0, atol=atol, equal_nan=True)


def by_rank(x, q, method):
    """Methods that pick a value, whose rank NumPy computes in floating point, by whole numbers. NaNs are the greatest."""
    ordered, n = np.sort(x), len(x)
    place = Fraction(str(q)) * (n - 1)
    index = {
        "lower": int(place),
        "higher": ceil(place),
        "nearest": round(place),
        "inverted_cdf": max(1, ceil(Fraction(str(q)) * n)) - 1,
    }[method]
    return ordered[index]


def between(x, q):
    """The method 'linear', by whole numbers as far as they go."""
    lower, higher = by_rank(x, q, "lower"), by_rank(x, q, "higher")
    part = Fraction(str(q)) * (len(x) - 1) % 1
    return lower if part == 0 else lower + (higher - lower) * float(part)


def array_case(rng, _con):
    """NumPy's methods, over arrays of every kind."""
    x, q, method = values(rng), fractions(rng), str(rng.choice(METHODS))
    data = [x, pl.Series(x), x[::-1], np.repeat(x, 2)[::2], pl.Series(x).to_arrow()][rng.integers(5)]
    ours = np.asarray(dfq.quantiles(data, q, method))
    if method in PICKING:
        return list(ours) == [by_rank(x, one, method) for one in q], (x, q, method)
    # NumPy's midpoint depends on whether its own place is a whole number.
    wide = x if x.dtype.kind == "f" else x.astype("f8")
    if method == "midpoint":
        lower, higher = (np.array([by_rank(x, one, side) for one in q], "f8") for side in ("lower", "higher"))
        theirs = lower + (higher - lower) / 2
    else:
        theirs = np.quantile(wide, q, method=method)
    return close(ours, theirs, x), (x, q, method)


def missing_case(rng, _con):
    """Missing values, NaNs and NaTs."""
    x, q = values(rng, ["f8", "f4", "i8", "u1", *TIMES]), fractions(rng)
    method = str(rng.choice(["linear", *PICKING] if x.dtype.kind == "f" else PICKING))
    absent = rng.random(len(x)) < rng.choice([0.0, 0.1, 0.9, 1.0])
    if x.dtype.kind == "f" and rng.random() < 0.5:
        # NaNs of NumPy are values; so there are no missing ones.
        data = present = np.where(absent, np.asarray(np.nan, x.dtype), x)
    elif x.dtype.kind in "Mm" and rng.random() < 0.5:
        data, present = np.where(absent, np.asarray("NaT", x.dtype), x), x[~absent]
    else:
        data, present = pl.Series(x).set(pl.Series(absent), None), x[~absent]
    ours = dfq.quantiles(data, q, method)
    if len(present) == 0:
        ours = ours.to_list() if isinstance(ours, pl.Series) else ours.astype(object)
        return all(one is None or one != one for one in ours), (data, q, method)
    ours = np.asarray(ours)
    theirs = [between(present, one) if method == "linear" else by_rank(present, one, method) for one in q]
    if x.dtype.kind in "Mm":
        return list(ours.astype(x.dtype)) == theirs, (data, q, method)
    return close(ours, theirs, x), (data, q, method)


def grouped_case(rng, con):
    """Groups of data frames and of Parquet files, against Polars."""
    x, q = values(rng), sorted(set(fractions(rng, 3)))
    groups = rng.integers(0, int(rng.choice([1, 3, 1000])), len(x), endpoint=True)
    frame = pl.DataFrame({"g": groups, "x": x})
    data = frame
    if rng.random() < 0.2:
        data = "random.parquet"
        frame.write_parquet(data, row_group_size=int(rng.choice([7, 1000])) if len(x) < 2000 else 5000)
    ours = con.quantiles(data, "x", q, by="g").to_polars()
    theirs = frame.group_by("g").agg(
        *(pl.col("x").cast(pl.Float64).quantile(one, "linear").alias(str(one)) for one in q)
    )
    theirs = theirs.sort("g")
    ordered = all(ours["g"].to_list()[i * len(q)] == g for i, g in enumerate(theirs["g"]))
    answers = ours["x"].cast(pl.Float64).to_numpy().reshape(-1, len(q))
    expected = theirs.select(map(str, q)).to_numpy()
    return ordered and close(answers, expected, x), (x, groups, q)


def topk_case(rng, _con):
    """The best values by a key, against a sort."""
    keys, k, largest = values(rng), int(rng.choice([1, 2, 10, 1000])), bool(rng.random() < 0.5)
    items = rng.integers(0, int(rng.choice([3, 1 << 40])), len(keys))
    ours = np.asarray(dfq.topk(items, pl.Series(keys) if rng.random() < 0.5 else keys, k, largest=largest))
    by_item = np.argsort(items, kind="stable")
    order = np.argsort(keys[by_item], kind="stable")
    if largest:
        # Ties stay in the order of items.
        order = len(keys) - 1 - np.argsort(keys[by_item][::-1], kind="stable")[::-1]
    return list(ours) == list(items[by_item][order][:k]), (items, keys, k, largest)


def sketch_case(rng, _con):
    """Sketches that were merged, stored and read: ranks within the bound."""
    x, accuracy = values(rng), int(rng.choice([10, 100, 2000]))
    pieces = np.array_split(x, int(rng.integers(1, 5)))
    sketch = dfq.GkSketch(accuracy)
    for piece in pieces:
        other = dfq.GkSketch(accuracy)
        other.update(piece)
        sketch.merge(dfq.GkSketch.from_bytes(other.to_bytes()) if len(piece) else other)
    n, ordered, slack = len(x), np.sort(x), Fraction(len(x), accuracy)
    right = sketch.n == n
    for q in fractions(rng, 3):
        answer = np.asarray(sketch.quantile(q)).astype(x.dtype)
        first, last = np.searchsorted(ordered, answer, "left") + 1, np.searchsorted(ordered, answer, "right")
        wanted = max(1, ceil(Fraction(str(q)) * n))
        right = right and first - slack - 1 <= wanted <= last + slack + 1 and answer in x
    value = x[rng.integers(n)]
    bounds, at = sketch.rank(value.item()), np.searchsorted(ordered, value, "right")
    return right and bounds.rank_min <= at <= bounds.rank_max, (x, accuracy)


def datafusion_case(rng, con):
    """Functions in a session of the package datafusion, against ours."""
    x = values(rng)
    t = pl.DataFrame({"g": rng.integers(0, 5, len(x)), "x": x})
    q, method = fractions(rng, 3), str(rng.choice(["exact_quantiles", "exact_quantiles_linear", "exact_rank"]))
    sql = f"SELECT g, {method}(x, {q}) AS a, topk_by(g, x, 2) AS b FROM t GROUP BY g ORDER BY g"
    ctx = datafusion.SessionContext()
    dfq.register(ctx)
    ctx.from_polars(t, "t")
    return repr(ctx.sql(sql).to_pydict()) == repr(con.sql(sql).to_arrow().to_pydict()), (t, sql)


KINDS = [array_case] * 10 + [missing_case] * 5 + [grouped_case, grouped_case, topk_case, sketch_case, datafusion_case]


@pytest.mark.parametrize("part", range(4))
def test_random_cases(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, counts = [], Counter()
    # Two of the four with little memory.
    with dfq.connect(partitions=part + 1, memory_limit="32MB" if part % 2 else None) as con:
        for case in range(part, CASES, 4) if ONE is None else [ONE] if ONE % 4 == part else []:
            rng = np.random.default_rng([SEED, case])
            kind = KINDS[case // 4 % len(KINDS)]
            right, what = kind(rng, con)
            counts[kind.__name__] += 1
            if not right:
                wrong.append(f"case {case} of seed {SEED}, {kind.__name__}: {what}")
    print(f"seed {SEED}, part {part}: {dict(counts)}, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong[:3])
