//! The logical nodes between the optimizer and the operators of this crate: [`UserDefinedLogicalNodeCore`] is implemented
//! once, over what is a node's own.

use std::cmp::Ordering;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use super::call_spec::{CallSpec, QuantilesAsked};
use crate::exec::comma_separated;

/// What one kind of node is, apart from its inputs and its schema.
pub(super) trait NodeKind: Debug + Clone + Eq + Hash + Send + Sync + 'static {
    /// Name of the node in plans.
    fn name(&self) -> &'static str;

    /// What `EXPLAIN` says behind the name.
    fn details(&self) -> String;

    /// Expressions over the inputs.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// The kind with as many other expressions, over the same inputs or not.
    ///
    /// # Errors
    /// A planning error for expressions that are none of the node's.
    fn rebuilt(&self, _exprs: Vec<Expr>, _has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        Ok(self.clone())
    }

    /// Whether the output is rows of the input, whose schema is then the node's.
    fn passes_rows(&self) -> bool {
        false
    }
}

/// A logical node: its kind, its inputs, and the schema of what it stands in for, so that what lies above still finds its
/// columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Node<K> {
    pub(super) kind: K,
    inputs: Vec<LogicalPlan>,
    schema: DFSchemaRef,
}

impl<K: NodeKind> Node<K> {
    pub(super) fn new(kind: K, inputs: Vec<LogicalPlan>, schema: DFSchemaRef) -> Self {
        Self { kind, inputs, schema }
    }

    /// The node of this kind that `plan` is.
    pub(super) fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// The node as a plan.
    pub(super) fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// The input, or the first of several.
    pub(super) fn input(&self) -> &LogicalPlan {
        &self.inputs[0]
    }

    /// The output.
    pub(super) fn schema(&self) -> &DFSchemaRef {
        match self.kind.passes_rows() {
            true => self.input().schema(),
            false => &self.schema,
        }
    }
}

impl<K: NodeKind> PartialOrd for Node<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.inputs, self.kind.expressions())
            .partial_cmp(&(&other.inputs, other.kind.expressions()))
            .filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl<K: NodeKind> UserDefinedLogicalNodeCore for Node<K> {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        self.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        self.kind.expressions()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.kind.details())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        if exprs.len() != self.kind.expressions().len() || inputs.len() != self.inputs.len() {
            return internal_err!(
                "a {} node keeps its {} expressions and {} inputs",
                self.kind.name(),
                self.kind.expressions().len(),
                self.inputs.len()
            );
        }
        Ok(Self {
            kind: self.kind.rebuilt(exprs, &|| self.inputs == inputs)?,
            inputs,
            schema: Arc::clone(&self.schema),
        })
    }
}

/// An aggregation of which at least one aggregate selects exact quantiles: one row for each group, or one row. Planned as
/// [`QuantilesExec`](crate::exec::QuantilesExec) or [`GroupedQuantilesExec`](crate::exec::GroupedQuantilesExec).
pub(super) type QuantilesNode = Node<QuantilesKind>;

/// What a [`QuantilesNode`] aggregates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QuantilesKind {
    group_expr: Vec<Expr>,
    aggr_expr: Vec<Expr>,
    /// Of each aggregate; `None`: it is not one of quantiles.
    calls: Vec<Option<CallSpec<QuantilesAsked>>>,
}

impl QuantilesNode {
    /// Over `input`, with what is asked by each aggregate that asks for quantiles.
    pub(super) fn over(
        input: LogicalPlan,
        group_expr: Vec<Expr>,
        aggr_expr: Vec<Expr>,
        calls: Vec<Option<CallSpec<QuantilesAsked>>>,
        schema: DFSchemaRef,
    ) -> Self {
        let kind = QuantilesKind {
            group_expr,
            aggr_expr,
            calls,
        };
        Self::new(kind, vec![input], schema)
    }

    /// What rows of one group agree in; none for a single row over all. They are the first output columns.
    pub(super) fn group_expr(&self) -> &[Expr] {
        &self.kind.group_expr
    }

    /// The aggregates, one for each further output column; an alias may be around each.
    pub(super) fn aggr_expr(&self) -> &[Expr] {
        &self.kind.aggr_expr
    }

    /// Each aggregate with what it asks; `None`: not for quantiles.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&Expr, Option<&CallSpec<QuantilesAsked>>)> {
        let calls = self.kind.calls.iter().map(Option::as_ref);
        self.kind.aggr_expr.iter().zip(calls)
    }

    /// Each aggregate with what it asks; `None`: it runs in an accumulator, beside those that select quantiles.
    pub(super) fn selected(&self) -> impl Iterator<Item = (&Expr, Option<&CallSpec<QuantilesAsked>>)> {
        let (is_grouped, input) = (!self.kind.group_expr.is_empty(), self.input().schema());
        self.calls()
            .map(move |(expr, call)| (expr, call.filter(|call| call.is_selected(is_grouped, input))))
    }
}

impl NodeKind for QuantilesKind {
    fn name(&self) -> &'static str {
        "Quantiles"
    }

    fn details(&self) -> String {
        let aggregates = comma_separated(self.aggr_expr.iter());
        match self.group_expr.is_empty() {
            true => format!("aggr=[[{aggregates}]]"),
            false => format!(
                "groupBy=[[{}]], aggr=[[{aggregates}]]",
                comma_separated(self.group_expr.iter())
            ),
        }
    }

    fn expressions(&self) -> Vec<Expr> {
        [self.group_expr.as_slice(), &self.aggr_expr].concat()
    }

    fn rebuilt(&self, mut exprs: Vec<Expr>, _has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        let aggr_expr = exprs.split_off(self.group_expr.len());
        let calls = match aggr_expr == self.aggr_expr {
            true => self.calls.clone(),
            false => aggr_expr.iter().map(CallSpec::quantiles).collect::<Result<_>>()?,
        };
        Ok(Self {
            group_expr: exprs,
            aggr_expr,
            calls,
        })
    }
}
