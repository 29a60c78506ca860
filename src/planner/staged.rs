//! Plans quantiles as stages of a cluster: see [`crate::exec::staged`].

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
use super::staged_call::{Argument, argument_of, staged_call};
use super::staged_node::StagedNode;
use crate::config::StrategyName;
use crate::exec::staged::StagedCall;
use crate::functions::{ExactQuantiles, GkFunction, Guarded, RankFunction, ShapeFunction, TopKBy};

/// Column name of the count that guards the aggregates beside it.
const GUARD: &str = "quantiles.guard";

/// Most ranks of calls that share their rounds: one count can separate no more.
const MOST_RANKS: usize = 8000;

/// Puts the calls that stages can answer into stages, and turns all others back into ordinary aggregations, with guarded states.
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

/// Whether an aggregate calls a function of this crate, whose partial states can be numbered.
fn is_ours(expr: &Expr) -> bool {
    aggregate_call(expr).is_some_and(|call| {
        let func = &call.func;
        ExactQuantiles::of(func).is_some()
            || GkFunction::of(func).is_some()
            || TopKBy::of(func).is_some()
            || RankFunction::of(func).is_some()
            || ShapeFunction::of(func).is_some()
    })
}

/// Guards an aggregation: its first call of a function of this crate gets numbered states. Without such a call nothing changes.
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

/// Plans a node as stages, as stages with an ordinary aggregation beside them, or as one ordinary aggregation.
fn in_stages(node: &QuantilesNode, strategy: StrategyName) -> Result<LogicalPlan> {
    let all_columns = (0..node.schema().fields().len()).collect();
    if !node.group_expr().is_empty() {
        let aggregation = ordinary_aggregation(node, all_columns)?;
        return Ok(match calls_of_groups(node)? {
            Some(calls) => {
                let (groups, schema) = (node.group_expr().len(), Arc::clone(node.schema()));
                StagedNode::plan(aggregation, groups, calls, strategy, schema)
            }
            None => aggregation,
        });
    }
    let mut calls = SplitCalls::default();
    let is_staged = is_repeatable(node.input())?;
    for (index, (expr, call)) in node.calls().enumerate() {
        let call = call.filter(|_| is_staged);
        let argument = call
            .map(|call| argument_of(call, node.input().schema(), false))
            .transpose()?;
        match call.zip(argument.flatten()) {
            Some((call, argument)) => calls.add(index, argument, (expr, call)),
            None => calls.unstaged.push(index),
        }
    }
    if calls.staged.is_empty() {
        return ordinary_aggregation(node, all_columns);
    }
    let unstaged = (!calls.unstaged.is_empty()).then(|| unstaged_aggregation(node, calls.unstaged));
    let staged = calls.staged.into_iter().map(|group| group.plan(node, strategy));
    let plans = staged.chain(unstaged).collect::<Result<Vec<_>>>()?;
    side_by_side(plans, node.schema())
}

/// The calls of an aggregation with groups; `None` unless stages can answer them all.
fn calls_of_groups(node: &QuantilesNode) -> Result<Option<Vec<(Expr, StagedCall)>>> {
    for group in node.group_expr() {
        if group.is_volatile() || !equal_values_hash_equally(&group.get_type(node.input().schema())?) {
            return Ok(None);
        }
    }
    let (mut arguments, mut calls) = (Vec::<Argument>::new(), Vec::new());
    for (expr, call) in node.calls() {
        let Some(call) = call else { return Ok(None) };
        let Some(argument) = argument_of(call, node.input().schema(), true)? else {
            return Ok(None);
        };
        let column = number_of(&mut arguments, argument);
        calls.push((expr.clone(), staged_call(column, call)));
    }
    let is_staged = !calls.is_empty() && is_repeatable(node.input())?;
    Ok(is_staged.then_some(calls))
}

/// The column number, from 0, of an argument among `arguments`, to which it is added if it is new.
fn number_of(arguments: &mut Vec<Argument>, argument: Argument) -> usize {
    let known = arguments.iter().position(|other| *other == argument);
    known.unwrap_or_else(|| {
        arguments.push(argument);
        arguments.len() - 1
    })
}

/// Whether equal values of a group column have equal hashes. Floating point has not: the two zeros are one group, with two hashes.
fn equal_values_hash_equally(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => equal_values_hash_equally(values),
        DataType::RunEndEncoded(..) | DataType::Union(..) => false,
        nested if nested.is_nested() => false,
        flat => !flat.is_floating(),
    }
}

