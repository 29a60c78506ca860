//! The coordinator's step between two rounds, over the replies of all partitions.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{
    DataFusionError, Result, exec_err, internal_datafusion_err, internal_err, resources_err,
};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::TryStreamExt;

#[cfg(test)]
mod mutated;

use super::rows::{Merged, Rows, schema};
use super::state::{COMPARING_READ, ColumnState, State};
use super::{StagedColumns, reached};
use crate::functions::gk::with_bounds;

/// Merges the replies of a round and steps: to the state for the next round, or to the row of answers.
#[derive(Debug)]
pub struct RefineExec {
    input: Arc<dyn ExecutionPlan>,
    pub(super) columns: Arc<StagedColumns>,
    /// The read of the input whose replies are merged, the first being 0.
    pub(super) read: usize,
    /// Of the answers; `None`: the output is a state.
    pub(super) answers: Option<SchemaRef>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RefineExec {
    /// After read `read`: to the row of answers of a schema, or to a state.
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        columns: Arc<StagedColumns>,
        read: usize,
        answers: Option<SchemaRef>,
    ) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(answers.clone().unwrap_or_else(schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            input,
            columns,
            read,
            answers,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("RefineExec has one input");
        };
        Ok(Arc::new(Self::new(
            input,
            Arc::clone(&self.columns),
            self.read,
            self.answers.clone(),
        )))
    }
}

/// Steps each column, after the replies in `merged`.
fn step(columns: &StagedColumns, read: usize, mut merged: Merged) -> Result<State> {
    let earlier = merged.state().map(State::from_bytes).transpose()?;
    let mut earlier = earlier.map(|state| state.0.into_iter());
    let column = |(index, spec): (usize, &crate::key::KeySpec)| {
        let width = spec.width();
        match &mut earlier {
            None => {
                let replies = merged.take(index as u32, width)?;
                ColumnState::first(width, &columns.asks(index), &columns.rounds, replies)
            }
            Some(states) => match states.next() {
                Some(done) if done.order.is_none() && read != COMPARING_READ => Ok(done),
                Some(state) => state.next(&columns.rounds, read, merged.take(index as u32, width)?),
                None => exec_err!("a state of fewer than {} columns", columns.len()),
            },
        }
    };
    columns
        .specs()
        .enumerate()
        .map(column)
        .collect::<Result<_>>()
        .map(State)
}

/// The row of answers.
fn answers(columns: &StagedColumns, state: &State, schema: &SchemaRef) -> Result<RecordBatch> {
    let row = columns.calls.iter().zip(&columns.selected).map(|(call, selected)| {
        let state = state.0.get(call.column);
        let state = state.ok_or_else(|| internal_datafusion_err!("a call over column {}", call.column))?;
        if state.order.is_some() {
            return resources_err!(
                "candidates of exact quantiles did not fit in memory: give executors more, or use fewer quantiles"
            );
        }
        let key_at = |rank| state.progress.key_at(rank);
        let found = call.ask.answers(selected.spec(), state.seen.n, &key_at)?;
        let n = state.seen.n;
        match call.bounds {
            // Of an exact answer there is one.
            true => with_bounds(selected, found, n, |rank| Ok((rank, rank)))?,
            false => selected.row(found, n)?,
        }
        .to_array()
    });
    let row = row.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), row)?)
}

impl DisplayAs for RefineExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let gives = if self.answers.is_some() {
            "answers"
        } else {
            "state"
        };
        write!(
            f,
            "RefineExec: {gives}, strategy={}, columns={}",
            self.columns.rounds,
            self.columns.len()
        )
    }
}

impl ExecutionPlan for RefineExec {
    fn name(&self) -> &str {
        "RefineExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("RefineExec has one partition, asked for partition {partition}");
        }
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        let mut input = self.input.execute(0, context)?;
        let (columns, schema, read) = (Arc::clone(&self.columns), self.answers.clone(), self.read);
        let rows = MetricBuilder::new(&self.metrics).counter("input_rows", 0);
        let batches = async move {
            let mut merged = Merged::default();
            while let Some(batch) = input.try_next().await? {
                rows.add(batch.num_rows());
                merged.reserve(&batch, &memory)?;
                merged.add(&batch)?;
            }
            if schema.is_some() {
                reached!("refine_answers");
            } else {
                reached!("refine_state");
            }
            let state = step(&columns, read, merged)?;
            let batches = match schema {
                Some(schema) => vec![answers(&columns, &state, &schema)?],
                None => {
                    let mut rows = Rows::default();
                    rows.state(&state.to_bytes())?;
                    rows.finish()?.0
                }
            };
            drop(memory);
            Ok::<_, DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        };
        let stream = futures::stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(self.properties.eq_properties.schema()),
            stream,
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
