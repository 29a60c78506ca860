"""Where it is shown how far a query is: in a terminal, or in a notebook."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

# One query at a time is shown: two would share a line.
_shown = threading.Lock()

# Characters of a bar.
_WIDTH = 20


def start() -> Terminal | Notebook | None:
    """A place that is free; None in a pipe, or while another thread's query is shown."""
    place = _notebook() or _terminal()
    return place if place is not None and _shown.acquire(blocking=False) else None


def _notebook() -> Notebook | None:
    """The notebook that this process is the kernel of."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return Notebook() if hasattr(shell, "kernel") else None


def _terminal() -> Terminal | None:
    """The terminal that errors are written to."""
    try:
        return Terminal(sys.stderr) if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None
    except (AttributeError, ValueError):
        # There is no such stream, or it is closed.
        return None


def _fraction(rows: int | None, total: int | None) -> float | None:
    """The part that has been read; None if it is not known, or what was known was wrong."""
    return rows / total if rows is not None and total and rows <= total else None


def _text(seconds: float, rows: int | None, total: int | None, is_exact: bool) -> str:
    """How far a query is, in words."""
    fraction = _fraction(rows, total)
    if rows is None:
        return f"running, {seconds:.1f} s"
    if fraction is None:
        return f"{rows:,} rows read, {seconds:.1f} s"
    if fraction == 1 and is_exact:
        return f"all {rows:,} rows read, computing, {seconds:.1f} s"
    about = "" if is_exact else "about "
    return f"{int(100 * fraction)} % of {about}{total:,} rows read, {seconds:.1f} s"


class Terminal:
    """The last line of a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._length = 0

    def show(self, seconds: float, rows: int | None, total: int | None, is_exact: bool) -> None:
        """Writes the line anew: ``rows`` have been read of ``total``, where those are known."""
        line = _text(seconds, rows, total, is_exact)
        fraction = _fraction(rows, total)
        if fraction is not None:
            full = int(_WIDTH * fraction)
            line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {line}"
        self._write(line[: self._columns() - 1])

    def close(self) -> None:
        """Leaves an empty line."""
        try:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()
        except (OSError, ValueError):
            pass
        finally:
            _shown.release()

    def _write(self, line: str) -> None:
        try:
            # Over all of the line before it.
            self._stream.write("\r" + line.ljust(self._length))
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone, and the query goes on.
            return
        self._length = len(line)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


class Notebook:
    """An output below a cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, seconds: float, rows: int | None, total: int | None, is_exact: bool) -> None:
        """Shows a bar anew: ``rows`` have been read of ``total``, where those are known."""
        text = _text(seconds, rows, total, is_exact)
        fraction = _fraction(rows, total)
        value = "" if fraction is None else f' value="{fraction:.3f}"'
        self._display({"text/plain": text, "text/html": f"<progress{value}></progress> {text}"})

    def close(self) -> None:
        """Leaves an empty output."""
        try:
            self._display({"text/plain": "", "text/html": ""})
        finally:
            _shown.release()

    def _display(self, data: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
