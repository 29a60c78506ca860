"""Functions over arrays."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from . import _dfq


def quantiles(x: Any, q: Any, method: str = "linear") -> Any:
    """Exact quantiles of an array: one for a number ``q``, or as many as a list of them has.

    ``x`` is a NumPy array (of any shape, whose values are taken all together), anything that offers Arrow's C interface
    (columns of PyArrow, Polars, pandas, DuckDB, in one piece or in chunks), or a list that NumPy makes an array of. It is read
    where it is, without a copy; a NumPy array that is strided, misaligned, in another byte order, or of texts is copied first.

    The answers for a list are an array of the kind that ``x`` is: of NumPy, Polars, PyArrow, or a pandas Series with ``q`` as its
    index. Their type is that of SQL's ``exact_quantiles``: the type of ``x`` where the method picks a value or ``x`` has floating
    point, else float64 for whole numbers.

    ``method`` is one of NumPy's thirteen, by NumPy's names (``disc`` is another name of ``inverted_cdf``, and ``cont`` of
    ``linear``). The answers are those of ``numpy.quantile``, but for rounding and three things:

    - ``q`` means the decimal that you write: the 0.07 quantile of 100 values is the 7th, where a product of floating-point
      numbers is a little above 7;
    - missing values (of Arrow, NaT, and None among texts) are left out; NaNs of NumPy are values above all others, so that they turn an answer
      into NaN only where they are reached;
    - without any values the answer is NaN, NaT or None.

    Other threads go on meanwhile, and Ctrl-C ends the call.

    >>> import numpy as np
    >>> x = np.array([15, 20, 35, 40, 50])
    >>> dfq.quantiles(x, 0.5)
    np.float64(35.0)
    >>> dfq.quantiles(x, [0.25, 0.5, 0.75], method="inverted_cdf")
    array([20, 35, 40])
    >>> dfq.quantiles(["b", "c", "a", None], 0.5, method="inverted_cdf")
    'b'
    >>> dfq.quantiles([1j], 0.5)
    Traceback (most recent call last):
    dfq.QueryError: no quantiles of NumPy arrays of type complex128
    """
    answers = _dfq.quantiles(readable(x), q, method)
    if isinstance(answers, _dfq.Answer):
        return _as_kind_of(x, answers, q)
    return answers


def readable(x: Any) -> Any:
    """The object itself or, for columns of pandas before 3, an array of PyArrow, which knows missing values from NaN as later pandas do."""
    if _kind(x) == "pandas" and not hasattr(x, "__arrow_c_stream__"):
        import pyarrow

        return pyarrow.Array.from_pandas(x)
    return x


def _kind(x: Any) -> str:
    """The package that an object's type is of."""
    return type(x).__module__.partition(".")[0]


def _as_kind_of(x: Any, answers: _dfq.Answer, index: Any = None) -> Any:
    """The answers as an array of the package that ``x`` is of; NumPy's for other packages."""
    kind = _kind(x)
    if kind in ("polars", "pyarrow", "pandas"):
        package = sys.modules[kind]
        if kind == "polars":
            return package.Series(answers).alias(getattr(x, "name", ""))
        if kind == "pyarrow":
            return package.array(answers)
        return package.Series(answers.to_numpy(), index=index, name=getattr(x, "name", None))
    return answers.to_numpy()


def topk(values: Any, keys: Any, k: int, *, largest: bool = True) -> Any:
    """The ``k`` values with the greatest keys, best first; with ``largest=False``, those with the least.

    It is SQL's ``topk_by``: pairs whose key is missing are left out, missing values stay. Among equal keys smaller values come
    first, so that there is one answer. Both arguments are what ``quantiles`` takes, of one length; NumPy arrays are copied. The
    answer is an array of the kind that ``values`` is.

    >>> import numpy as np
    >>> dfq.topk(np.array([7, 8, 9]), np.array([0.5, 2.5, 1.5]), 2)
    array([8, 9])
    """
    return _as_kind_of(values, _dfq.topk(readable(values), readable(keys), k, largest))


class Rank(NamedTuple):
    """Bounds of the number of values at or below one, in a sketch of ``n`` values."""

    rank_min: int
    rank_max: int
    n: int


class GkSketch:
    """A Greenwald-Khanna sketch: any quantile of all values that it has seen, with a proved bound.

    The rank of an answer among ``n`` values is off by at most ``n / accuracy``, whatever the values, their order and the merges; up
    to ``accuracy / 2`` values answers are exact. ``accuracy`` may be an error fraction below 1 instead. A sketch holds about
    ``accuracy`` values, of one type of fixed width: numbers, decimals, Booleans, dates, times.

    Sketches pickle, several threads may use one, and their bytes are those of SQL's ``gk_sketch``, ``gk_merge`` and
    ``gk_quantile``.

    >>> import numpy as np
    >>> monday, tuesday = dfq.GkSketch(1000), dfq.GkSketch(1000)
    >>> monday.update(np.array([1.0, 2.0]))
    >>> tuesday.update(np.array([3.0, 4.0, 5.0]))
    >>> monday.merge(tuesday)
    >>> monday.quantile(0.5), monday.rank(3.0)
    (3.0, Rank(rank_min=3, rank_max=3, n=5))
    >>> dfq.GkSketch.from_bytes(monday.to_bytes())
    <dfq.GkSketch of 5 values of type Float64, ranks within 0.1 %>
    """

    __slots__ = ("_sketch",)

    def __init__(self, accuracy: float = 10_000) -> None:
        self._sketch = _dfq.Sketch(accuracy)

    def update(self, values: Any) -> None:
        """Adds an array of values, of what ``quantiles`` takes: all of them or, where that fails, none."""
        self._sketch.update(readable(values))

    def merge(self, other: GkSketch) -> None:
        """Adds the values of another sketch, which stays as it is. The larger error of both counts from then on."""
        if not isinstance(other, GkSketch):
            raise _dfq.QueryError(f"{type(other).__name__} is no sketch: allowed is a dfq.GkSketch")
        self._sketch.merge(other._sketch)

    def quantile(self, q: Any) -> Any:
        """A value near the quantile ``q``, or a NumPy array of them for a list; None, or NaN, without values."""
        answer = self._sketch.quantile(q)
        return answer.to_numpy() if isinstance(answer, _dfq.Answer) else answer

    def rank(self, value: Any) -> Rank:
        """Bounds of the number of values at or below ``value``."""
        return Rank(*self._sketch.rank(value))

    @property
    def n(self) -> int:
        """Number of values, missing ones left out."""
        return self._sketch.n()

    @property
    def error_fraction(self) -> float:
        """The part of all values by which a rank may be off."""
        return self._sketch.error_fraction()

    def to_bytes(self) -> bytes:
        """The sketch as bytes, to be stored."""
        return self._sketch.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> GkSketch:
        """The sketch of ``to_bytes``, or of SQL's ``gk_sketch``."""
        sketch = cls.__new__(cls)
        sketch._sketch = _dfq.Sketch.from_bytes(data)
        return sketch

    def __reduce__(self) -> tuple[Any, ...]:
        return GkSketch.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        data_type = self._sketch.data_type()
        of = f" of type {data_type}" if data_type else ""
        return f"<dfq.GkSketch of {self.n} values{of}, ranks within {100 * self.error_fraction:g} %>"
