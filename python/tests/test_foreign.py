"""DataFusion's C interface: tables of other packages, and functions for the package `datafusion`."""

import ctypes
import sys

import datafusion
import deltalake
import dfq
import numpy as np
import pyarrow as pa
import pytest

ROWS = pa.table({"g": [1, 1, 1, 2, 2], "x": [5.0, 1.0, 3.0, 8.0, 9.0], "s": ["a", "b", "c", "d", None]})
MEDIAN = "SELECT g, exact_quantiles(x, 0.5) AS m FROM {} GROUP BY g ORDER BY g"
MEDIANS = [(1, 3.0), (2, 8.0)]


@pytest.fixture
def delta(tmp_path):
    deltalake.write_deltalake(tmp_path / "delta", ROWS, partition_by=["g"])
    return deltalake.DeltaTable(tmp_path / "delta")


@pytest.fixture
def con():
    with dfq.connect(partitions=2) as con:
        yield con


def test_tables_of_other_packages(con, delta):
    con.register("t", delta)
    assert con.sql(MEDIAN.format("t")).fetchall() == MEDIANS
    assert con.sql(MEDIAN.format("delta")).fetchall() == MEDIANS
    assert con.quantiles(delta, "x", [0, 1], by="g").fetchall() == [(1, 0.0, 1.0), (1, 1.0, 5.0), (2, 0.0, 8.0), (2, 1.0, 9.0)]
    for condition, answer in [("g = 2", 2), ("s = 'c'", 1), ("x > 2 AND s IS NOT NULL", 3), ("upper(s) IN ('A', 'D')", 2)]:
        assert con.sql(f"SELECT count(*) FROM t WHERE {condition}").fetchall() == [(answer,)]
    # What is registered is the table as the package knows it; a newer one is another object.
    deltalake.write_deltalake(delta.table_uri, ROWS, mode="append")
    newer = deltalake.DeltaTable(delta.table_uri)  # noqa: F841
    assert con.sql("SELECT (SELECT count(*) FROM t) AS a, (SELECT count(*) FROM newer) AS b").fetchall() == [(5, 10)]
    joined = con.sql("SELECT count(*) FROM t JOIN newer USING (x) JOIN delta USING (x)").fetchall()
    assert joined == [(10,)]


def test_tables_live_as_long_as_their_queries(delta):
    con = dfq.connect()
    con.register("t", delta)
    query = con.sql(MEDIAN.format("t") + " LIMIT 2")
    filtered = con.sql("SELECT count(*) FROM t WHERE x > 2")
    con.close()
    del delta
    assert query.fetchall() == MEDIANS and filtered.fetchall() == [(4,)]


def test_errors_of_other_packages_are_exceptions(con, delta, tmp_path):
    con.register("t", delta)
    for file in (tmp_path / "delta").glob("*/*.parquet"):
        file.unlink()
    with pytest.raises(dfq.DataError):
        con.sql("SELECT sum(x) FROM t").fetchall()


def of_version(capsule, version):
    """A copy of a table's capsule that says that it is of this major version; and what it needs to live."""
    name = b"datafusion_table_provider"
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    # 29 fields of a word each: those of the table and, from the seventh on, of its codec.
    words = (ctypes.c_void_p * 29).from_address(python.PyCapsule_GetPointer(capsule, name))
    copy = (ctypes.c_void_p * 29)(*words)
    says = ctypes.CFUNCTYPE(ctypes.c_uint64)(lambda: version)
    ours = ctypes.CFUNCTYPE(ctypes.c_uint64)(words[26])
    assert ours() == 55
    copy[26] = ctypes.cast(says, ctypes.c_void_p)
    return python.PyCapsule_New(ctypes.addressof(copy), name, None), (copy, says, name)


@pytest.mark.parametrize("version", [54, 56])
def test_other_versions_are_refused(con, delta, version):
    capsule, _kept = of_version(delta.__datafusion_table_provider__(datafusion.SessionContext()), version)

    class Foreign:
        def __datafusion_table_provider__(self, session):
            return capsule

    with pytest.raises(dfq.QueryError, match=f"this .*Foreign was made with DataFusion {version}, and dfq with 55: tables of"):
        con.register("t", Foreign())


def test_tables_of_old_versions_are_refused(con):
    class Old:
        def __datafusion_table_provider__(self):
            raise AssertionError

    class Broken:
        def __datafusion_table_provider__(self, session):
            raise OSError("no such bucket")

    class Empty:
        def __datafusion_table_provider__(self, session):
            return None

    with pytest.raises(dfq.QueryError, match="this .*Old was made with DataFusion .*, and dfq with 55"):
        con.register("t", Old())
    with pytest.raises(OSError, match="no such bucket"):
        con.register("t", Broken())
    with pytest.raises(dfq.QueryError, match="Empty gives no table"):
        con.register("t", Empty())


@pytest.fixture
def ctx():
    ctx = datafusion.SessionContext()
    dfq.register(ctx)
    return ctx