/// An ordinary aggregation of the node's output columns with these numbers.
fn ordinary_aggregation(node: &QuantilesNode, columns: Vec<usize>) -> Result<LogicalPlan> {
    let groups = node.group_expr().len();
    // The group columns come first.
    let calls = columns.iter().filter_map(|column| column.checked_sub(groups));
    let calls = calls.map(|call| node.aggr_expr()[call].clone()).collect();
    let aggregate = Aggregate::try_new_with_schema(
        Arc::new(node.input().clone()),
        node.group_expr().to_vec(),
        calls,
        Arc::new(columns_of_schema(node.schema(), &columns)?),
    )?;
    guarded(aggregate).map(|guarded| guarded.data)
}

/// The ungrouped aggregation beside stages, with numbered states. Where no call is of a function of this crate, a guarded count, which
/// nobody reads, numbers them.
fn unstaged_aggregation(node: &QuantilesNode, columns: Vec<usize>) -> Result<LogicalPlan> {
    if columns.iter().any(|column| is_ours(&node.aggr_expr()[*column])) {
        return ordinary_aggregation(node, columns);
    }
    let schema = columns_of_schema(node.schema(), &columns)?;
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

/// Joins plans of one row each to one row, with the columns of `schema`.
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

/// The schema of the columns with these numbers.
fn columns_of_schema(schema: &DFSchema, columns: &[usize]) -> Result<DFSchema> {
    let fields = columns.iter().map(|column| {
        let (qualifier, field) = schema.qualified_field(*column);
        (qualifier.cloned(), Arc::clone(field))
    });
    DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())
}

/// The calls of an ungrouped aggregation, split by how they are answered.
#[derive(Default)]
struct SplitCalls {
    staged: Vec<SharedRounds>,
    /// Output columns that an ordinary aggregation computes.
    unstaged: Vec<usize>,
}

/// Calls that share their rounds, over the same rows. Calls with `DISTINCT` share rounds only with calls of the same argument.
#[derive(Default)]
struct SharedRounds {
    arguments: Vec<Argument>,
    calls: Vec<(Expr, StagedCall)>,
    /// The output column of each call.
    outputs: Vec<usize>,
    /// Number of ranks that all calls together ask for, at most [`MOST_RANKS`].
    ranks: usize,
}

impl SplitCalls {
    /// Adds the call of output column `output`.
    fn add(&mut self, output: usize, argument: Argument, (expr, call): (&Expr, &CallSpec<QuantilesAsked>)) {
        let ranks = call.asked.quantile_spec.quantiles.len();
        if ranks > MOST_RANKS {
            self.unstaged.push(output);
            return;
        }
        let shared = self
            .staged
            .iter()
            .position(|group| group.has_rows_of(&argument) && group.ranks + ranks <= MOST_RANKS);
        let index = shared.unwrap_or_else(|| {
            self.staged.push(SharedRounds::default());
            self.staged.len() - 1
        });
        let group = &mut self.staged[index];
        let column = number_of(&mut group.arguments, argument);
        group.calls.push((expr.clone(), staged_call(column, call)));
        group.outputs.push(output);
        group.ranks += ranks;
    }
}

impl SharedRounds {
    /// Whether the calls read distinct values, of one argument.
    fn is_distinct(&self) -> bool {
        self.arguments.iter().any(|argument| argument.distinct)
    }

    /// Whether these rounds read the rows that `argument` is over. Distinct values of one argument are no rows of another.
    fn has_rows_of(&self, argument: &Argument) -> bool {
        if argument.distinct {
            self.is_distinct() && self.arguments[0].values == argument.values
        } else {
            !self.is_distinct()
        }
    }

    /// The stages of these calls.
    fn plan(self, node: &QuantilesNode, strategy: StrategyName) -> Result<LogicalPlan> {
        let is_distinct = self.is_distinct();
        let named = self
            .arguments
            .into_iter()
            .zip(0..)
            .map(|(argument, index)| argument.values.alias(format!("q{index}")));
        let values = LogicalPlanBuilder::from(node.input().clone()).project(named.collect::<Vec<_>>())?;
        let input = if is_distinct {
            let columns = values.schema().columns().into_iter().map(Expr::Column);
            let columns = columns.collect::<Vec<_>>();
            values.aggregate(columns, Vec::<Expr>::new())?
        } else {
            values
        };
        let input = input.build()?;
        let schema = if self.outputs.len() == node.schema().fields().len() {
            Arc::clone(node.schema())
        } else {
            Arc::new(columns_of_schema(node.schema(), &self.outputs)?)
        };
        Ok(StagedNode::plan(input, 0, self.calls, strategy, schema))
    }
}
