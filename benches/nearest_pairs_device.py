"""Times the nearest rows of many queries on a device, from SQL, beside PyTorch on the same device.

    python benches/nearest_pairs_device.py --dfq dfq --rows 1e6 --dimension 128 --queries 10000 --k 10,100,1000 --graph

The vectors are uniform. PyTorch multiplies blocks of queries with all vectors and takes the k least of each row of the product, as FAISS does
for its flat index; `tf32` rounds components to 10 bits and does not check the answer.
"""

import argparse
import re
import statistics
import subprocess
import time


def table(name, rows, dimension):
    components = ", ".join("random()" for _ in range(dimension))
    vectors = f"arrow_cast(make_array({components}), 'FixedSizeList({dimension}, Float32)')"
    return f"CREATE TABLE {name} AS SELECT value AS id, {vectors} AS v FROM range({rows})"


def nearest(queries, k):
    return f"SELECT count(*), sum(id), min(distance), max(distance) FROM nearest(t, 'v', {queries}, 'v', {k})"


def timed(options, statements):
    """Seconds of each statement, after the tables are made and pinned, and what is printed."""
    made = [table("t", options.rows, options.dimension), table("q", options.queries, options.dimension)]
    command = [options.dfq, "sql", "--format", "csv"]
    for text in [*made, "PIN TABLE t (id, v)", *statements]:
        command += ["-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(s) for s in re.findall(r"Elapsed ([0-9.]+) seconds", done.stderr)][3:], done.stdout


def own(options):
    """Milliseconds from SQL and of the kernels of each k, and of the CPU."""
    found = {}
    for k in options.k:
        query = nearest("q", k)
        statements = [query] * (options.repeat + 1) + ["EXPLAIN ANALYZE " + query, "SET quantiles.device = 'cpu'", query]
        times, printed = timed(options, statements)
        rows = [line for line in printed.splitlines() if re.match(r"\d+,", line)]
        assert len(set(rows)) == 1, f"the CPU's answer differs: {rows}"
        kernels = dict(re.findall(r"(vp_\w+?)_time=([0-9.]+[mµn]?s)", printed))
        device = re.search(r"device_time=([0-9.]+[mµ]?s)", printed).group(1)
        found[k] = (statistics.median(times[1 : options.repeat + 1]) * 1e3, device, kernels, times[-1] * 1e3)
    return found


def torch_times(options):
    """Milliseconds of PyTorch for each k, with products in single precision and in TF32."""
    import torch

    vectors = torch.rand(options.rows, options.dimension, device="cuda")
    queries = torch.rand(options.queries, options.dimension, device="cuda")
    squares = (vectors * vectors).sum(1)

    def run(k):
        start = time.perf_counter()
        for first in range(0, len(queries), 2000):
            scores = torch.addmm(squares, queries[first : first + 2000], vectors.T, alpha=-2)
            torch.topk(scores, k, largest=False)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    found = {}
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for k in options.k:
            found[tf32, k] = statistics.median([run(k) for _ in range(options.repeat + 1)][1:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--queries", type=lambda text: int(float(text)), default=10_000)
    parser.add_argument("--k", type=lambda text: [int(k) for k in text.split(",")], default=[10, 100, 1000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--graph", action="store_true", help="the 10 nearest rows of every row, too")
    options = parser.parse_args()
    found, peer = own(options), torch_times(options)
    print("| k | SQL, ms | kernels | CPU, ms | PyTorch, ms | of SQL | TF32, ms |\n| --- | --- | --- | --- | --- | --- | --- |")
    for k, (sql, device, kernels, cpu) in found.items():
        print(f"| {k} | {sql:.0f} | {device} | {cpu:.0f} | {peer[False, k]:.0f} | {peer[False, k] / sql:.2f} | {peer[True, k]:.0f} |")
        print(f"kernels of k = {k}: {kernels}")
    if options.graph:
        times, printed = timed(options, [nearest("t", 10)] * 2 + ["EXPLAIN ANALYZE " + nearest("t", 10)])
        device = re.search(r"device_time=([0-9.]+m?s)", printed).group(1)
        print(f"graph of {options.rows} rows, k = 10: {times[1]:.2f} s, kernels {device}")


if __name__ == "__main__":
    main()
