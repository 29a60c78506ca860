//! Best rows of groups, as a work of the engine for groups.
//!
//! While groups are few, a sieve holds their best rows. Rows of many groups go to hash partitions, with the columns of the answer. A group
//! may have an answer although none of its rows counts: then a row without a key says that the group exists.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::{filter, not, take};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;

use super::super::group_engine::{
    AnsweredGroups, EvaluatedBatch, FewGroups, GroupColumns, GroupIds, GroupScan, GroupedWork,
    HashPartitions, PartitionedRows, Shared,
};
use super::any_sieve::{AnySieve, keys};
use super::execution::{TopKExecution, repeated};
use super::partition::PartitionReader;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::{WaitingColumn, WaitingRows, WaitingValues};
use crate::key::KeySpec;
use crate::threads::blocking;

/// Rows that are moved to hash partitions at a time.
const MOVED_ROWS: usize = 1 << 12;

/// Rows of a hash partition for which a worker's memory is reserved in advance. For larger ones, it is reserved on the way.
const USUAL_ROWS: usize = 1 << 17;

/// Adds rows to hash partitions. Rows without keys only say that their groups exist.
fn append<W: GroupKey>(
    scan: &mut GroupScan<TopKExecution, W>,
    groups: &[ArrayRef],
    keys: Option<Buffer>,
    carried: Vec<ArrayRef>,
) -> Result<()> {
    if groups.first().is_none_or(|column| column.is_empty()) {
        return Ok(());
    }
    // Groups that are not packed are told apart by carried columns.
    let (group_keys, parts) = scan.ids.place(groups, None)?;
    let column = |keys| WaitingColumn {
        rows: None,
        values: WaitingValues::Keys(keys),
    };
    let waiting = WaitingRows {
        group_keys,
        parts,
        columns: keys.map(column).into_iter().collect(),
        others: carried.into_iter().map(ColumnarValue::Array).collect(),
    };
    scan.rows.append(waiting, &scan.shared)
}

/// A batch's rows that count, with their keys and carried columns.
pub(super) struct BatchRows {
    /// Which rows count; `None`: all.
    kept: Option<BooleanArray>,
    /// Group columns of the rows that count.
    counted: Vec<ArrayRef>,
    /// Keys of the rows that count.
    keys: Buffer,
    /// Carried columns of the rows that count.
    carried: Vec<ArrayRef>,
}

impl GroupedWork for TopKExecution {
    const ROWS: &'static str = "the best rows of groups";
    /// This is far below the 2 GiB that a column of strings can hold.
    const WAITING_BYTES: usize = 256 << 20;

    type Values = BatchRows;
    /// The best rows, while groups are few.
    type Scan<W: GroupKey> = Option<Box<AnySieve>>;
    type Scanned<W: GroupKey> = ();
    type Worker<W: GroupKey> = Worker<W>;

    fn groups(&self) -> &GroupColumns {
        &self.plan.groups
    }

    fn specs(&self) -> &[KeySpec] {
        &self.specs
    }

    fn schema(&self) -> &SchemaRef {
        &self.plan.schema
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedBatch<BatchRows>> {
        let prepared = self.plan.evaluate(batch)?;
        let counted: Vec<ArrayRef> = match &prepared.kept {
            None => prepared.groups.clone(),
            Some(kept) => filtered(&prepared.groups, kept)?,
        };
        let carried = counted[..self.plan.carried_groups()]
            .iter()
            .chain(&prepared.carried);
        let values = BatchRows {
            keys: keys(&self.plan, &prepared.order)?,
            carried: carried.cloned().collect(),
            kept: prepared.kept,
            counted,
        };
        Ok(EvaluatedBatch {
            groups: prepared.groups,
            values,
        })
    }

    fn scan<W: GroupKey>(&self, _: &Shared<Self>, _: &MemoryReservation) -> Result<Self::Scan<W>> {
        Ok(Some(Box::new(AnySieve::new(&self.plan)?)))
    }

    fn numbers_partitioned<W: GroupKey>(&self, _: &Self::Scan<W>) -> bool {
        false
    }

    fn few_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize {
        // The rows, and a copy of them while they are cut to the best.
        scan.as_ref().map_or(0, |sieve| sieve.working_bytes())
    }

    fn held_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize {
        self.few_bytes::<W>(scan)
    }

    fn push_few<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: EvaluatedBatch<BatchRows>,
    ) -> Result<Option<EvaluatedBatch<BatchRows>>> {
        let (ready, numbers) = (batch.values, &scan.numbers);
        let ids: Vec<u32> = match &ready.kept {
            None => numbers.iter().map(|id| *id as u32).collect(),
            Some(kept) => {
                let rows = kept.values().set_indices();
                rows.map(|row| numbers[row] as u32).collect()
            }
        };
        match &mut scan.held {
            Some(sieve) => sieve.push(scan.ids.len(), &ids, &ready.keys, &ready.carried)?,
            None => return internal_err!("rows are partitioned"),
        }
        Ok(None)
    }

