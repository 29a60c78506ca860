//! What the operator is to give.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::logical_expr::ScalarUDF;

#[cfg(feature = "cuda")]
use crate::exec::PinnedScan;
use crate::exec::operator::comma_separated;

/// Source of an output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairColumn {
    /// The query's column of this index.
    Query(usize),
    /// The column of this index of the table's row.
    Row(usize),
    /// The distance between the two.
    Distance,
}

#[cfg(feature = "cuda")]
impl PairColumn {
    /// The column of the table that this is.
    pub(crate) fn of_row(self) -> Option<usize> {
        match self {
            PairColumn::Row(index) => Some(index),
            PairColumn::Query(_) | PairColumn::Distance => None,
        }
    }
}

/// Pairs whose query and row are equal in some columns.
#[derive(Debug, Clone)]
pub(crate) struct EqualPairs {
    /// Columns of queries.
    pub(crate) queries: Vec<usize>,
    /// The columns of the table that they are compared with, of the same types.
    pub(crate) rows: Vec<usize>,
    /// Whether NULL is equal to NULL, and to nothing else; otherwise pairs with a NULL are taken for equal.
    pub(crate) null_is_value: bool,
}

/// Specification of a [`NearestJoinExec`](crate::exec::NearestJoinExec).
#[derive(Debug, Clone)]
pub(crate) struct NearestJoinSpec {
    /// The function that gives the distance: one of [`vector_distances`](crate::functions::vector_distances).
    pub(crate) function: Arc<ScalarUDF>,
    /// Column of the queries' vectors.
    pub(crate) query: usize,
    /// Column of the table's vectors.
    pub(crate) vector: usize,
    /// Whether the query is the first argument of the function.
    pub(crate) query_first: bool,
    /// Whether small values of the function are better.
    pub(crate) ascending: bool,
    pub(crate) k: usize,
    /// Pairs that are left out, because a filter above drops them; `None`: there is no such filter.
    pub(crate) without: Option<EqualPairs>,
    pub(crate) output: Vec<PairColumn>,
    /// The pinned table that the second input reads, if the device of it can find the pairs.
    #[cfg(feature = "cuda")]
    pub(crate) pinned: Option<PinnedScan>,
}

/// The details of an operator over queries and a table of these schemas.
pub(super) fn details(spec: &NearestJoinSpec, queries: &Schema, table: &Schema) -> String {
    let query = |column: usize| format!("queries.{}", queries.field(column).name());
    let row = |column: usize| format!("table.{}", table.field(column).name());
    let mut args = [query(spec.query), row(spec.vector)];
    if !spec.query_first {
        args.reverse();
    }
    let order = if spec.ascending { "ASC" } else { "DESC" };
    let call = format!("{}({})", spec.function.name(), comma_separated(args.iter()));
    let mut shown = format!("k={}, by=[{call} {order}]", spec.k);
    if let Some(equal) = &spec.without {
        let pairs = equal.queries.iter().zip(&equal.rows);
        let pairs = pairs.map(|(of_query, of_row)| format!("{} = {}", query(*of_query), row(*of_row)));
        shown += &format!(", without=[{}]", comma_separated(pairs));
    }
    #[cfg(feature = "cuda")]
    if let Some(pinned) = &spec.pinned {
        shown += &format!(", device={}, fallback=cpu", pinned.table.first().device);
    }
    shown
}
