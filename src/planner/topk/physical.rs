//! A [`TopKNode`] to a [`GroupedTopKExec`].

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::TopKNode;
use super::node::Made;
use crate::exec::{Answer, GroupedTopKExec, OutputColumn, SortBy, TopKSpec};
use crate::functions::TopKBy;
use crate::functions::topk::Call;
use crate::key::SortColumn;
use crate::planner::rewrite::aggregate_call;

/// How `ORDER BY` orders by an expression.
pub(super) fn sort_column(by: &Sort, schema: &DFSchema) -> Result<SortColumn> {
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

/// Whether values that are one group are the same: zeros of either sign are not.
pub(super) fn has_one_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => has_one_form(value),
        other => !other.is_nested() && !other.is_floating() && !other.is_null(),
    }
}

/// The operator for `node` over its planned input.
///
/// # Errors
/// DataFusion's, for expressions; a planning error for types without an order.
pub(in crate::planner) fn topk_exec(
    node: &TopKNode,
    input: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
    planning: &PhysicalPlanningContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = node.input.schema();
    let planner = DefaultPhysicalPlanner::default();
    let lowered = |expr: &Expr| planner.create_physical_expr(expr, schema, session, planning);
    let group = node.group.iter().map(lowered).collect::<Result<Vec<_>>>()?;
    let (order, answer) = match &node.made {
        Made::Call(call) => {
            let call = aggregate_call(call);
            let call = call.ok_or_else(|| internal_datafusion_err!("a TopK node without its call"))?;
            let function = TopKBy::of(&call.func);
            let (Some(function), [value, key, ..]) = (function, call.params.args.as_slice()) else {
                return internal_err!("{} ranks no rows", call.func.name());
            };
            let asked = Call {
                called: function.called(),
                ascending: function.is_ascending(),
                k: function.k_of(&call.params.args)?,
            };
            let by = SortBy {
                column: asked.key_column(&key.get_type(schema)?),
                expr: lowered(key)?,
            };
            let filter = call.params.filter.as_deref().map(lowered).transpose()?;
            let value = lowered(value)?;
            (
                vec![by],
                Answer::Lists {
                    call: asked,
                    value,
                    filter,
                },
            )
        }
        Made::Rows {
            k,
            numbering,
            order,
            columns,
            with_groups,
            with_number,
        } => {
            let by = order.iter().map(|by| {
                let (expr, column) = (lowered(&by.expr)?, sort_column(by, schema)?);
                Ok(SortBy { expr, column })
            });
            let mut output = Vec::new();
            if *with_groups {
                output.extend((0..group.len()).map(OutputColumn::Group));
            }
            for column in columns {
                let group = node.group.iter().position(|group| group == column);
                let is_exact = has_one_form(&column.get_type(schema)?);
                output.push(match group.filter(|_| is_exact) {
                    Some(index) => OutputColumn::Group(index),
                    None => OutputColumn::Row(lowered(column)?),
                });
            }
            output.extend(with_number.then_some(OutputColumn::Number));
            let (k, numbering) = (*k, *numbering);
            (by.collect::<Result<_>>()?, Answer::Rows { k, numbering, output })
        }
    };
    let spec = TopKSpec { group, order, answer };
    Ok(Arc::new(GroupedTopKExec::try_new(
        input,
        spec,
        Arc::clone(node.schema.inner()),
    )?))
}
