"""Times the vectors nearest to one query on a GPU by PyTorch, and one read of the same bytes: the peer of `cargo bench --bench device -- vectors`.

    python benches/nearest_torch.py [ROWS] [WIDTH]

`read` is the fastest of three ways to reduce all components to one number. `mv` multiplies the matrix with the query, adds the squares of
the vectors, which were computed before, and takes the k least: it rounds more than a sum of squared differences. `exact` adds squared
differences. Milliseconds, medians of 20.
"""

import statistics
import sys

import torch

rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
width = int(sys.argv[2]) if len(sys.argv) > 2 else 128


def timed(work):
    times = []
    for run in range(22):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if run >= 2:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


for kind in [torch.float32, torch.float16]:
    vectors = torch.rand(rows, width, device="cuda", dtype=torch.float32).to(kind)
    query = (torch.arange(width, device="cuda") * 37 % 101 / 101).to(kind)
    squares = torch.cat([part.float().square().sum(1) for part in vectors.split(1 << 20)])
    reads = [lambda: vectors.view(-1).amax(), lambda: vectors.view(-1).sum(), lambda: vectors.view(torch.int32).view(-1).amax()]
    read = min(timed(work) for work in reads)
    size = vectors.numel() * vectors.element_size()
    print(f"{torch.cuda.get_device_name()}, {rows} x {width} {kind}: read {read:.3f} ms, {size / read / 1e9:.2f} TB/s")
    for k in [10, 100, 1000]:
        by_product = timed(lambda: torch.topk(squares - 2 * torch.mv(vectors, query).float(), k, largest=False))
        exact = timed(lambda: torch.topk(torch.cdist(query[None].float(), vectors.float())[0], k, largest=False)) if kind == torch.float32 else float("nan")
        print(f"k = {k}: mv and topk {by_product:.3f}, cdist and topk {exact:.3f}")
    del vectors, squares