    fn leave_few<W: GroupKey>(scan: &mut GroupScan<Self, W>) -> Result<()> {
        let Some(mut sieve) = scan.held.take() else {
            return Ok(());
        };
        let shared = Arc::clone(&scan.shared);
        let plan = &shared.work.plan;
        let best = sieve.take(scan.ids.len(), plan)?;
        shared.work.rejected.add(sieve.rejected() as usize);
        drop(sieve);
        let groups = scan.ids.values()?;
        let held: usize = groups.iter().chain(&best.rows).map(row_bytes).sum();
        let held = held + best.keys.len();
        scan.memory.shrink(scan.memory.size().saturating_sub(held));
        let of_rows = UInt32Array::from(repeated(&best.lengths));
        let key_bytes = plan.keys.width().bytes();
        let at_a_time = scan
            .rows
            .rows_at_a_time(&best.rows, of_rows.len(), &shared)
            .clamp(1, MOVED_ROWS);
        for from in (0..of_rows.len()).step_by(at_a_time) {
            let count = at_a_time.min(of_rows.len() - from);
            let own = of_rows.slice(from, count);
            let groups = groups.iter().map(|column| Ok(take(column.as_ref(), &own, None)?));
            let groups = groups.collect::<Result<Vec<_>>>()?;
            let keys = Buffer::from_slice_ref(&best.keys[from * key_bytes..(from + count) * key_bytes]);
            let carried = best.rows.iter().map(|column| column.slice(from, count)).collect();
            append(scan, &groups, Some(keys), carried)?;
        }
        if plan.answers_every_group() {
            append(scan, &groups, None, groups[..plan.carried_groups()].to_vec())?;
        }
        scan.ids.free()
    }

    fn push_many<W: GroupKey>(scan: &mut GroupScan<Self, W>, batch: EvaluatedBatch<BatchRows>) -> Result<()> {
        let EvaluatedBatch { groups, values } = batch;
        append(scan, &values.counted, Some(values.keys), values.carried)?;
        let plan = &scan.shared.work.plan;
        let (Some(kept), true) = (values.kept, plan.answers_every_group()) else {
            return Ok(());
        };
        let absent = filtered(&groups, &not(&kept)?)?;
        let carried = absent[..plan.carried_groups()].to_vec();
        append(scan, &absent, None, carried)
    }

    fn compact<W: GroupKey>(&self, rows: &mut PartitionedRows<W>, shared: &Shared<Self>) -> Result<bool> {
        super::compact::compact(self, rows, shared)
    }

    fn scanned<W: GroupKey>(
        &self,
        _: Self::Scan<W>,
        _: GroupIds<W>,
        memory: &MemoryReservation,
    ) -> Result<()> {
        memory.free();
        Ok(())
    }

    async fn few<W: GroupKey>(
        shared: Arc<Shared<Self>>,
        few: FewGroups<Self, W>,
        memory: Arc<MemoryReservation>,
    ) -> Result<AnsweredGroups> {
        blocking(move || best_of_few(&shared, few, &memory)).await
    }

