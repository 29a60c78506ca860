//! A [`TopKNode`] to a [`GroupedTopKExec`].

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::windows::get_window_mode;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::TopKNode;
use super::node::Made;
use crate::exec::{Answer, GroupedTopKExec, Mode, OutputColumn, SortBy, TopKSpec};
use crate::functions::TopKBy;
use crate::functions::topk::Call;
use crate::key::SortColumn;
use crate::planner::physical::check_bounded;
use crate::planner::rewrite::aggregate_call;

/// How `ORDER BY` orders by an expression.
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

/// Whether values that are one group are the same: zeros of either sign are not.
pub(in crate::planner) fn has_one_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => has_one_form(value),
        other => !other.is_nested() && !other.is_floating() && !other.is_null(),
    }
}

/// The operator for `node` over its planned input; what `node` stands in for, where that answers while its input is read: over
/// endless input, and input in the order of groups.
///
/// # Errors
/// DataFusion's, for expressions; a planning error for types without an order, and where the answer is at the end of an
/// endless input.
pub(in crate::planner) async fn topk_exec(
    planner: &dyn PhysicalPlanner,
    node: &TopKNode,
    input: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
    planning: &PhysicalPlanningContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    let spec = topk_spec(node, session, planning)?;
    if let Some(original) = &node.original
        && !node.staged
        && (input.boundedness().is_unbounded() || is_in_order(&spec, &input)?)
    {
        return planner.create_physical_plan(original, session).await;
    }
    check_bounded("best rows of groups", input.as_ref())?;
    let schema = Arc::clone(node.schema.inner());
    if !node.staged {
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

/// Whether groups follow each other in the input, each in the order of its rows.
fn is_in_order(spec: &TopKSpec, input: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let order = spec.order.iter();
    let order: Vec<_> = order
        .map(|by| PhysicalSortExpr::new(Arc::clone(&by.expr), by.column.options))
        .collect();
    let mode = get_window_mode(&spec.group, &order, input)?;
    Ok(matches!(mode, Some((false, InputOrderMode::Sorted))))
}

/// What the operator for `node` is to do.
fn topk_spec(node: &TopKNode, session: &dyn Session, planning: &PhysicalPlanningContext) -> Result<TopKSpec> {
    let lowering = Lowering {
        node,
        session,
        planning,
    };
    let group = node.group.iter().map(|group| lowering.expr(group));
    let group = group.collect::<Result<Vec<_>>>()?;
    let (order, answer) = match &node.made {
        Made::Call(call) => lowering.call(call)?,
        Made::Rows { .. } => lowering.rows()?,
    };
    Ok(TopKSpec { group, order, answer })
}

/// The same best rows as they are in the input.
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

/// Logical expressions to physical ones, over the input of a node.
struct Lowering<'a> {
    node: &'a TopKNode,
    session: &'a dyn Session,
    planning: &'a PhysicalPlanningContext,
}

impl Lowering<'_> {
    fn schema(&self) -> &DFSchema {
        self.node.input.schema()
    }

    fn expr(&self, expr: &Expr) -> Result<Arc<dyn PhysicalExpr>> {
        let planner = DefaultPhysicalPlanner::default();
        planner.create_physical_expr(expr, self.schema(), self.session, self.planning)
    }

    fn call(&self, call: &Expr) -> Result<(Vec<SortBy>, Answer)> {
        let call = aggregate_call(call);
        let call = call.ok_or_else(|| internal_datafusion_err!("a TopK node without its call"))?;
        let args = call.params.args.as_slice();
        let (Some(function), [value, key, ..]) = (TopKBy::of(&call.func), args) else {
            return internal_err!("{} ranks no rows", call.func.name());
        };
        let asked = Call {
            called: function.called(),
            ascending: function.is_ascending(),
            k: function.k_of(args)?,
        };
        let by = SortBy {
            column: asked.key_column(&key.get_type(self.schema())?),
            expr: self.expr(key)?,
        };
        let filter = call.params.filter.as_deref().map(|filter| self.expr(filter));
        let answer = Answer::Lists {
            call: asked,
            value: self.expr(value)?,
            filter: filter.transpose()?,
        };
        Ok((vec![by], answer))
    }

    fn rows(&self) -> Result<(Vec<SortBy>, Answer)> {
        let Made::Rows {
            k,
            numbering,
            order,
            columns,
            with_groups,
            with_number,
        } = &self.node.made
        else {
            return internal_err!("a TopK node without rows");
        };
        let by = order.iter().map(|by| {
            Ok(SortBy {
                expr: self.expr(&by.expr)?,
                column: sort_column(by, self.schema())?,
            })
        });
        let mut output = Vec::new();
        if *with_groups {
            output.extend((0..self.node.group.len()).map(OutputColumn::Group));
        }
        for column in columns {
            let group = self.node.group.iter().position(|group| group == column);
            let is_exact = has_one_form(&column.get_type(self.schema())?);
            output.push(match group.filter(|_| is_exact) {
                Some(index) => OutputColumn::Group(index),
                None => OutputColumn::Row(self.expr(column)?),
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
}
