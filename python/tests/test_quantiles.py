"""`dfq.quantiles` beside `numpy.quantile`, over every method, type and pattern."""

import decimal
import signal
import threading
import time

import dfq
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

METHODS = [
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
    "lower",
    "higher",
    "midpoint",
    "nearest",
]
# Sixteenths and sums of few of them are exact in floating point, so that NumPy's ranks are right.
FRACTIONS = [0.0, 0.0625, 0.25, 0.3125, 0.5, 0.625, 0.75, 0.9375, 1.0]
TYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]


def patterns(dtype, n, rng):
    """Arrays of one type and length, each of a pattern of its own."""
    bits = np.dtype(dtype)
    if bits.kind == "f":
        spread = rng.normal(0, 100, n)
    else:
        info = np.iinfo(bits)
        low, high = max(info.min, -(2**40)), min(info.max, 2**40)
        spread = rng.integers(low, high, n, endpoint=True)
    spread = spread.astype(bits)
    few = rng.integers(0, 3, n).astype(bits)
    yield "random", spread
    yield "ascending", np.sort(spread)
    yield "descending", np.sort(spread)[::-1]
    yield "few values", few
    yield "one value", np.full(n, spread[0])
    yield "one far off", np.where(np.arange(n) == n // 2, spread.max(), bits.type(0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", TYPES)
def test_answers_are_those_of_numpy(dtype, method):
    rng = np.random.default_rng(3)
    for n in [1, 2, 3, 5, 8, 16, 33, 256, 1000]:
        for name, x in patterns(dtype, n, rng):
            ours = dfq.quantiles(x, FRACTIONS, method=method)
            theirs = np.quantile(x.astype("f8") if x.dtype.kind != "f" else x, FRACTIONS, method=method)
            where = f"{dtype} {method} {n} {name}"
            # NumPy interpolates in the type of x: rounding in the order of a unit in the last place of the values.
            unit = 4 * np.finfo(ours.dtype if ours.dtype.kind == "f" else "f8").eps
            scale = max(np.abs(x.astype("f8")).max(), 1e-30)
            np.testing.assert_allclose(ours.astype("f8"), theirs.astype("f8"), rtol=0, atol=unit * scale, err_msg=where)
            picks = method in ("inverted_cdf", "closest_observation", "lower", "higher", "nearest")
            assert ours.dtype == (x.dtype if picks or x.dtype.kind == "f" else "f8"), where


@pytest.mark.parametrize("method", METHODS)
def test_large_arrays_are_read_where_they_are(method):
    rng = np.random.default_rng(5)
    x = rng.normal(size=1_300_000)
    q = np.arange(1, 128) / 128
    ours = dfq.quantiles(x, q, method=method)
    np.testing.assert_allclose(ours, np.quantile(x, q, method=method), rtol=1e-12, atol=1e-12)
    assert dfq.quantiles(x, 0.5, method=method) == ours[63]


def test_a_quantile_means_the_decimal_that_is_written():
    x = np.arange(1, 101)
    assert dfq.quantiles(x, 0.07, "inverted_cdf") == 7
    assert np.quantile(x, 0.07, method="inverted_cdf") in (7, 8)


def test_scalars_and_lists():
    x = np.array([1.0, 2.0, 4.0], dtype="f4")
    one = dfq.quantiles(x, 0.5)
    assert isinstance(one, np.float32) and one == 2
    assert dfq.quantiles(x, np.float64(1)) == 4
    assert dfq.quantiles(x, 1) == 4
    for several in ([0.5], (0.5,), np.array([0.5]), pl.Series([0.5]), pd.Series([0.5])):
        answers = dfq.quantiles(x, several)
        assert answers.shape == (1,) and answers.dtype == "f4"
    assert dfq.quantiles(x, []).shape == (0,)
    assert dfq.quantiles([3, 1, 2], 0.5) == 2
    assert dfq.quantiles(range(5), 0.25) == 1


def test_every_layout_of_numpy_arrays():
    x = np.arange(24, dtype="f8")
    expected = np.quantile(x, FRACTIONS)
    packed = np.zeros(24, dtype=[("a", "i1"), ("b", "f8")])
    packed["b"] = x
    layouts = {
        "reversed": x[::-1],
        "strided": np.repeat(x, 3)[::3],
        "matrix": x.reshape(4, 6),
        "by columns": np.asfortranarray(x.reshape(4, 6)),
        "transposed slice": np.arange(48, dtype="f8").reshape(6, 8)[:, ::2].T.copy().reshape(-1) / 2,
        "other byte order": x.astype(">f8"),
        "misaligned": packed["b"],
        "read only": np.frombuffer(x.tobytes()),
    }
    for name, layout in layouts.items():
        np.testing.assert_array_equal(dfq.quantiles(layout, FRACTIONS), np.quantile(layout, FRACTIONS), err_msg=name)
    np.testing.assert_array_equal(dfq.quantiles(packed["b"], FRACTIONS), expected)
    assert dfq.quantiles(np.float64(3), 0.5) == 3


def test_missing_values():
    nan = np.array([1.0, np.nan, 3.0])
    assert np.isnan(dfq.quantiles(nan, 1.0)) and dfq.quantiles(nan, 0.5) == 3
    assert dfq.quantiles(pa.array([1.0, None, 3.0]), 0.5) == 2
    assert dfq.quantiles(pl.Series([1, None, 3]), 0.5, "disc") == 1
    assert np.isnan(dfq.quantiles(np.array([]), 0.5))
    assert np.isnan(dfq.quantiles(np.array([], dtype="i4"), [0.5], "disc")[0])
    assert dfq.quantiles(pa.array([], pa.int64()), 0.5) is None
    assert dfq.quantiles(pa.array([None, None]), 0.5) is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_numpy(unit):
    days = np.array(["2024-01-03", "NaT", "2024-01-01", "2024-01-02"], dtype=f"M8[{unit}]")
    answers = dfq.quantiles(days, [0.0, 0.25, 1.0])
    assert answers.dtype == days.dtype
    np.testing.assert_array_equal(answers, np.array(["2024-01-01", "2024-01-01T12", "2024-01-03"], dtype=f"M8[{unit}]"))
    spans = np.array([5, 1, 3], dtype=f"m8[{unit}]")
    assert dfq.quantiles(spans, 0.5) == np.timedelta64(3, unit)
    assert np.isnat(dfq.quantiles(np.array([], dtype=f"M8[{unit}]"), 0.5))
    with pytest.raises(dfq.QueryError, match="allowed are the units s, ms, us and ns"):
        dfq.quantiles(days.astype("M8[D]"), 0.5)


def test_answers_are_of_the_kind_of_the_values():
    values = [4.0, 1.0, 3.0]
    series = dfq.quantiles(pl.Series("fare", values), [0.0, 1.0])
    assert isinstance(series, pl.Series) and series.name == "fare" and series.to_list() == [1, 4]
    array = dfq.quantiles(pa.array(values), [0.0, 1.0])
    assert isinstance(array, pa.Array) and array.to_pylist() == [1, 4]
    pandas = dfq.quantiles(pd.Series(values, name="fare"), [0.0, 1.0])
    assert pandas.equals(pd.Series(values, name="fare").quantile([0.0, 1.0]))
    assert dfq.quantiles(pd.Series(values), 0.5) == 3
    # Missing values of pandas are NaN.
    assert dfq.quantiles(pd.Series([1.0, None, 3.0]), 1.0) == 3
    assert dfq.topk(pd.Series([7, 8, 9]), pd.Series([2.0, None, 1.0]), 2).tolist() == [7, 9]


def test_chunks_are_one_array():
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 1000, n) for n in (0, 10, 500_000, 1, 700_000)]
    chunked = pa.chunked_array(parts)
    assert chunked.num_chunks == 5
    expected = np.quantile(np.concatenate(parts), [0.1, 0.9])
    np.testing.assert_allclose(dfq.quantiles(chunked, [0.1, 0.9]).to_numpy(), expected)
    polars = pl.concat([pl.Series(part) for part in parts], rechunk=False)
    assert polars.n_chunks() > 1
    np.testing.assert_allclose(dfq.quantiles(polars, [0.1, 0.9]).to_numpy(), expected)


