//! The best rows of pinned columns, on their device.
//!
//! ```text
//! Aggregate: aggr=[[topk_by(id, fare)]]     ->  PinnedExec: device=cuda:0 ..
//!   TableScan: trips projection=[id, fare]
//! ```
//! Taken where all aggregates are `topk_by`, `max_by` or `min_by` without `DISTINCT` over columns of one pinned table, and
//! `GROUP BY` names such columns too, but not floating point, and for `ORDER BY` one such column, which has no NULLs, with a
//! `LIMIT`, where all that is selected is pinned; in both with `WHERE` and `FILTER` as for quantiles, and for at most 2^20 rows
//! where there are no groups.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Sort};
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};

use super::table::{Resident, conjunction, over_table, unaliased};
use crate::exec::{FilteredColumn, PinnedGroupTopK, PinnedQuestion, PinnedRows, PinnedTopK, PinnedTopKCall};
use crate::kernel::cuda::{Predicate, TopSelection};
use crate::planner::call_spec::{CallSpec, RowsAsked};
use crate::planner::rewrite::has_subquery;

pub(super) fn is_topk(aggregate: &Aggregate) -> bool {
    let calls = &aggregate.aggr_expr;
    let is_ours = |expr: &Expr| CallSpec::rows(expr).is_some() && !has_subquery(expr);
    !calls.is_empty() && calls.iter().all(is_ours)
}

pub(super) fn is_limited(sort: &Sort) -> bool {
    let fetch = sort.fetch.unwrap_or(0) as u64;
    (1..=TopSelection::MOST).contains(&fetch) && sort.expr.len() == 1
}

/// What calls of `topk_by` ask of a pinned table; `None`: they are planned as any other.
///
/// # Errors
/// Those of the catalog.
pub(super) async fn calls_question(
    aggregate: &Aggregate,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuestion>> {
    let Some(resident) = Resident::below(&aggregate.input, session).await? else {
        return Ok(None);
    };
    let calls = aggregate.aggr_expr.iter();
    let calls = calls.map(|expr| sourced(expr, &aggregate.input, &resident));
    let Some(calls) = calls.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let schema = Arc::clone(aggregate.schema.inner());
    if aggregate.group_expr.is_empty() {
        let most = TopSelection::MOST;
        let few = calls.iter().all(|call| call.call.rows() as u64 <= most);
        return Ok(few.then(|| resident.question(PinnedTopK(calls), schema, timed)));
    }
    let grouped = resident.grouped(&aggregate.group_expr, &aggregate.input);
    Ok(grouped.map(|(groups, filter)| {
        let calls = PinnedGroupTopK {
            groups,
            filter,
            calls,
        };
        resident.question(calls, schema, timed)
    }))
}

/// A call over pinned columns.
fn sourced(expr: &Expr, input: &LogicalPlan, resident: &Resident) -> Option<PinnedTopKCall> {
    let asked = CallSpec::rows(expr)?;
    let (RowsAsked { key, call }, own) = (asked.asked, asked.filter);
    let (value, column) = (
        resident.column(&asked.values, input)?,
        resident.column(&key, input)?,
    );
    let mut filter = resident.filter(own.as_ref(), input)?;
    let table = &resident.table;
    if call.skips_null_values() && table.column(value).has_nulls() {
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

/// What the first rows of an order are of a pinned table; `None`: the sort is planned as any other.
///
/// # Errors
/// Those of the catalog.
pub(super) async fn rows_question(
    sort: &Sort,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuestion>> {
    let (Some(k), [by]) = (sort.fetch, sort.expr.as_slice()) else {
        return Ok(None);
    };
    let Some(resident) = Resident::below(&sort.input, session).await? else {
        return Ok(None);
    };
    let schema = Arc::clone(sort.input.schema().inner());
    let selected = sort.input.schema().columns();
    let columns = selected.iter().map(|column| {
        let column = Expr::Column(column.clone());
        resident.column(&column, &sort.input)
    });
    let columns = columns.collect::<Option<Vec<_>>>();
    let (Expr::Column(key), Some(columns)) = (unaliased(&by.expr), columns) else {
        return Ok(None);
    };
    let Some(place) = sort.input.schema().maybe_index_of_column(key) else {
        return Ok(None);
    };
    let Some(filter) = resident.filter(None, &sort.input) else {
        return Ok(None);
    };
    let column = columns[place];
    if resident.table.column(column).has_nulls() || schema.fields().len() != columns.len() {
        return Ok(None);
    }
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
    let question = resident.question(rows, schema, timed);
    Ok(ordering
        .is_some()
        .then_some(PinnedQuestion { ordering, ..question }))
}
