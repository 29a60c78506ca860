//! The coordinator's step between two rounds, over the merged replies of all partitions.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err, internal_datafusion_err, resources_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;

#[cfg(test)]
mod mutated;

use super::columns::StagedColumns;
use super::merged::Merged;
use super::rows::{Rows, schema};
use super::stage::{Consume, Needs, StageExec, StageOutput, StageStep, Task, reached};
use super::state::{COMPARING_READ, ColumnState, State};
use crate::functions::gk::with_bounds;
use crate::key::KeySpec;

/// Merges the replies of a round, and steps to the state for the next round, or to the row of answers.
pub type RefineExec = StageExec<Refine>;

/// The step of a [`RefineExec`].
#[derive(Debug, Clone)]
pub struct Refine {
    pub(super) columns: Arc<StagedColumns>,
    /// Number of the read whose replies are merged, from 0.
    pub(super) read: usize,
    /// Schema of the answers; `None` where the output is a state.
    pub(super) answers: Option<SchemaRef>,
}

impl fmt::Display for Refine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gives = match self.answers {
            Some(_) => "answers",
            None => "state",
        };
        let (rounds, columns) = (&self.columns.rounds, self.columns.len());
        write!(f, "{gives}, strategy={rounds}, columns={columns}")
    }
}

impl StageStep for Refine {
    const NAME: &'static str = "RefineExec";

    type State = ();

    fn schema(&self) -> SchemaRef {
        self.answers.clone().unwrap_or_else(|| schema(&[]))
    }

    fn needs(&self) -> Needs {
        Needs::All
    }

    async fn run(self, task: Task<()>, input: SendableRecordBatchStream) -> Result<()> {
        let refining = Refining {
            merged: Merged::new(&self.columns),
            memory: task.memory(Self::NAME),
            step: self,
        };
        task.drive(refining, input).await
    }
}

/// A step while replies arrive.
struct Refining {
    step: Refine,
    merged: Merged,
    memory: MemoryReservation,
}

impl Consume for Refining {
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        self.merged.reserve(batch, &self.memory)?;
        self.merged.add(batch)?;
        Ok(None)
    }

    fn finish(self) -> Result<StageOutput> {
        let Refine {
            columns,
            read,
            answers: schema_of_answers,
        } = self.step;
        if schema_of_answers.is_some() {
            reached!("refine_answers");
        } else {
            reached!("refine_state");
        }
        let state = step(read, self.merged)?;
        match schema_of_answers {
            Some(schema) => Ok(StageOutput {
                batches: vec![answers(&columns, &state, &schema)?],
                bytes: 0,
            }),
            None => {
                let mut rows = Rows::default();
                rows.state(&state.to_bytes());
                rows.finish(&schema(&[]), &[])
            }
        }
    }
}

/// The state after the replies in `merged`, which answer read `read`.
fn step(read: usize, mut merged: Merged) -> Result<State> {
    let columns = Arc::clone(&merged.columns);
    let earlier = merged.state().map(State::from_bytes).transpose()?;
    let mut earlier = earlier.map(|state| state.0.into_iter());
    // One step for each key column.
    let column = |(index, spec): (usize, &KeySpec)| {
        let width = spec.width();
        match &mut earlier {
            None => {
                let replies = merged.take(index)?;
                ColumnState::first(width, &columns.quantile_specs(index), &columns.rounds, replies)
            }
            Some(states) => match states.next() {
                Some(done) if done.sent.is_none() && read != COMPARING_READ => Ok(done),
                Some(state) => state.next(&columns.rounds, read, merged.take(index)?),
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
        if state.sent.is_some() {
            return resources_err!(
                "candidates of exact quantiles did not fit in memory: give executors more, or use fewer quantiles"
            );
        }
        let key_at = |rank| state.progress.key_at(rank);
        let found = call.quantile_spec.answers(selected.spec(), state.fingerprint.n, &key_at)?;
        let n = state.fingerprint.n;
        match call.bounds {
            // An exact answer has one rank.
            true => with_bounds(selected, found, n, |rank| Ok((rank, rank)))?,
            false => selected.row(found, n)?,
        }
        .to_array()
    });
    let row = row.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), row)?)
}
