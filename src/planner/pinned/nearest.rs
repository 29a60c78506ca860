//! The first rows of a pinned table in the order of their distance from a query vector, on its device.
//!
//! ```text
//! Sort: vector_array_distance(t.v, [..]), fetch=10   ->  PinnedExec: device=cuda:0 .., nearest=10, order_by=[..]
//!   TableScan: t projection=[id, v]
//! ```
//! The device answers if the sort begins with a distance, or the negative of one, between a pinned column of vectors and a constant of the
//! same length, for at most 2^20 rows, where all columns that the query names are pinned; with `WHERE` as for quantiles.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, Sort};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::table::{PinnedInput, conjunction, over_table, scan_below, unaliased};
use crate::exec::{PinnedNearest, PinnedQuery, PinnedShare};
use crate::functions::{VectorDistance, components_of};
use crate::kernel::cpu::distance::Measure;
use crate::kernel::cuda::{NearRows, Order};
use crate::planner::rewrite::has_subquery;

/// The distance that a sort begins with.
struct LeadDistance {
    measure: Measure,
    query: Vec<f64>,
    /// Index of the pinned column of vectors.
    vectors: usize,
    order: Order,
}

impl LeadDistance {
    /// The distance that rows are sorted by first, or the negative of one. `None` for other expressions, and for distances that a device cannot rank.
    fn of(sort: &Sort, pinned: &PinnedInput) -> Option<Self> {
        let (input, further_keys) = (sort.input.as_ref(), sort.expr.len() > 1);
        let by = sort.expr.first()?;
        let expr = over_table(by.expr.clone(), input)?;
        let (call, is_negative) = match unaliased(&expr) {
            Expr::Negative(inner) => (unaliased(inner), true),
            other => (other, false),
        };
        let Expr::ScalarFunction(ScalarFunction { func, args }) = call else {
            return None;
        };
        let measure = VectorDistance::of(func)?.measure();
        let (column, query) = match args.as_slice() {
            [Expr::Column(column), Expr::Literal(query, _)] => (column, query),
            [Expr::Literal(query, _), Expr::Column(column)] => (column, query),
            _ => return None,
        };
        let vectors = pinned.table.index_of(&column.name)?;
        let query = components_of(query)?;
        let shares = pinned.table.shares();
        let can_rank = |share: &PinnedShare| NearRows::can_rank(&share.columns[vectors], measure, &query);
        shares.iter().all(can_rank).then_some(Self {
            measure,
            query,
            vectors,
            order: Order {
                farthest: by.asc == is_negative,
                nulls_first: by.nulls_first,
                further_keys,
            },
        })
    }
}

/// The query of a sort by distance, with a limit, to a pinned table. `None` if a device cannot answer it.
///
/// # Errors
/// Errors of the catalog and of DataFusion's planner.
pub(super) async fn nearest_query(
    sort: &Sort,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuery>> {
    let Some(k) = sort.fetch else {
        return Ok(None);
    };
    let input = &sort.input;
    let Some(pinned) = PinnedInput::on_devices(input, session).await? else {
        return Ok(None);
    };
    let (Some(lead), Some(filter)) = (LeadDistance::of(sort, &pinned), pinned.filter(None, input)) else {
        return Ok(None);
    };
    let output = input.schema().columns().into_iter();
    let output = output.map(|column| over_table(Expr::Column(column), input));
    let Some(output) = output.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let is_plain = |expr: &Expr| !expr.is_volatile() && !has_subquery(expr) && !is_async(expr);
    let all = output.iter().chain(sort.expr.iter().map(|by| &by.expr));
    let Some((fetched, fields)) = fetched(&output, input, &pinned).filter(|_| all.clone().all(is_plain))
    else {
        return Ok(None);
    };
    let lowered = |expr: &Expr, schema: &DFSchema| lower(expr, schema, session);
    let output = output.iter().map(|expr| lowered(expr, &fields));
    let output = output.collect::<Result<Vec<_>>>()?;
    let by = sort.expr.iter().map(|by| {
        let options = SortOptions {
            descending: !by.asc,
            nulls_first: by.nulls_first,
        };
        Ok(PhysicalSortExpr::new(lowered(&by.expr, input.schema())?, options))
    });
    let Some(by) = LexOrdering::new(by.collect::<Result<Vec<_>>>()?) else {
        return Ok(None);
    };
    let calls = PinnedNearest {
        measure: lead.measure,
        query: lead.query,
        vectors: lead.vectors,
        order: lead.order,
        filter: conjunction(filter),
        k,
        fetched,
        fetched_schema: Arc::clone(fields.inner()),
        output,
        by: by.clone(),
    };
    let query = pinned.query(calls, Arc::clone(input.schema().inner()), timed);
    Ok(Some(PinnedQuery {
        ordering: Some(by),
        ..query
    }))
}

/// The pinned columns that expressions over the scan name, and their schema. `None` if one is not pinned.
fn fetched(exprs: &[Expr], input: &LogicalPlan, pinned: &PinnedInput) -> Option<(Vec<usize>, DFSchema)> {
    let scan = scan_below(input)?;
    let (mut columns, mut fields) = (Vec::new(), Vec::<(Option<TableReference>, _)>::new());
    for column in exprs.iter().flat_map(Expr::column_refs) {
        let index = pinned.table.index_of(&column.name)?;
        if !columns.contains(&index) {
            let (qualifier, field) = scan.projected_schema.qualified_field_from_column(column).ok()?;
            columns.push(index);
            fields.push((qualifier.cloned(), Arc::clone(field)));
        }
    }
    let metadata = scan.projected_schema.metadata().clone();
    let schema = DFSchema::new_with_metadata(fields, metadata).ok()?;
    Some((columns, schema))
}

/// Whether an expression calls a function that only an operator of its own can call.
fn is_async(expr: &Expr) -> bool {
    let calls =
        |part: &Expr| Ok(matches!(part, Expr::ScalarFunction(call) if call.func.as_async().is_some()));
    expr.exists(calls).unwrap_or(true)
}

fn lower(expr: &Expr, schema: &DFSchema, session: &dyn Session) -> Result<Arc<dyn PhysicalExpr>> {
    let planning = PhysicalPlanningContext::default();
    DefaultPhysicalPlanner::default().create_physical_expr(expr, schema, session, &planning)
}
