//! The answer of a cluster in the types that its statement was planned with.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::planner::BallistaQueryPlanner;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{Fields, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use datafusion_proto::protobuf::LogicalPlanNode;
use futures::StreamExt;

use crate::exec::{Execution, Operator, Work};

/// A client's planner: Ballista's, whose answers have the types that were planned.
#[derive(Debug)]
pub(crate) struct ClientPlanner {
    inner: Arc<dyn QueryPlanner + Send + Sync>,
}

impl ClientPlanner {
    /// Around this planner.
    pub(crate) fn new(inner: Arc<dyn QueryPlanner + Send + Sync>) -> Self {
        Self { inner }
    }

    /// Whether this planner sends plans to a Ballista scheduler, wrapped already or not.
    pub(crate) fn sends(planner: &(dyn QueryPlanner + Send + Sync)) -> bool {
        Self::is(planner) || (planner as &dyn Any).is::<BallistaQueryPlanner<LogicalPlanNode>>()
    }

    /// Whether this planner is one of these.
    pub(crate) fn is(planner: &(dyn QueryPlanner + Send + Sync)) -> bool {
        (planner as &dyn Any).is::<Self>()
    }
}

#[async_trait]
impl QueryPlanner for ClientPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sent = self.inner.create_physical_plan(plan, session).await?;
        // EXPLAIN ANALYZE has it below an operator whose rows are the client's own.
        match sent.downcast_ref::<DistributedQueryExec<LogicalPlanNode>>() {
            Some(_) => Ok(Arc::new(PlannedTypesExec::over(PlannedTypesWork, vec![sent])?)),
            None => Ok(sent),
        }
    }
}

/// Gives the batches of a cluster's answer the types of its schema.
///
/// Arrow Flight 59, by which they come, sends dictionaries as their values and large lists as lists.
type PlannedTypesExec = Operator<PlannedTypesWork>;

/// What a [`PlannedTypesExec`] does: it casts, where that is needed.
#[derive(Debug)]
struct PlannedTypesWork;

impl Work for PlannedTypesWork {
    fn name(&self) -> &'static str {
        "PlannedTypesExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::clone(inputs[0].properties()))
    }

    fn details(&self) -> String {
        String::new()
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let (schema, planned) = (on.schema(), on.schema());
        let batches = on.input()?.map(move |batch| in_types_of(batch?, &planned));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// The batch with the types of `planned`.
///
/// # Errors
/// Arrow's, for a value that the planned type has not.
fn in_types_of(batch: RecordBatch, planned: &SchemaRef) -> Result<RecordBatch> {
    let sent = batch.schema();
    let pairs = || sent.fields().iter().zip(planned.fields());
    if pairs().all(|(sent, planned)| sent.data_type() == planned.data_type()) {
        return Ok(batch);
    }
    let fields =
        pairs().map(|(sent, planned)| sent.as_ref().clone().with_data_type(planned.data_type().clone()));
    let schema = Schema::new_with_metadata(fields.collect::<Fields>(), sent.metadata().clone());
    let never_null = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => cast_with_options(column, field.data_type(), &never_null),
    });
    let columns = columns.collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}
