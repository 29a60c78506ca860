"""What CuPy and PyTorch take for the questions of benches/device/columns.rs, on the first device.

    python3 benches/cuda_anchors.py

Medians of 20 (of 3 for torch.kthvalue) by CUDA events, in milliseconds, over 2^28 Float32 in the device's memory.
"""

import statistics

import cupy
import torch

N = 1 << 28
RUNS = 20


def timed(name, call, runs=RUNS):
    call()
    times = []
    for _ in range(runs):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    print(f"| {name} | {statistics.median(times):.3f} |", flush=True)


def main():
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    uniform = torch.rand(N, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    data = {
        "uniform": uniform,
        "normal": torch.randn(N, device="cuda", generator=torch.Generator("cuda").manual_seed(2)),
        "all equal": torch.full((N,), 42.0, device="cuda"),
        "16 values": (uniform * 16).floor() * 1.37,
    }
    percents = cupy.arange(101, dtype=cupy.float64)
    print(f"{torch.cuda.get_device_name()}; CuPy {cupy.__version__}, PyTorch {torch.__version__}")
    print("| 2^28 Float32 | ms |\n| --- | --- |")
    with stream:
        for name, values in data.items():
            view = cupy.from_dlpack(values)
            timed(f"one read: torch.amax, {name}", lambda: values.amax())
            timed(f"cupy.percentile, 101, {name}", lambda: cupy.percentile(view, percents))
            timed(f"cupy.percentile, median, {name}", lambda: cupy.percentile(view, 50.0))
            timed(f"cupy.sort (radix sort of CUB), {name}", lambda: cupy.sort(view))
            for k in (10, 100, 1000, 10_000, 100_000):
                timed(f"torch.topk, k = {k}, {name}", lambda: torch.topk(values, k))
        timed("torch.kthvalue, median, uniform", lambda: torch.kthvalue(uniform, N // 2), runs=3)


if __name__ == "__main__":
    main()
