"""What the examples of docstrings find defined."""

import dfq
import pytest


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["dfq"] = dfq
