"""Asks a server of dfq for 101 quantiles of a column in the memory of a GPU, and prints how long answers took over the wire.

    python benches/serve_pinned.py --dfq target/release/dfq --rows 268435456

Needs the package asyncpg and a GPU. The first answer, which waits for kernels, is told apart. Each answer is checked to ascend from the least value to
the greatest, and all answers to be the same.
"""

import argparse
import asyncio
import re
import subprocess
import tempfile
import time

import asyncpg

RANKS = ", ".join(f"{rank / 100}" for rank in range(101))
# As rows: asyncpg reads lists only of servers whose catalog answers its own query of types.
STATEMENT = f"SELECT unnest(exact_quantiles(x, [{RANKS}])) AS q FROM t"


async def ask(port, times):
    connection = await asyncpg.connect(host="127.0.0.1", port=port, user="bench", database="datafusion")
    ends = await connection.fetchrow("SELECT min(x), max(x) FROM t")
    seconds, answers = [], []
    for _ in range(times + 1):
        start = time.monotonic()
        answers.append([row[0] for row in await connection.fetch(STATEMENT)])
        seconds.append(time.monotonic() - start)
    plan = await connection.fetch(f"EXPLAIN {STATEMENT}")
    await connection.close()
    first = answers[0]
    wrong = any(answer != first for answer in answers) or sorted(first) != first or (first[0], first[-1]) != tuple(ends)
    later = sorted(seconds[1:])
    print(f"first {1000 * seconds[0]:.1f} ms; {times} later: median {1000 * later[times // 2]:.2f}, longest {1000 * later[-1]:.2f} ms")
    print("on the GPU:", "PinnedExec" in str(plan), "wrong:", wrong)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--rows", type=int, default=1 << 28)
    parser.add_argument("--times", type=int, default=100)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as setup:
        setup.write(f"CREATE TABLE t AS SELECT CAST(random() AS REAL) AS x FROM generate_series(1, {args.rows});")
        setup.flush()
        command = [args.dfq, "serve", "--init", setup.name, "--pin", "t:x", "--bind-port", "0", "--log", "error"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r":(\d+)$", server.stderr.readline().strip()).group(1))
            wrong = asyncio.run(ask(port, args.times))
        finally:
            server.terminate()
            server.wait()
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
