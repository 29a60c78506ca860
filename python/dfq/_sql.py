"""Sessions and queries."""

from __future__ import annotations

import glob
import html
import os
import pathlib
import re
import shutil
import sys
import tempfile
import weakref
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from . import _dfq
from ._arrays import readable
from ._cuda import name_compiler

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from collections.abc import Sequence

# Rows that a query shows of itself.
SHOWN_ROWS = 20

_UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40}


def connect(
    memory_limit: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    device: str | None = None,
    progress: bool = True,
    cluster: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str], str | os.PathLike[str]] | None = None,
) -> Connection:
    """A session: tables by their names, and SQL with exact quantiles and top-k.

    ``memory_limit`` is the most memory that queries hold, in bytes or as a text like ``"512MB"`` or ``"2GB"`` (powers of 1024).
    What does not fit goes to files in a folder of the session's own in ``spill_dir`` (default: the system's temporary folder),
    which is gone when the session is; what can neither be held nor spilled is a ``dfq.ResourcesError``. Tables that are registered
    from memory, and answers, do not count. ``partitions`` is the number of parts that queries run in (default: number of cores).

    ``device`` is where quantiles are selected: ``"auto"`` (columns that ``Connection.pin`` has pinned on their GPU, others on the
    CPU), ``"cpu"``, ``"cuda"`` (on the first GPU, or an error), ``"cuda:1"``, ``"cuda:all"``. CUDA is loaded when it is first needed.

    A call that waits for more than a second shows how far its query is: in a terminal that errors are written to, or in a
    notebook, and never in pipes and files. ``progress=False`` switches that off.

    ``cluster`` is the address of a scheduler, such as ``"df://localhost:50050"``: queries run on its executors, over files that all
    of its machines see. ``token_file`` is the file with the secret of its members, or ``tls`` the files of a certificate, its key
    and the authority's certificate, in PEM. Wheels are built without this: the error of the call says how to build one with it.

    >>> with dfq.connect(memory_limit="100MB", partitions=4) as con:
    ...     con.sql("SELECT exact_quantiles(value, [0.5, 0.99]) AS q FROM range(0, 100000)").fetchall()
    [([49999, 98999],)]
    """
    return Connection(memory_limit, spill_dir, partitions, device, progress, _cluster(cluster, token_file, tls))


