//! A [`QuantilesNode`] to a [`QuantilesExec`].

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{Result, internal_datafusion_err, internal_err, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::LoweredAggregateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::QuantilesNode;
use super::rewrite::{aggregate_call, is_quantiles};
#[cfg(feature = "cuda")]
use crate::config::DeviceChoice;
use crate::config::QuantilesOptions;
#[cfg(feature = "cuda")]
use crate::exec::UploadChoice;
use crate::exec::{ExecAggregate, GroupedQuantilesExec, PlainAggregate, QuantilesCall, QuantilesExec};
use crate::functions::{ExactQuantiles, GkFunction, constant_quantiles};
#[cfg(feature = "cuda")]
use crate::kernel::cuda::Devices;
#[cfg(feature = "cuda")]
use crate::key::Encoding;
#[cfg(feature = "cuda")]
use crate::quantile::Quantile;
use crate::quantile::{Ask, Method};

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
    let lowering = Lowering::new(node, input.schema(), session, planning);
    let aggregates = node.aggr_expr().iter().map(|expr| lowering.aggregate(expr));
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

/// The devices that values are to be sent to as they are read: only such as were asked for by name.
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

/// Logical aggregates to physical ones, over one input.
pub(super) struct Lowering<'a> {
    node: &'a QuantilesNode,
    /// Of its input.
    input: SchemaRef,
    session: &'a dyn Session,
    planning: &'a PhysicalPlanningContext,
}

impl<'a> Lowering<'a> {
    /// For aggregates of `node` over an input of this schema, planned or not.
    pub(super) fn new(
        node: &'a QuantilesNode,
        input: SchemaRef,
        session: &'a dyn Session,
        planning: &'a PhysicalPlanningContext,
    ) -> Self {
        Self {
            node,
            input,
            session,
            planning,
        }
    }

    pub(super) fn aggregate(&self, expr: &Expr) -> Result<ExecAggregate> {
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
    pub(super) fn end(
        &self,
        x: &Expr,
        call: &AggregateFunction,
        quantile: f64,
    ) -> Result<Option<ExecAggregate>> {
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

    pub(super) fn plain(&self, expr: &Expr) -> Result<PlainAggregate> {
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
