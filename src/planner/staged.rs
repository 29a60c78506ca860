//! Quantiles as stages: see [`crate::exec::staged`].

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, Result, internal_datafusion_err, internal_err};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::COUNT_STAR_EXPANSION;
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, ExprSchemable, Extension, LogicalPlan, LogicalPlanBuilder, Projection,
    UserDefinedLogicalNodeCore, lit, when,
};
use datafusion::physical_plan::ExecutionPlan;

use super::QuantilesNode;
use super::call_spec::aggregate_call;
use super::repeatable::is_repeatable;
use super::staged_groups::in_group_stages;
use crate::config::StrategyName;
use crate::exec::staged::{Rounds, StagedCall, StagedColumns, Workload, stages};
use crate::functions::{ExactQuantiles, GkFunction, Guarded, TopKBy, constant_quantiles};
use crate::key::KeySpec;
use crate::quantile::{Ask, Method};

/// The name of a count that guards the aggregates beside it.
const GUARD: &str = "quantiles.guard";

/// Most ranks: what a count can set apart.
const MOST_RANKS: usize = 8000;

/// Calls of exact quantiles over columns of one input, in stages that read it several times.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StagedNode {
    /// A column for each argument.
    input: LogicalPlan,
    /// The calls: over these columns.
    calls: Vec<(usize, Expr)>,
    strategy: StrategyName,
    schema: DFSchemaRef,
}

/// Puts the calls that stages can answer into stages, and makes the rest ordinary aggregations again, with guarded states.
pub(super) fn into_stages(plan: LogicalPlan, strategy: StrategyName) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        let node = match node {
            LogicalPlan::Aggregate(aggregate) => return guarded(aggregate),
            LogicalPlan::Extension(extension) => extension,
            other => return Ok(Transformed::no(other)),
        };
        match node.node.as_any().downcast_ref::<QuantilesNode>() {
            Some(quantiles) => in_stages(quantiles, strategy).map(Transformed::yes),
            None => Ok(Transformed::no(LogicalPlan::Extension(node))),
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
        return Ok(in_group_stages(node, strategy, &ordinary)?.unwrap_or(ordinary));
    }
    let mut units = Units::default();
    let is_staged = is_repeatable(node.input())?;
    for (index, expr) in node.aggr_expr().iter().enumerate() {
        match is_staged.then(|| column_of(expr, node)).transpose()?.flatten() {
            Some(column) => units.add(index, column, expr)?,
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
    calls: Vec<(usize, Expr)>,
    /// Of the output.
    outputs: Vec<usize>,
    ranks: usize,
}

/// The argument of a staged call.
#[derive(PartialEq)]
pub(super) struct Column {
    pub(super) values: Expr,
    pub(super) distinct: bool,
    /// Whether it is ordered as `ORDER BY` orders.
    builtin: bool,
}

impl Units {
    fn add(&mut self, output: usize, column: Column, expr: &Expr) -> Result<()> {
        let ranks = staged_call(0, expr)?.ask.quantiles.len();
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
                return Ok(());
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
        let known = unit.columns.iter().position(|other| *other == column);
        let index = known.unwrap_or_else(|| {
            unit.columns.push(column);
            unit.columns.len() - 1
        });
        unit.calls.push((index, expr.clone()));
        unit.outputs.push(output);
        unit.ranks += ranks;
        Ok(())
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
        let staged = StagedNode {
            input,
            strategy,
            calls: self.calls,
            schema,
        };
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(staged),
        }))
    }
}

