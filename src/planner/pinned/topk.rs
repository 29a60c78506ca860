//! The best rows of pinned columns, on their device.
//!
//! ```text
//! Aggregate: aggr=[[topk_by(id, fare)]]     ->  PinnedExec: device=cuda:0 ..
//!   TableScan: trips projection=[id, fare]
//! ```
//! The device answers three kinds of queries, with `WHERE` and `FILTER` as for quantiles, and without groups for at most 2^20 rows:
//!
//! * All aggregates are `topk_by`, `max_by` or `min_by` without `DISTINCT` over columns of one pinned table, and `GROUP BY` names pinned
//!   columns of types other than floating point.
//! * `ORDER BY` one pinned column without NULLs, with a `LIMIT`, where all selected columns are pinned; `ORDER BY` a distance: see [`super::nearest`].
//! * `ROW_NUMBER() <= k` and `DISTINCT ON` with such an order, and groups as above, where all selected columns are pinned.
//!
//! Of a table on several devices each finds its best rows, and the host the best of these.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Sort};
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};

use super::table::{PinnedInput, conjunction, over_table, unaliased};
use crate::exec::{
    FilteredColumn, Numbering, PinnedGroupRows, PinnedGroupTopK, PinnedQuery, PinnedRows, PinnedTopK,
    PinnedTopKCall,
};
use crate::kernel::cuda::{Predicate, TopSelection};
use crate::planner::call_spec::{CallSpec, RowsAsked};
use crate::planner::grouped_topk::{TopKNode, TopKOutput};
use crate::planner::rewrite::has_subquery;

/// Whether all aggregates are calls of `topk_by`, `max_by` or `min_by`.
fn is_topk(aggregate: &Aggregate) -> bool {
    let calls = &aggregate.aggr_expr;
    let is_ours = |expr: &Expr| CallSpec::rows(expr).is_some() && !has_subquery(expr);
    !calls.is_empty() && calls.iter().all(is_ours)
}

/// Whether the sort has a limit that a device allows.
pub(super) fn is_limited(sort: &Sort) -> bool {
    let fetch = sort.fetch.unwrap_or(0) as u64;
    (1..=TopSelection::MOST).contains(&fetch)
}

/// An aggregation whose aggregates are all calls of `topk_by`, `max_by` or `min_by`.
#[derive(Clone, Copy)]
pub(super) struct TopKCalls<'a> {
    calls: &'a [Expr],
    group: &'a [Expr],
    input: &'a LogicalPlan,
    schema: &'a DFSchemaRef,
}

impl<'a> TopKCalls<'a> {
    /// That of an aggregation, or of a node that stands for one. `None` if `plan` is another.
    pub(super) fn of(plan: &'a LogicalPlan) -> Option<Self> {
        if let LogicalPlan::Aggregate(aggregate) = plan {
            return is_topk(aggregate).then_some(Self {
                calls: &aggregate.aggr_expr,
                group: &aggregate.group_expr,
                input: &aggregate.input,
                schema: &aggregate.schema,
            });
        }
        let node = TopKNode::of(plan)?;
        let TopKOutput::Call(call, _) = &node.kind.output else {
            return None;
        };
        Some(Self {
            calls: std::slice::from_ref(call),
            group: &node.kind.group,
            input: node.input(),
            schema: node.schema(),
        })
    }
}

/// The query of calls of `topk_by` to a pinned table. `None` if a device cannot answer it.
///
/// # Errors
/// Errors of the catalog.
pub(super) async fn topk_query(
    asked: TopKCalls<'_>,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuery>> {
    let Some(pinned) = PinnedInput::on_devices(asked.input, session).await? else {
        return Ok(None);
    };
    let calls = asked.calls.iter();
    let calls = calls.map(|expr| sourced(expr, asked.input, &pinned));
    let Some(calls) = calls.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let schema = Arc::clone(asked.schema.inner());
    if asked.group.is_empty() {
        let most = TopSelection::MOST;
        let few = calls.iter().all(|call| call.call.rows() as u64 <= most);
        return Ok(few.then(|| pinned.query(PinnedTopK(calls), schema, timed)));
    }
    let grouped = pinned.grouped(asked.group, asked.input);
    Ok(grouped.map(|(groups, filter)| {
        let calls = PinnedGroupTopK {
            groups,
            filter,
            calls,
        };
        pinned.query(calls, schema, timed)
    }))
}

