"""Where and how it is shown how far a query is."""

import io
import os
import pty
import re
import subprocess
import sys
import threading

import dfq
import pytest
from dfq import _progress

# Doubles a table until a query over it takes long enough, however the package was built.
GROWING = """
import time, dfq, numpy as np, polars as pl, pyarrow as pa
con = dfq.connect(partitions=2)
rows = 1 << 18
while True:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({"x": rng.normal(size=rows), "g": rng.integers(0, 100, rows)})
    SOURCE
    start = time.monotonic()
    CALL
    if time.monotonic() - start > 1.5:
        break
    rows *= 2
print(rows)
"""

SOURCES = {
    "memory": "con.register('t', frame)",
    "parquet": "frame.write_parquet('t.parquet', row_group_size=1 << 16); con.register('t', 't.parquet')",
    "csv": "frame.write_csv('t.csv'); con.register('t', 't.csv')",
}
CALLS = {
    "median": "con.sql('SELECT exact_quantiles(x * g, [0.1, 0.5]) FROM t').fetchall()",
    "groups": "con.sql('SELECT g, exact_quantiles(x * x, 0.5) FROM t GROUP BY g').to_numpy()",
    "stream": "pl.DataFrame(con.sql('SELECT exact_quantiles(x * g, [0.1, 0.5]) FROM t'))",
    "copy": "con.sql(\"COPY (SELECT exact_quantiles(x * g, [0.1, 0.5]) FROM t) TO 'copy.parquet'\")",
}


def in_a_terminal(code, **environment):
    """What a process writes to its standard error, a terminal of 80 columns, and what it prints."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "80"], stdin=theirs, check=True)
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    written = []

    def read():
        # The end of a terminal is an error.
        try:
            while piece := os.read(ours, 1 << 16):
                written.append(piece)
        except OSError:
            pass

    thread = threading.Thread(target=read)
    thread.start()
    printed = process.communicate(timeout=300)[0].decode()
    thread.join()
    os.close(ours)
    text = b"".join(written).decode()
    assert process.returncode == 0, text
    return text, printed


def numbers(pattern, text):
    return [float(number.replace(",", "")) for number in re.findall(pattern, text)]


@pytest.mark.parametrize(
    "source, call",
    [("memory", "median"), ("memory", "groups"), ("parquet", "groups"), ("parquet", "stream"), ("parquet", "copy"), ("csv", "median")],
)
def test_a_terminal_shows_what_is_read(tmp_path, monkeypatch, source, call):
    monkeypatch.chdir(tmp_path)
    code = GROWING.replace("SOURCE", SOURCES[source]).replace("CALL", CALLS[call])
    text, printed = in_a_terminal(code)
    lines = [line.strip() for line in text.split("\r")]
    assert lines[-1] == "" and max(map(len, lines)) < 80, lines
    assert min(numbers(r"([\d.]+) s\b", text)) >= 1.0
    read = numbers(r"([\d,]+) rows", text)
    # How many rows a CSV file has is estimated by its first lines.
    is_estimated = source == "csv"
    # The last look comes before the end of the query.
    assert int(printed) / 4 < max(read) <= int(printed) * (1.1 if is_estimated else 1)
    shown = numbers(r"(\d+) % of", text) + [100.0] * text.count("computing")
    assert shown and all(0 <= part <= 100 for part in shown) and "[#" in text, lines
    assert ("% of about " in text) == is_estimated


def test_pipes_and_files_show_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = GROWING.replace("SOURCE", SOURCES["memory"]).replace("CALL", CALLS["median"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.strip().isdigit()
    # Nor do terminals that cannot go back in a line, nor sessions that do not want to.
    assert in_a_terminal(code, TERM="dumb")[0] == ""
    assert in_a_terminal(code.replace("partitions=2", "partitions=2, progress=False"))[0] == ""


class Tty(io.StringIO):
    def isatty(self):
        # An error once it is closed.
        return not super().isatty()


def terminal_of_this_process(monkeypatch):
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_the_line_is_honest(monkeypatch):
    terminal = terminal_of_this_process(monkeypatch)
    place = _progress.start()
    # No other query writes to the line meanwhile.
    assert _progress.start() is None
    states = {
        (1.0, None, None, False): "running, 1.0 s",
        (1.1, 1_000_000, None, False): "1,000,000 rows read, 1.1 s",
        (1.2, 10, 40, True): "[#####...............] 25 % of 40 rows read, 1.2 s",
        (1.3, 39, 40, False): "[###################.] 97 % of about 40 rows read, 1.3 s",
        (1.4, 40, 40, True): "[####################] all 40 rows read, computing, 1.4 s",
        # More than there should be: what was known was wrong.
        (1.5, 41, 40, False): "41 rows read, 1.5 s",
        (1.6, 0, 0, True): "0 rows read, 1.6 s",
    }
    before = 0
    for state, line in states.items():
        place.show(*state)
        # Nothing is left of a longer line before.
        assert terminal.getvalue().rpartition("\r")[2] == line.ljust(before)
        before = len(line)
    place.close()
    assert terminal.getvalue().endswith("\r" + " " * before + "\r")
    again = _progress.start()
    assert again is not None
    again.close()


def test_a_terminal_that_goes_away_is_no_error(monkeypatch):
    terminal = terminal_of_this_process(monkeypatch)
    place = _progress.start()
    terminal.close()
    place.show(1.0, 1, 2, True)
    place.close()
    assert _progress.start() is None
    monkeypatch.setattr(sys, "stderr", None)
    assert _progress.start() is None


def test_ctrl_c_leaves_an_empty_line():
    code = """
import os, signal, threading, time, dfq
con = dfq.connect()
threading.Timer(1.6, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    con.sql("SELECT exact_quantiles(concat(repeat('x', 50), value::text), 0.5) FROM range(0, 30000000)").fetchall()
except KeyboardInterrupt:
    print("interrupted")
"""
    text, printed = in_a_terminal(code)
    assert printed == "interrupted\n"
    assert "rows read" in text and text.split("\r")[-2].strip() == "" and text.endswith("\r")


@pytest.mark.filterwarnings("default")
def test_a_notebook_shows_what_is_read():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute(GROWING.replace("SOURCE", SOURCES["memory"]).replace("CALL", CALLS["median"]))
        shown, written = {}, []
        while True:
            message = client.get_iopub_msg(timeout=300)
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                shown.setdefault(content["transient"]["display_id"], []).append(content["data"])
            elif kind in ("stream", "error"):
                written.append(content.get("text") or content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "".join(written).strip().isdigit(), written
    assert shown
    for states in shown.values():
        # It is taken away at the end.
        assert states[-1] == {"text/plain": "", "text/html": ""}
        for state in states[:-1]:
            assert re.fullmatch(r"(\d+ % of|all) [\d,]+ rows read, (computing, )?[\d.]+ s", state["text/plain"])
            assert re.match(r'<progress value="[01]\.\d\d\d"></progress> ', state["text/html"])
