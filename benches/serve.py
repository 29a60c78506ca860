"""Asks a server of dfq from many connections at once, checks every answer, and prints how long answers took.

    dfq generate synthetic --rows 1e6 --output /tmp/bench
    python benches/serve.py --dfq target/release/dfq --file /tmp/bench/synthetic.parquet --connections 64 --statements 1000

Needs the package asyncpg. The server and the clients share the machine. Each connection sends its statements one after the other: short ones
with and without parameters, prepared ones, percentiles of all rows and of groups, statements that fail. The right answers come from the
server itself, before there is any load.
"""

import argparse
import asyncio
import random
import re
import subprocess
import time

import asyncpg

STATEMENTS = [
    ("SELECT $1::bigint * 2", lambda rng: (rng.randrange(10**9),)),
    ("SELECT 'a' || $1::text", lambda rng: (str(rng.random()),)),
    ("SELECT count(*), min(id), max(id) FROM t WHERE id < $1", lambda rng: (rng.randrange(1000) * 1000,)),
    ("SELECT g1000, exact_quantiles(price, 0.5) FROM t WHERE g1000 < 10 GROUP BY g1000 ORDER BY g1000", lambda rng: ()),
    ("SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY lognormal) FROM t", lambda rng: ()),
    ("SELECT exact_quantiles(price, [0.01, 0.5, 0.99]) FROM t", lambda rng: ()),
    ("SELECT id FROM t ORDER BY price DESC, id LIMIT 10", lambda rng: ()),
    ("SELECT nothing FROM t", lambda rng: ()),
]
# The first three are most of what a server is asked.
WEIGHTS = [30, 30, 20, 4, 4, 4, 4, 4]


async def answer(connection, sql, values):
    try:
        return str(await connection.fetch(sql, *values))
    except asyncpg.PostgresError as error:
        return f"{error.sqlstate}"


def expected(sql, values, known):
    if sql == STATEMENTS[0][0]:
        return values[0] * 2
    if sql == STATEMENTS[1][0]:
        return "a" + values[0]
    return known[(sql, values)]


async def client(port, number, args, known, seconds):
    connection = await asyncpg.connect(host="127.0.0.1", port=port, user="bench", database="datafusion")
    rng = random.Random(number)
    wrong = 0
    for _ in range(args.statements):
        sql, draw = rng.choices(STATEMENTS, WEIGHTS)[0]
        values = draw(rng)
        start = time.monotonic()
        if sql in (STATEMENTS[0][0], STATEMENTS[1][0]):
            found = await connection.fetchval(sql, *values)
        else:
            found = await answer(connection, sql, values)
        seconds.append(time.monotonic() - start)
        if found != expected(sql, values, known):
            wrong += 1
            print("wrong:", sql, values, str(found)[:200])
    await connection.close()
    return wrong


async def ask(port, args):
    known = {}
    first = await asyncpg.connect(host="127.0.0.1", port=port, user="bench", database="datafusion")
    for sql, draw in STATEMENTS[2:]:
        choices = [(step * 1000,) for step in range(1000)] if draw(random.Random(1)) else [()]
        for values in choices:
            known[(sql, values)] = await answer(first, sql, values)
    await first.close()
    seconds = []
    start = time.monotonic()
    clients = [client(port, number, args, known, seconds) for number in range(args.connections)]
    wrong = sum(await asyncio.gather(*clients))
    took = time.monotonic() - start
    seconds.sort()
    at = lambda part: f"{1000 * seconds[min(len(seconds) - 1, int(part * len(seconds)))]:.0f} ms"
    print(f"{args.connections} connections, {len(seconds)} statements in {took:.1f} s, {len(seconds) / took:.0f} a second, {wrong} wrong")
    print(f"p50 {at(0.5)}, p90 {at(0.9)}, p99 {at(0.99)}, longest {at(1)}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dfq", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--statements", type=int, default=1000)
    args = parser.parse_args()
    command = [args.dfq, "serve", f"t={args.file}", "--bind-port", "0", "--log", "error"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip()).group(1))
        wrong = asyncio.run(ask(port, args))
    finally:
        server.terminate()
        server.wait()
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
