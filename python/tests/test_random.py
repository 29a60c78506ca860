"""Random tables and questions, judged by NumPy and Polars.

`DFQ_RANDOM_CASES=100000 pytest tests/test_random.py` runs more. A failure prints the seed of its case.
"""

import os
from fractions import Fraction
from math import ceil

import dfq
import numpy as np
import polars as pl
import pytest

CASES = int(os.environ.get("DFQ_RANDOM_CASES", "300"))
SEED = int(os.environ.get("DFQ_RANDOM_SEED", "0"))
TYPES = ["f8", "f4", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]
METHODS = ["linear", "lower", "higher", "nearest", "midpoint", "inverted_cdf", "hazen", "weibull", "median_unbiased"]
# Of Polars' methods those that NumPy has under the same name.
POLARS = ["linear", "lower", "higher", "midpoint"]


def values(rng):
    n = int(rng.choice([1, 2, 3, 10, 100, 1000, 20_000]))
    dtype = np.dtype(rng.choice(TYPES))
    distinct = int(rng.choice([1, 3, 100, 1 << 30]))
    low = 0 if dtype.kind == "u" else -50
    x = rng.integers(low, min(distinct, 100), n, endpoint=True).astype(dtype)
    if dtype.kind == "f":
        x = (x * rng.choice([1, 1e-3, 1e6]) + rng.normal(0, distinct > 3, n)).astype(dtype)
    return np.sort(x) if rng.random() < 0.2 else x


def fractions(rng):
    """Decimals of few digits, as people write them."""
    digits = int(rng.integers(1, 5))
    return [int(rng.integers(0, 10**digits, endpoint=True)) / 10**digits for _ in range(int(rng.integers(1, 8)))]


def close(ours, theirs, x):
    single = x.dtype == np.float32
    scale = max(float(np.abs(x.astype("f8")).max()), 1e-300)
    return np.allclose(np.asarray(ours, "f8"), np.asarray(theirs, "f8"), rtol=0, atol=scale * (1e-6 if single else 1e-13))


def by_rank(x, q, method):
    """Methods that pick a value, whose rank NumPy computes in floating point, by whole numbers."""
    ordered, n = np.sort(x), len(x)
    place = Fraction(str(q)) * (n - 1)
    index = {
        "lower": int(place),
        "higher": ceil(place),
        "nearest": round(place),
        "inverted_cdf": max(1, ceil(Fraction(str(q)) * n)) - 1,
    }[method]
    return ordered[index]


def array_case(rng):
    x, q, method = values(rng), fractions(rng), str(rng.choice(METHODS))
    data = [x, pl.Series(x), x[::-1], np.repeat(x, 2)[::2]][rng.integers(4)]
    ours = dfq.quantiles(data, q, method)
    if method in ("lower", "higher", "nearest", "inverted_cdf"):
        return list(ours) == [by_rank(x, one, method) for one in q], (x, q, method)
    # NumPy's midpoint depends on whether its own place is a whole number.
    wide = x if x.dtype.kind == "f" else x.astype("f8")
    if method == "midpoint":
        lower, higher = (np.array([by_rank(x, one, side) for one in q], "f8") for side in ("lower", "higher"))
        theirs = lower + (higher - lower) / 2
    else:
        theirs = np.quantile(wide, q, method=method)
    return close(ours, theirs, x), (x, q, method)


def grouped_case(rng, con):
    x, q = values(rng), fractions(rng)[:3]
    groups = rng.integers(0, int(rng.choice([1, 3, 1000])), len(x), endpoint=True)
    frame = pl.DataFrame({"g": groups, "x": x})
    q = sorted(set(q))
    ours = con.quantiles(frame, "x", q, by="g").to_polars()
    theirs = frame.group_by("g").agg(
        *(pl.col("x").cast(pl.Float64).quantile(one, "linear").alias(str(one)) for one in q)
    )
    theirs = theirs.sort("g")
    ordered = all(ours["g"].to_list()[i * len(q)] == g for i, g in enumerate(theirs["g"]))
    answers = ours["x"].cast(pl.Float64).to_numpy().reshape(-1, len(q))
    expected = theirs.select(map(str, q)).to_numpy()
    return ordered and close(answers, expected, x), (x, groups, q)


@pytest.mark.parametrize("part", range(4))
def test_random_cases(part):
    wrong = []
    with dfq.connect(partitions=part + 1) as con:
        for case in range(part, CASES, 4):
            rng = np.random.default_rng([SEED, case])
            right, what = grouped_case(rng, con) if case % 5 == 4 else array_case(rng)
            if not right:
                wrong.append(f"case {case}: {what}")
    assert not wrong, "\n".join(wrong[:3])
