//! Plans ungrouped calls that a sample and one read of all rows answer as operators, where values would be held else.
//!
//! ```text
//! Aggregate: exact_quantiles(x, q, 'disc', weight)     Projection: (subquery)
//!   TableScan: t                                    ->   EmptyRelation
//!                                                      subquery: SampleThenRead
//!                                                        Projection: x, weight
//!                                                          TableScan: t
//! ```
//! The most frequent values have a second input, the aggregation itself: it runs where the sample shows that most values are to be held.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, DFSchema, Result, Spans};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;

use super::call_spec::aggregate_call;
use super::node::{Node, NodeKind};
use crate::exec::{RowsQuestion, SampleThenReadExec};
use crate::functions::shape::{asked_of_frequency, asked_of_mean};
use crate::functions::{Arguments, ExactQuantiles, constant_quantiles};
use crate::key::KeySpec;
use crate::select::frequent::MOST_VALUES;
use crate::select::weighted::are_few;

/// Names of the columns of the node's input.
const COLUMNS: [&str; 2] = ["x", "weight"];

/// Name of the node's only column.
const ANSWER: &str = "answer";

/// The node of a question about the rows of its input.
pub(super) type SampleThenReadNode = Node<RowsQuestion>;

impl NodeKind for RowsQuestion {
    fn name(&self) -> &'static str {
        "SampleThenRead"
    }

    fn details(&self) -> String {
        self.to_string()
    }
}

/// A call that a [`SampleThenReadNode`] answers.
pub(super) struct RowsCall<'a> {
    question: RowsQuestion,
    /// The columns that the question is about.
    columns: Vec<&'a Expr>,
    call: &'a AggregateFunction,
}

/// How a call of an aggregation without groups is answered by a sample and reads; `None` if it is not.
///
/// # Errors
/// A planning error for constants that are not allowed.
pub(super) fn rows_call<'a>(call: &'a Expr, aggregate: &Aggregate) -> Result<Option<RowsCall<'a>>> {
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
    let question = match (asked_of_frequency(call)?, asked_of_mean(call)?) {
        (Some(frequency), _) if (1..=MOST_VALUES).contains(&frequency.k()) => {
            RowsQuestion::Frequent(frequency)
        }
        (_, Some((share, is_winsorized))) => RowsQuestion::Mean { share, is_winsorized },
        _ => return Ok(None),
    };
    Ok(call.params.args.first().map(|x| (question, vec![x])))
}

impl RowsCall<'_> {
    /// The answer over the rows of `input`, as a scalar subquery. `answer_type` is its type.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn answer(
        self,
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
        if let RowsQuestion::Frequent(_) = self.question {
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
        let node = SampleThenReadNode::new(self.question, inputs, Arc::new(schema));
        Ok(scalar(node.into_plan()))
    }
}

/// The only value of the only row of an optimized plan.
pub(super) fn scalar(plan: LogicalPlan) -> Expr {
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
        let exec = SampleThenReadExec::try_new(inputs, self.kind.clone(), schema)?;
        Ok(Arc::new(exec))
    }
}
