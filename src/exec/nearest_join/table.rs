//! The table of a join, which the partitions of the output read together.
//!
//! ```text
//! partition 0 of the table ──> task 0 <─┐ a task whose own partition has ended reads another one,
//! partition 1 of the table ──> task 1 ──┘ and takes parts of the batches that others have read
//! ```
//! A batch is multiplied with all queries, which takes long, and tables in memory often lie in fewer partitions than there are cores.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;

use crate::threads::locked;

/// Fewest rows of a part of a batch.
const LEAST_PART: usize = 512;

/// The rows of a table in each of the executions that go on. An execution is known by its context, which all of its partitions have.
#[derive(Default)]
pub(super) struct SharedTable(Mutex<Vec<TableExecution>>);

/// One execution, which ends with its tasks: they own the rows, and nothing is read for nobody.
struct TableExecution {
    context: Weak<TaskContext>,
    rows: Weak<TableRows>,
    /// The partitions whose tasks have begun.
    begun: Vec<bool>,
}

impl Debug for SharedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable").finish_non_exhaustive()
    }
}

impl SharedTable {
    /// The rows of `input` for the task of this partition, which it shares with the tasks of the others. A task that comes again with the
    /// same context begins another execution, which reads the table anew.
    pub(super) fn rows(
        &self,
        partition: usize,
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Arc<TableRows> {
        let partitions = input.output_partitioning().partition_count();
        let rows_of =
            |partitions| Arc::new(TableRows::new(Arc::clone(input), partitions, Arc::clone(context)));
        let mut executions = locked(&self.0);
        let is_own = |of: &TableExecution| Weak::ptr_eq(&of.context, &Arc::downgrade(context));
        executions.retain(|of| of.context.strong_count() > 0 && !(is_own(of) && of.begun[partition]));
        if let Some(own) = executions.iter_mut().find(|of| is_own(of)) {
            own.begun[partition] = true;
            // The others have read everything, and ended.
            return own.rows.upgrade().unwrap_or_else(|| rows_of(0));
        }
        let rows = rows_of(partitions);
        let mut begun = vec![false; partitions];
        begun[partition] = true;
        executions.push(TableExecution {
            context: Arc::downgrade(context),
            rows: Arc::downgrade(&rows),
            begun,
        });
        rows
    }
}

/// A partition of the table.
enum Slot {
    /// Nobody has read it yet.
    Waiting,
    Reading(SendableRecordBatchStream),
    Ended,
}

/// All rows of a table, each for one of the tasks that ask.
pub(super) struct TableRows {
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    slots: Vec<tokio::sync::Mutex<Slot>>,
    /// Parts of batches that were read and that no task has taken.
    parts: Mutex<Vec<RecordBatch>>,
    /// Number of tasks whose own partition has ended and that wait for rows.
    idle: AtomicUsize,
}

impl TableRows {
    fn new(input: Arc<dyn ExecutionPlan>, partitions: usize, context: Arc<TaskContext>) -> Self {
        Self {
            input,
            context,
            slots: (0..partitions)
                .map(|_| tokio::sync::Mutex::new(Slot::Waiting))
                .collect(),
            parts: Mutex::default(),
            idle: AtomicUsize::new(0),
        }
    }

    /// The next rows for the task of a partition; `None` at the end of all partitions.
    ///
    /// # Errors
    /// The table's.
    pub(super) async fn next(&self, partition: usize) -> Result<Option<RecordBatch>> {
        if let Some(rows) = self.part() {
            return Ok(Some(rows));
        }
        if let Some(rows) = self.read(partition, 0).await? {
            return Ok(Some(rows));
        }
        let _idle = Idle::new(&self.idle);
        for other in 1..=self.slots.len() {
            if let Some(rows) = self.read((partition + other) % self.slots.len(), 1).await? {
                return Ok(Some(rows));
            }
        }
        Ok(self.part())
    }

    /// A part that another task has left.
    fn part(&self) -> Option<RecordBatch> {
        locked(&self.parts).pop()
    }

