//! Plans a [`QuantilesNode`] as a [`QuantilesExec`] or a [`GroupedQuantilesExec`].

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::LoweredAggregateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::QuantilesNode;
use super::call_spec::{CallSpec, QuantilesAsked};
#[cfg(feature = "cuda")]
use crate::config::DeviceChoice;
use crate::config::QuantilesOptions;
#[cfg(feature = "cuda")]
use crate::exec::UploadChoice;
use crate::exec::{ExecAggregate, GroupedQuantilesExec, PlainAggregate, QuantilesCall, QuantilesExec};
#[cfg(feature = "cuda")]
use crate::kernel::cuda::Devices;

/// Checks that the input has an end, at which `what` (a plural, for the message) is known.
///
/// # Errors
/// A planning error if the input is endless.
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
        let exec = match device_asked_for(session) {
            Some(choice) => exec.on_device(choice)?,
            None => exec,
        };
        return Ok(Arc::new(exec));
    }
    let exec = GroupedQuantilesExec::try_new(input, group, aggregates, schema)?;
    Ok(Arc::new(exec))
}

/// The devices to which values are sent as they are read; `None` unless `quantiles.device` names devices.
#[cfg(feature = "cuda")]
fn device_asked_for(session: &dyn Session) -> Option<UploadChoice> {
    let options = QuantilesOptions::of(session.config_options());
    match options.device {
        DeviceChoice::Cuda(_) | DeviceChoice::CudaAll => Some(UploadChoice {
            devices: Devices::of(options.device, session.config()),
            limit: options.cuda_memory_limit,
        }),
        DeviceChoice::Auto | DeviceChoice::Cpu => None,
    }
}

/// Turns logical expressions over one input into physical ones.
pub(super) struct Lowering<'a> {
    /// Schema of the logical input.
    pub(super) schema: &'a DFSchema,
    /// Schema of the planned input.
    pub(super) input: SchemaRef,
    pub(super) session: &'a dyn Session,
    pub(super) planning: &'a PhysicalPlanningContext,
}

impl Lowering<'_> {
    /// A call of quantiles, with its filter and its argument.
    pub(super) fn call(&self, call: &CallSpec<QuantilesAsked>) -> Result<QuantilesCall> {
        let filter = call.filter.as_ref().map(|filter| self.expr(filter)).transpose()?;
        let argument = self.expr(&call.values)?;
        let data_type = argument.data_type(&self.input)?;
        let (quantile_spec, is_list) = (call.asked.quantile_spec.clone(), call.asked.is_list);
        let planned = QuantilesCall::try_new(argument, &data_type, filter, quantile_spec, is_list)?;
        let planned = planned.in_form(call.asked.form);
        Ok(match (call.asked.sampled, call.distinct) {
            (Some(sampled), _) => planned.sampled(sampled),
            (None, true) => planned.distinct(),
            (None, false) => planned,
        })
    }

    /// An aggregate that runs in an accumulator.
    pub(super) fn plain(&self, expr: &Expr) -> Result<PlainAggregate> {
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

    /// One expression.
    pub(super) fn expr(&self, expr: &Expr) -> Result<Arc<dyn PhysicalExpr>> {
        let planner = DefaultPhysicalPlanner::default();
        planner.create_physical_expr(expr, self.schema, self.session, self.planning)
    }
}
