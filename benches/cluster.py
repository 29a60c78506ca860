"""Measures exact quantiles on a cluster of this machine: bytes that move, seconds, and what fits in little memory.

    pip install numpy pyarrow
    cargo build --release --features ballista
    python benches/cluster.py bytes --data /tmp/cluster --rows 1e5,1e6,1e7,3e7
    python benches/cluster.py time --data /tmp/cluster --rows 3e7
    python benches/cluster.py groups --data /tmp/cluster --rows 3e7
    python benches/cluster.py memory --data /tmp/cluster --rows 1e8

Starts `dfq cluster` with two executors on a port of its own, and asks it by `dfq sql --cluster`. The table has two columns,
`x` (log-normal Float64) and `g` (1000 groups), in 16 Parquet files, made once for each number of rows under `--data`.

Bytes are the sizes of the files that stages leave for others, so as Ballista 55 compresses them: `written` once each,
`fetched` once for each task that reads them, as every task of a round fetches the state. Peers are Ballista's own: a sort
(`ORDER BY`) of which one row is picked, and `percentile_cont` and `median` as DataFusion runs them.
"""

import argparse
import datetime
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

FILES = 16
GROUPS = 1000
STRATEGIES = ["gk_select", "distributed_bms", "dibms"]
QUANTILES = {1: [0.5], 3: [0.25, 0.5, 0.99], 99: [round(i / 100, 2) for i in range(1, 100)]}
PLANNERS = {"adaptive": "true", "static": "false"}


def listed(quantiles):
    return "[" + ",".join(map(str, quantiles)) + "]"


def table(folder, rows):
    """The folder of 16 files of so many rows in all."""
    path = os.path.join(folder, str(rows))
    if os.path.exists(path):
        return path
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    random, made = np.random.default_rng(20261122), path + ".part"
    shutil.rmtree(made, ignore_errors=True)
    os.makedirs(made)
    for number in range(FILES):
        left = rows * (number + 1) // FILES - rows * number // FILES
        x, g = random.lognormal(3, 1.5, left), random.integers(0, GROUPS, left).astype(np.int32)
        pq.write_table(pa.table({"x": x, "g": g}), os.path.join(made, f"part-{number:02}.parquet"), row_group_size=1 << 20)
    os.rename(made, path)
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """A scheduler and two executors, which end with this."""

    def __init__(self, dfq, pool=None):
        self.dfq, self.work, port = dfq, tempfile.mkdtemp(prefix="cluster-"), free_port()
        self.url = f"df://127.0.0.1:{port}"
        command = [dfq, "cluster", "--executors", "2", "--port", str(port), "--work-dir", self.work]
        if pool:
            command += ["--memory-pool-size", pool]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "is ready" in line:
                return
        raise RuntimeError("the cluster did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stderr.read()
        self.process.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    def sql(self, data, statements, adaptive=True, timeout=150):
        """Runs statements over the table t; the seconds and the printed lines of those after the settings."""
        settings = [f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{data}'",
                    f"SET ballista.planner.adaptive.enabled = {str(adaptive).lower()}"]
        command = [self.dfq, "sql", "--cluster", self.url, "--partitions", str(FILES), "--format", "csv", "--timeout", str(timeout)]
        for statement in settings + statements:
            command += ["-c", statement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(next((line for line in done.stderr.splitlines() if line.startswith("Error")), done.stderr))
        return [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)][len(settings):], done.stdout.splitlines()

    def stages(self):
        """Of the jobs whose files are there: the sizes of each stage's files."""
        jobs = {}
        for folder, _, files in os.walk(self.work):
            parts = os.path.relpath(folder, self.work).split(os.sep)
            for file in files:
                if len(parts) >= 3 and file.endswith(".arrow") and parts[2].isdigit():
                    sizes = jobs.setdefault(parts[1], {}).setdefault(int(parts[2]), [])
                    sizes.append(os.path.getsize(os.path.join(folder, file)))
        return jobs

    def memory(self):
        """Most memory that each executor ever held, in MB."""
        peaks = []
        for number in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{number}/status") as status, open(f"/proc/{number}/cmdline") as command:
                    status, command = status.read(), command.read().split("\0")
            except OSError:
                continue
            if f"PPid:\t{self.process.pid}\n" in status and command[1] == "executor":
                peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024)
        return peaks


def moved(stages):
    """Bytes written for others, and bytes fetched: one file of a stage that is not the last is a state, which all tasks fetch."""
    last = max(stages)
    between = [sizes for stage, sizes in stages.items() if stage != last]
    return sum(map(sum, between)), sum(sum(sizes) * (FILES if len(sizes) == 1 else 1) for sizes in between)


def quantiles_of(count):
    return [f"SELECT exact_quantiles(x, {listed(QUANTILES[count])}) FROM t"]


def under(strategy):
    return [f"SET quantiles.strategy = '{strategy}'"]


