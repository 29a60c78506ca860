"""Times the nearest vectors of a query by SQL, beside DataFusion's own plan and a read of the same bytes.

    python benches/nearest.py --dfq target/release/dfq --folder /tmp/bench --rows 1e6 --dimension 128 --cores 2

The vectors are drawn once, written to Parquet, and held in memory while statements are timed. A time is the median of `--repeat` runs in
turns. `read` is the greatest of all components, from a table with one number a row: the bytes of the vectors, read once. DataFusion's own
plan is that of `SET quantiles.topk = false`. `--type float16|float32|float64`, and `--list` for lists in place of lists of fixed size.
`--peers numpy,faiss` times the same question there, with as many threads; both are optional packages. Answers are compared with a loop in
`float64` before anything is timed.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEASURES = {
    "array_distance": "",
    "cosine_distance": "",
    "inner_product": " DESC",
}


def bound(cores):
    """The first `cores` of the cores that this process may use, for `taskset`."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:cores])


def drawn(args):
    """The vectors and the query; the files of both tables are written if they are not there."""
    rng = np.random.default_rng(7)
    # Vectors around 1000 centres, as descriptors of images lie.
    centres = rng.normal(size=(1000, args.dimension))
    vectors = centres[rng.integers(1000, size=args.rows)] + 0.7 * rng.normal(size=(args.rows, args.dimension))
    vectors = vectors.astype(args.type)
    query = centres[0] + 0.7 * rng.normal(size=args.dimension)
    form = "list" if args.list else "fixed"
    name = f"{args.folder}/vectors-{args.rows}-{args.dimension}-{args.type}-{form}.parquet"
    flat = f"{args.folder}/components-{args.rows}-{args.dimension}-{args.type}.parquet"
    if not os.path.exists(name):
        numbers = pa.array(vectors.reshape(-1))
        if args.list:
            offsets = np.arange(0, args.rows * args.dimension + 1, args.dimension, dtype=np.int32)
            column = pa.ListArray.from_arrays(offsets, numbers)
        else:
            column = pa.FixedSizeListArray.from_arrays(numbers, args.dimension)
        table = pa.table({"id": pa.array(np.arange(args.rows, dtype=np.int32)), "v": column})
        pq.write_table(table, name, compression="none", use_dictionary=False)
    if not os.path.exists(flat):
        table = pa.table({"x": pa.array(vectors.reshape(-1))})
        pq.write_table(table, flat, compression="none", use_dictionary=False)
    return vectors, query, name, flat


