//! A [`QuantilesNode`] to a [`QuantilesExec`].

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result, plan_err};
#[cfg(feature = "cuda")]
use datafusion::functions_aggregate::{
    count::Count,
    min_max::{Max, Min},
};
#[cfg(feature = "cuda")]
use datafusion::logical_expr::ExprSchemable;
#[cfg(feature = "cuda")]
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::LoweredAggregateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

#[cfg(feature = "cuda")]
use super::call_spec::aggregate_call;
use super::call_spec::{CallSpec, QuantilesAsked};
use super::first_rows::FirstRowsNode;
use super::staged_node::StagedNode;
use super::topk::topk_exec;
use super::{QuantilesNode, TopKNode};
use crate::config::QuantilesOptions;
use crate::exec::{ExecAggregate, GroupedQuantilesExec, PlainAggregate, QuantilesCall, QuantilesExec};
#[cfg(feature = "cuda")]
use crate::key::Encoding;

/// Plans [`QuantilesNode`]s and [`TopKNode`]s: for a query planner that is built from several extension planners.
#[derive(Debug, Default)]
pub struct QuantilesExtensionPlanner;

#[async_trait]
impl ExtensionPlanner for QuantilesExtensionPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        #[cfg(feature = "cuda")]
        if let Some(node) = node.as_any().downcast_ref::<super::pinned_node::PinnedNode>() {
            return Ok(Some(node.exec()));
        }
        let [input] = physical_inputs else {
            return Ok(None);
        };
        if let Some(staged) = node.as_any().downcast_ref::<StagedNode>() {
            let partitions = session.config_options().execution.target_partitions;
            return staged.exec(input, partitions).map(Some);
        }
        if let Some(node) = node.as_any().downcast_ref::<FirstRowsNode>() {
            return node.exec(Arc::clone(input), session, planning).map(Some);
        }
        if let Some(node) = node.as_any().downcast_ref::<TopKNode>() {
            let exec = topk_exec(planner, node, Arc::clone(input), session, planning).await?;
            return Ok(Some(exec));
        }
        let Some(node) = node.as_any().downcast_ref::<QuantilesNode>() else {
            return Ok(None);
        };
        quantiles_exec(node, Arc::clone(input), session, planning).map(Some)
    }
}

/// # Errors
/// A planning error if the input has no end, where `what` is known.
pub(super) fn check_bounded(what: &str, input: &dyn ExecutionPlan) -> Result<()> {
    if input.boundedness().is_unbounded() {
        return plan_err!("{what} are known at the end of their input, and this input is endless");
    }
    Ok(())
}

/// The operator for `node` over its planned input.
///
/// # Errors
/// A planning error if a quantile is not a constant number in [0, 1].
pub(super) fn quantiles_exec(
    node: &QuantilesNode,
    input: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
    planning: &PhysicalPlanningContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    check_bounded("exact quantiles", input.as_ref())?;
    let lowering = Lowering {
        schema: node.input().schema(),
        input: input.schema(),
        session,
        planning,
    };
    let aggregates = node.selected().map(|(expr, call)| match call {
        Some(call) => lowering.call(call).map(ExecAggregate::Quantiles),
        None => lowering.plain(expr).map(ExecAggregate::Plain),
    });
    let aggregates = aggregates.collect::<Result<Vec<_>>>()?;
    let strategy = QuantilesOptions::of(session.config_options()).strategy;
    let group = node.group_expr().iter().map(|expr| lowering.expr(expr));
    let group = group.collect::<Result<Vec<_>>>()?;
    let schema = Arc::clone(node.schema().inner());
    if group.is_empty() {
        let exec = QuantilesExec::try_new(input, aggregates, strategy, schema)?;
        #[cfg(feature = "cuda")]
        let exec = match super::pinned::device_asked_for(session) {
            Some(choice) => exec.on_device(choice)?,
            None => exec,
        };
        return Ok(Arc::new(exec));
    }
    let exec = GroupedQuantilesExec::try_new(input, group, aggregates, schema)?;
    Ok(Arc::new(exec))
}

/// An aggregate, with what it asks where that is quantiles.
#[cfg(feature = "cuda")]
type Asking = (Option<CallSpec<QuantilesAsked>>, ExecAggregate);

/// The aggregates of `node` if all are quantiles, over an input that is not planned.
///
/// # Errors
/// DataFusion's, for expressions.
#[cfg(feature = "cuda")]
pub(super) fn quantiles_alone(
    node: &QuantilesNode,
    session: &dyn Session,
) -> Result<Option<Vec<QuantilesCall>>> {
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering::unplanned(node, session, &planning);
    let calls: Option<Vec<_>> = node.selected().map(|(_, call)| call).collect();
    let calls = calls.map(|calls| calls.into_iter().map(|call| lowering.call(call)).collect());
    calls.transpose()
}

