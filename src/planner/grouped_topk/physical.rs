//! Plans a [`TopKNode`] as a [`GroupedTopKExec`].

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::ExprSchemable;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::windows::get_window_mode;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};
use datafusion::physical_planner::PhysicalPlanner;

use super::TopKNode;
use super::node::{TopKKind, TopKOutput};
use crate::exec::{Answer, GroupedTopKExec, Mode, OutputColumn, SortBy, TopKSpec};
use crate::key::SortColumn;
use crate::planner::call_spec::{CallSpec, RowsAsked};
use crate::planner::physical::{Lowering, check_bounded};

/// The sort column of an `ORDER BY` expression: its type, and how it orders.
pub(in crate::planner) fn sort_column(by: &Sort, schema: &DFSchema) -> Result<SortColumn> {
    Ok(SortColumn {
        data_type: by.expr.get_type(schema)?,
        nullable: by.expr.nullable(schema)?,
        options: SortOptions {
            descending: !by.asc,
            nulls_first: by.nulls_first,
        },
        total_order: true,
    })
}

/// Whether all equal values of a type look the same. The two zeros of a floating-point type do not: they are one
/// group, and print differently.
pub(in crate::planner) fn has_one_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => has_one_form(value),
        other => !other.is_nested() && !other.is_floating() && !other.is_null(),
    }
}

/// The operator for `node` over its planned input. Where the plan that `node` replaced answers while its input is
/// read, that is over endless input and input in the order of groups, that plan is taken instead.
///
/// # Errors
/// DataFusion's, for expressions. A planning error for types without an order, and for an endless input whose answer
/// is known at its end only.
pub(in crate::planner) async fn topk_exec(
    planner: &dyn PhysicalPlanner,
    node: &TopKNode,
    input: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
    planning: &PhysicalPlanningContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    let lowering = Lowering {
        schema: node.input().schema(),
        input: input.schema(),
        session,
        planning,
    };
    let spec = topk_spec(&node.kind, &lowering)?;
    let staged = node.kind.staged;
    if let Some(original) = &node.kind.original
        && !staged
        && (input.boundedness().is_unbounded() || is_in_order(&spec, &input)?)
    {
        return planner.create_physical_plan(original, session).await;
    }
    check_bounded("best rows of groups", input.as_ref())?;
    let schema = Arc::clone(node.schema().inner());
    if !staged {
        return Ok(Arc::new(GroupedTopKExec::try_new(input, spec, schema)?));
    }
    let input = match passing(&spec, &input.schema()) {
        Some(passing) => {
            let schema = input.schema();
            Arc::new(GroupedTopKExec::step(input, passing, schema, Mode::Partial)?)
        }
        None => input,
    };
    Ok(Arc::new(GroupedTopKExec::step(input, spec, schema, Mode::Final)?))
}

/// Whether the input has one group after the other, and the rows of each in the order of `spec`.
fn is_in_order(spec: &TopKSpec, input: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let order = spec.order.iter();
    let order: Vec<_> = order
        .map(|by| PhysicalSortExpr::new(Arc::clone(&by.expr), by.column.options))
        .collect();
    let mode = get_window_mode(&spec.group, &order, input)?;
    Ok(matches!(mode, Some((false, InputOrderMode::Sorted))))
}

/// The specification of the operator for a node.
fn topk_spec(kind: &TopKKind, lowering: &Lowering<'_>) -> Result<TopKSpec> {
    let group = kind.group.iter().map(|group| lowering.expr(group));
    let group = group.collect::<Result<Vec<_>>>()?;
    let (order, answer) = match &kind.output {
        TopKOutput::Call(_, call) => lists(call, lowering)?,
        TopKOutput::Rows { .. } => rows(kind, lowering)?,
    };
    Ok(TopKSpec { group, order, answer })
}

/// The answer of a call, which are lists, and the one column that orders their rows.
fn lists(call: &CallSpec<RowsAsked>, lowering: &Lowering<'_>) -> Result<(Vec<SortBy>, Answer)> {
    let RowsAsked { key, call: asked } = &call.asked;
    let by = SortBy {
        column: asked.key_column(&key.get_type(lowering.schema)?),
        expr: lowering.expr(key)?,
    };
    let filter = call.filter.as_ref().map(|filter| lowering.expr(filter));
    let answer = Answer::Lists {
        call: *asked,
        value: lowering.expr(&call.values)?,
        filter: filter.transpose()?,
    };
    Ok((vec![by], answer))
}

/// The rows that a node gives, and the columns that order them.
fn rows(kind: &TopKKind, lowering: &Lowering<'_>) -> Result<(Vec<SortBy>, Answer)> {
    let TopKOutput::Rows {
        k,
        numbering,
        order,
        columns,
        with_groups,
        with_number,
    } = &kind.output
    else {
        return internal_err!("a TopK node without rows");
    };
    let by = order.iter().map(|by| {
        Ok(SortBy {
            expr: lowering.expr(&by.expr)?,
            column: sort_column(by, lowering.schema)?,
        })
    });
    let mut output = Vec::new();
    if *with_groups {
        output.extend((0..kind.group.len()).map(OutputColumn::Group));
    }
    for column in columns {
        let group = kind.group.iter().position(|group| group == column);
        let is_exact = has_one_form(&column.get_type(lowering.schema)?);
        output.push(match group.filter(|_| is_exact) {
            Some(index) => OutputColumn::Group(index),
            None => OutputColumn::Row(lowering.expr(column)?),
        });
    }
    output.extend(with_number.then_some(OutputColumn::Number));
    let answer = Answer::Rows {
        k: *k,
        numbering: *numbering,
        output,
    };
    Ok((by.collect::<Result<_>>()?, answer))
}

/// A specification of the same best rows that gives all columns of `input` as they are, for the partial step; `None` for lists.
fn passing(spec: &TopKSpec, input: &SchemaRef) -> Option<TopKSpec> {
    let Answer::Rows { k, numbering, .. } = spec.answer else {
        return None;
    };
    let column = |(index, field): (usize, &FieldRef)| {
        OutputColumn::Row(Arc::new(Column::new(field.name(), index)) as Arc<dyn PhysicalExpr>)
    };
    Some(TopKSpec {
        group: spec.group.clone(),
        order: spec.order.clone(),
        answer: Answer::Rows {
            k,
            numbering,
            output: input.fields().iter().enumerate().map(column).collect(),
        },
    })
}
