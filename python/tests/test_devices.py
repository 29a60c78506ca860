"""GPUs: what is refused without one, and what one answers."""

import pathlib
import subprocess
import sys

import dfq
import numpy as np
import pytest

ROWS = {"g": np.array([1, 1, 1, 2, 2]), "x": np.array([5.0, 1.0, 3.0, 8.0, 9.0])}
MEDIANS = "SELECT g, exact_quantiles(x, 0.5) AS m FROM t GROUP BY g ORDER BY g"


@pytest.fixture
def con():
    with dfq.connect() as con:
        con.register("t", ROWS)
        yield con


def test_the_device_is_an_option():
    for device in ("auto", "cpu", "cuda", "cuda:3", "cuda:all"):
        with dfq.connect(device=device) as con:
            assert con.sql("SHOW quantiles.device").fetchall()[0][-1] == device
    with pytest.raises(dfq.QueryError, match="'quantiles.device' is auto, cpu, cuda, .* got 'gpu'"):
        dfq.connect(device="gpu")


def test_mistakes_of_pinning_are_named(con):
    import polars as pl

    frame = pl.DataFrame({"s": ["a"], "x": [1]})
    con.register("texts", frame)
    con.register("only_texts", frame.select("s"))
    con.sql("CREATE VIEW cheap AS SELECT x FROM t WHERE x < 4")
    for pin, message in [
        (lambda: con.pin("nowhere", "x"), "[Nn]o table named 'nowhere'"),
        (lambda: con.pin("missing.parquet", "x"), "file 'missing.parquet' not found"),
        (lambda: con.pin("t", "y"), "table datafusion.public.t has no column y: there are g, x"),
        (lambda: con.pin("t", ["x", "x"]), "column x of table datafusion.public.t is named twice"),
        (lambda: con.pin("t", []), "name at least one"),
        (lambda: con.pin("only_texts"), "only_texts has no column that can be pinned: s is left out: values of type Utf8"),
        (lambda: con.pin("texts", "s"), "column s of table datafusion.public.texts cannot be pinned: values of type Utf8"),
        (lambda: con.pin("cheap", "x"), "datafusion.public.cheap is a view"),
        (lambda: con.pin(frame, "x"), "DataFrame is no name of a table: give it one by register"),
        (lambda: con.unpin("t"), "table datafusion.public.t is not pinned"),
        (lambda: con.sql("PIN TABLE t (y)"), "has no column y"),
        (lambda: con.sql("PIN t (x)"), "Expected: TABLE, found: t"),
        (lambda: con.sql("UNPIN TABLE t"), "is not pinned"),
    ]:
        with pytest.raises(dfq.QueryError, match=message):
            pin()
    assert con.sql("SHOW PINNED").fetchall() == []
    with dfq.connect(device="cpu") as other:
        other.register("t", ROWS)
        with pytest.raises(dfq.QueryError, match="quantiles.device is 'cpu': PIN TABLE needs a device"):
            other.pin("t", "x")


def test_a_device_that_is_not_there_is_an_error():
    missing = "there is no device cuda:1000|no NVIDIA driver"
    with dfq.connect(device="cuda:1000") as con:
        con.register("t", ROWS)
        with pytest.raises(dfq.DataError, match=missing):
            con.pin("t", "x")
        with pytest.raises(dfq.DataError, match=missing):
            con.sql("SELECT exact_quantiles(x, 0.5) FROM t").fetchall()
        # Only quantiles without groups are sent there.
        assert con.sql(MEDIANS).fetchall() == [(1, 3.0), (2, 8.0)]


def test_pinned_columns_are_a_snapshot(con):
    try:
        con.pin("t", ["g", "x"])
    except dfq.DataError as error:
        pytest.skip(str(error))
    assert con.sql("SHOW PINNED").fetchall()[0][:3] == ("datafusion.public.t", "g, x", 5)
    assert "PinnedExec" in con.sql(MEDIANS).explain()
    assert con.sql(MEDIANS).fetchall() == [(1, 3.0), (2, 8.0)]
    local = {"y": np.array([0.5])}  # noqa: F841
    assert con.sql("SELECT exact_quantiles(x, 0.5), (SELECT max(y) FROM local) FROM t").fetchall() == [(5.0, 0.5)]
    con.unpin("t")
    assert con.sql("SHOW PINNED").fetchall() == []
    con.register("texts", con.sql("SELECT x, CAST(x AS VARCHAR) AS s FROM t").to_arrow())
    left_out = con.pin("texts")
    assert list(left_out) == ["s"] and "no key of fixed width" in left_out["s"]
    rows = con.sql("PIN TABLE texts").fetchall()
    assert [(row[0], row[2]) for row in rows] == [("x", True), ("s", False)]
    con.unpin("texts")


@pytest.mark.parametrize("named", [None, "elsewhere.so"])
def test_the_compiler_of_the_package_is_found(tmp_path, named):
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13"):
        (folder / name).touch()
    code = "import os, dfq; dfq.connect(); print(os.environ.get('QUANTILES_NVRTC'))"
    environment = {"PYTHONPATH": f"{tmp_path}:{pathlib.Path(dfq.__file__).parents[1]}"}
    if named:
        environment["QUANTILES_NVRTC"] = named
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == (named or str(folder / "libnvrtc.so.13")), done.stderr