CALLS = [
    "exact_quantiles(x, 0.5)",
    "exact_quantiles(s, [0.9, 0.1])",
    "exact_quantiles(DISTINCT i, [0.25, 0.25 + 0.5])",
    "exact_quantiles_desc(x, 0.1)",
    *(f"exact_quantiles_{method}(x, [0.1, 0.77])" for method in ("linear", "nearest", "midpoint", "hazen", "averaged_inverted_cdf")),
    "percentile_disc(i, 0.3)",
    "quantile_disc(s, 0.3)",
    "quantile_cont(i, [0.3, 0.6])",
    "exact_rank(i, [-10, 10])",
    "exact_cdf(x, 0.5)",
    "topk_by(s, i, 3)",
    "topk_by_asc(i, x, 2)",
    "max_by(s, i)",
    "min_by(i, x)",
    "arg_max(s, x)",
    "gk_sketch(i, 5000)",
]


def both(ctx, con, table):
    ctx.from_arrow(table, "t")
    con.register("t", table)


@pytest.mark.parametrize("call", CALLS)
def test_functions_give_the_answers_of_a_session(ctx, con, call):
    rng = np.random.default_rng(3)
    n = 20_000
    x = rng.normal(size=n)
    x[rng.random(n) < 0.1] = np.nan
    table = pa.table(
        {
            "g": rng.integers(0, 7, n),
            "x": pa.array(x, mask=rng.random(n) < 0.1),
            "i": rng.integers(-1000, 1000, n),
            "s": rng.integers(0, 500, n).astype(str),
        }
    )
    both(ctx, con, table)
    for sql in (
        f"SELECT {call} AS a FROM t",
        f"SELECT g, {call} AS a FROM t GROUP BY g ORDER BY g",
        f"SELECT {call} FILTER (WHERE i > 0) AS a, count(*) AS n FROM t",
        f"SELECT {call} AS a FROM t WHERE i > 5000",
    ):
        theirs = pa.Table.from_batches(ctx.sql(sql).collect())
        assert repr(theirs.to_pylist()) == repr(con.sql(sql).to_arrow().to_pylist()), sql


def test_sketches_cross(ctx, con):
    both(ctx, con, pa.table({"g": [1, 1, 2], "x": [1.0, 2.0, 3.0]}))
    sketches = "(SELECT g, gk_sketch(x, 100) AS s FROM t GROUP BY g) AS sketches"
    sql = f"SELECT gk_quantile(gk_merge(s), [0.5]) AS q, gk_rank(gk_merge(s), 2.0) AS r FROM {sketches}"
    (row,) = ctx.sql(sql).to_pylist()
    assert row == con.sql(sql).to_arrow().to_pylist()[0] and row["q"] == [2.0]
    # Of more values than are exact, within the bound.
    answer = ctx.sql("SELECT approx_percentile_gk(value, 0.3, 100) AS a FROM range(0, 20000)").to_pylist()[0]["a"]
    assert abs(answer - 6000) <= 200


def test_the_memory_of_the_session_holds():
    environment = datafusion.RuntimeEnvBuilder().with_fair_spill_pool(4 << 20)
    ctx = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2), environment)
    dfq.register(ctx)
    sql = "SELECT exact_quantiles(value, 0.5) AS a FROM range(0, 1000001)"
    with pytest.raises(Exception, match="Resources exhausted"):
        ctx.sql(sql).collect()
    with dfq.connect(memory_limit=4 << 20) as limited:
        assert limited.sql(sql).fetchall() == [(500_000,)]


def test_what_datafusion_has_stays(ctx):
    plain = datafusion.SessionContext()
    for call in ("rank() OVER (ORDER BY value)", "cume_dist() OVER (ORDER BY value)", "median(value) OVER ()", "percentile_cont(value, 0.3) OVER ()"):
        sql = f"SELECT value, {call} AS a FROM range(0, 5) ORDER BY value"
        assert ctx.sql(sql).to_pydict() == plain.sql(sql).to_pydict()
    assert ctx.sql("SELECT exact_quantiles(value, 0.5) OVER () AS a FROM range(0, 5)").to_pydict() == {"a": [2] * 5}


def test_mistakes_in_functions_are_named(ctx):
    for call, message in [("exact_quantiles(value, 2)", "quantile 2 is out of range"), ("exact_quantiles(value)", "2 to 4")]:
        with pytest.raises(Exception, match=message):
            ctx.sql(f"SELECT {call} FROM range(0, 3)").collect()


def test_other_packages_are_refused(monkeypatch):
    with pytest.raises(dfq.QueryError, match="Connection is no session: allowed is a datafusion.SessionContext"):
        dfq.register(dfq.connect())
    monkeypatch.setattr(datafusion, "__version__", "54.0.0")
    message = r"this is datafusion 54.0.0, and dfq has 55.*: functions cross only .* Use dfq.connect\(\)"
    with pytest.raises(dfq.QueryError, match=message):
        dfq.register(datafusion.SessionContext())
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(dfq.QueryError, match=r"there is no package datafusion: pip install 'datafusion==55.\*', or use dfq.connect\(\)"):
        dfq.register(None)