    /// The next rows of a partition, or a part that was left by the time that nobody else read it; `None` at its end. What idle tasks,
    /// of which `own` is the one that asks, may take of a batch is left for them.
    async fn read(&self, partition: usize, own: usize) -> Result<Option<RecordBatch>> {
        let Some(slot) = self.slots.get(partition) else {
            return Ok(None);
        };
        let mut slot = slot.lock().await;
        if let Some(rows) = self.part() {
            return Ok(Some(rows));
        }
        if matches!(*slot, Slot::Waiting) {
            *slot = Slot::Reading(self.input.execute(partition, Arc::clone(&self.context))?);
        }
        let Slot::Reading(stream) = &mut *slot else {
            return Ok(None);
        };
        let read = stream.next().await;
        // After an error there is nothing more to read.
        let Some(Ok(batch)) = read else {
            *slot = Slot::Ended;
            return read.transpose();
        };
        let takers = 1 + self.idle.load(Ordering::Relaxed).saturating_sub(own);
        let rows = batch.num_rows().div_ceil(takers).max(LEAST_PART);
        let parts = (rows..batch.num_rows()).step_by(rows);
        let parts = parts.map(|from| batch.slice(from, rows.min(batch.num_rows() - from)));
        locked(&self.parts).extend(parts);
        Ok(Some(batch.slice(0, rows.min(batch.num_rows()))))
    }
}

/// A task that waits for rows, as long as this exists.
struct Idle<'a>(&'a AtomicUsize);

impl<'a> Idle<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::datasource::memory::MemorySourceConfig;

    use super::*;

    fn batch(values: std::ops::Range<i64>) -> RecordBatch {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
        RecordBatch::try_from_iter([("x", values)]).unwrap()
    }

    fn table(partitions: &[Vec<RecordBatch>]) -> Arc<dyn ExecutionPlan> {
        MemorySourceConfig::try_new_exec(partitions, batch(0..0).schema(), None).unwrap()
    }

    /// The values that each of several tasks gets, in an execution.
    async fn taken(
        shared: &SharedTable,
        input: &Arc<dyn ExecutionPlan>,
        tasks: usize,
        context: Arc<TaskContext>,
    ) -> Vec<Vec<i64>> {
        let tasks = (0..tasks).map(|task| {
            let rows = shared.rows(task, input, &context);
            tokio::spawn(async move {
                let mut own = Vec::new();
                while let Some(batch) = rows.next(task).await.unwrap() {
                    own.extend(batch.column(0).as_primitive::<Int64Type>().values());
                    // As long as the product of a batch takes.
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
                own
            })
        });
        let mut all = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            all.push(task.await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn each_row_is_taken_once_and_idle_tasks_take_some() {
        let batches: Vec<_> = (0..8).map(|i| batch(10_000 * i..10_000 * (i + 1))).collect();
        let input = table(&[batches, Vec::new(), vec![batch(80_000..80_003)], Vec::new()]);
        let shared = SharedTable::default();
        // Executions that end are followed by others, with the same context or another one.
        let contexts = [Arc::new(TaskContext::default()), Arc::new(TaskContext::default())];
        for context in [0, 0, 1] {
            let all = taken(&shared, &input, 4, Arc::clone(&contexts[context])).await;
            assert!(
                all.iter().all(|own| own.len() >= 1000),
                "{:?}",
                all.iter().map(Vec::len).collect::<Vec<_>>()
            );
            let mut joined = all.concat();
            joined.sort_unstable();
            assert!(joined.into_iter().eq(0..80_003));
        }
    }

    /// Two executions at the same time, and one that was given up before all of its tasks began.
    #[tokio::test]
    async fn executions_do_not_mix() {
        let input = table(&[vec![batch(0..10)], vec![batch(10..20)]]);
        let shared = SharedTable::default();
        let contexts = [0, 1].map(|_| Arc::new(TaskContext::default()));
        let [given_up, one, two] = [0, 1, 2].map(|_| Arc::new(TaskContext::default()));
        drop(shared.rows(1, &input, &given_up));
        let tasks = [(0, &one), (0, &two), (1, &one), (1, &two)];
        let tasks = tasks.map(|(partition, context)| (partition, shared.rows(partition, &input, context)));
        let mut counts = [0, 0];
        for (number, (partition, rows)) in tasks.iter().enumerate() {
            while let Some(batch) = rows.next(*partition).await.unwrap() {
                counts[number % 2] += batch.num_rows();
            }
        }
        assert_eq!(counts, [20, 20]);
        drop(tasks);
        // A task that begins when the others of its execution have ended.
        let late = shared.rows(0, &input, &contexts[0]);
        while late.next(0).await.unwrap().is_some() {}
        drop(late);
        assert!(
            shared
                .rows(1, &input, &contexts[0])
                .next(1)
                .await
                .unwrap()
                .is_none()
        );
    }

    #[tokio::test]
    async fn a_task_alone_reads_all_partitions() {
        let input = table(&[vec![batch(0..10)], vec![batch(10..2000), batch(2000..2001)]]);
        let context = Arc::new(TaskContext::default());
        let rows = SharedTable::default().rows(1, &input, &context);
        let mut count = 0;
        while let Some(batch) = rows.next(1).await.unwrap() {
            count += batch.num_rows();
        }
        assert_eq!(count, 2001);
    }
}
