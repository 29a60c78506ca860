//! Plans ungrouped calls that a sample and one read of all rows answer as operators, where values would be held else.
//!
//! ```text
//! Aggregate: exact_quantiles(x, q, 'disc', weight), count(*)     Projection: (subquery), count(*)
//!   TableScan: t                                              ->   Aggregate: count(*)
//!                                                                    TableScan: t
//!                                                                subquery: SampleThenRead
//!                                                                  Projection: x, weight
//!                                                                    TableScan: t
//! ```
//! A subquery runs once, before the rest of the plan (`ScalarSubqueryExec`). The most frequent values have a second input, the aggregation itself: it
//! runs where the sample shows that most values are to be held.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, Spans};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::call_spec::aggregate_call;
use super::node::{Node, NodeKind};
use super::repeatable::is_repeatable;
use super::rewrite::has_subquery;
use crate::config::{QuantilesOptions, ReadAgain, StrategyName};
use crate::exec::{MOST_COUNTED_BINS, RowsQuestion, SampleThenReadExec, is_worth_two_reads};
use crate::functions::shape::{ShapeQuestion, asked_of_values};
use crate::functions::{Arguments, ExactQuantiles, constant_quantiles};
use crate::key::KeySpec;
use crate::select::frequent::MOST_VALUES;
use crate::select::weighted::are_few;

/// Names of the columns of the node's input.
const COLUMNS: [&str; 2] = ["x", "weight"];

/// Name of the node's only column.
const ANSWER: &str = "answer";

/// The node of a question about the rows of its input.
pub(super) type SampleThenReadNode = Node<SharedQuestion>;

/// One of the questions of an aggregation, which are answered at a time and share the memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedQuestion {
    question: RowsQuestion,
    /// Number of questions.
    all: usize,
}

impl NodeKind for SharedQuestion {
    fn name(&self) -> &'static str {
        "SampleThenRead"
    }

    fn details(&self) -> String {
        self.question.to_string()
    }
}

/// Answers calls of ungrouped aggregations by a sample and reads where their input can be read again, and is large, in subqueries too.
///
/// # Errors
/// DataFusion's.
pub(super) async fn sample_then_read(
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
            && !rows_calls(aggregate)?.is_empty()
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
        LogicalPlan::Aggregate(aggregate) if wanted.contains(&aggregate.input) => {
            let calls = rows_calls(&aggregate)?;
            if calls.is_empty() {
                return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
            }
            planned(&aggregate, calls, state).map(Transformed::yes)
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

/// The calls of an aggregation that are answered by a sample and reads, by their places; none if it has groups, or an expression with a subquery.
///
/// # Errors
/// A planning error for constants that are not allowed.
fn rows_calls(aggregate: &Aggregate) -> Result<BTreeMap<usize, RowsCall<'_>>> {
    let calls = &aggregate.aggr_expr;
    if !aggregate.group_expr.is_empty() || calls.iter().any(|call| has_subquery(call) || call.is_volatile()) {
        return Ok(BTreeMap::new());
    }
    let found = calls.iter().enumerate().map(|(place, call)| {
        let found = rows_call(call, aggregate)?;
        Ok(found.map(|found| (place, found)))
    });
    found.filter_map(Result::transpose).collect()
}

/// The plan that stands in for an aggregation of which some calls are answered by a sample and reads.
fn planned(
    aggregate: &Aggregate,
    mut calls: BTreeMap<usize, RowsCall<'_>>,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let (all, mut others, mut answers) = (calls.len(), Vec::new(), Vec::new());
    for (place, asked) in aggregate.aggr_expr.iter().enumerate() {
        let name = asked.schema_name().to_string();
        answers.push(match calls.remove(&place) {
            Some(call) => {
                let answer_type = asked.get_type(aggregate.input.schema())?;
                call.answer(all, answer_type, &aggregate.input, state)?
                    .alias(name)
            }
            None => {
                others.push(asked.clone());
                Expr::Column(Column::new_unqualified(name))
            }
        });
    }
    let others = match others.is_empty() {
        true => LogicalPlanBuilder::empty(true).build()?,
        false => LogicalPlan::Aggregate(Aggregate::try_new(
            Arc::clone(&aggregate.input),
            Vec::new(),
            others,
        )?),
    };
    let answers = Projection::try_new_with_schema(answers, Arc::new(others), Arc::clone(&aggregate.schema))?;
    Ok(LogicalPlan::Projection(answers))
}

/// A call that a [`SampleThenReadNode`] answers.
struct RowsCall<'a> {
    question: RowsQuestion,
    /// The columns that the question is about.
    columns: Vec<&'a Expr>,
    call: &'a AggregateFunction,
}

