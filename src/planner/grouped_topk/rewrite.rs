//! Replaces plans of the best rows of groups by [`TopKNode`]s.
//!
//! A node gives the same rows as the plan that it replaces. Where rows tie, `ROW_NUMBER` and `first_value` leave open
//! which row comes first, but `RANK` does not: `RANK` is replaced only where keys of fixed width tell apart all rows
//! that its order tells apart. Windows partitioned by floating point or nested values stay: windows and groups differ
//! in which of those values they call equal.

use std::sync::Arc;

use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError, Result, ScalarValue};
use datafusion::functions_aggregate::first_last::FirstValue;
use datafusion::functions_window::rank::Rank;
use datafusion::functions_window::row_number::RowNumber;
use datafusion::logical_expr::expr::{Sort, WindowFunction};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, ExprSchemable, Filter, LogicalPlan, Operator, Projection, Window,
    WindowFunctionDefinition,
};

use super::TopKNode;
use super::node::{TopKKind, TopKOutput};
use super::physical::{has_one_form, sort_column};
use crate::exec::Numbering;
use crate::key::SortKeys;
use crate::planner::call_spec::{CallSpec, aggregate_call};
use crate::planner::rewrite::has_subquery;

/// Replaces all that a [`TopKNode`] can stand in for, in subqueries too. `staged`: the plan is for many machines. There, `topk_by` stays an
/// aggregation, whose partial states are lists of at most k rows.
pub(in crate::planner) fn rewrite_topk(plan: LogicalPlan, staged: bool) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        let replaced = match &node {
            LogicalPlan::Aggregate(aggregate) => match call(aggregate).filter(|_| !staged) {
                Some(output) => Some(output),
                None => first_values(aggregate)?,
            }
            .map(|output| {
                // An aggregation to lists never streams.
                let original = match &output {
                    TopKOutput::Call(..) => None,
                    TopKOutput::Rows { .. } => Some(Arc::new(node.clone())),
                };
                let kind = TopKKind {
                    group: aggregate.group_expr.clone(),
                    output,
                    staged,
                    original,
                };
                node_over(&aggregate.input, kind, &aggregate.schema)
            }),
            LogicalPlan::Filter(filter) => numbered(filter, staged)?,
            _ => None,
        };
        Ok(match replaced {
            Some(replaced) => Transformed::yes(replaced),
            None => Transformed::no(node),
        })
    })
}

/// The node of `kind` over `input`, as a plan.
fn node_over(input: &LogicalPlan, kind: TopKKind, schema: &DFSchemaRef) -> LogicalPlan {
    TopKNode::new(kind, vec![input.clone()], Arc::clone(schema)).into_plan()
}

/// Whether an aggregation has groups, and neither grouping sets nor subqueries.
fn is_grouped(aggregate: &Aggregate) -> bool {
    let groups = &aggregate.group_expr;
    !groups.is_empty()
        && !groups.iter().any(|group| matches!(group, Expr::GroupingSet(_)))
        && !groups.iter().chain(&aggregate.aggr_expr).any(has_subquery)
}

/// The call of `topk_by` that is the only aggregate of an aggregation with groups.
fn call(aggregate: &Aggregate) -> Option<TopKOutput> {
    let [expr] = aggregate.aggr_expr.as_slice() else {
        return None;
    };
    let spec = CallSpec::rows(expr).filter(|_| is_grouped(aggregate))?;
    Some(TopKOutput::Call(expr.clone(), Box::new(spec)))
}

/// The first row of each group, for an aggregation whose aggregates are all `first_value(..)` in the same order.
/// `DISTINCT ON` becomes such an aggregation.
fn first_values(aggregate: &Aggregate) -> Result<Option<TopKOutput>> {
    let mut order: Option<&Vec<Sort>> = None;
    let mut columns = Vec::with_capacity(aggregate.aggr_expr.len());
    for expr in &aggregate.aggr_expr {
        let Some(call) = aggregate_call(expr) else {
            return Ok(None);
        };
        let params = &call.params;
        let [value] = params.args.as_slice() else {
            return Ok(None);
        };
        let is_first = call.func.inner().is::<FirstValue>()
            && !params.distinct
            && params.filter.is_none()
            && params.null_treatment.is_none()
            && order.is_none_or(|order| *order == params.order_by);
        if !is_first {
            return Ok(None);
        }
        order = Some(&params.order_by);
        columns.push(value.clone());
    }
    let Some(order) = order else { return Ok(None) };
    let order = order_in_groups(order, aggregate)?;
    if !is_grouped(aggregate) || order.is_empty() || columns.iter().any(Expr::is_volatile) {
        return Ok(None);
    }
    if !is_sortable(&order, Numbering::RowNumber, aggregate.input.schema())? {
        return Ok(None);
    }
    Ok(Some(TopKOutput::Rows {
        k: 1,
        numbering: Numbering::RowNumber,
        order,
        columns,
        with_groups: true,
        with_number: false,
    }))
}

/// An order without the group expressions: rows of one group agree in those.
fn order_in_groups(order: &[Sort], aggregate: &Aggregate) -> Result<Vec<Sort>> {
    let mut by = Vec::with_capacity(order.len());
    for order in order {
        let is_group = aggregate.group_expr.contains(&order.expr);
        if !is_group || !has_one_form(&order.expr.get_type(aggregate.input.schema())?) {
            by.push(order.clone());
        }
    }
    Ok(by)
}