def ranks_by_sort(rows, count):
    """The rows of these ranks of the sorted table."""
    ranks = ",".join(str(max(1, -(-round(q * 100) * rows // 100))) for q in QUANTILES[count])
    return [f"SELECT x FROM (SELECT x, row_number() OVER (ORDER BY x) AS n FROM t) WHERE n IN ({ranks})"]


def plain(count):
    return ["SELECT " + ", ".join(f"percentile_cont(x, {q})" for q in QUANTILES[count]) + " FROM t"]


def show_bytes(arguments):
    print("| rows | quantiles | by | stages | written | fetched | of the sort's |\n| --- | --- | --- | --- | --- | --- | --- |")
    for rows in arguments.rows:
        data = table(arguments.data, rows)
        with Cluster(arguments.dfq) as cluster:
            def line(count, name, statements, whole=None):
                before = set(cluster.stages())
                cluster.sql(data, statements)
                (job,) = set(cluster.stages()) - before
                stages = cluster.stages()[job]
                written, fetched = moved(stages)
                share = f"{100 * fetched / whole:.3f}%" if whole else ""
                print(f"| {rows:.0e} | {count} | {name} | {len(stages)} | {written:,} | {fetched:,} | {share} |", flush=True)
                return fetched

            whole = line(1, "sort", ranks_by_sort(rows, 1))
            line(1, "percentile_cont", plain(1), whole)
            for count in (1, 99):
                for strategy in STRATEGIES:
                    line(count, strategy, under(strategy) + quantiles_of(count), whole)


def best(cluster, data, settings, statement, adaptive, repeat):
    """The least seconds of a statement, or how it failed."""
    try:
        first, _ = cluster.sql(data, settings + statement, adaptive)
        if first[-1] > 20:  # A slow peer need not be asked again to be seen as slow.
            return first[-1]
        again, _ = cluster.sql(data, settings + statement * repeat, adaptive)
        return min(first[-1:] + again[len(settings):])
    except RuntimeError as error:
        return str(error)[:100]


def shown(seconds, base=None):
    if isinstance(seconds, str):
        return seconds
    ratio = f" ({base / seconds:.1f}x)" if isinstance(base, float) else ""
    return f"{seconds:.2f}{ratio}"


def show_times(arguments, wanted):
    """Rows of a table: by what, and the seconds of each; in brackets how many times as fast as the row named by `base`."""
    for rows in arguments.rows:
        data = table(arguments.data, rows)
        for planner, adaptive in PLANNERS.items():
            if arguments.planner and planner != arguments.planner:
                continue
            for what, base, entries in wanted(rows):
                found = {}
                with Cluster(arguments.dfq) as cluster:
                    for name, settings, statement in entries:
                        found[name] = best(cluster, data, settings, statement, adaptive == "true", arguments.repeat)
                        # Files of finished jobs stay, and fill the disk.
                        print(f"| {rows:.0e} | {planner} | {what} | {name} | {shown(found[name], found.get(base))} |", flush=True)


def times(rows):
    for count in QUANTILES:
        entries = [("sort and pick", [], ranks_by_sort(rows, count))]
        if count <= 3:
            entries.append(("percentile_cont", [], plain(count)))
        entries += [(strategy, under(strategy), quantiles_of(count)) for strategy in STRATEGIES]
        yield f"{count} quantiles", "sort and pick", entries


def groups(_):
    medians = ["SELECT count(*), sum(m) FROM (SELECT g, median(x) AS m FROM t GROUP BY g)"]
    plain_three = ", ".join(f"percentile_cont(x, {q}) AS m{i}" for i, q in enumerate(QUANTILES[3]))
    plain_three = [f"SELECT count(*), sum(m0), sum(m2) FROM (SELECT g, {plain_three} FROM t GROUP BY g)"]
    three = [f"SELECT count(*), sum(m[1]), sum(m[3]) FROM (SELECT g, exact_quantiles(x, {listed(QUANTILES[3])}) AS m FROM t GROUP BY g)"]
    replaced = ["SET quantiles.replace_builtins = true"]
    yield "median of 1000 groups", "median", [("median", [], medians), ("exact quantiles", replaced, medians)]
    yield "3 quantiles of 1000 groups", "percentile_cont", [("percentile_cont", [], plain_three), ("exact quantiles", [], three)]


def show_memory(arguments):
    print("| rows | quantiles | by | seconds | executors held at most |\n| --- | --- | --- | --- | --- |")
    for rows in arguments.rows:
        data = table(arguments.data, rows)
        for count, strategies in ((99, STRATEGIES), (1, ["gk_select"])):
            for strategy in strategies:
                with Cluster(arguments.dfq, arguments.pool) as cluster:
                    seconds = best(cluster, data, under(strategy), quantiles_of(count), True, 1)
                    peaks = ", ".join(f"{peak:.0f} MB" for peak in cluster.memory())
                    print(f"| {rows:.0e} | {count} | {strategy} | {shown(seconds)} | {peaks} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bytes", "time", "groups", "memory"])
    parser.add_argument("--data", required=True, help="folder for the tables, which are made if they are not there")
    parser.add_argument("--rows", default="3e7", help="numbers of rows, separated by commas")
    parser.add_argument("--dfq", default="target/release/dfq", help="the program, with the feature ballista")
    parser.add_argument("--repeat", type=int, default=2, help="runs of a statement after its first; the best counts")
    parser.add_argument("--planner", choices=list(PLANNERS), help="one kind of planning only")
    parser.add_argument("--pool", default="512MB", help="memory of an executor's queries, where little is given")
    arguments = parser.parse_args()
    arguments.rows = [int(float(rows)) for rows in arguments.rows.split(",")]
    print(f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, 2 executors, {FILES} files\n")
    if arguments.what == "bytes":
        show_bytes(arguments)
    elif arguments.what == "memory":
        show_memory(arguments)
    else:
        print("| rows | planner | what | by | seconds |\n| --- | --- | --- | --- | --- |")
        show_times(arguments, times if arguments.what == "time" else groups)


if __name__ == "__main__":
    main()