    fn partition_bytes<W: GroupKey>(&self, partitions: &HashPartitions<Self, W>) -> Vec<usize> {
        let all: usize = partitions.sizes.iter().sum();
        let carried: usize = partitions.runs().map(|run| run.bytes()).sum();
        // The bytes of a row three times: as it was read, in the sieve, and in order; and the offsets of groups.
        let row = carried / all.max(1) + size_of::<W>() + 16;
        let sizes = partitions.sizes.iter();
        sizes
            .map(|rows| (*rows).min(USUAL_ROWS) * (3 * row + 24))
            .collect()
    }

    fn worker<W: GroupKey>(partitions: &HashPartitions<Self, W>) -> Result<Worker<W>> {
        Ok(Worker {
            reader: PartitionReader::try_new(&partitions.shared.work.plan)?,
            memory: partitions.memory.new_empty(),
            rejected: 0,
        })
    }

    fn partition<W: GroupKey>(
        worker: &mut Worker<W>,
        partitions: &HashPartitions<Self, W>,
        part: usize,
    ) -> Result<Option<AnsweredGroups>> {
        worker.answer(partitions, part)
    }
}

/// A worker: answers hash partitions, one after the other, and uses its memory again for the next one.
pub(super) struct Worker<W> {
    reader: PartitionReader<W>,
    memory: MemoryReservation,
    /// Number of rows that its sieve has rejected, as far as they are in the metric.
    rejected: u64,
}

impl<W: GroupKey> Worker<W> {
    /// The answer of a hash partition; `None` if it has no groups.
    fn answer(
        &mut self,
        partitions: &HashPartitions<TopKExecution, W>,
        part: usize,
    ) -> Result<Option<AnsweredGroups>> {
        let (work, reader) = (&partitions.shared.work, &mut self.reader);
        reader.begin()?;
        for rows in partitions.scans.iter().map(|scan| &scan.rows) {
            for run in rows.runs.iter().filter(|run| !run.columns.is_empty()) {
                reader.push(&work.plan, part, run, rows.file.as_ref())?;
                // The memory that a worker usually needs is reserved already.
                let held = reader.sieve.working_bytes();
                let more = held.saturating_sub(self.memory.size() + partitions.bytes_per_worker);
                partitions.shared.reserve(&self.memory, more)?;
            }
        }
        for rows in partitions.scans.iter().map(|scan| &scan.rows) {
            for run in rows.runs.iter().filter(|run| run.columns.is_empty()) {
                reader.number(&work.plan, part, run, rows.file.as_ref())?;
            }
        }
        let groups = reader.groups.len();
        if groups == 0 {
            return Ok(None);
        }
        let best = reader.take(&work.plan)?;
        let rejected = reader.sieve.rejected();
        let before = std::mem::replace(&mut self.rejected, rejected);
        work.rejected.add((rejected - before) as usize);
        let batch = work.answer(reader.groups.values()?, best)?;
        Ok(Some(AnsweredGroups { groups, batch }))
    }
}

/// The best rows of all scans, which one more sieve merges.
fn best_of_few<W: GroupKey>(
    shared: &Shared<TopKExecution>,
    mut few: FewGroups<TopKExecution, W>,
    memory: &MemoryReservation,
) -> Result<AnsweredGroups> {
    let (work, groups) = (&shared.work, few.ids.len());
    let plan = &work.plan;
    let mut all = AnySieve::new(plan)?;
    for (scan, map) in few.scans {
        let Some(mut sieve) = scan.held else {
            return internal_err!("rows are partitioned");
        };
        let best = sieve.take(map.len(), plan)?;
        let ids = repeated(&best.lengths).into_iter();
        let ids: Vec<u32> = ids.map(|id| map[id as usize] as u32).collect();
        all.push(groups, &ids, &best.keys, &best.rows)?;
        work.rejected.add(sieve.rejected() as usize);
        let held = all.working_bytes();
        shared.reserve(memory, held.saturating_sub(memory.size()))?;
    }
    let batch = match groups {
        0 => RecordBatch::new_empty(Arc::clone(&plan.schema)),
        _ => work.answer(few.ids.values()?, all.take(groups, plan)?)?,
    };
    Ok(AnsweredGroups { groups, batch })
}

fn filtered(columns: &[ArrayRef], kept: &BooleanArray) -> Result<Vec<ArrayRef>> {
    columns.iter().map(|column| Ok(filter(column, kept)?)).collect()
}
