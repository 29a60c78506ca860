"""Sketches and top k."""

import pickle
import threading

import dfq
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest


def check_bound(sketch, values, accuracy):
    ordered = np.sort(values)
    for q in (0.0, 0.1, 0.5, 0.9, 0.999, 1.0):
        answer = sketch.quantile(q)
        wanted = max(1, int(np.ceil(q * len(ordered))))
        # Equal values have a range of ranks.
        first, last = np.searchsorted(ordered, answer, "left") + 1, np.searchsorted(ordered, answer, "right")
        assert first - len(ordered) / accuracy <= wanted <= last + len(ordered) / accuracy
        rank = sketch.rank(answer)
        assert rank.rank_min <= last <= rank.rank_max and rank.n == len(ordered)


@pytest.mark.parametrize("accuracy", [20, 1000])
def test_days_merge_to_a_month(accuracy):
    rng = np.random.default_rng(0)
    days = [rng.gamma(2, 10, size) for size in rng.integers(1, 20_000, 30)]
    month, threads = dfq.GkSketch(accuracy), []
    daily = [dfq.GkSketch(accuracy) for _ in days]
    for sketch, values in zip(daily, days):
        for part in np.array_split(values, 3):
            sketch.update(part)
        check_bound(sketch, values, accuracy)
    for sketch in daily:
        threads.append(threading.Thread(target=month.merge, args=(pickle.loads(pickle.dumps(sketch)),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    check_bound(month, np.concatenate(days), accuracy)
    assert month.n == sum(map(len, days)) and daily[0].n == len(days[0])


def test_threads_fill_one_sketch():
    sketch = dfq.GkSketch(100)
    parts = [np.random.default_rng(seed).normal(size=300_000) for seed in range(4)]
    threads = [threading.Thread(target=sketch.update, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_bound(sketch, np.concatenate(parts), 100)


def test_sketches_of_every_package_and_of_sql():
    sketch = dfq.GkSketch()
    assert repr(sketch) == "<dfq.GkSketch of 0 values, ranks within 0.01 %>" and sketch.quantile(0.5) is None
    for values in (np.array([1.0]), pl.Series([2.0, None]), pd.Series([3.0]), pa.chunked_array([[4.0], [5.0]])):
        sketch.update(values)
    assert sketch.n == 5 and sketch.quantile([0.0, 0.5, 1.0]).tolist() == [1, 3, 5]
    sketches = pa.table({"s": pa.array([sketch.to_bytes()] * 2, pa.binary())})  # noqa: F841
    with dfq.connect() as con:
        answer = con.sql("SELECT gk_quantile(s, 0.5), gk_rank(s, 3.0)['n'] FROM sketches").fetchall()
        assert answer == [(3.0, 5)] * 2
        (made,) = con.sql("SELECT gk_sketch(value * 1.0, 100) FROM range(0, 50)").fetchall()[0]
    assert dfq.GkSketch.from_bytes(made).quantile(0.5) == 24
    days = dfq.GkSketch()
    days.update(np.array(["2024-01-03", "2024-01-01"], dtype="M8[s]"))
    assert days.quantile([0.0]).tolist() == np.array(["2024-01-01"], dtype="M8[s]").tolist()


def test_sketches_refuse_what_they_cannot_hold():
    with pytest.raises(dfq.QueryError, match="accuracy is 0"):
        dfq.GkSketch(0)
    sketch = dfq.GkSketch(10)
    with pytest.raises(dfq.QueryError, match="got Utf8"):
        sketch.update(pa.array(["a"]))
    sketch.update(np.array([1, 2]))
    with pytest.raises(dfq.DataError, match="a sketch of values of type Int64 takes none of type Float64"):
        sketch.update(np.array([1.5]))
    assert sketch.n == 2
    with pytest.raises(dfq.DataError):
        dfq.GkSketch.from_bytes(sketch.to_bytes()[:-1])
    with pytest.raises(dfq.QueryError, match="quantile 2 is out of range"):
        sketch.quantile(2)
    sketch.merge(sketch)
    assert sketch.n == 4


def test_topk_is_a_stable_sort():
    rng = np.random.default_rng(4)
    for n in (0, 1, 5, 1000):
        keys = rng.integers(0, 50, n)
        values = rng.permutation(n)
        for k in (1, 3, 2000):
            for largest in (True, False):
                order = np.lexsort((values, -keys if largest else keys))[:k]
                ours = dfq.topk(values, keys, k, largest=largest)
                np.testing.assert_array_equal(ours, values[order])
                assert ours.dtype == values.dtype


def test_topk_of_every_package():
    names, keys = ["a", "b", "c", None], [1.0, 3.0, None, 2.0]
    assert dfq.topk(pl.Series("n", names), keys=pl.Series(keys), k=3).to_list() == ["b", None, "a"]
    assert dfq.topk(pa.array(names), pa.chunked_array([keys[:2], keys[2:]]), 1).to_pylist() == ["b"]
    assert dfq.topk(pd.Series([1, 2]), np.array([1, 2]), 1).tolist() == [2]
    with pytest.raises(dfq.QueryError, match="2 values and 3 keys: there must be as many"):
        dfq.topk(np.arange(2), np.arange(3), 1)
    with pytest.raises(dfq.QueryError, match="k is out of range"):
        dfq.topk(np.arange(2), np.arange(2), 0)


def test_only_sketches_merge():
    with pytest.raises(dfq.QueryError, match="int is no sketch: allowed is a dfq.GkSketch"):
        dfq.GkSketch(100).merge(3)