/// How a call of an aggregation without groups is answered by a sample and reads; `None` if it is not.
///
/// # Errors
/// A planning error for constants that are not allowed.
fn rows_call<'a>(call: &'a Expr, aggregate: &Aggregate) -> Result<Option<RowsCall<'a>>> {
    let Some(call) = aggregate_call(call).filter(|call| !call.params.distinct) else {
        return Ok(None);
    };
    let asked = match weighted(call)? {
        None => about_values(call)?,
        asked => asked,
    };
    let Some((question, columns)) = asked else {
        return Ok(None);
    };
    let data_type = columns[0].get_type(aggregate.input.schema())?;
    Ok(KeySpec::supports(&data_type).then_some(RowsCall {
        question,
        columns,
        call,
    }))
}

/// The question of a call of quantiles with weights, and its columns.
fn weighted(call: &AggregateFunction) -> Result<Option<(RowsQuestion, Vec<&Expr>)>> {
    let function = ExactQuantiles::of(&call.func).filter(|_| call.params.order_by.is_empty());
    let arguments = function.map(|function| (function, function.arguments(&call.params.args)));
    let Some((function, Ok(arguments))) = arguments else {
        return Ok(None);
    };
    let Arguments {
        x,
        quantiles,
        weight: Some(weight),
    } = arguments
    else {
        return Ok(None);
    };
    let quantiles = match (function.bound(), quantiles) {
        (Some(bound), _) => bound.clone(),
        (None, Some(quantiles)) => constant_quantiles(function.sql_name(), quantiles)?,
        (None, None) => return Ok(None),
    };
    let quantile_spec = function.quantile_spec(&quantiles, false);
    let is_list = quantiles.is_list;
    Ok(are_few(&quantile_spec).then(|| {
        (
            RowsQuestion::Weighted {
                quantile_spec,
                is_list,
            },
            vec![x, weight],
        )
    }))
}

/// The question of a call about the values of one column, and that column.
fn about_values(call: &AggregateFunction) -> Result<Option<(RowsQuestion, Vec<&Expr>)>> {
    let question = asked_of_values(call)?.filter(|question| match question {
        ShapeQuestion::Frequent(frequency) => (1..=MOST_VALUES).contains(&frequency.k()),
        ShapeQuestion::EquiWidth(bins) => *bins <= MOST_COUNTED_BINS,
        ShapeQuestion::Mean { .. } | ShapeQuestion::Deviation => true,
    });
    let x = call.params.args.first();
    Ok(question
        .zip(x)
        .map(|(question, x)| (RowsQuestion::Shape(question), vec![x])))
}

impl RowsCall<'_> {
    /// The answer over the rows of `input`, as a scalar subquery, one of `all`. `answer_type` is its type.
    ///
    /// # Errors
    /// DataFusion's.
    fn answer(
        self,
        all: usize,
        answer_type: DataType,
        input: &Arc<LogicalPlan>,
        state: &SessionState,
    ) -> Result<Expr> {
        let rows = LogicalPlanBuilder::from(Arc::clone(input));
        let rows = match self.call.params.filter.as_deref() {
            Some(filter) => rows.filter(filter.clone())?,
            None => rows,
        };
        let columns = self.columns.into_iter().zip(COLUMNS);
        let columns = rows.project(columns.map(|(column, name)| column.clone().alias(name)))?;
        let columns = columns.build()?;
        let mut inputs = vec![state.optimize(&columns)?];
        if let RowsQuestion::Shape(ShapeQuestion::Frequent(_)) = self.question {
            let mut call = self.call.clone();
            call.params.filter = None;
            call.params.order_by.clear();
            if let Some(x) = call.params.args.first_mut() {
                *x = Expr::Column(Column::new_unqualified(COLUMNS[0]));
            }
            let call = Expr::AggregateFunction(call).alias(ANSWER);
            let held = LogicalPlanBuilder::from(columns).aggregate(Vec::<Expr>::new(), [call])?;
            inputs.push(state.optimize(&held.build()?)?);
        }
        let answer = Field::new(ANSWER, answer_type, true);
        let schema = DFSchema::from_unqualified_fields(vec![answer].into(), Default::default())?;
        let question = self.question;
        let node = SampleThenReadNode::new(SharedQuestion { question, all }, inputs, Arc::new(schema));
        Ok(scalar(node.into_plan()))
    }
}

/// The only value of the only row of an optimized plan.
fn scalar(plan: LogicalPlan) -> Expr {
    Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns: Vec::new(),
        spans: Spans::new(),
    })
}

impl SampleThenReadNode {
    /// The operator over the planned inputs.
    ///
    /// # Errors
    /// A planning error for a method that the values cannot have.
    pub(super) fn exec(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = Arc::clone(self.schema().inner());
        let exec = SampleThenReadExec::try_new(inputs, self.kind.question.clone(), self.kind.all, schema)?;
        Ok(Arc::new(exec))
    }
}