def run(args, script):
    """Seconds of each statement, and what was printed."""
    command = ["taskset", "-c", bound(args.cores), args.dfq, "sql", "--partitions", str(args.cores), "--format", "csv"]
    done = subprocess.run(command + [part for sql in script for part in ("-c", sql)], capture_output=True, text=True)
    elapsed = [float(seconds) for seconds in re.findall(r"Elapsed ([0-9.]+) seconds", done.stdout + done.stderr)]
    if done.returncode != 0 or len(elapsed) != len(script):
        raise SystemExit(f"{len(elapsed)} times of {len(script)} statements: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return elapsed, done.stdout


def medians(args, table, statements, setup=()):
    script = [f"CREATE TABLE m AS SELECT * FROM '{table}'", *setup] + statements * args.repeat
    elapsed, _ = run(args, script)
    elapsed = elapsed[len(script) - len(statements) * args.repeat :]
    return [statistics.median(elapsed[i :: len(statements)]) for i in range(len(statements))]


def nearest(measure, query, k):
    components = ", ".join(repr(float(x)) for x in query)
    return f"SELECT id FROM m ORDER BY {measure}(v, [{components}]){MEASURES[measure]}, id LIMIT {k}"


def without_ties(sql):
    return sql.replace(", id LIMIT", " LIMIT")


def expected(measure, vectors, query, k):
    """The nearest rows by a loop in float64 over the components, ties by id."""
    sums = np.zeros(len(vectors)) + 0.0
    squares, of_query = np.zeros(len(vectors)), 0.0
    for at in range(vectors.shape[1]):
        column = vectors[:, at].astype(np.float64)
        if measure == "array_distance":
            sums += (column - query[at]) * (column - query[at])
        else:
            sums += column * query[at]
        squares += column * column
        of_query += query[at] * query[at]
    if measure == "array_distance":
        distances = np.sqrt(sums)
    elif measure == "cosine_distance":
        distances = 1.0 - sums / (np.sqrt(squares) * np.sqrt(of_query))
    else:
        distances = -sums
    return np.lexsort((np.arange(len(vectors)), distances))[:k].tolist()


def check(args, vectors, query, name):
    for measure in MEASURES:
        for k in args.k:
            _, output = run(args, [f"CREATE TABLE m AS SELECT * FROM '{name}'", nearest(measure, query, k)])
            found = [int(line) for line in output.splitlines() if line.strip().isdigit()]
            assert found == expected(measure, vectors, query, k), f"{measure}, k = {k}"


def by_numpy(args, vectors, query, measure, k):
    query = query.astype(vectors.dtype)
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1)

    def ask():
        product = vectors @ query
        if measure == "array_distance":
            score = norms * norms - 2 * product
        elif measure == "cosine_distance":
            score = -product / norms
        else:
            score = -product
        best = np.argpartition(score, k)[:k]
        return best[np.argsort(score[best])]

    return ask


def by_faiss(args, vectors, query, measure, k):
    import faiss

    faiss.omp_set_num_threads(args.cores)
    data = np.ascontiguousarray(vectors, dtype=np.float32)
    asked = np.ascontiguousarray(query[None, :], dtype=np.float32)
    if measure == "cosine_distance":
        data = data / np.linalg.norm(data, axis=1, keepdims=True)
    index = faiss.IndexFlatL2(args.dimension) if measure == "array_distance" else faiss.IndexFlatIP(args.dimension)
    index.add(data)
    return lambda: index.search(asked, k)


def timed(args, ask):
    import time

    ask()
    times = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--folder", default="/tmp/bench")
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--type", choices=["float16", "float32", "float64"], default="float32")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--k", type=lambda text: [int(k) for k in text.split(",")], default=[10, 100])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--own-repeat", type=int, default=1, help="runs of DataFusion's own plan, which is slow")
    parser.add_argument("--peers", default="")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    vectors, query, name, flat = drawn(args)
    check(args, vectors, query, name)
    [read] = medians(args, flat, ["SELECT max(x) FROM m"])
    size = vectors.nbytes / 1e9
    print(f"{args.rows} vectors of {args.dimension} {args.type}: {size:.2f} GB, {args.cores} cores")
    print(f"read: {1e3 * read:.1f} ms, {size / read:.1f} GB/s")
    print("| measure | k | ours, ms | of read | ties by id, ms | DataFusion, ms | times ours | peers, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    peers = [peer for peer in args.peers.split(",") if peer]
    for measure in MEASURES:
        for k in args.k:
            tied = nearest(measure, query, k)
            ours, with_ids = medians(args, name, [without_ties(tied), tied])
            repeat, args.repeat = args.repeat, args.own_repeat
            [own] = medians(args, name, [without_ties(tied)], ["SET quantiles.topk = false"])
            args.repeat = repeat
            asked = {"numpy": by_numpy, "faiss": by_faiss}
            others = [f"{peer} {1e3 * timed(args, asked[peer](args, vectors, query, measure, k)):.1f}" for peer in peers]
            print(
                f"| {measure} | {k} | {1e3 * ours:.1f} | {ours / read:.2f} | {1e3 * with_ids:.1f} | {1e3 * own:.0f} | {own / ours:.1f} "
                f"| {', '.join(others)} |",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