/// The node for a filter on a row number or rank. The window that computes the number lies right below the filter, or
/// below a projection that only chooses columns.
fn numbered(filter: &Filter, staged: bool) -> Result<Option<LogicalPlan>> {
    let (window, chosen) = match filter.input.as_ref() {
        LogicalPlan::Window(window) => (window, None),
        LogicalPlan::Projection(projection) => match projection.input.as_ref() {
            // Such a projection renames no column.
            LogicalPlan::Window(window)
                if projection.expr.iter().all(|expr| matches!(expr, Expr::Column(_))) =>
            {
                (window, Some(projection))
            }
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let [expr] = window.window_expr.as_slice() else {
        return Ok(None);
    };
    let Some((function, numbering)) = numbering(expr) else {
        return Ok(None);
    };
    let (most, rest) = split_filter(&filter.predicate, window);
    let Some(k) = most.filter(|k| *k > 0).and_then(|k| usize::try_from(k).ok()) else {
        return Ok(None);
    };
    let (group, order) = (&function.params.partition_by, &function.params.order_by);
    let input = window.input.schema();
    if !are_groups(group, input)? || !is_sortable(order, numbering, input)? {
        return Ok(None);
    }
    let columns = input
        .iter()
        .map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field))));
    let bounds = split_conjunction(&filter.predicate)
        .into_iter()
        .filter(|part| number_bound(part, window).is_some());
    let original = conjunction(bounds.cloned()).map(|bounds| {
        let window = Arc::new(LogicalPlan::Window(window.clone()));
        Ok::<_, DataFusionError>(Arc::new(LogicalPlan::Filter(Filter::try_new(bounds, window)?)))
    });
    let kind = TopKKind {
        original: original.transpose()?,
        output: TopKOutput::Rows {
            k,
            numbering,
            order: order.clone(),
            columns: columns.collect(),
            with_groups: false,
            with_number: true,
        },
        group: group.clone(),
        staged,
    };
    let mut plan = node_over(&window.input, kind, &window.schema);
    if let Some(rest) = conjunction(rest) {
        plan = LogicalPlan::Filter(Filter::try_new(rest, Arc::new(plan))?);
    }
    if let Some(chosen) = chosen {
        let (expr, schema) = (chosen.expr.clone(), Arc::clone(&chosen.schema));
        plan = LogicalPlan::Projection(Projection::try_new_with_schema(expr, Arc::new(plan), schema)?);
    }
    Ok(Some(plan))
}

/// The greatest row number that passes all conditions of a filter (`None` without such a limit), and the conditions that are still to be
/// checked once rows end at that number.
fn split_filter(predicate: &Expr, window: &Window) -> (Option<u64>, Vec<Expr>) {
    let (mut most, mut rest) = (None, Vec::new());
    for part in split_conjunction(predicate) {
        let bound = number_bound(part, window);
        if let Some((k, _)) = bound {
            most = Some(most.unwrap_or(k).min(k));
        }
        if bound.is_none_or(|(_, is_all)| !is_all) {
            rest.push(part.clone());
        }
    }
    (most, rest)
}

/// The call and its numbering, if the expression is `row_number()` or `rank()`.
fn numbering(expr: &Expr) -> Option<(&WindowFunction, Numbering)> {
    let window = match expr {
        Expr::Alias(alias) => return numbering(&alias.expr),
        Expr::WindowFunction(window) => window,
        _ => return None,
    };
    let WindowFunctionDefinition::WindowUDF(function) = &window.fun else {
        return None;
    };
    let numbering = match function.name() {
        "row_number" if function.inner().is::<RowNumber>() => Numbering::RowNumber,
        "rank" if function.inner().is::<Rank>() => Numbering::Rank,
        _ => return None,
    };
    let params = &window.params;
    let is_plain = params.args.is_empty()
        && params.filter.is_none()
        && params.null_treatment.is_none()
        && !params.distinct;
    is_plain.then_some((window, numbering))
}

/// The greatest row number that passes a condition, and whether all rows up to it pass. `None` if the condition is not on the row number.
fn number_bound(predicate: &Expr, window: &Window) -> Option<(u64, bool)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = predicate else {
        return None;
    };
    let (column, op, literal) = match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(literal, _)) => (column, *op, literal),
        (Expr::Literal(literal, _), Expr::Column(column)) => (column, op.swap()?, literal),
        _ => return None,
    };
    let is_number = window.schema.maybe_index_of_column(column) == Some(window.schema.fields().len() - 1);
    let number = match literal {
        ScalarValue::UInt64(Some(number)) => *number,
        ScalarValue::Int64(Some(number)) => u64::try_from(*number).ok()?,
        _ => return None,
    };
    match op {
        _ if !is_number => None,
        Operator::LtEq => Some((number, true)),
        Operator::Lt => Some((number.checked_sub(1)?, true)),
        Operator::Eq => Some((number, number == 1)),
        _ => None,
    }
}

/// Whether window partitions by these expressions are the groups of a `GROUP BY`.
fn are_groups(partition: &[Expr], schema: &DFSchema) -> Result<bool> {
    for expr in partition {
        if !has_one_form(&expr.get_type(schema)?) || expr.is_volatile() || has_subquery(expr) {
            return Ok(false);
        }
    }
    Ok(!partition.is_empty())
}

/// Whether the operator can sort rows by `order`, exactly as `ORDER BY` does.
fn is_sortable(order: &[Sort], numbering: Numbering, schema: &DFSchema) -> Result<bool> {
    let mut columns = Vec::with_capacity(order.len());
    for by in order {
        let column = sort_column(by, schema)?;
        let field = SortField::new(column.data_type.clone());
        if column.data_type.is_null()
            || by.expr.is_volatile()
            || has_subquery(&by.expr)
            || !RowConverter::supports_fields(&[field])
        {
            return Ok(false);
        }
        columns.push(column);
    }
    if columns.is_empty() {
        return Ok(false);
    }
    Ok(numbering == Numbering::RowNumber || SortKeys::try_new(&columns)?.is_exact())
}
