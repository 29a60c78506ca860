//! Answers calls over ungrouped values by two reads of them, where the values would be held else.
//!
//! ```text
//!                                       Projection: answer_of_two_reads(..)
//! Aggregate: aggr=[[mad(t.x)]]            Aggregate: aggr=[[median of d]]
//!   TableScan: t                   ->       Projection: .., deviation_from(t.x, (subquery)) AS d
//!                                             TableScan: t
//!                                         subquery: Aggregate: aggr=[[median of t.x]]
//!                                           TableScan: t
//! ```
//! The subquery has the values of the first read of all calls of an aggregation, as one struct. It runs once, before the second read
//! (`ScalarSubqueryExec`).

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue, internal_err};
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::{get_field, named_struct};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, lit,
};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::call_spec::aggregate_call;
use super::repeatable::is_repeatable;
use super::rewrite::has_subquery;
use super::sample_then_read::{rows_call, scalar};
use crate::config::{QuantilesOptions, ReadAgain, StrategyName};
use crate::exec::is_worth_two_reads;
use crate::functions::TwoReads;

/// Name of the subquery's only column.
const FIRST: &str = "first read";

/// Answers calls of ungrouped aggregations in two reads where their input can be read again, and is large, in subqueries too.
///
/// # Errors
/// DataFusion's.
pub(super) async fn in_two_reads(
    plan: LogicalPlan,
    session: &dyn Session,
) -> Result<Transformed<LogicalPlan>> {
    let options = session.config_options();
    let (own, optimizer) = (QuantilesOptions::of(options), &options.optimizer);
    let allowed = own.read_again;
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(Transformed::no(plan));
    };
    let may_read = allowed != ReadAgain::Never && own.strategy == StrategyName::Auto;
    if !may_read || !optimizer.enable_physical_uncorrelated_scalar_subquery {
        return Ok(Transformed::no(plan));
    }
    let mut inputs = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node
            && has_calls(aggregate)?
            && is_simple(&aggregate.input)?
            && is_repeatable(&aggregate.input)?
        {
            inputs.push(Arc::clone(&aggregate.input));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut wanted = Vec::new();
    for input in inputs {
        let physical = DefaultPhysicalPlanner::default()
            .create_physical_plan(&input, state)
            .await?;
        if is_worth_two_reads(&physical, &state.task_ctx(), allowed) {
            wanted.push(input);
        }
    }
    if wanted.is_empty() {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) if wanted.contains(&aggregate.input) && has_calls(&aggregate)? => {
            TwoReadsOf::try_new(&aggregate)?
                .plan(&aggregate, state)
                .map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    })
}

/// Whether a plan is a table, with filters and projections over it.
fn is_simple(plan: &LogicalPlan) -> Result<bool> {
    let mut is_simple = true;
    plan.apply(|node| {
        let is_known = matches!(
            node,
            LogicalPlan::TableScan(_)
                | LogicalPlan::Filter(_)
                | LogicalPlan::Projection(_)
                | LogicalPlan::SubqueryAlias(_)
        );
        is_simple = is_known && !node.expressions().iter().any(has_subquery);
        Ok(if is_simple {
            TreeNodeRecursion::Continue
        } else {
            TreeNodeRecursion::Stop
        })
    })?;
    Ok(is_simple)
}

