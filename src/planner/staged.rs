//! Quantiles as stages: see [`crate::exec::staged`].

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, Result, internal_datafusion_err};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::utils::COUNT_STAR_EXPANSION;
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, lit,
};

use super::QuantilesNode;
use super::call_spec::{CallSpec, QuantilesAsked, aggregate_call};
use super::repeatable::is_repeatable;
use super::staged_call::{Column, column_of, staged_call};
use super::staged_node::StagedNode;
use crate::config::StrategyName;
use crate::exec::staged::StagedCall;
use crate::functions::{ExactQuantiles, GkFunction, Guarded, TopKBy};

/// The name of a count that guards the aggregates beside it.
const GUARD: &str = "quantiles.guard";

/// Most ranks: what a count can set apart.
const MOST_RANKS: usize = 8000;

/// Puts the calls that stages can answer into stages, and makes the rest ordinary aggregations again, with guarded states.
pub(super) fn into_stages(plan: LogicalPlan, strategy: StrategyName) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        if let Some(quantiles) = QuantilesNode::of(&node) {
            return in_stages(quantiles, strategy).map(Transformed::yes);
        }
        match node {
            LogicalPlan::Aggregate(aggregate) => guarded(aggregate),
            other => Ok(Transformed::no(other)),
        }
    })
}

/// Whether an aggregate is a call of ours, whose states can be numbered.
fn is_ours(expr: &Expr) -> bool {
    aggregate_call(expr).is_some_and(|call| {
        let func = &call.func;
        ExactQuantiles::of(func).is_some() || GkFunction::of(func).is_some() || TopKBy::of(func).is_some()
    })
}

/// The same aggregation; if any call is of ours, with numbered states.
fn guarded(mut aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let Some(expr) = aggregate.aggr_expr.iter_mut().find(|expr| is_ours(expr)) else {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    };
    let named = expr.clone().transform_down(|part| match part {
        Expr::AggregateFunction(mut call) => {
            call.func = Arc::new(AggregateUDF::from(Guarded::new(call.func)));
            Ok(Transformed::new(
                Expr::AggregateFunction(call),
                true,
                TreeNodeRecursion::Stop,
            ))
        }
        other => Ok(Transformed::no(other)),
    })?;
    *expr = named.data;
    let (input, schema) = (aggregate.input, aggregate.schema);
    let aggregate = Aggregate::try_new_with_schema(input, aggregate.group_expr, aggregate.aggr_expr, schema)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

/// A plan of stages, ordinary aggregations beside them, or one ordinary aggregation.
fn in_stages(node: &QuantilesNode, strategy: StrategyName) -> Result<LogicalPlan> {
    if !node.group_expr().is_empty() {
        let ordinary = ordinary(node, (0..node.schema().fields().len()).collect())?;
        return Ok(match calls_of_groups(node)? {
            Some(calls) => {
                let (groups, schema) = (node.group_expr().len(), Arc::clone(node.schema()));
                StagedNode::plan(ordinary, groups, calls, strategy, schema)
            }
            None => ordinary,
        });
    }
    let mut units = Units::default();
    let is_staged = is_repeatable(node.input())?;
    for (index, (expr, call)) in node.calls().enumerate() {
        let call = call.filter(|_| is_staged);
        let column = call
            .map(|call| column_of(call, node.input().schema()))
            .transpose()?;
        match call.zip(column.flatten()) {
            Some((call, column)) => units.add(index, column, (expr, call)),
            None => units.rest.push(index),
        }
    }
    if units.staged.is_empty() {
        return ordinary(node, (0..node.schema().fields().len()).collect());
    }
    let rest = (!units.rest.is_empty()).then(|| rest(node, units.rest.clone()));
    let staged = units.staged.into_iter().map(|unit| unit.plan(node, strategy));
    let plans = staged.chain(rest).collect::<Result<Vec<_>>>()?;
    side_by_side(plans, node.schema())
}

/// The calls of an aggregation with groups, if stages can answer them all.
fn calls_of_groups(node: &QuantilesNode) -> Result<Option<Vec<(Expr, StagedCall)>>> {
    for group in node.group_expr() {
        if group.is_volatile() || !is_told_apart(&group.get_type(node.input().schema())?) {
            return Ok(None);
        }
    }
    let (mut columns, mut calls) = (Vec::<Column>::new(), Vec::new());
    for (expr, call) in node.calls() {
        // Distinct values of a group are no rows of the input.
        let Some(call) = call.filter(|call| !call.distinct) else {
            return Ok(None);
        };
        let Some(column) = column_of(call, node.input().schema())? else {
            return Ok(None);
        };
        let staged = staged_call(number_of(&mut columns, column), call);
        if staged.bounds {
            return Ok(None);
        }
        calls.push((expr.clone(), staged));
    }
    let is_staged = !calls.is_empty() && is_repeatable(node.input())?;
    Ok(is_staged.then_some(calls))
}

/// The number of a column among these, to which it is added if need be.
fn number_of(columns: &mut Vec<Column>, column: Column) -> usize {
    let known = columns.iter().position(|other| *other == column);
    known.unwrap_or_else(|| {
        columns.push(column);
        columns.len() - 1
    })
}

/// Whether values of a group column are equal only if their hashes are: zeros of either sign are one group.
fn is_told_apart(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_told_apart(values),
        DataType::RunEndEncoded(..) | DataType::Union(..) => false,
        nested if nested.is_nested() => false,
        flat => !flat.is_floating(),
    }
}

