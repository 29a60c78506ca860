"""Compares every method of `exact_quantiles` with the method of that name in NumPy, over tables of 1 to 1000 values.

    pip install numpy
    cargo build -p dfq && python benches/peers/methods.py target/debug/dfq
"""

import json
import random
import subprocess
import sys

import numpy

METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "linear",
    "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]
QUANTILES = [0, 1, 0.5, 0.25, 0.75, 0.125, 0.375, 0.1, 0.3, 0.9, 0.01, 0.99, 0.333, 0.0625]
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 10, 16, 25, 100, 101, 1000]


def answers(dfq, values):
    rows = ", ".join(f"(CAST({value} AS DOUBLE))" for value in values)
    calls = ", ".join(f"exact_quantiles(x, {QUANTILES}, '{method}') AS {method}" for method in METHODS)
    command = [dfq, "sql", "--format", "json", "-c", f"SELECT {calls} FROM (VALUES {rows}) AS t(x)"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]


def main():
    draw = random.Random(5)
    compared = different = 0
    for length in LENGTHS:
        values = [draw.randint(-(10**6), 10**6) / 8 for _ in range(length)]
        found = answers(sys.argv[1], values)
        for method in METHODS:
            expected = numpy.quantile(numpy.array(values), QUANTILES, method=method)
            for q, ours, theirs in zip(QUANTILES, found[method], expected):
                compared += 1
                if abs(ours - theirs) > 1e-9 * max(1.0, abs(theirs)):
                    different += 1
                    print(f"{length} values, {method}, {q}: {ours}, NumPy {theirs}")
    print(f"{compared} answers compared with NumPy {numpy.__version__}: {different} different")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