impl StagedNode {
    /// The stages over the planned input, which may still be cut into more partitions, up to `partitions`.
    ///
    /// # Errors
    /// Internal errors only: what can be wrong was found before.
    pub(super) fn exec(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partitions: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let fields = input.schema();
        let types = fields.fields().iter().map(|field| field.data_type().clone());
        let calls = self.calls.iter().map(|(column, expr)| staged_call(*column, expr));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let ranks = calls.iter().map(|call| call.ask.quantiles.len()).sum();
        let rounds = Rounds::try_new(self.strategy, &Workload::of(input.as_ref(), ranks)?)?;
        let columns = StagedColumns::try_new(types.collect(), calls, rounds)?;
        let schema = Arc::clone(self.schema.inner());
        stages(input, columns, schema, partitions)
    }
}

/// A call over a column of the input.
pub(super) fn staged_call(column: usize, expr: &Expr) -> Result<StagedCall> {
    let asked = asked(expr).transpose()?;
    let (ask, is_list, bounds) =
        asked.ok_or_else(|| internal_datafusion_err!("{expr} asks for no quantiles"))?;
    Ok(StagedCall {
        column,
        ask,
        is_list,
        bounds,
    })
}

/// What a call asks of its values, whether the answer is a list, and whether it says the ranks too. `None` for a call that
/// is answered otherwise.
///
/// Stages give the exact answer for less than a sample's splitters and their count would take.
fn asked(expr: &Expr) -> Option<Result<(Ask, bool, bool)>> {
    let call = aggregate_call(expr)?;
    if let Some(function) = ExactQuantiles::of(&call.func) {
        let quantiles = call.params.args.get(1)?;
        let known = constant_quantiles(function.called(), quantiles);
        return Some(known.map(|known| {
            let ask = Ask {
                quantiles: known.list,
                method: function.method(),
                descending: function.is_descending(),
            };
            (ask, known.is_list, false)
        }));
    }
    let function = GkFunction::of(&call.func)?;
    let (quantiles, sampled) = function.sampled()?;
    let ask = Ask {
        quantiles: quantiles.list.clone(),
        method: Method::Disc,
        descending: function.is_descending(),
    };
    Some(Ok((ask, quantiles.is_list, sampled.bounds)))
}

/// The values of a call: NULL where its filter drops a row. `None` if stages cannot answer it.
pub(super) fn column_of(expr: &Expr, node: &QuantilesNode) -> Result<Option<Column>> {
    let Some(AggregateFunction { func, params }) = aggregate_call(expr) else {
        return Ok(None);
    };
    let is_builtin = match (ExactQuantiles::of(func), GkFunction::of(func)) {
        (Some(function), _) => function.called().is_builtin(),
        (None, Some(function)) if function.sampled().is_some() => false,
        _ => return Ok(None),
    };
    let Some(x) = params.args.first() else {
        return Ok(None);
    };
    let data_type = x.get_type(node.input().schema())?;
    // GROUP BY need not tell the zeros of a float apart, as DISTINCT of ours does.
    let groups_differ = params.distinct && data_type.is_floating();
    let repeatable = !x.is_volatile() && params.filter.iter().all(|filter| !filter.is_volatile());
    if groups_differ || !repeatable || !KeySpec::supports(&data_type) {
        return Ok(None);
    }
    let values = match &params.filter {
        None => x.clone(),
        Some(filter) => when(filter.as_ref().clone(), x.clone()).end()?,
    };
    Ok(Some(Column {
        values,
        distinct: params.distinct,
        builtin: is_builtin,
    }))
}

impl PartialOrd for StagedNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (&self.input, &self.calls)
            .partial_cmp(&(&other.input, &other.calls))
            .filter(|order| *order != std::cmp::Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for StagedNode {
    fn name(&self) -> &str {
        "StagedQuantiles"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// None: the calls are over the columns of the input, by number.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|(_, call)| call.to_string()).collect();
        write!(f, "StagedQuantiles: aggr=[[{}]]", calls.join(", "))
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let (Some(input), true) = (inputs.pop(), inputs.is_empty() && exprs.is_empty()) else {
            return internal_err!("StagedQuantiles has one input and no expressions");
        };
        Ok(Self {
            input,
            ..self.clone()
        })
    }
}
