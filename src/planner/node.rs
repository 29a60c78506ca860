//! The logical node between the optimizer and [`QuantilesExec`](crate::exec::QuantilesExec).

use std::cmp::Ordering;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// An aggregation of which at least one aggregate selects exact quantiles: one row for each group, or one row.
///
/// Stands in for an `Aggregate` and keeps its schema, so that what lies above still finds its columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuantilesNode {
    input: LogicalPlan,
    group_expr: Vec<Expr>,
    aggr_expr: Vec<Expr>,
    schema: DFSchemaRef,
}

impl QuantilesNode {
    pub(super) fn new(
        input: LogicalPlan,
        group_expr: Vec<Expr>,
        aggr_expr: Vec<Expr>,
        schema: DFSchemaRef,
    ) -> Self {
        Self {
            input,
            group_expr,
            aggr_expr,
            schema,
        }
    }

    /// What is aggregated.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// What rows of one group agree in; none for a single row over all. They are the first output columns.
    pub fn group_expr(&self) -> &[Expr] {
        &self.group_expr
    }

    /// The aggregates, one for each further output column; an alias may be around each.
    pub fn aggr_expr(&self) -> &[Expr] {
        &self.aggr_expr
    }

    /// The output: one column for each group expression, then one for each aggregate.
    pub fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
}

impl PartialOrd for QuantilesNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.group_expr, &self.aggr_expr)
            .partial_cmp(&(&other.input, &other.group_expr, &other.aggr_expr))
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
        self.group_expr.iter().chain(&self.aggr_expr).cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shown = |list: &[Expr]| list.iter().map(Expr::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "Quantiles: ")?;
        if !self.group_expr.is_empty() {
            write!(f, "groupBy=[[{}]], ", shown(&self.group_expr))?;
        }
        write!(f, "aggr=[[{}]]", shown(&self.aggr_expr))
    }

    fn with_exprs_and_inputs(&self, mut exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        if exprs.len() != self.group_expr.len() + self.aggr_expr.len() {
            return internal_err!("a Quantiles node keeps its expressions");
        }
        let aggr_expr = exprs.split_off(self.group_expr.len());
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self::new(input, exprs, aggr_expr, self.schema.clone())),
            _ => internal_err!("a Quantiles node has one input"),
        }
    }
}
