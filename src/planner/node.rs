//! The logical node between the optimizer and [`QuantilesExec`](crate::exec::QuantilesExec).

use std::cmp::Ordering;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// An ungrouped aggregation of which at least one aggregate selects exact quantiles. One row.
///
/// Stands in for an `Aggregate` and keeps its schema, so that what lies above still finds its columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuantilesNode {
    input: LogicalPlan,
    aggr_expr: Vec<Expr>,
    schema: DFSchemaRef,
}

impl QuantilesNode {
    pub(super) fn new(input: LogicalPlan, aggr_expr: Vec<Expr>, schema: DFSchemaRef) -> Self {
        Self {
            input,
            aggr_expr,
            schema,
        }
    }

    /// What is aggregated.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// The aggregates, one for each output column; an alias may be around each.
    pub fn aggr_expr(&self) -> &[Expr] {
        &self.aggr_expr
    }

    /// The output: one column for each aggregate.
    pub fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
}

impl PartialOrd for QuantilesNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.aggr_expr)
            .partial_cmp(&(&other.input, &other.aggr_expr))
            .filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for QuantilesNode {
    fn name(&self) -> &str {
        "Quantiles"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.aggr_expr.clone()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let aggregates: Vec<_> = self.aggr_expr.iter().map(Expr::to_string).collect();
        write!(f, "Quantiles: aggr=[[{}]]", aggregates.join(", "))
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self::new(input, exprs, self.schema.clone())),
            _ => internal_err!("a Quantiles node has one input"),
        }
    }
}
