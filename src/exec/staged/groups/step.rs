//! The four steps of quantiles with `GROUP BY`.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;

use super::super::rows::CLASS;
use super::super::stage::{Needs, StageExec, StageStep, Task};
use super::brackets::Bracketing;
use super::columns::GroupedColumns;
use super::count::Counting;
use super::extract::{Extracting, GroupState};
use super::select::Selecting;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::key::with_key;
use crate::memory::FreePages;
use crate::threads::StopOnDrop;

/// A stage of quantiles with `GROUP BY`: counts, brackets, a second read or the selection of answers.
pub type GroupStageExec = StageExec<GroupStep>;

/// The step of a [`GroupStageExec`].
#[derive(Debug, Clone)]
pub struct GroupStep {
    pub(in crate::exec::staged) stage: GroupStage,
    pub(in crate::exec::staged) columns: Arc<GroupedColumns>,
}

/// The four steps, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::exec::staged) enum GroupStage {
    Count,
    Brackets,
    Extract,
    Select,
}

impl GroupStage {
    #[cfg(feature = "ballista")]
    pub(in crate::exec::staged) const ALL: [GroupStage; 4] = [
        GroupStage::Count,
        GroupStage::Brackets,
        GroupStage::Extract,
        GroupStage::Select,
    ];

    pub(in crate::exec::staged) fn name(self) -> &'static str {
        match self {
            GroupStage::Count => "count",
            GroupStage::Brackets => "brackets",
            GroupStage::Extract => "extract",
            GroupStage::Select => "select",
        }
    }
}

impl fmt::Display for GroupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.columns.fields.iter().map(|field| field.name().as_str());
        write!(
            f,
            "{}, gby=[{}], columns={}, reads=2{}",
            self.stage.name(),
            names.collect::<Vec<_>>().join(", "),
            self.columns.columns.len(),
            if self.columns.auto { " (auto)" } else { "" }
        )
    }
}

impl StageStep for GroupStep {
    const NAME: &'static str = "GroupStageExec";

    type State = GroupState;

    fn schema(&self) -> SchemaRef {
        Arc::clone(match self.stage {
            GroupStage::Select => &self.columns.answers,
            _ => &self.columns.rows,
        })
    }

    fn needs(&self) -> Needs {
        match self.stage {
            GroupStage::Count | GroupStage::Extract => Needs::Partition,
            GroupStage::Brackets => Needs::All,
            GroupStage::Select => Needs::ByKey(Arc::new(Column::new("class", CLASS))),
        }
    }

    fn state(&self, rows: &[RecordBatch], context: &TaskContext) -> Result<GroupState> {
        let memory = MemoryConsumer::new("GroupStageExec: state").register(context.memory_pool());
        GroupState::try_new(&self.columns, rows, memory)
    }

    async fn run(self, task: Task<GroupState>, input: SendableRecordBatchStream) -> Result<()> {
        with_key!(self.columns.width(), W => self.work::<W>(task, input).await)
    }
}

impl GroupStep {
    async fn work<W: GroupKey>(self, task: Task<GroupState>, input: SendableRecordBatchStream) -> Result<()> {
        let columns = &self.columns;
        let memory = task.memory(format!("{}: {}", Self::NAME, self.stage.name()));
        match self.stage {
            GroupStage::Count => {
                let stop = StopOnDrop::default();
                let free = FreePages::of(task.context.memory_pool().as_ref());
                let counting = Counting::<W>::try_new(columns, &memory, free, &stop.0)?;
                task.drive(counting, input).await
            }
            GroupStage::Brackets => {
                task.drive(Bracketing::<W>::try_new(columns, &memory)?, input)
                    .await
            }
            GroupStage::Extract => {
                let state = task.state.as_ref();
                let state = state.ok_or_else(|| exec_datafusion_err!("a second read without a state"))?;
                let extracting = Extracting::<W>::try_new(columns, state, &memory)?;
                task.drive(extracting, input).await
            }
            GroupStage::Select => {
                let batch_rows = task.context.session_config().batch_size();
                let selecting = Selecting::<W>::try_new(columns, &memory, batch_rows)?;
                task.drive(selecting, input).await
            }
        }
    }
}