/// Whether an aggregation has no groups, and a call that is answered in two reads. None of its expressions has a subquery.
fn has_calls(aggregate: &Aggregate) -> Result<bool> {
    let calls = &aggregate.aggr_expr;
    if !aggregate.group_expr.is_empty() || calls.iter().any(|call| has_subquery(call) || call.is_volatile()) {
        return Ok(false);
    }
    for call in calls {
        if two_reads(call, aggregate)?.is_some() || rows_call(call, aggregate)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How a call of an aggregation is answered in two reads, with its filter; `None` if it is not.
fn two_reads(call: &Expr, aggregate: &Aggregate) -> Result<Option<Call>> {
    let Some(call) = aggregate_call(call) else {
        return Ok(None);
    };
    let Some(x) = call.params.args.first() else {
        return Ok(None);
    };
    let data_type = x.get_type(aggregate.input.schema())?;
    let reads = TwoReads::of(call, &data_type)?;
    Ok(reads.map(|reads| Call {
        reads,
        filter: call.params.filter.clone(),
    }))
}

/// A call that is answered in two reads.
struct Call {
    reads: TwoReads,
    filter: Option<Box<Expr>>,
}

impl Call {
    /// These calls, of rows that pass the call's filter, each under a name.
    fn filtered(&self, calls: Vec<Expr>, name: impl Fn(usize) -> String) -> Result<Vec<Expr>> {
        let calls = calls.into_iter().enumerate();
        calls
            .map(|(place, call)| match call {
                Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
                    params.filter = self.filter.clone();
                    let call = Expr::AggregateFunction(AggregateFunction { func, params });
                    Ok(call.alias(name(place)))
                }
                other => internal_err!("{other} is no call of an aggregate function"),
            })
            .collect()
    }
}

/// The calls of an aggregation, of which some are answered in two reads.
struct TwoReadsOf(Vec<Option<Call>>);

/// The name of a value or column: that of `what`, in the place `place`, of the call in the place `call`.
fn name(what: &str, call: usize, place: usize) -> String {
    format!("{what} {place} of call {call}")
}

fn column(name: impl Into<String>) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

impl TwoReadsOf {
    fn try_new(aggregate: &Aggregate) -> Result<Self> {
        let calls = aggregate.aggr_expr.iter().map(|call| two_reads(call, aggregate));
        calls.collect::<Result<_>>().map(Self)
    }

    /// The calls that are answered in two reads, with their places.
    fn calls(&self) -> impl Iterator<Item = (usize, &Call)> {
        let calls = self.0.iter().enumerate();
        calls.filter_map(|(place, call)| Some((place, call.as_ref()?)))
    }

    /// The plan that stands in for the aggregation.
    fn plan(&self, aggregate: &Aggregate, state: &SessionState) -> Result<LogicalPlan> {
        let first = match self.calls().next() {
            Some(_) => self.first_read(aggregate, state)?,
            None => lit(ScalarValue::Null),
        };
        let mut columns: Vec<Expr> = aggregate
            .input
            .schema()
            .columns()
            .into_iter()
            .map(Expr::Column)
            .collect();
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for (place, (asked, call)) in aggregate.aggr_expr.iter().zip(&self.0).enumerate() {
            if let Some(call) = rows_call(asked, aggregate)? {
                let answer_type = asked.get_type(aggregate.input.schema())?;
                let answer = call.answer(answer_type, &aggregate.input, state)?;
                answers.push(answer.alias(asked.schema_name().to_string()));
                continue;
            }
            let Some(call) = call else {
                answers.push(column(asked.schema_name().to_string()));
                calls.push(asked.clone());
                continue;
            };
            let value = |at| get_field(first.clone(), name("first", place, at));
            let values: Vec<Expr> = (0..call.reads.first().len()).map(value).collect();
            let mut own = Vec::new();
            for (at, expr) in call.reads.columns(&values).into_iter().enumerate() {
                columns.push(expr.alias(name("column", place, at)));
                own.push(column(name("column", place, at)));
            }
            let second = call.filtered(call.reads.second(&own), |at| name("second", place, at))?;
            let found: Vec<Expr> = (0..second.len())
                .map(|at| column(name("second", place, at)))
                .collect();
            calls.extend(second);
            answers.push(
                call.reads
                    .answer(&values, &found)
                    .alias(asked.schema_name().to_string()),
            );
        }
        let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input))
            .project(columns)?
            .build()?;
        let second = match calls.is_empty() {
            true => LogicalPlanBuilder::empty(true).build()?,
            false => LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), Vec::new(), calls)?),
        };
        let second = Arc::new(second);
        let answers = Projection::try_new_with_schema(answers, second, Arc::clone(&aggregate.schema))?;
        Ok(LogicalPlan::Projection(answers))
    }

    /// A scalar subquery of the values of the first read, as a struct.
    fn first_read(&self, aggregate: &Aggregate, state: &SessionState) -> Result<Expr> {
        let (mut calls, mut fields) = (Vec::new(), Vec::new());
        for (place, call) in self.calls() {
            for first in call.filtered(call.reads.first(), |at| name("first", place, at))? {
                let name = first.schema_name().to_string();
                fields.extend([lit(name.clone()), column(name)]);
                calls.push(first);
            }
        }
        let plan = LogicalPlanBuilder::from(Arc::clone(&aggregate.input))
            .aggregate(Vec::<Expr>::new(), calls)?
            .project([named_struct(fields).alias(FIRST)])?
            .build()?;
        Ok(scalar(state.optimize(&plan)?))
    }
}
