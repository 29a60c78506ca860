//! Levels of the tree that merges the replies of many partitions.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};

use super::columns::StagedColumns;
use super::merged::Merged;
use super::rows::{CLASS, Rows, body_bytes, schema};
use super::stage::{Consume, Needs, StageExec, StageOutput, StageStep, Task, reached};

/// Most replies that one task should merge. A hash may spread them unevenly, and give a task more.
pub(super) const FAN_IN: usize = 256;

/// Number of groups of replies at each level of the tree, below the task that has them all.
pub(super) fn merge_levels(partitions: usize) -> impl Iterator<Item = u32> {
    let fewer = |partitions: &usize| (*partitions > FAN_IN).then(|| partitions.div_ceil(FAN_IN / 2));
    std::iter::successors(fewer(&partitions), fewer).map(|groups| groups as u32)
}

/// Merges the replies of a read in groups, to one reply for each group and key column, which is as long as one of them.
///
/// A reply's group is its class modulo the number of groups; classes are random. Rows are exchanged by a hash of the group: a
/// partition may get several groups, and most partitions get none. The class of a merged reply is as random as those of its parts.
/// Keys, which are sent where candidates are fewer than counts, pass unchanged.
pub type MergeExec = StageExec<Merge>;

/// The step of a [`MergeExec`].
#[derive(Debug, Clone)]
pub struct Merge {
    pub(super) columns: Arc<StagedColumns>,
    /// The read of the input whose replies are merged, the first being 0.
    pub(super) read: usize,
    /// Most merged replies.
    pub(super) groups: u32,
}

impl Merge {
    /// A step that merges the replies to read `read` in this number of groups.
    ///
    /// # Errors
    /// An internal error for replies that do not add up, or no groups.
    pub(super) fn try_new(columns: Arc<StagedColumns>, read: usize, groups: u32) -> Result<Self> {
        if columns.rounds.is_summed(read) && groups > 0 {
            Ok(Self {
                columns,
                read,
                groups,
            })
        } else {
            internal_err!("replies of read {read} in {groups} groups")
        }
    }
}

impl fmt::Display for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, columns) = (self.columns.rounds.named(self.read), self.columns.len());
        write!(f, "{asked}, groups={}, columns={columns}", self.groups)
    }
}

impl StageStep for Merge {
    const NAME: &'static str = "MergeExec";

    type State = ();

    fn schema(&self) -> SchemaRef {
        schema(&[])
    }

    fn needs(&self) -> Needs {
        let class = Arc::new(Column::new("class", CLASS));
        let groups = Arc::new(Literal::new(ScalarValue::UInt32(Some(self.groups))));
        Needs::ByKey(Arc::new(BinaryExpr::new(class, Operator::Modulo, groups)))
    }

    async fn run(self, task: Task<()>, input: SendableRecordBatchStream) -> Result<()> {
        let merging = Merging {
            merged: Merged::new(&self.columns),
            memory: task.memory(Self::NAME),
        };
        task.drive(merging, input).await
    }
}

/// A merge while replies arrive.
struct Merging {
    merged: Merged,
    memory: MemoryReservation,
}

impl Consume for Merging {
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        self.merged.reserve(batch, &self.memory)?;
        let keys = self.merged.add_replies(batch)?;
        Ok(keys.map(|keys| StageOutput {
            bytes: body_bytes(&keys),
            batches: vec![keys],
        }))
    }

    /// The merged replies as rows again; no rows if no replies came.
    fn finish(self) -> Result<StageOutput> {
        reached!("merge");
        let mut rows = Rows::default();
        if let Some(state) = self.merged.state() {
            rows.state(state);
        }
        let replies = self.merged.shard_replies()?;
        replies.iter().for_each(|reply| rows.shard_reply(reply));
        rows.finish(&schema(&[]), &[])
    }
}