/// The aggregates of `node`, which has groups, if all are quantiles, among them those that are called `min` and `max`, or counts of
/// rows, over an input that is not planned.
///
/// # Errors
/// As [`quantiles_alone`].
#[cfg(feature = "cuda")]
pub(super) fn quantiles_and_counts(
    node: &QuantilesNode,
    session: &dyn Session,
) -> Result<Option<Vec<Asking>>> {
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering::unplanned(node, session, &planning);
    let aggregates = node.selected().map(|(expr, call)| {
        let call = match call {
            Some(call) => Some(call.clone()),
            None => end_of(expr, node.input().schema())?,
        };
        let aggregate = match &call {
            Some(call) => ExecAggregate::Quantiles(lowering.call(call)?),
            None if aggregate_call(expr).is_some_and(counts_rows) => {
                ExecAggregate::Plain(lowering.plain(expr)?)
            }
            None => return Ok(None),
        };
        Ok(Some((call, aggregate)))
    });
    aggregates.collect()
}

/// What `min` and `max` ask; not of floating point, whose NaNs they rank in their own way.
#[cfg(feature = "cuda")]
fn end_of(expr: &Expr, input: &DFSchema) -> Result<Option<CallSpec<QuantilesAsked>>> {
    let Some(call) = aggregate_call(expr).filter(|call| call.params.order_by.is_empty()) else {
        return Ok(None);
    };
    let function = call.func.inner();
    let (min, max) = (function.downcast_ref::<Min>(), function.downcast_ref::<Max>());
    let (Some(quantile), [x]) = (min.map(|_| 0.0).or(max.map(|_| 1.0)), call.params.args.as_slice()) else {
        return Ok(None);
    };
    let data_type = x.get_type(input)?;
    match data_type.is_floating() || Encoding::of(&data_type).is_none() {
        true => Ok(None),
        false => CallSpec::end(call, x, quantile).map(Some),
    }
}

/// Whether it is `count(*)`, or `count` of one argument.
#[cfg(feature = "cuda")]
pub(super) fn counts_rows(call: &AggregateFunction) -> bool {
    call.func.inner().downcast_ref::<Count>().is_some()
        && call.params.args.len() == 1
        && !call.params.distinct
        && call.params.order_by.is_empty()
}

/// Logical expressions to physical ones, over one input.
pub(super) struct Lowering<'a> {
    /// Of the input, as it is known before it is planned.
    pub(super) schema: &'a DFSchema,
    /// Of the planned input.
    pub(super) input: SchemaRef,
    pub(super) session: &'a dyn Session,
    pub(super) planning: &'a PhysicalPlanningContext,
}

impl<'a> Lowering<'a> {
    /// Over an input that is not planned.
    #[cfg(feature = "cuda")]
    fn unplanned(
        node: &'a QuantilesNode,
        session: &'a dyn Session,
        planning: &'a PhysicalPlanningContext,
    ) -> Self {
        let schema = node.input().schema();
        Self {
            schema,
            input: Arc::clone(schema.inner()),
            session,
            planning,
        }
    }

    fn call(&self, call: &CallSpec<QuantilesAsked>) -> Result<QuantilesCall> {
        let filter = call.filter.as_ref().map(|filter| self.expr(filter)).transpose()?;
        let argument = self.expr(&call.values)?;
        let data_type = argument.data_type(&self.input)?;
        let (ask, is_list) = (call.asked.ask.clone(), call.asked.is_list);
        let planned = QuantilesCall::try_new(argument, &data_type, filter, ask, is_list)?;
        Ok(match (call.asked.sampled, call.distinct) {
            (Some(sampled), _) => planned.sampled(sampled),
            (None, true) => planned.distinct(),
            (None, false) => planned,
        })
    }

    fn plain(&self, expr: &Expr) -> Result<PlainAggregate> {
        let lowered = LoweredAggregateBuilder::new(
            expr,
            self.schema,
            &self.input,
            self.session.execution_props(),
            self.planning,
        )
        .build()?;
        Ok(PlainAggregate::new(lowered.aggregate, lowered.filter))
    }

    pub(super) fn expr(&self, expr: &Expr) -> Result<Arc<dyn PhysicalExpr>> {
        let planner = DefaultPhysicalPlanner::default();
        planner.create_physical_expr(expr, self.schema, self.session, self.planning)
    }
}
