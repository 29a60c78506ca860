"""Exact medians, percentiles and top-k: of arrays, and in SQL over data frames and files.

Any number of quantiles of a NumPy array, or of anything that offers Arrow's C interface:

>>> import dfq, numpy as np
>>> dfq.quantiles(np.array([3.0, 1.0, 2.0]), [0.0, 0.5, 1.0])
array([1., 2., 3.])

In SQL, over variables and files, within the memory that you allow:

>>> trips = {"city": np.array([1, 1, 2]), "fare": np.array([8.0, 10.0, 6.5])}
>>> con = dfq.connect(memory_limit="1GB")
>>> con.sql("SELECT city, exact_quantiles(fare, 0.5) AS median FROM trips GROUP BY city ORDER BY city").fetchall()
[(1, 8.0), (2, 6.5)]
"""

from ._arrays import GkSketch, Rank, quantiles, topk
from ._dfq import (
    DataError,
    Error,
    InternalError,
    QueryError,
    ResourcesError,
    __version__,
)
from ._foreign import register
from ._sql import Connection, Query, connect

__all__ = [
    "Connection",
    "DataError",
    "Error",
    "GkSketch",
    "InternalError",
    "Query",
    "QueryError",
    "Rank",
    "ResourcesError",
    "__version__",
    "connect",
    "quantiles",
    "register",
    "topk",
]
