"""Sessions whose queries run on a cluster: one that the command ``dfq`` starts, named by the environment variable ``DFQ_COMMAND``."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import dfq
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

COMMAND = os.environ.get("DFQ_COMMAND")
pytestmark = pytest.mark.skipif(not COMMAND, reason="DFQ_COMMAND does not name the command dfq")

MEDIANS = "SELECT g, exact_quantiles(x, 0.5) AS m FROM '{}' GROUP BY g ORDER BY g"


@pytest.fixture(scope="module")
def trips(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "trips.parquet"
    rows = range(10_000)
    table = pa.table({"g": [row % 3 for row in rows], "x": [row * 7919 % 10_007 for row in rows]})
    pyarrow.parquet.write_table(table, path, row_group_size=1000)
    return str(path)


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("0123456789abcdef" * 2)
    return path


@pytest.fixture(scope="module")
def scheduler(token):
    """The address of a cluster's scheduler."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [COMMAND, "cluster", "--executors", "1", "--vcores", "2", "--port", str(port), "--token-file", token]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as cluster:
        said = []
        for line in cluster.stdout:
            said.append(line)
            if "is ready" in line:
                break
        else:
            pytest.fail("the cluster ended: " + "".join(said))
        # What it says later must not fill the pipe.
        threading.Thread(target=cluster.stdout.read, daemon=True).start()
        yield f"df://127.0.0.1:{port}"
        cluster.send_signal(signal.SIGINT)
        cluster.wait(30)


@pytest.fixture
def con(scheduler, token):
    with dfq.connect(cluster=scheduler, token_file=token, partitions=4) as con:
        yield con


def test_answers_are_those_of_a_session_here(con, scheduler, trips):
    assert repr(con) == f"dfq.connect(partitions=4, cluster='{scheduler}')"
    with dfq.connect() as here:
        for query in [
            lambda con: con.sql(MEDIANS.format(trips)),
            lambda con: con.sql(f"SELECT exact_quantiles(x, [0.01, 0.5, 0.99]), count(*) FROM '{trips}'"),
            lambda con: con.quantiles(trips, "x", [0.25, 0.75], by="g"),
            lambda con: con.sql(f"SELECT g, x FROM '{trips}' ORDER BY x DESC, g LIMIT 5"),
        ]:
            assert query(con).fetchall() == query(here).fetchall()
        con.register("t", trips)
        query = con.sql(MEDIANS.format("t"))
        expected = here.sql(MEDIANS.format(trips)).to_polars()
        assert query.to_polars().equals(expected)
        # As a stream, and through a query that has a name.
        assert pl.DataFrame(query).equals(expected)
        con.register("medians", query)
        assert con.sql("SELECT max(m) FROM medians").fetchall() == [(expected["m"].max(),)]
    assert "ShuffleWriterExec" in query.explain()
    assert con.sql("SHOW quantiles.strategy").fetchall()[0][-1] == "auto"


def test_what_writes_is_done_at_once(con, trips, tmp_path):
    written = con.sql(f"COPY (SELECT x FROM '{trips}' WHERE x < 100) TO '{tmp_path}/few.parquet'").fetchall()
    assert written == [(100,)]
    assert con.sql(f"SELECT count(*), max(x) FROM '{tmp_path}/few.parquet'").fetchall() == [(100, 99)]


def test_memory_of_this_process_is_refused(con, trips):
    frame = pl.DataFrame({"x": [1, 2]})
    for refused in [
        lambda: con.register("frame", frame),
        lambda frame=frame: con.sql("SELECT max(x) FROM frame"),
        lambda: con.quantiles(frame, "x", 0.5),
    ]:
        with pytest.raises(dfq.QueryError, match="which does not read the memory of this process"):
            refused()
    with pytest.raises(dfq.QueryError, match="executors have no pinned tables"):
        con.pin(trips, "x")
    with pytest.raises(dfq.QueryError, match="nowhere"):
        con.sql("SELECT max(x) FROM nowhere")


def test_what_is_wrong_with_a_cluster_is_said(scheduler, token, tmp_path):
    other = tmp_path / "other"
    other.write_text("f" * 32)
    short = tmp_path / "short"
    short.write_text("f")
    for options, kind, message in [
        ({"cluster": "http://localhost"}, dfq.QueryError, "'http://localhost' is no address of a cluster"),
        ({"cluster": "df://127.0.0.1:1"}, dfq.DataError, "no scheduler answers at df://127.0.0.1:1"),
        ({"cluster": scheduler}, dfq.DataError, "not authorised|no scheduler answers"),
        ({"cluster": scheduler, "token_file": other}, dfq.DataError, "not authorised"),
        ({"cluster": scheduler, "token_file": short}, dfq.QueryError, "a token of 1 characters can be guessed"),
        ({"cluster": scheduler, "token_file": tmp_path / "none"}, dfq.QueryError, "cannot read '.*none': No such file"),
        ({"cluster": scheduler, "tls": (token, token)}, dfq.QueryError, "tls has 2 files: allowed are three"),
        ({"cluster": scheduler, "tls": (token, token, token)}, dfq.QueryError, "in PEM"),
        ({"cluster": scheduler, "tls": (), "token_file": token}, dfq.QueryError, "one of token_file and tls"),
        ({"cluster": scheduler, "memory_limit": "1GB"}, dfq.QueryError, "memory_limit is for queries in this process"),
        ({"cluster": scheduler, "spill_dir": tmp_path}, dfq.QueryError, "spill_dir is for queries in this process"),
        ({"token_file": token}, dfq.QueryError, "name one by cluster="),
    ]:
        with pytest.raises(kind, match=message):
            dfq.connect(**options)


def test_ctrl_c_ends_the_query_on_the_cluster(con, trips):
    # All slots of the executor are taken for minutes.
    query = con.sql(f"SELECT count(*) FROM '{trips}' a, '{trips}' b, '{trips}' c WHERE a.x + b.x > c.x")
    interrupt = threading.Timer(3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        query.fetchall()
    assert time.monotonic() - started < 4
    assert con.sql(MEDIANS.format(trips)).fetchall()[0][0] == 0
    assert time.monotonic() - started < 60


def test_the_example_of_the_guide_runs(scheduler, token, trips):
    guide = (pathlib.Path(__file__).parents[2] / "docs/guide/python.md").read_text()
    (example,) = re.findall(r"^```py\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    for shown, here in [
        ('"df://localhost:50050"', repr(scheduler)),
        ('"token"', repr(str(token))),
        ("/data/trips.parquet", trips),
        ("fare", "x"),
    ]:
        assert shown in example
        example = example.replace(shown, here)
    exec(compile(example, "python.md", "exec"), {"dfq": dfq})