/// An ordinary aggregation of some of the node's columns.
fn ordinary(node: &QuantilesNode, columns: Vec<usize>) -> Result<LogicalPlan> {
    let groups = node.group_expr().len();
    // The columns of groups come first.
    let calls = columns.iter().filter_map(|column| column.checked_sub(groups));
    let calls = calls.map(|call| node.aggr_expr()[call].clone()).collect();
    let aggregate = Aggregate::try_new_with_schema(
        Arc::new(node.input().clone()),
        node.group_expr().to_vec(),
        calls,
        Arc::new(part_of(node.schema(), &columns)?),
    )?;
    guarded(aggregate).map(|guarded| guarded.data)
}

/// An ungrouped aggregation beside stages, whose states are numbered: by a count of ours, which nobody reads, where none of its calls
/// is of ours.
fn rest(node: &QuantilesNode, columns: Vec<usize>) -> Result<LogicalPlan> {
    if columns.iter().any(|column| is_ours(&node.aggr_expr()[*column])) {
        return ordinary(node, columns);
    }
    let schema = part_of(node.schema(), &columns)?;
    let count = Arc::new(AggregateUDF::from(Guarded::new(count_udaf())));
    let count = count.call(vec![lit(COUNT_STAR_EXPANSION)]).alias(GUARD);
    let guard = Arc::new(Field::new(GUARD, DataType::Int64, false));
    let guard = DFSchema::from_unqualified_fields(vec![guard].into(), HashMap::new())?;
    let calls = columns.iter().map(|column| node.aggr_expr()[*column].clone());
    Ok(LogicalPlan::Aggregate(Aggregate::try_new_with_schema(
        Arc::new(node.input().clone()),
        Vec::new(),
        calls.chain([count]).collect(),
        Arc::new(schema.join(&guard)?),
    )?))
}

/// One row from several of one row each, with these columns.
fn side_by_side(plans: Vec<LogicalPlan>, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let mut plans = plans.into_iter();
    let first = plans
        .next()
        .ok_or_else(|| internal_datafusion_err!("no aggregates"))?;
    let mut joined = LogicalPlanBuilder::from(first);
    let mut is_joined = false;
    for plan in plans {
        joined = joined.cross_join(plan)?;
        is_joined = true;
    }
    let plan = joined.build()?;
    if !is_joined {
        return Ok(plan);
    }
    let columns = schema.columns().into_iter().map(Expr::Column).collect();
    let projection = Projection::try_new_with_schema(columns, Arc::new(plan), Arc::clone(schema))?;
    Ok(LogicalPlan::Projection(projection))
}

fn part_of(schema: &DFSchema, columns: &[usize]) -> Result<DFSchema> {
    let fields = columns.iter().map(|column| {
        let (qualifier, field) = schema.qualified_field(*column);
        (qualifier.cloned(), Arc::clone(field))
    });
    DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())
}

/// The calls of an aggregation, by how they are answered.
#[derive(Default)]
struct Units {
    staged: Vec<Unit>,
    /// Ordinary aggregates, by their columns.
    rest: Vec<usize>,
}

/// Calls that share their rounds.
struct Unit {
    distinct: bool,
    columns: Vec<Column>,
    calls: Vec<(Expr, StagedCall)>,
    /// Of the output.
    outputs: Vec<usize>,
    ranks: usize,
}

impl Units {
    fn add(&mut self, output: usize, column: Column, (expr, call): (&Expr, &CallSpec<QuantilesAsked>)) {
        let ranks = call.asked.quantile_spec.quantiles.len();
        // Distinct values of one column are no row of another.
        let shared = self.staged.iter_mut().find(|unit| {
            let same = match column.distinct {
                true => unit.distinct && unit.columns[0].values == column.values,
                false => !unit.distinct,
            };
            same && unit.ranks + ranks <= MOST_RANKS
        });
        let unit = match shared {
            Some(unit) => unit,
            None if ranks > MOST_RANKS => {
                self.rest.push(output);
                return;
            }
            None => {
                self.staged.push(Unit {
                    distinct: column.distinct,
                    columns: Vec::new(),
                    calls: Vec::new(),
                    outputs: Vec::new(),
                    ranks: 0,
                });
                let last = self.staged.len() - 1;
                &mut self.staged[last]
            }
        };
        let index = number_of(&mut unit.columns, column);
        unit.calls.push((expr.clone(), staged_call(index, call)));
        unit.outputs.push(output);
        unit.ranks += ranks;
    }
}

impl Unit {
    fn plan(self, node: &QuantilesNode, strategy: StrategyName) -> Result<LogicalPlan> {
        let named = self
            .columns
            .into_iter()
            .zip(0..)
            .map(|(column, index)| column.values.alias(format!("q{index}")));
        let values = LogicalPlanBuilder::from(node.input().clone()).project(named.collect::<Vec<_>>())?;
        let input = match self.distinct {
            true => {
                let columns = values.schema().columns().into_iter().map(Expr::Column);
                let columns = columns.collect::<Vec<_>>();
                values.aggregate(columns, Vec::<Expr>::new())?
            }
            false => values,
        };
        let input = input.build()?;
        let schema = match self.outputs.len() == node.schema().fields().len() {
            true => Arc::clone(node.schema()),
            false => Arc::new(part_of(node.schema(), &self.outputs)?),
        };
        Ok(StagedNode::plan(input, 0, self.calls, strategy, schema))
    }
}
