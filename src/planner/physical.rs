//! A [`QuantilesNode`] to a [`QuantilesExec`].

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{Result, internal_datafusion_err, internal_err, plan_err};
#[cfg(feature = "cuda")]
use datafusion::functions_aggregate::{
    count::Count,
    min_max::{Max, Min},
};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::LoweredAggregateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::first_rows::FirstRowsNode;
use super::rewrite::{aggregate_call, is_quantiles};
use super::staged::StagedNode;
use super::staged_groups::StagedGroupsNode;
use super::topk::topk_exec;
use super::{QuantilesNode, TopKNode};
use crate::config::QuantilesOptions;
use crate::exec::{ExecAggregate, GroupedQuantilesExec, PlainAggregate, QuantilesCall, QuantilesExec};
use crate::functions::{ExactQuantiles, GkFunction, constant_quantiles};
#[cfg(feature = "cuda")]
use crate::key::Encoding;
#[cfg(feature = "cuda")]
use crate::select::Quantile;
use crate::select::quantile::{Ask, Method};

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
        if let Some(groups) = node.as_any().downcast_ref::<StagedGroupsNode>()
            && let [input, ordinary] = physical_inputs
        {
            return groups.exec(input, ordinary).map(Some);
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
        node,
        input: input.schema(),
        session,
        planning,
    };
    let aggregates = node.aggr_expr().iter().map(|expr| lowering.aggregate(expr));
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

/// The aggregates of `node` if all are quantiles, over an input that is not planned.
///
/// # Errors
/// A planning error if a quantile is not a constant number in [0, 1].
#[cfg(feature = "cuda")]
pub(super) fn quantiles_alone(
    node: &QuantilesNode,
    session: &dyn Session,
) -> Result<Option<Vec<QuantilesCall>>> {
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering::unplanned(node, session, &planning);
    let is_call = |expr: &Expr| {
        aggregate_call(expr).is_some_and(|call| is_quantiles(call, false, node.input().schema()))
    };
    if !node.aggr_expr().iter().all(is_call) {
        return Ok(None);
    }
    let aggregates = node.aggr_expr().iter().map(|expr| lowering.aggregate(expr));
    let calls = aggregates.map(|aggregate| {
        Ok(match aggregate? {
            ExecAggregate::Quantiles(call) => Some(call),
            ExecAggregate::Plain(_) => None,
        })
    });
    calls.collect()
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
) -> Result<Option<Vec<ExecAggregate>>> {
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering::unplanned(node, session, &planning);
    let aggregates = node.aggr_expr().iter().map(|expr| {
        let Some(call) = aggregate_call(expr) else {
            return Ok(None);
        };
        match (call.params.args.as_slice(), end_quantile(call)) {
            _ if is_quantiles(call, true, node.input().schema()) => lowering.aggregate(expr).map(Some),
            ([x], Some(quantile)) => lowering.end(x, call, quantile),
            _ if counts_rows(call) => Ok(Some(ExecAggregate::Plain(lowering.plain(expr)?))),
            _ => Ok(None),
        }
    });
    aggregates.collect()
}

/// The quantile that `min` and `max` are.
#[cfg(feature = "cuda")]
fn end_quantile(call: &AggregateFunction) -> Option<f64> {
    let function = call.func.inner();
    let (min, max) = (function.downcast_ref::<Min>(), function.downcast_ref::<Max>());
    let is_plain = call.params.order_by.is_empty();
    min.map(|_| 0.0).or(max.map(|_| 1.0)).filter(|_| is_plain)
}

/// Whether it is `count(*)`, or `count` of one argument.
#[cfg(feature = "cuda")]
pub(super) fn counts_rows(call: &AggregateFunction) -> bool {
    call.func.inner().downcast_ref::<Count>().is_some()
        && call.params.args.len() == 1
        && !call.params.distinct
        && call.params.order_by.is_empty()
}

/// Logical aggregates to physical ones, over one input.
struct Lowering<'a> {
    node: &'a QuantilesNode,
    /// Of its input.
    input: SchemaRef,
    session: &'a dyn Session,
    planning: &'a PhysicalPlanningContext,
}