class Connection:
    """A session, which ``dfq.connect`` makes. Threads may share it; a forked process makes one of its own."""

    def __init__(
        self,
        memory_limit: int | str | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        partitions: int | None = None,
        device: str | None = None,
        progress: bool = True,
        cluster: dict[str, Any] | None = None,
    ) -> None:
        limit = _bytes(memory_limit)
        given = "memory_limit" if memory_limit is not None else "spill_dir"
        if cluster is not None and (memory_limit is not None or spill_dir is not None):
            raise _dfq.QueryError(f"{given} is for queries in this process: what executors hold is set where they are started")
        name_compiler()
        folder = _spill_folder(spill_dir)
        # At the latest when the process ends.
        self._removed = weakref.finalize(self, _remove, folder, os.getpid())
        self._session = _dfq.Session(limit, folder, partitions, device, progress, cluster)
        self._asked = {
            "memory_limit": memory_limit,
            "spill_dir": spill_dir,
            "partitions": partitions,
            "device": device,
            "cluster": cluster and cluster["url"],
        }

    def __repr__(self) -> str:
        asked = ", ".join(f"{name}={value!r}" for name, value in self._asked.items() if value is not None)
        return f"dfq.connect({asked})" + ("" if self._removed.alive else ", closed")

    def sql(self, query: str) -> Query:
        """Plans a statement. A query runs when its rows are wanted; other statements (``CREATE``, ``INSERT``, ``COPY``) at once.

        A quoted path is a table: ``FROM 'trips.parquet'`` (``.csv``, ``.json``, ``.arrow``; folders and globs too). A name that the
        session does not have is looked for among the variables of the caller: data frames, tables and arrays of Polars, pandas,
        PyArrow and others that offer Arrow's C interface, queries, and dicts of arrays.

        >>> import polars as pl
        >>> con = dfq.connect()
        >>> trips = pl.DataFrame({"city": ["Bonn", "Bonn", "Ulm"], "fare": [8.0, 10.0, 6.5]})
        >>> con.sql("SELECT city, exact_quantiles(fare, 0.5) AS median FROM trips GROUP BY city ORDER BY city").fetchall()
        [('Bonn', 8.0), ('Ulm', 6.5)]
        """
        return self._query(query, sys._getframe(1))

    def _query(self, query: str, frame: FrameType | None, **tables: Any) -> Query:
        found, missing = dict(tables), []
        for name in self._session.unknown_tables(query):
            if name in found:
                continue
            for names in (frame.f_locals, frame.f_globals) if frame else ():
                if name in names and _is_table(names[name]):
                    found[name] = _table(names[name])
                    break
            if name not in found:
                _check_path(name)
                missing.append(name)
        try:
            return Query(self, self._session.sql(query, list(found.items())))
        except _dfq.QueryError:
            for name in missing:
                self._check_case(name, frame)
            raise

    def _check_case(self, name: str, frame: FrameType | None) -> None:
        """Raises an exception for a name that nothing has, where something has it in other letters."""
        known = dict.fromkeys(self._session.tables())
        for names in (frame.f_locals, frame.f_globals) if frame else ():
            known.update((other, None) for other, value in names.items() if _is_table(value))
        meant = next((other for other in known if other.lower() == name.lower() and other != name), None)
        if meant is not None:
            raise _dfq.QueryError(
                f"there is no table '{name}', but '{meant}': SQL makes lower case of names, unless they are quoted: {_name(meant)}"
            ) from None

    def register(self, name: str, data: Any) -> None:
        """Gives data a name in SQL, in place of what had it: an object as ``sql`` takes it from variables, or a path.

        Objects of Arrow's C interface are shared, not copied; their rows are those of now. A path is read by each query anew, and
        so is a table of another package that has the same major version of DataFusion inside (one with
        ``__datafusion_table_provider__``, such as ``deltalake.DeltaTable``), which is asked only for the columns that the query
        needs.

        >>> import pyarrow as pa
        >>> con = dfq.connect()
        >>> con.register("t", pa.table({"x": [3, 1, 2]}))
        >>> con.sql("SELECT exact_quantiles(x, 0.5) FROM t").fetchall()
        [(2,)]
        """
        if isinstance(data, (str, os.PathLike)):
            _check_path(os.fspath(data))
            self._session.register_path(name, os.fspath(data))
        elif isinstance(data, Query) and data._connection is self:
            self._session.register_query(name, data._query)
        elif _is_table(data):
            self._session.register(name, _table(data))
        else:
            raise _dfq.QueryError(f"{type(data).__name__} is no table: {_ALLOWED}")

    def unregister(self, name: str) -> None:
        """Takes a name away."""
        if not self._session.deregister(name):
            raise _dfq.QueryError(f"there is no table '{name}'")

    def pin(self, table: str, columns: str | Sequence[str] | None = None) -> dict[str, str]:
        """Reads columns of a table into a GPU's memory, where from then on quantiles and best rows over them are selected.

        Without ``columns`` these are all that can be pinned; the answer has the others, each with the reason why it is left out.

        ``table`` is a name that the session has, or a path. It is SQL's ``PIN TABLE``: a snapshot, until the table is pinned anew or
        unpinned. ``sql("SHOW PINNED")`` lists what is pinned. Without a GPU, or without CUDA, an error says what is missing.
        """
        if columns is not None:
            columns = [columns] if isinstance(columns, str) else list(columns)
        if not isinstance(table, (str, os.PathLike)):
            raise _dfq.QueryError(f"{type(table).__name__} is no name of a table: give it one by register(name, data), and pin that")
        _check_path(os.fspath(table))
        return dict(self._session.pin(os.fspath(table), columns))

    def unpin(self, table: str) -> None:
        """Frees the GPU's memory that ``pin`` has filled."""
        self._session.unpin(os.fspath(table))

    def quantiles(
        self,
        data: Any,
        columns: str | Sequence[str],
        q: float | Sequence[float],
        by: str | Sequence[str] | None = None,
        method: str = "linear",
    ) -> Query:
        """Exact quantiles of columns, by groups if ``by`` names columns: a row for each quantile (of each group).

        ``data`` is the name of a table, a path, or an object as ``register`` takes it. The answer has the columns of ``by``,
        ``quantile``, and those that were asked for. ``method`` is one of those of ``dfq.quantiles``.

        >>> import polars as pl
        >>> trips = pl.DataFrame({"city": ["Bonn", "Bonn", "Ulm"], "fare": [8.0, 10.0, 6.5]})
        >>> dfq.connect().quantiles(trips, "fare", [0.5, 1], by="city").fetchall()
        [('Bonn', 0.5, 9.0), ('Bonn', 1.0, 10.0), ('Ulm', 0.5, 6.5), ('Ulm', 1.0, 6.5)]
        """
        columns = [columns] if isinstance(columns, str) else list(columns)
        groups = [] if by is None else [by] if isinstance(by, str) else list(by)
        if not columns:
            raise _dfq.QueryError("there are no columns: name at least one")
        names = [*groups, "quantile", *columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _dfq.QueryError(f"the answer would have two columns '{twice}': name each column once, and none 'quantile'")
        fractions = _fractions(q)
        asked = "[" + ", ".join(map(repr, fractions)) + "]"
        calls = [f"exact_quantiles({_name(column)}, {asked}, {_text(method)}) AS {_name(column)}" for column in columns]
        listed = ", ".join([*map(_name, groups), *calls])
        tables: dict[str, Any] = {}
        if isinstance(data, (str, os.PathLike)):
            source = _name(os.fspath(data))
        elif _is_table(data):
            source, tables = "the_data", {"the_data": _table(data)}
        else:
            raise _dfq.QueryError(f"{type(data).__name__} is no table: {_ALLOWED}")
        grouped = f" GROUP BY {', '.join(map(_name, groups))}" if groups else ""
        rows = [*map(_name, groups), "unnest(quantile) AS quantile"]
        rows += [f"unnest({_name(column)}) AS {_name(column)}" for column in columns]
        # DataFusion 55.2 takes a column behind unnest for one that the groups determine, and leaves it out of an order.
        order = [f"{_name(group)} NULLS LAST" for group in groups] + ["abs(quantile)"]
        lists = f"SELECT {listed}, {asked} AS quantile FROM {source}{grouped}"
        query = f"SELECT * FROM (SELECT {', '.join(rows)} FROM ({lists})) ORDER BY {', '.join(order)}"
        return self._query(query, sys._getframe(1), **tables)

    def close(self) -> None:
        """Ends the session: its tables are let go of, and its folder for spilled data is removed."""
        self._session.close()
        self._removed()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Query:
    """A planned statement, which runs when its rows are wanted, each time anew.

    In a notebook it shows its first rows. Packages that read Arrow's C interface take it as it is: ``polars.DataFrame(query)``,
    ``pyarrow.RecordBatchReader.from_stream(query)``. Rows then come while the query runs.
    """

    def __init__(self, connection: Connection, query: _dfq.Query) -> None:
        # The session's folder lives as long as its queries.
        self._connection = connection
        self._query = query

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [name for name, _ in self._query.columns()]

    @property
    def types(self) -> list[str]:
        """Types of the columns, by Arrow's names."""
        return [data_type for _, data_type in self._query.columns()]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows, as tuples of Python objects: NULL is None."""
        return self._query.collect().tuples()

    def to_numpy(self) -> dict[str, Any]:
        """A NumPy array for each column: NULLs of numbers are NaN, of times NaT; types that NumPy lacks are objects."""
        return self._query.collect().to_numpy()

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a table of PyArrow."""
        import pyarrow

        return pyarrow.table(self._query.collect())

    def to_polars(self) -> polars.DataFrame:
        """All rows as a data frame of Polars."""
        import polars

        return polars.DataFrame(self._query.collect())

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a data frame of pandas, which needs PyArrow for it."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def explain(self, analyze: bool = False) -> str:
        """The plan; with ``analyze``, after running the query, with what each operator did.

        >>> "QuantilesExec" in dfq.connect().sql("SELECT exact_quantiles(value, 0.5) FROM range(0, 9)").explain()
        True
        """
        plans = self._query.explain(analyze).texts()
        return "\n".join(f"{kind}:\n{plan.rstrip()}" for kind, plan in plans)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._query.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        rows = self._query.collect(SHOWN_ROWS + 1)
        more = f"\nThe first {SHOWN_ROWS} rows." if len(rows) > SHOWN_ROWS else ""
        return rows.table(SHOWN_ROWS) + more

    def _repr_html_(self) -> str:
        rows = self._query.collect(SHOWN_ROWS + 1).texts()
        columns = self._query.columns()
        head = "".join(f"<th>{html.escape(name)}<br><small>{html.escape(kind)}</small></th>" for name, kind in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows[:SHOWN_ROWS]
        )
        more = f"<p>The first {SHOWN_ROWS} rows.</p>" if len(rows) > SHOWN_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


_ALLOWED = (
    "allowed are objects that offer Arrow's C interface (of Polars, pandas, PyArrow, ...), queries, dicts of arrays, paths, "
    "and tables of packages with DataFusion inside"
)


def _is_table(data: Any) -> bool:
    """Whether data can be a table. A type is none, though it has the methods of one."""
    if isinstance(data, type):
        return False
    if isinstance(data, dict):
        return bool(data) and all(isinstance(name, str) for name in data)
    return any(hasattr(data, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "__datafusion_table_provider__"))


def _table(data: Any) -> Any:
    """The data as the extension takes it: what has columns. A single column is a table of one, by its own name."""
    if isinstance(data, dict):
        return {name: readable(column) for name, column in data.items()}
    kind = type(data).__module__.partition(".")[0]
    if kind in ("polars", "pandas") and type(data).__name__ == "Series":
        return data.to_frame(data.name or "value")
    if kind == "pyarrow" and type(data).__name__.endswith("Array") and type(data).__name__ != "StructArray":
        return {"value": data}
    return data


def _bytes(limit: int | str | None) -> int | None:
    """A number of bytes from a memory limit."""
    if limit is None or isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*?)(?:ib)?\s*", str(limit).lower().replace("_", ""))
    if isinstance(limit, str) and match and match[2] in _UNITS:
        number = int(float(match[1]) * (1 << _UNITS[match[2]]))
        if number > 0:
            return number
    raise _dfq.QueryError(
        f"memory_limit is {limit!r}: allowed are bytes, or a text such as '512MB' or '2GB' (units k, m, g, t: powers of 1024)"
    )


