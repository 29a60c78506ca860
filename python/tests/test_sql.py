"""Sessions: tables from everywhere, answers to everywhere, limits, cancellation."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import dfq
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest

MEDIAN = "SELECT g, exact_quantiles(x, 0.5) AS m FROM {} GROUP BY g ORDER BY g"
ROWS = {"g": [1, 1, 1, 2, 2], "x": [5.0, 1.0, 3.0, 8.0, 9.0]}
MEDIANS = [(1, 3.0), (2, 8.0)]


@pytest.fixture
def con():
    with dfq.connect(partitions=3) as con:
        yield con


def objects():
    table = pa.table(ROWS)
    return {
        "pyarrow table": table,
        "pyarrow batch": table.to_batches()[0],
        "pyarrow chunks": pa.concat_tables([table.slice(0, 2), table.slice(2)]),
        "polars": pl.DataFrame(ROWS),
        "pandas": pd.DataFrame(ROWS),
        "duckdb": duckdb.sql("SELECT * FROM (VALUES (1, 5.0), (1, 1.0), (1, 3.0), (2, 8.0), (2, 9.0)) AS t(g, x)"),
        "arrays": {name: np.array(values) for name, values in ROWS.items()},
        "mixed columns": {"g": pl.Series(ROWS["g"]), "x": pa.chunked_array([ROWS["x"][:1], ROWS["x"][1:]])},
    }


@pytest.mark.parametrize("kind", objects())
def test_objects_are_tables(con, kind):
    data = objects()[kind]
    con.register("t", data)
    assert con.sql(MEDIAN.format("t")).fetchall() == MEDIANS
    assert con.sql(MEDIAN.format("data")).fetchall() == MEDIANS
    assert con.quantiles(objects()[kind], "x", 0.5, by="g", method="disc").fetchall() == [(1, 0.5, 3.0), (2, 0.5, 8.0)]


def test_streams_are_read_once(con):
    reader = pa.table(ROWS).to_reader()
    con.register("t", reader)
    assert con.sql(MEDIAN.format("t")).fetchall() == MEDIANS
    assert con.sql("SELECT count(*) FROM t").fetchall() == [(5,)]


@pytest.mark.parametrize("extension", ["parquet", "csv", "json"])
def test_files_are_tables(con, tmp_path, extension):
    table = pa.table(ROWS)
    path = tmp_path / f"rows.{extension}"
    if extension == "parquet":
        pa.parquet.write_table(table, path)
    elif extension == "csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(f'{{"g": {g}, "x": {x}}}\n' for g, x in zip(ROWS["g"], ROWS["x"])))
    con.register("t", path)
    assert con.sql(MEDIAN.format("t")).fetchall() == MEDIANS
    assert con.sql(MEDIAN.format(f"'{path}'")).fetchall() == MEDIANS
    answer = con.quantiles(path, ["x"], [0.0, 1.0], by=["g"]).fetchall()
    assert answer == [(1, 0.0, 1.0), (1, 1.0, 5.0), (2, 0.0, 8.0), (2, 1.0, 9.0)]
    folder = tmp_path / "many"
    folder.mkdir()
    for part in range(2):
        (folder / f"{part}.{extension}").write_bytes(path.read_bytes())
    con.register("many", f"{folder}/*.{extension}")
    assert con.sql("SELECT count(*) FROM many").fetchall() == [(10,)]


def test_arrays_of_texts_are_columns(con):
    trips = {"city": ["Bonn", "Ulm", None], "fare": np.array([1.0, 2.0, 3.0]), "note": np.array(["a", "b", "c"])}
    con.register("t", trips)
    assert con.sql("SELECT city, note FROM t ORDER BY fare").fetchall() == [("Bonn", "a"), ("Ulm", "b"), (None, "c")]
    assert con.quantiles("trips", "fare", 1, by="city").fetchall() == [("Bonn", 1.0, 1.0), ("Ulm", 1.0, 2.0), (None, 1.0, 3.0)]


def test_names_of_other_letters_are_pointed_out(con):
    Trips = {"x": np.arange(3)}  # noqa: F841
    con.register("Fares", {"x": np.arange(4)})
    for name, meant in [("Trips", "Trips"), ("fares", "Fares"), ('"TRIPS"', "Trips")]:
        with pytest.raises(dfq.QueryError, match=f"there is no table '.*', but '{meant}': .* unless they are quoted: \"{meant}\""):
            con.sql(f"SELECT count(*) FROM {name}")
    assert con.sql('SELECT (SELECT count(*) FROM "Trips") AS a, (SELECT count(*) FROM "Fares") AS b').fetchall() == [(3, 4)]


def test_a_session_shows_itself(tmp_path):
    con = dfq.connect(memory_limit="1GB", partitions=2)
    assert repr(con) == "dfq.connect(memory_limit='1GB', partitions=2)"
    con.close()
    assert repr(con) == "dfq.connect(memory_limit='1GB', partitions=2), closed"
    with dfq.connect() as con:
        assert repr(con) == "dfq.connect()"


GLOBAL = pa.table({"v": [1, 2, 3]})


def test_variables_are_tables_where_nothing_else_has_the_name(con):
    local = pl.DataFrame({"v": [4, 5, 6]})
    assert con.sql("SELECT sum(v) FROM local").fetchall() == [(15,)]
    assert con.sql('SELECT sum(v) FROM "GLOBAL"').fetchall() == [(6,)]
    assert con.sql("SELECT count(*) FROM local JOIN local AS other USING (v)").fetchall() == [(3,)]
    # A common table expression hides a variable, and so does a table of the session.
    assert con.sql("WITH local AS (SELECT 1 AS v) SELECT sum(v) FROM local").fetchall() == [(1,)]
    con.register("local", pa.table({"v": [100]}))
    assert con.sql("SELECT sum(v) FROM local").fetchall() == [(100,)]
    con.unregister("local")
    with pytest.raises(dfq.QueryError, match="there is no table 'local'"):
        con.unregister("local")
    assert con.sql("SELECT sum(v) FROM local").fetchall() == [(15,)]
    # Names go away with the statement, what it planned stays.
    query = con.sql("SELECT sum(v) FROM local")
    del local
    with pytest.raises(dfq.QueryError, match="table 'datafusion.public.local' not found"):
        con.sql("SELECT sum(v) FROM local")
    assert query.fetchall() == [(15,)]
    text, number = "no table", 3  # noqa: F841
    for name in ("text", "number", "len"):
        with pytest.raises(dfq.QueryError, match="not found"):
            con.sql(f"SELECT * FROM {name}")


def test_queries_are_tables(con):
    base = con.sql("SELECT value AS v FROM range(0, 10)")
    assert con.sql("SELECT sum(v) FROM base").fetchall() == [(45,)]
    con.register("base_view", base)
    assert con.sql("SELECT max(v) FROM base_view").fetchall() == [(9,)]
    with dfq.connect() as other:
        other.register("taken", base)
        assert other.sql("SELECT min(v) FROM taken").fetchall() == [(0,)]


def test_answers_go_everywhere(con):
    query = con.sql("SELECT * FROM (VALUES (1, 'a', 0.5), (2, NULL, NULL)) AS t(i, s, f) ORDER BY i")
    assert query.columns == ["i", "s", "f"] and query.types[0] == "Int64"
    assert query.fetchall() == [(1, "a", 0.5), (2, None, None)]
    assert query.to_arrow().to_pylist() == [{"i": 1, "s": "a", "f": 0.5}, {"i": 2, "s": None, "f": None}]
    assert query.to_polars().rows() == [(1, "a", 0.5), (2, None, None)]
    assert query.to_pandas()["i"].tolist() == [1, 2]
    arrays = query.to_numpy()
    assert arrays["i"].tolist() == [1, 2] and np.isnan(arrays["f"][1]) and arrays["s"].tolist() == ["a", None]
    assert pl.DataFrame(query).rows() == [(1, "a", 0.5), (2, None, None)]
    assert pa.table(query).num_rows == 2
    assert pa.RecordBatchReader.from_stream(query).read_all().num_rows == 2
    assert duckdb.sql("SELECT sum(i) FROM query").fetchall() == [(3,)]


def test_answers_of_every_type(con):
    query = con.sql(
        """SELECT DATE '2024-02-03' AS d, TIMESTAMP '2024-02-03 04:05:06' AS t, TIME '01:02:03' AS c,
        CAST(1.25 AS DECIMAL(9, 2)) AS n, [1, NULL] AS l, named_struct('a', 1) AS s, true AS b, X'0102' AS x,
        arrow_cast(1.5, 'Float32') AS f, arrow_cast(7, 'UInt8') AS u, NULL AS z, INTERVAL '1' MONTH AS m,
        map(['k'], [5]) AS p, arrow_cast('w', 'Dictionary(Int8, Utf8)') AS w, INTERVAL '2 days 3 seconds' AS e"""
    )
    (row,) = query.fetchall()
    assert [str(value) for value in row[:4]] == ["2024-02-03", "2024-02-03 04:05:06", "01:02:03", "1.25"]
    assert row[4] == [1, None] and dict(row[5]) == {"a": 1} and row[6] is True and row[7] == b"\x01\x02"
    assert row[8:11] == (1.5, 7, None)
    assert row[11] == (1, 0, 0) and row[14] == (0, 2, 3_000_000_000) and row[12:14] == ([("k", 5)], "w")
    assert query.to_arrow().num_columns == 15


def test_empty_answers_have_columns(con):
    query = con.sql("SELECT value AS v FROM range(0, 3) WHERE value > 7")
    assert query.fetchall() == [] and query.to_polars().columns == ["v"] and query.to_numpy()["v"].shape == (0,)
    assert "| v |" in repr(query) and "<th>v<br>" in query._repr_html_()
    con.register("none", pa.table({"x": pa.array([], pa.int64())}))
    assert con.sql("SELECT exact_quantiles(x, 0.5), count(*) FROM none").fetchall() == [(None, 0)]


def test_a_query_shows_itself(con):
    few = con.sql("SELECT '<b>' AS \"a&b\", NULL AS n")
    assert "<td>&lt;b&gt;</td><td>NULL</td>" in few._repr_html_() and "a&amp;b" in few._repr_html_()
    assert "| <b> | NULL |" in repr(few) and "first" not in repr(few)
    many = con.sql("SELECT value AS v FROM range(0, 1000)")
    assert repr(many).endswith("The first 20 rows.") and many._repr_html_().count("<tr>") == 21


def test_explain(con):
    query = con.sql("SELECT exact_quantiles(value, [0.1, 0.9]) FROM range(0, 100)")
    assert "QuantilesExec" in query.explain() and "metrics" not in query.explain()
    assert "rounds=" in query.explain(analyze=True)


def test_calls_are_rewritten_before_they_are_planned(con):
    rows = "FROM (SELECT value % 3 AS g, value AS x FROM range(0, 10))"
    windows = f"SELECT DISTINCT g, percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC) OVER (PARTITION BY g) AS q {rows} ORDER BY g"
    groups = f"SELECT g, percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC) AS q {rows} GROUP BY g ORDER BY g"
    assert con.sql(windows).fetchall() == con.sql(groups).fetchall() == [(0, 6.75), (1, 5.5), (2, 6.5)]
    assert con.sql(f"SELECT quantileExact(0.5)(x), quantilesExactLow(0.25, 0.5)(x) {rows}").fetchall() == [(5, [2, 4])]


def test_statements_that_write_are_done_at_once(con, tmp_path):
    con.sql("CREATE TABLE t AS SELECT value AS v FROM range(0, 5)")
    con.sql("INSERT INTO t VALUES (100)")
    assert con.sql("SELECT sum(v) FROM t").fetchall() == [(110,)]
    assert con.sql(f"COPY t TO '{tmp_path}/t.parquet'").fetchall() == [(6,)]
    assert pa.parquet.read_table(tmp_path / "t.parquet").num_rows == 6
    con.sql("SET quantiles.strategy = 'gk_select'")
    assert con.sql("SHOW quantiles.strategy").fetchall()[0][-1] == "gk_select"


def test_mistakes_are_exceptions_with_the_message_alone(con, tmp_path):
    for query, message in [
        ("SELEC 1", "Expected: an SQL statement, found: SELEC"),
        ("SELECT nothing FROM range(0, 1)", "No field named nothing"),
        ("SELECT exact_quantiles(value, 2) FROM range(0, 1)", "quantile 2 is out of range"),
    ]:
        with pytest.raises(dfq.QueryError) as raised:
            con.sql(query).fetchall()
        text = str(raised.value)
        assert message in text and "Error during planning" not in text and "backtrace" not in text, text
    with pytest.raises(dfq.DataError, match="Divide by zero"):
        con.sql("SELECT 1 / (value - value) FROM range(0, 3)").fetchall()
    for ask in (
        lambda path: con.register("t", path),
        lambda path: con.sql(f"SELECT * FROM '{path}'"),
        lambda path: con.quantiles(path, "x", 0.5),
    ):
        with pytest.raises(dfq.QueryError, match=r"^file '.*missing.parquet' not found \(looked for /"):
            ask(tmp_path / "missing.parquet")
        with pytest.raises(dfq.QueryError, match=r"^no file matches '.*\*.csv'"):
            ask(tmp_path / "*.csv")
    for path in ("s3://bucket/trips.parquet", "https://example.org/trips.parquet"):
        for ask in (
            lambda path: con.register("t", path),
            lambda path: con.sql(f"SELECT * FROM '{path}'"),
            lambda path: con.quantiles(path, "x", 0.5),
        ):
            with pytest.raises(dfq.QueryError, match=f"^'{path}' is not on this machine, .* the command dfq reads "):
                ask(path)
    with pytest.raises(dfq.QueryError, match="^'localhost:50050' is no address of a cluster|built without the feature 'cluster'"):
        dfq.connect(cluster="localhost:50050")
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(dfq.QueryError, match="allowed are files that end in .parquet, .csv, .json or .arrow"):
        con.register("t", tmp_path / "rows.txt")
    (tmp_path / "broken.parquet").write_text("x")
    with pytest.raises(dfq.DataError, match="cannot read '.*broken.parquet'"):
        con.register("t", tmp_path / "broken.parquet")
    with pytest.raises(dfq.QueryError, match="float is no table: allowed are objects that offer Arrow's C interface"):
        con.register("t", 1.5)
    with pytest.raises(dfq.QueryError, match="name each column once"):
        con.quantiles(pa.table(ROWS), ["x", "x"], 0.5)
    with pytest.raises(dfq.QueryError, match="there are no columns"):
        con.quantiles(pa.table(ROWS), [], 0.5)
    with pytest.raises(dfq.QueryError, match="q is 'half'"):
        con.quantiles(pa.table(ROWS), "x", "half")
    with pytest.raises(dfq.QueryError, match="unknown quantile method 'best'"):
        con.quantiles(pa.table(ROWS), "x", 0.5, method="best").fetchall()
    assert issubclass(dfq.ResourcesError, dfq.Error) and issubclass(dfq.InternalError, dfq.Error)


def test_tables_variables_and_queries_are_summarized(con):
    rows = pl.DataFrame(ROWS)
    con.register("t", rows)
    for target in ["t", "rows", "SELECT * FROM rows"]:
        profile = con.sql(f"SUMMARIZE {target}").to_polars()
        assert profile["column_name"].to_list() == ["g", "x"]
        assert profile["p50"].to_list() == ["1", "5.0"]
        assert profile["distinct"].to_list() == [2, 5]


def test_limits_are_checked():
    for limit in ("much", "-1", 0, -5, True, "1 parsec", ""):
        with pytest.raises(dfq.QueryError, match="memory_limit is .*: allowed are bytes, or a text such as '512MB'"):
            dfq.connect(memory_limit=limit)
    for limit in (10_000_000, "64MB", "1.5 GiB", "2g", "100000kb"):
        dfq.connect(memory_limit=limit).close()
    with pytest.raises(dfq.QueryError, match="partitions is 0"):
        dfq.connect(partitions=0)
    with pytest.raises(dfq.QueryError, match="cannot write in the spill folder '/proc/none'"):
        dfq.connect(spill_dir="/proc/none")


def test_a_closed_session_says_so():
    con = dfq.connect()
    query = con.sql("SELECT 1")
    con.close()
    con.close()
    with pytest.raises(dfq.QueryError, match="the session is closed"):
        con.sql("SELECT 1")
    assert query.fetchall() == [(1,)]


def test_names_are_quoted(con):
    rows = pa.table({'a "b"': [1, 2], "c'd": ["x", "x"], "Select": [1.0, 2.0]})
    answer = con.quantiles(rows, ['a "b"', "Select"], [0.0, 1.0], by="c'd").fetchall()
    assert answer == [("x", 0.0, 1.0, 1.0), ("x", 1.0, 2.0, 2.0)]


def test_quantiles_without_groups(con):
    rng = np.random.default_rng(2)
    frame = pl.DataFrame({"a": rng.normal(size=5000), "b": rng.integers(0, 100, 5000)})
    q = [0.0, 0.1, 0.5, 0.99, 1.0]
    answer = con.quantiles(frame, ["a", "b"], q).to_numpy()
    np.testing.assert_array_equal(answer["quantile"], q)
    for name in ("a", "b"):
        np.testing.assert_allclose(answer[name], np.quantile(frame[name].to_numpy(), q), rtol=1e-12)


# A query that takes long, and needs files: more strings than the limit in few groups.
LONG = """SELECT exact_quantiles(concat(repeat('x', 50), value::text), [0.1, 0.5]) FROM range(0, 30000000)"""


def files_in(folder):
    return [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]


def test_what_does_not_fit_goes_to_files_that_go_away(tmp_path):
    with dfq.connect(memory_limit="8MB", spill_dir=tmp_path, partitions=2) as con:
        sql = "SELECT exact_quantiles(v, [0.25, 0.5]) FROM (SELECT value * 7919 % 3000001 AS v FROM range(0, 3000001))"
        query = con.sql(sql)
        assert "spill" in query.explain(analyze=True)
        assert query.fetchall() == [([750_000, 1_500_000],)]
        assert files_in(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_a_limit_that_is_too_small_is_an_error(tmp_path):
    with dfq.connect(memory_limit="2MB", spill_dir=tmp_path) as con:
        rows = con.sql("SELECT array_agg(value) FROM range(0, 10000000)")
        with pytest.raises(dfq.ResourcesError, match="memory|Resources"):
            rows.fetchall()
        assert con.sql("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize("how", ["fetchall", "stream"])
def test_ctrl_c_cancels_and_leaves_no_file(tmp_path, how):
    with dfq.connect(memory_limit="32MB", spill_dir=tmp_path, partitions=2) as con:
        query = con.sql(LONG)
        raised = []

        def interrupt():
            while not files_in(tmp_path) and len(raised) < 1000:
                raised.append(None)
                time.sleep(0.02)
            raised.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        # PyArrow gives the error of a stream as its own.
        with pytest.raises(KeyboardInterrupt if how == "fetchall" else (KeyboardInterrupt, pa.ArrowException, OSError)):
            query.fetchall() if how == "fetchall" else pa.RecordBatchReader.from_stream(query).read_all()
        took = time.monotonic() - raised[-1]
        thread.join()
        # Debug builds on a busy machine take longer than a release build.
        assert took < 0.5
        deadline = time.monotonic() + 5
        while files_in(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert files_in(tmp_path) == []
        assert con.sql("SELECT 1").fetchall() == [(1,)]


def script(code, **options):
    """Runs Python in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_end_of_the_process_removes_the_folder(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = """
    import os, tempfile, dfq
    con = dfq.connect(memory_limit="4MB")
    query = con.sql("SELECT exact_quantiles(value, 0.5) FROM range(0, 2000001)")
    print(query.fetchall(), len(os.listdir(tempfile.gettempdir())))
    """
    assert script(code, env=environment).strip() == "[(1000000,)] 1"
    assert os.listdir(tmp_path) == []


def test_a_forked_process_makes_its_own_session():
    code = """
    import os, dfq, numpy as np
    con = dfq.connect()
    print(con.sql("SELECT 1").fetchall(), flush=True)
    query = con.sql("SELECT 2")
    child = os.fork()
    if child == 0:
        for call in (lambda: con.sql("SELECT 1"), query.fetchall):
            try:
                call()
            except dfq.QueryError as error:
                print(error, flush=True)
        print(dfq.quantiles(np.array([3, 1, 2]), 0.5), dfq.connect().sql("SELECT 3").fetchall(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(con.sql("SELECT 4").fetchall())
    """
    lines = script(code).splitlines()
    assert lines[0] == "[(1,)]" and lines[3] == "2.0 [(3,)]" and lines[4] == "[(4,)]"
    assert all("made before the process was forked" in line for line in lines[1:3])


def in_other_process(x):
    with dfq.connect() as con:
        return con.sql(f"SELECT {x} + 1").fetchall()[0][0], float(dfq.quantiles(np.arange(x + 1.0), 1.0))


def test_spawned_processes_work():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(in_other_process, [1, 2, 3]) == [(2, 1.0), (3, 2.0), (4, 3.0)]


def test_threads_share_a_session(con):
    answers = []

    def work(number):
        mine = pl.DataFrame({"v": list(range(number + 1))})  # noqa: F841
        for _ in range(5):
            answers.append(con.sql("SELECT max(v) FROM mine").fetchall() == [(number,)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 40
