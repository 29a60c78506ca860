"""Functions for sessions of the package ``datafusion``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _dfq

if TYPE_CHECKING:
    from datafusion import SessionContext

# First words of the names of functions that need this crate's planner. Some would take the place of functions that `datafusion` has.
_NOT_ALONE = (
    "approx_percentile_sample",
    "cume_dist",
    "dense_rank",
    "exact_median",
    "exact_percentile_cont",
    "iqr",
    "percent_rank",
    "rank",
)


def register(ctx: SessionContext) -> None:
    """Gives a ``datafusion.SessionContext`` the functions of dfq: ``exact_quantiles``, ``topk_by``, ``gk_sketch`` and the others.

    They cross by DataFusion's C interface, which takes the package ``datafusion`` of the same major version, and carries functions
    alone. Exact answers are the same, and approximate ones within the same bound, but they come by DataFusion's own aggregation, which is
    slower: it holds the values of each group, and those that do not fit in the session's memory are an error. ``WITHIN GROUP`` and ``iqr`` are not there, nor are methods as an argument: ``exact_quantiles_linear(x, q)`` stands for
    ``exact_quantiles(x, q, 'linear')``. ``dfq.connect()`` has all of it.

    >>> import datafusion
    >>> ctx = datafusion.SessionContext()
    >>> dfq.register(ctx)
    >>> ctx.sql("SELECT exact_quantiles(value, [0.5, 0.99]) AS q FROM range(0, 1000)").to_pydict()
    {'q': [[499, 989]]}
    """
    ours = _dfq.DATAFUSION_VERSION.partition(".")[0]
    try:
        import datafusion
    except ImportError:
        raise _dfq.QueryError(
            f"there is no package datafusion: pip install 'datafusion=={ours}.*', or use dfq.connect(), which needs none"
        ) from None
    if datafusion.__version__.partition(".")[0] != ours:
        raise _dfq.QueryError(
            f"this is datafusion {datafusion.__version__}, and dfq has {_dfq.DATAFUSION_VERSION} inside: functions cross only between "
            f"the same major versions. Use dfq.connect(), which needs no other package, or datafusion=={ours}.*"
        )
    if not isinstance(ctx, datafusion.SessionContext):
        raise _dfq.QueryError(f"{type(ctx).__name__} is no session: allowed is a datafusion.SessionContext")
    aggregates, scalars = _dfq.functions()
    for aggregate in aggregates:
        if not aggregate.name().startswith(_NOT_ALONE):
            ctx.register_udaf(datafusion.udaf(aggregate))
    for scalar in scalars:
        ctx.register_udf(datafusion.udf(scalar))