def test_types_of_arrow():
    texts = pa.array(["b", None, "a", "c"])
    assert dfq.quantiles(texts, 0.5, "disc") == "b"
    assert dfq.quantiles(texts.dictionary_encode(), [0.0, 1.0], "disc").to_pylist() == ["a", "c"]
    money = pa.array([decimal.Decimal("1.10"), decimal.Decimal("2.30")])
    assert dfq.quantiles(money, 0.5) == decimal.Decimal("1.70")
    assert dfq.quantiles(pl.Series([True, False, True]), 0.0, "disc") is False
    assert dfq.quantiles(np.array([True, False, True]), 0.0, "disc") == False  # noqa: E712
    days = pl.Series(["2024-01-03", "2024-01-01"]).str.to_date()
    assert dfq.quantiles(days, 0.0, "disc").isoformat() == "2024-01-01"


def test_mistakes_name_the_value():
    x = np.array([1.0])
    for q in (1.5, [0.5, -0.1], float("nan")):
        with pytest.raises(dfq.QueryError, match="quantile .* is out of range: allowed is a number from 0 to 1"):
            dfq.quantiles(x, q)
    for q in ("half", None, [0.5, "x"], [[0.5]]):
        with pytest.raises(dfq.QueryError, match="allowed are a number from 0 to 1 and a list"):
            dfq.quantiles(x, q)
    with pytest.raises(dfq.QueryError, match="^unknown quantile method 'best': allowed are disc, linear"):
        dfq.quantiles(x, 0.5, "best")
    with pytest.raises(dfq.QueryError, match="complex128"):
        dfq.quantiles(np.array([1j]), 0.5)
    with pytest.raises(dfq.QueryError, match="Utf8"):
        dfq.quantiles(pa.array(["a"]), 0.5)
    for objects in (object(), [1, 2, None], {"x": [1]}):
        with pytest.raises(dfq.QueryError, match="may have texts and None alone: give missing numbers as NaN, or all in a column of"):
            dfq.quantiles(objects, 0.5)
    with pytest.raises(dfq.QueryError, match="linear"):
        dfq.quantiles(["a", "b"], 0.5)
    with pytest.raises(dfq.QueryError, match="Map"):
        dfq.quantiles(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), 0.5)