def _cluster(
    url: str | None, token_file: str | os.PathLike[str] | None, tls: Sequence[str | os.PathLike[str]] | None
) -> dict[str, Any] | None:
    """The cluster as the extension takes it."""
    if url is None:
        if token_file is not None or tls is not None:
            raise _dfq.QueryError("token_file and tls are shown to a cluster: name one by cluster=")
        return None
    if token_file is not None and tls is not None:
        raise _dfq.QueryError("a cluster is shown a token or certificates: give one of token_file and tls")
    if tls is not None and len(tls) != 3:
        raise _dfq.QueryError(f"tls has {len(tls)} files: allowed are three, of a certificate, its key, and the authority's certificate")
    try:
        token = None if token_file is None else pathlib.Path(token_file).read_text()
        pem = None if tls is None else tuple(pathlib.Path(file).read_bytes() for file in tls)
    except OSError as error:
        raise _dfq.QueryError(f"cannot read '{error.filename}': {error.strerror}") from None
    return {"url": url, "token": token, "tls": pem}


def _check_path(path: str) -> None:
    """Raises an exception for a name that is meant as a path of this machine, where there is nothing."""
    store, of, _ = path.partition("://")
    if of and store != "file":
        raise _dfq.QueryError(
            f"'{path}' is not on this machine, and here dfq reads nothing else: the command dfq reads {store}://, "
            "and so does what gives a table, such as polars.read_parquet or pyarrow.dataset"
        )
    is_meant = os.sep in path or path.lower().endswith((".parquet", ".csv", ".json", ".arrow"))
    if not is_meant or of or glob.glob(path) or os.path.exists(path):
        return
    if glob.has_magic(path):
        raise _dfq.QueryError(f"no file matches '{path}'")
    raise _dfq.QueryError(f"file '{path}' not found (looked for {os.path.abspath(path)})")


def _fractions(q: float | Sequence[float]) -> list[float]:
    try:
        return [float(q)]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        return [float(one) for one in q]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise _dfq.QueryError(f"q is {q!r}: allowed are a number from 0 to 1 and a list of such numbers") from None


def _name(name: str) -> str:
    """A name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    """A text, quoted for SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _spill_folder(parent: str | os.PathLike[str] | None) -> str:
    """A new folder of a session's own."""
    try:
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        return tempfile.mkdtemp(prefix="dfq-", dir=parent)
    except OSError as error:
        raise _dfq.QueryError(f"cannot write in the spill folder '{parent}': {error.strerror}") from None


def _remove(folder: str, process: int) -> None:
    """Removes a session's folder, in the process that made it: a forked one ends too."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
