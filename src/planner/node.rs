//! The logical nodes between the optimizer and the operators of this crate. [`UserDefinedLogicalNodeCore`] is implemented once, for
//! [`Node`]; a [`NodeKind`] says what is special to a kind of node.

use std::cmp::Ordering;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use super::call_spec::{CallSpec, QuantilesAsked};
use crate::exec::comma_separated;

/// A kind of node: all of a node but its inputs and its schema.
pub(super) trait NodeKind: Debug + Clone + Eq + Hash + Send + Sync + 'static {
    /// Name of the node in plans.
    fn name(&self) -> &'static str;

    /// Text that `EXPLAIN` shows after the name.
    fn details(&self) -> String;

    /// Expressions over the inputs.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// The kind with these expressions in place of [`Self::expressions`], as many and in the same order. `has_same_inputs` says whether the
    /// node keeps its inputs.
    ///
    /// # Errors
    /// A planning error for expressions that the node cannot have.
    fn rebuilt(&self, _exprs: Vec<Expr>, _has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        Ok(self.clone())
    }

    /// Whether the output is rows of the input. The node then has the input's schema.
    fn passes_rows(&self) -> bool {
        false
    }
}

/// A logical node: its kind, its inputs, and its output schema. The schema is that of the node it replaces, so that nodes above still find
/// their columns.
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

    /// The node of this kind, if `plan` is one.
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

    /// The output schema.
    pub(super) fn schema(&self) -> &DFSchemaRef {
        if self.kind.passes_rows() {
            self.input().schema()
        } else {
            &self.schema
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

/// An aggregation with at least one aggregate that selects quantiles. It gives one row for each group, or one row. It is planned as
/// [`QuantilesExec`](crate::exec::QuantilesExec) or [`GroupedQuantilesExec`](crate::exec::GroupedQuantilesExec).
pub(super) type QuantilesNode = Node<QuantilesKind>;

/// The groups and aggregates of a [`QuantilesNode`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QuantilesKind {
    group_expr: Vec<Expr>,
    aggr_expr: Vec<Expr>,
    /// What each aggregate asks; `None` for an aggregate that asks for no quantiles.
    calls: Vec<Option<CallSpec<QuantilesAsked>>>,
}

impl QuantilesNode {
    /// The node over `input`. `calls` has what each aggregate asks; `None` for one that asks for no quantiles.
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

    /// The group expressions, which are the first output columns. Without any the output is one row.
    pub(super) fn group_expr(&self) -> &[Expr] {
        &self.kind.group_expr
    }

    /// The aggregates, one for each further output column. Each may have an alias.
    pub(super) fn aggr_expr(&self) -> &[Expr] {
        &self.kind.aggr_expr
    }

    /// Each aggregate with what it asks; `None` if it asks for no quantiles.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&Expr, Option<&CallSpec<QuantilesAsked>>)> {
        let calls = self.kind.calls.iter().map(Option::as_ref);
        self.kind.aggr_expr.iter().zip(calls)
    }

    /// Each aggregate with what it asks if an operator selects it; `None` if it runs in an accumulator beside those.
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
        if self.group_expr.is_empty() {
            format!("aggr=[[{aggregates}]]")
        } else {
            format!(
                "groupBy=[[{}]], aggr=[[{aggregates}]]",
                comma_separated(self.group_expr.iter())
            )
        }
    }

    fn expressions(&self) -> Vec<Expr> {
        [self.group_expr.as_slice(), &self.aggr_expr].concat()
    }

    fn rebuilt(&self, mut exprs: Vec<Expr>, _has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        let aggr_expr = exprs.split_off(self.group_expr.len());
        let calls = if aggr_expr == self.aggr_expr {
            self.calls.clone()
        } else {
            aggr_expr.iter().map(CallSpec::quantiles).collect::<Result<_>>()?
        };
        Ok(Self {
            group_expr: exprs,
            aggr_expr,
            calls,
        })
    }
}