def test_other_threads_go_on():
    x = np.random.default_rng(0).normal(size=6_000_000)
    counted = []
    done = threading.Event()

    def count():
        while not done.is_set():
            counted.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = len(counted)
        dfq.quantiles(x, np.linspace(0, 1, 101))
        assert len(counted) - before >= 3
    finally:
        done.set()
        thread.join()


def test_many_threads_at_once():
    x = np.random.default_rng(0).normal(size=300_000)
    expected = np.median(x)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(dfq.quantiles(x, 0.5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(np.isclose(answer, expected) for answer in answers)


def test_ctrl_c_ends_a_call():
    x = np.random.default_rng(0).normal(size=40_000_000)
    started = time.monotonic()
    threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            dfq.quantiles(x, np.linspace(0, 1, 1001))
    assert time.monotonic() - started < 1.0


def test_texts_of_numpy():
    texts = np.array(["b", "c", "a", "b"])
    assert dfq.quantiles(texts, 0.5, "inverted_cdf") == "b"
    answers = dfq.quantiles(texts.reshape(2, 2)[::-1], [0, 1], "inverted_cdf")
    assert isinstance(answers, np.ndarray) and answers.tolist() == ["a", "c"]
    assert dfq.quantiles(np.array(["b", None, "a"], object), [0.5, 1], "lower").tolist() == ["a", "b"]
    assert dfq.quantiles([None, None], 0.5, "lower") is None
    assert dfq.topk(texts, [1, 2, 3, 4], 2).tolist() == ["b", "a"]
    # The greatest text.
    assert dfq.topk([1, 2, 3], ["x", "ü", "y"], 1).tolist() == [2]
