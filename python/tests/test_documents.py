"""The documents' blocks of Python, and the notebook, run."""

import json
import pathlib
import re

import dfq
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

PYTHON = pathlib.Path(__file__).parents[1]
PAGES = [PYTHON.parent / "README.md", PYTHON / "README.md", PYTHON.parent / "docs/guide/python.md"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the file that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    trips = {"city": rng.choice(["Bonn", "Ulm"], 1000), "fare": rng.gamma(2, 8, 1000), "tip": rng.gamma(1, 2, 1000)}
    pa.parquet.write_table(pa.table(trips), "trips.parquet")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "/".join(page.parts[-2:]))
def test_blocks_of_the_pages_run(page, folder):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    # The first page's block is a part of a program.
    names = {} if page.parent != PYTHON.parent else {"dfq": dfq, "x": np.arange(9), "trips": pl.read_parquet("trips.parquet")}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


def test_the_notebook_runs(folder, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    notebook = json.loads((PYTHON / "examples/taxi.ipynb").read_text())
    assert notebook["nbformat"] == 4
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        assert cell["cell_type"] in ("code", "markdown")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, "the notebook is kept without outputs"
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    # What it shows is right.
    fares = names["fares"].to_numpy()
    by_hour = names["by_hour"].to_pandas()
    noon = by_hour[(by_hour["hour"] == 12) & (by_hour["quantile"] == 0.5)]["fare"].item()
    trips = names["trips"].to_pandas()
    assert noon == pytest.approx(trips[trips["started"].dt.hour == 12]["fare"].median())
    month = names["month"]
    assert month.n == len(trips) and abs((trips["fare"] <= month.quantile(0.99)).mean() - 0.99) <= 1 / 1000
    best = names["best"].to_pandas()
    assert len(best) == 10 * trips["city"].nunique()
    assert best["fare"].max() == trips["fare"].max() and fares.shape == (3,)