/// A call over pinned columns. `None` if a device cannot compute it.
fn sourced(expr: &Expr, input: &LogicalPlan, pinned: &PinnedInput) -> Option<PinnedTopKCall> {
    let asked = CallSpec::rows(expr)?;
    let (RowsAsked { key, call }, own) = (asked.asked, asked.filter);
    let (value, column) = (pinned.column(&asked.values, input)?, pinned.column(&key, input)?);
    let mut filter = pinned.filter(own.as_ref(), input)?;
    let table = &pinned.table;
    if call.skips_null_values() && table.has_nulls(value) {
        filter.push(Predicate::is_not_null(value));
    }
    let mut shown = format!("{}({}, {}", call.sql_name, table.name(value), table.name(column));
    if let Some(k) = call.k {
        shown += &format!(", {k}");
    }
    if call.ascending && !call.skips_null_values() {
        shown += ", asc";
    }
    shown.push(')');
    if let Some(own) = own {
        let own = over_table(own, input)?;
        shown += &format!(" FILTER ({own})");
    }
    Some(PinnedTopKCall {
        call,
        value,
        key: FilteredColumn {
            column,
            filter: conjunction(filter),
        },
        shown,
    })
}

/// The query of a sort with a limit to a pinned table. `None` if a device cannot answer it.
///
/// # Errors
/// Errors of the catalog.
pub(super) async fn sort_limit_query(
    sort: &Sort,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuery>> {
    let (Some(k), [by]) = (sort.fetch, sort.expr.as_slice()) else {
        return Ok(None);
    };
    let Some(pinned) = PinnedInput::on_devices(&sort.input, session).await? else {
        return Ok(None);
    };
    let schema = Arc::clone(sort.input.schema().inner());
    let selected = sort.input.schema().columns();
    let columns = selected.iter().map(|column| {
        let column = Expr::Column(column.clone());
        pinned.any_column(&column, &sort.input)
    });
    let columns = columns.collect::<Option<Vec<_>>>();
    let (Expr::Column(key), Some(columns)) = (unaliased(&by.expr), columns) else {
        return Ok(None);
    };
    let Some(place) = sort.input.schema().maybe_index_of_column(key) else {
        return Ok(None);
    };
    let Some(filter) = pinned.filter(None, &sort.input) else {
        return Ok(None);
    };
    let by_column = pinned.order_column(&by.expr, &sort.input);
    let Some(column) = by_column.filter(|_| schema.fields().len() == columns.len()) else {
        return Ok(None);
    };
    let ordering = LexOrdering::new([PhysicalSortExpr::new(
        Arc::new(PhysicalColumn::new(schema.field(place).name(), place)),
        SortOptions {
            descending: !by.asc,
            nulls_first: by.nulls_first,
        },
    )]);
    let rows = PinnedRows {
        key: FilteredColumn {
            column,
            filter: conjunction(filter),
        },
        descending: !by.asc,
        k,
        columns,
    };
    let query = pinned.query(rows, schema, timed);
    Ok(ordering.is_some().then_some(PinnedQuery { ordering, ..query }))
}

/// The query of the first rows of each group of a pinned table. `None` if a device cannot answer it.
///
/// # Errors
/// Errors of the catalog.
pub(super) async fn group_rows_query(
    node: &TopKNode,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuery>> {
    let TopKOutput::Rows {
        k,
        numbering: Numbering::RowNumber,
        order,
        columns,
        with_groups,
        with_number,
    } = &node.kind.output
    else {
        return Ok(None);
    };
    let ([by], input) = (order.as_slice(), node.input()) else {
        return Ok(None);
    };
    let Some(pinned) = PinnedInput::on_devices(input, session).await? else {
        return Ok(None);
    };
    let columns = columns.iter().map(|expr| pinned.any_column(expr, input));
    let (Some(key), Some(columns), Some((groups, filter))) = (
        pinned.order_column(&by.expr, input),
        columns.collect::<Option<Vec<_>>>(),
        pinned.grouped(&node.kind.group, input),
    ) else {
        return Ok(None);
    };
    let shown_groups = if *with_groups { groups.clone() } else { Vec::new() };
    let rows = PinnedGroupRows {
        groups,
        key: FilteredColumn { column: key, filter },
        descending: !by.asc,
        k: *k,
        columns: shown_groups.into_iter().chain(columns).collect(),
        with_number: *with_number,
    };
    Ok(Some(pinned.query(rows, Arc::clone(node.schema().inner()), timed)))
}
