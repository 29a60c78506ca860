//! The best rows of pinned columns, on their card.
//!
//! ```text
//! Aggregate: aggr=[[topk_by(id, fare)]]           Pinned                                 PinnedTopKExec: device=cuda:0 ..
//!   TableScan: trips projection=[id, fare]   ->     Aggregate: aggr=[[topk_by(..)]]  ->    AggregateExec: ..
//!                                                     TableScan: trips                       (auto: if the card fails)
//! ```
//! The node keeps what it may stand for as its input, which the session's planner plans as ever: whether the card can do it
//! is known only when the table is looked up. Taken where all aggregates are `topk_by`, `max_by` or `min_by` without
//! `DISTINCT` over columns of one pinned table, and for `ORDER BY` one such column, which has no NULLs, with a `LIMIT`, where
//! all that is selected is pinned; in both with `WHERE` and `FILTER` as for quantiles, and for at most 2^20 rows.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Aggregate, Expr, Extension, LogicalPlan, Sort, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use super::pinned::{Resident, conjunction, unaliased};
use super::rewrite::{aggregate_call, has_subquery};
use crate::exec::{PinnedRows, PinnedSource, PinnedTopK, PinnedTopKCall};
use crate::functions::TopKBy;
use crate::functions::topk::Call;
use crate::kernel::cuda::{Predicate, TopSelection};
use crate::pinned::PinnedTables;

/// Around an aggregation, or a sort with a limit, that a card may be asked instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PinnedNode {
    plan: LogicalPlan,
}

impl PartialOrd for PinnedNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.plan.partial_cmp(&other.plan)
    }
}

impl UserDefinedLogicalNodeCore for PinnedNode {
    fn name(&self) -> &str {
        "Pinned"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.plan]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.plan.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Pinned")
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(plan), true) => Ok(Self { plan }),
            _ => internal_err!("a Pinned node has one input"),
        }
    }
}

/// Puts a node around all that a card may be asked, if the session has pinned tables.
pub(super) fn mark_pinned(plan: LogicalPlan, session: &dyn Session) -> Result<Transformed<LogicalPlan>> {
    let tables = PinnedTables::of(session.config());
    if tables.is_none_or(|tables| tables.is_empty()) {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|plan| {
        let is_ours = match &plan {
            LogicalPlan::Aggregate(aggregate) => is_topk(aggregate),
            LogicalPlan::Sort(sort) => is_limited(sort),
            _ => false,
        };
        Ok(match is_ours {
            true => Transformed::yes(LogicalPlan::Extension(Extension {
                node: Arc::new(PinnedNode { plan }),
            })),
            false => Transformed::no(plan),
        })
    })
}

fn is_topk(aggregate: &Aggregate) -> bool {
    let is_ours = |expr: &Expr| {
        aggregate_call(expr).is_some_and(|call| {
            TopKBy::of(&call.func).is_some() && !call.params.distinct && call.params.order_by.is_empty()
        })
    };
    let calls = &aggregate.aggr_expr;
    aggregate.group_expr.is_empty()
        && !calls.is_empty()
        && calls.iter().all(is_ours)
        && !calls.iter().any(has_subquery)
}

fn is_limited(sort: &Sort) -> bool {
    let fetch = sort.fetch.unwrap_or(0) as u64;
    (1..=TopSelection::MOST).contains(&fetch) && sort.expr.len() == 1
}

/// The operator on the card for `node`; what is planned already, where the card cannot do it.
///
/// # Errors
/// Those of the catalog.
pub(super) async fn pinned_exec(
    node: &PinnedNode,
    ordinary: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    let on_card = match &node.plan {
        LogicalPlan::Aggregate(aggregate) => calls_on_card(aggregate, &ordinary, session).await?,
        LogicalPlan::Sort(sort) => rows_on_card(sort, &ordinary, session).await?,
        _ => None,
    };
    Ok(on_card.unwrap_or(ordinary))
}

async fn calls_on_card(
    aggregate: &Aggregate,
    ordinary: &Arc<dyn ExecutionPlan>,
    session: &dyn Session,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(resident) = Resident::below(&aggregate.input, session).await? else {
        return Ok(None);
    };
    let calls = aggregate.aggr_expr.iter();
    let calls = calls.map(|expr| sourced(expr, &aggregate.input, &resident));
    let Some(calls) = calls.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let work = Arc::new(PinnedTopK(calls));
    Ok(Some(Arc::new(resident.exec(work, ordinary, ordinary.schema()))))
}

/// A call over pinned columns.
fn sourced(expr: &Expr, input: &LogicalPlan, resident: &Resident) -> Option<PinnedTopKCall> {
    let logical = aggregate_call(expr)?;
    let function = TopKBy::of(&logical.func)?;
    let [value, key, ..] = logical.params.args.as_slice() else {
        return None;
    };
    let call = Call {
        called: function.called(),
        ascending: function.is_ascending(),
        k: function.k_of(&logical.params.args).ok()?,
    };
    if call.rows() as u64 > TopSelection::MOST {
        return None;
    }
    let (value, column) = (resident.column(value, input)?, resident.column(key, input)?);
    let mut filter = resident.filter(logical.params.filter.as_deref(), input)?;
    let pinned = &resident.table.columns;
    if call.skips_null_values() && pinned[value].column.has_nulls() {
        filter.push(Predicate::is_not_null(value));
    }
    let mut shown = format!("{}({}, {}", call.called, pinned[value].name, pinned[column].name);
    if let Some(k) = call.k {
        shown += &format!(", {k}");
    }
    if call.ascending && !call.skips_null_values() {
        shown += ", asc";
    }
    shown.push(')');
    if let Some(own) = &logical.params.filter {
        shown += &format!(" FILTER ({own})");
    }
    Some(PinnedTopKCall {
        call,
        value,
        key: PinnedSource {
            column,
            filter: conjunction(filter),
        },
        shown,
    })
}

async fn rows_on_card(
    sort: &Sort,
    ordinary: &Arc<dyn ExecutionPlan>,
    session: &dyn Session,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (Some(k), [by]) = (sort.fetch, sort.expr.as_slice()) else {
        return Ok(None);
    };
    let Some(resident) = Resident::below(&sort.input, session).await? else {
        return Ok(None);
    };
    let schema = ordinary.schema();
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
    if resident.table.columns[column].column.has_nulls() || schema.fields().len() != columns.len() {
        return Ok(None);
    }
    let ordering = LexOrdering::new([PhysicalSortExpr::new(
        Arc::new(PhysicalColumn::new(schema.field(place).name(), place)),
        SortOptions {
            descending: !by.asc,
            nulls_first: by.nulls_first,
        },
    )]);
    let work = Arc::new(PinnedRows {
        key: PinnedSource {
            column,
            filter: conjunction(filter),
        },
        descending: !by.asc,
        k,
        columns,
    });
    let exec = resident.exec(work, ordinary, schema);
    Ok(ordering.map(|ordering| Arc::new(exec.ordered(ordering)) as Arc<dyn ExecutionPlan>))
}