impl<'a> Lowering<'a> {
    /// Over an input that is not planned.
    #[cfg(feature = "cuda")]
    fn unplanned(
        node: &'a QuantilesNode,
        session: &'a dyn Session,
        planning: &'a PhysicalPlanningContext,
    ) -> Self {
        let input = Arc::clone(node.input().schema().inner());
        Self {
            node,
            input,
            session,
            planning,
        }
    }

    fn aggregate(&self, expr: &Expr) -> Result<ExecAggregate> {
        let call = aggregate_call(expr)
            .ok_or_else(|| internal_datafusion_err!("a Quantiles node holds aggregates only, got {expr}"))?;
        let is_grouped = !self.node.group_expr().is_empty();
        if !is_quantiles(call, is_grouped, self.node.input().schema()) {
            return self.plain(expr).map(ExecAggregate::Plain);
        }
        let planned = match (ExactQuantiles::of(&call.func), GkFunction::of(&call.func)) {
            (Some(function), _) => self.quantiles(function, call),
            (None, Some(function)) => self.sampled(function, call),
            (None, None) => internal_err!("{} selects no quantiles", call.func.name()),
        };
        planned.map(ExecAggregate::Quantiles)
    }

    fn quantiles(&self, function: &ExactQuantiles, call: &AggregateFunction) -> Result<QuantilesCall> {
        let [x, quantiles] = call.params.args.as_slice() else {
            return Err(internal_datafusion_err!(
                "{} is planned with two arguments, got {}",
                call.func.name(),
                call.params.args.len()
            ));
        };
        let quantiles = constant_quantiles(function.called(), quantiles)?;
        let ask = Ask {
            quantiles: quantiles.list,
            method: function.method(),
            descending: function.is_descending(),
        };
        let planned = self.call(x, call, ask, quantiles.is_list)?;
        Ok(match call.params.distinct {
            true => planned.distinct(),
            false => planned,
        })
    }

    fn sampled(&self, function: &GkFunction, call: &AggregateFunction) -> Result<QuantilesCall> {
        let (Some((quantiles, sampled)), [x]) = (function.sampled(), call.params.args.as_slice()) else {
            return internal_err!("{} is planned with its constants bound", call.func.name());
        };
        let ask = Ask {
            quantiles: quantiles.list.clone(),
            method: Method::Disc,
            descending: function.is_descending(),
        };
        Ok(self.call(x, call, ask, quantiles.is_list)?.sampled(sampled))
    }

    fn call(&self, x: &Expr, call: &AggregateFunction, ask: Ask, is_list: bool) -> Result<QuantilesCall> {
        let filter = call.params.filter.as_ref().map(|filter| self.expr(filter));
        let argument = self.expr(x)?;
        let data_type = argument.data_type(&self.input)?;
        QuantilesCall::try_new(argument, &data_type, filter.transpose()?, ask, is_list)
    }

    /// The least or the greatest value; not of floating point, whose NaNs `min` and `max` rank in their own way.
    #[cfg(feature = "cuda")]
    fn end(&self, x: &Expr, call: &AggregateFunction, quantile: f64) -> Result<Option<ExecAggregate>> {
        let data_type = self.expr(x)?.data_type(&self.input)?;
        if data_type.is_floating() || Encoding::of(&data_type).is_none() {
            return Ok(None);
        }
        let ask = Ask {
            quantiles: vec![Quantile::try_from_f64(quantile)?],
            method: Method::Disc,
            descending: false,
        };
        let planned = self.call(x, call, ask, false)?;
        Ok(Some(ExecAggregate::Quantiles(planned)))
    }

    fn plain(&self, expr: &Expr) -> Result<PlainAggregate> {
        let lowered = LoweredAggregateBuilder::new(
            expr,
            self.node.input().schema(),
            &self.input,
            self.session.execution_props(),
            self.planning,
        )
        .build()?;
        Ok(PlainAggregate::new(lowered.aggregate, lowered.filter))
    }

    fn expr(&self, expr: &Expr) -> Result<Arc<dyn PhysicalExpr>> {
        let schema = self.node.input().schema();
        DefaultPhysicalPlanner::default().create_physical_expr(expr, schema, self.session, self.planning)
    }
}
