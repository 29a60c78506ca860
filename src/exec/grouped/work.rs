//! Quantiles as the work of the engine for groups.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::Count;
use futures::stream::BoxStream;

use super::partition::{self, Partitions};
use super::plain::{PartitionOrder, PlainGroups, PlainStates};
use super::plan::GroupQuantiles;
use super::scan::{
    BatchValues, QuantilesScan, QuantilesScanned, ScanGroups, append_few, column_values, make_few_room,
};
use super::select::GATHERED;
use super::worker::PartitionWorker;
use super::{few, oversized_partition};
use crate::exec::expressions::values;
use crate::exec::group_engine::{
    Answered, Evaluated, FEW_GROUPS, FewGroups, GroupColumns, GroupIds, GroupScan, GroupedWork,
    HashPartitions, Shared,
};
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::cells::NumberedKeys;
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::runs::{Staged, StagedColumn, StagedValues};
use crate::key::with_key;
use crate::key::{KeySpec, Width};
use crate::memory::reserve;

/// Bytes that a scan keeps for going over to hash partitions, on disk if there is no memory.
const FLOOR: usize = 1 << 18;
/// Rows that go over at a time.
const MOVED_ROWS: usize = 1 << 12;

/// Fewest rows of a batch that are taken in at a time because their byte strings are long.
const LEAST_ROWS: usize = 64;

impl GroupedWork for GroupQuantiles {
    const ROWS: &'static str = "grouped quantiles";
    const STAGED_BYTES: usize = 64 << 20;

    type Values = BatchValues;
    type Scan<W: GroupKey> = QuantilesScan<W>;
    type Scanned<W: GroupKey> = QuantilesScanned<W>;
    type Worker<W: GroupKey> = PartitionWorker<W>;

    fn groups(&self) -> &GroupColumns {
        &self.plan.groups
    }

    fn specs(&self) -> &[KeySpec] {
        &self.specs
    }

    fn schema(&self) -> &SchemaRef {
        &self.plan.schema
    }

    fn starts_partitioned(&self) -> bool {
        self.plan.has_byte_strings()
    }

    /// As many as have byte strings that leave room for others.
    fn rows_at_a_time(&self, batch: &RecordBatch, share: usize) -> usize {
        let rows = batch.num_rows();
        if !self.plan.has_byte_strings() {
            return rows;
        }
        let bytes: usize = batch.columns().iter().map(row_bytes).sum();
        let share = Self::STAGED_BYTES.min(share / 8);
        let fair = (rows as f64 * share as f64 / bytes.max(1) as f64) as usize;
        fair.clamp(LEAST_ROWS, rows.max(LEAST_ROWS))
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<Evaluated<BatchValues>> {
        let groups = self.plan.group.iter().map(|expr| values(expr, batch));
        let aggregates = &self.plan.aggregates;
        let columns = aggregates.columns.iter();
        let columns = columns.map(|column| column_values(column, batch));
        Ok(Evaluated {
            groups: groups.collect::<Result<_>>()?,
            values: BatchValues {
                columns: columns.collect::<Result<_>>()?,
                inputs: PlainGroups::inputs(&aggregates.plain, batch)?,
            },
        })
    }

    fn scan<W: GroupKey>(
        &self,
        shared: &Shared<Self>,
        memory: &MemoryReservation,
    ) -> Result<QuantilesScan<W>> {
        let (plan, floor) = (&self.plan, memory.new_empty());
        let mut few = Vec::new();
        if !self.starts_partitioned() {
            reserve(&floor, FLOOR)?;
            let columns = self.specs.iter();
            few.extend(columns.map(|_| NumberedKeys::new(memory.new_empty(), shared.free.clone())));
        }
        let plain = &plan.aggregates.plain;
        Ok(QuantilesScan {
            few,
            floor,
            plain: PlainGroups::try_new(plain)?,
            numbers: !plan.groups.is_packed() || (self.starts_partitioned() && !plain.is_empty()),
            states: None,
        })
    }

    fn numbers_partitioned<W: GroupKey>(&self, scan: &QuantilesScan<W>) -> bool {
        scan.numbers
    }

    fn few_bytes<W: GroupKey>(&self, scan: &QuantilesScan<W>) -> usize {
        scan.few.iter().map(NumberedKeys::bytes).sum()
    }

    fn held_bytes<W: GroupKey>(&self, scan: &QuantilesScan<W>) -> usize {
        scan.plain.bytes() + scan.states.as_ref().map_or(0, |(states, _)| states.bytes())
    }

    fn push_few<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: Evaluated<BatchValues>,
    ) -> Result<Option<Evaluated<BatchValues>>> {
        let aggregates = &scan.shared.work.plan.aggregates;
        let (held, ids, wanted) = (&mut scan.held, &scan.numbers, &batch.values);
        if make_few_room(&mut held.few, &aggregates.columns, &wanted.columns, ids.len()).is_err() {
            return Ok(Some(batch));
        }
        append_few(&mut held.few, &aggregates.columns, ids, &wanted.columns)?;
        let groups = scan.ids.len();
        held.plain
            .update(&aggregates.plain, &wanted.inputs, ids, groups)?;
        Ok(None)
    }

    fn leave_few<W: GroupKey>(scan: &mut GroupScan<Self, W>) -> Result<()> {
        let shared = Arc::clone(&scan.shared);
        let specs = shared.work.specs();
        let (words, parts) = (scan.ids.keys(), scan.ids.group_partitions());
        if scan.ids.is_packed() {
            scan.held.end_numbers(&mut scan.ids)?;
        }
        scan.held.floor.free();
        let few = std::mem::take(&mut scan.held.few);
        if words.is_empty() {
            return Ok(());
        }
        let empty = |spec: &KeySpec| StagedColumn {
            rows: Some(Vec::new()),
            values: StagedValues::Keys(with_key!(spec.width(), K => Vec::<K>::new().into())),
        };
        let staged = |words, parts| Staged {
            words,
            parts,
            columns: specs.iter().map(empty).collect(),
            others: Vec::new(),
        };
        for (index, column) in few.into_iter().enumerate() {
            let (chunks, memory) = column.into_parts();
            for chunk in chunks {
                for from in (0..chunk.len()).step_by(MOVED_ROWS) {
                    let range = from..chunk.len().min(from + MOVED_ROWS);
                    let ids = || chunk.ids()[range.clone()].iter().map(|id| usize::from(*id));
                    let mut batch = staged(
                        ids().map(|id| words[id]).collect(),
                        ids().map(|id| parts[id]).collect(),
                    );
                    let keys = with_key!(
                        specs[index].width(),
                        K => chunk.keys::<K>()[range.clone()].to_vec().into()
                    );
                    batch.columns[index] = StagedColumn {
                        rows: None,
                        values: StagedValues::Keys(keys),
                    };
                    scan.rows.stage(batch, &shared)?;
                }
                memory.shrink(chunk.held_bytes().min(memory.size()));
            }
        }
        // Groups without any value are groups too.
        scan.rows.stage(staged(words, parts), &shared)
    }

    fn push_many<W: GroupKey>(scan: &mut GroupScan<Self, W>, batch: Evaluated<BatchValues>) -> Result<()> {
        let (held, ids, numbers) = (&mut scan.held, &mut scan.ids, &scan.numbers);
        if held.numbers && ids.is_packed() && ids.len() > FEW_GROUPS {
            held.end_numbers(ids)?;
        }
        let (words, parts) = ids.place(&batch.groups, held.numbers.then_some(numbers))?;
        let BatchValues { columns, mut inputs } = batch.values;
        if held.numbers {
            let plain = &scan.shared.work.plan.aggregates.plain;
            held.plain.update(plain, &inputs, numbers, ids.len())?;
            inputs.clear();
        }
        let staged = Staged {
            words,
            parts,
            columns,
            others: inputs,
        };
        scan.rows.stage(staged, &scan.shared)
    }

    fn scanned<W: GroupKey>(
        &self,
        mut scan: QuantilesScan<W>,
        mut ids: GroupIds<W>,
        memory: &MemoryReservation,
    ) -> Result<QuantilesScanned<W>> {
        if ids.is_packed() {
            if scan.numbers {
                scan.end_numbers(&mut ids)?;
            }
            let (states, words) = scan.states.unzip();
            reserve(memory, states.as_ref().map_or(0, PlainStates::bytes))?;
            return Ok(QuantilesScanned {
                states,
                words: words.unwrap_or_default(),
                numbered: None,
            });
        }
        let order = PartitionOrder::new(&ids.group_partitions());
        let states = scan.plain.states(&ids.group_partitions())?;
        let numbered = ScanGroups::new(ids.values()?, order);
        reserve(memory, numbered.bytes())?;
        reserve(memory, states.bytes())?;
        Ok(QuantilesScanned {
            states: Some(states),
            words: Vec::new(),
            numbered: Some(numbered),
        })
    }

    /// Whether bringing the keys of some column together in one thread would take long: over distinct values there is no other
    /// way for few groups. The same where the pool has no room for counters and for what they lead to: hash partitions can go
    /// to disk.
    fn partitions_few<W: GroupKey>(&self, scans: &[GroupScan<Self, W>], memory: &MemoryReservation) -> bool {
        let columns = &self.plan.aggregates.columns;
        let rows = |index: usize| {
            scans
                .iter()
                .map(|scan| scan.held.few[index].rows())
                .sum::<usize>()
        };
        let most = (0..columns.len()).map(rows).max().unwrap_or(0);
        let mut columns = columns.iter().enumerate();
        let probe = memory.new_empty();
        probe.try_grow(few::COUNTING_BYTES.min(40 * most) + most).is_err()
            || columns.any(|(index, column)| column.distinct && rows(index) > GATHERED)
    }

    async fn few<W: GroupKey>(
        shared: Arc<Shared<Self>>,
        few: FewGroups<Self, W>,
        memory: Arc<MemoryReservation>,
    ) -> Result<Answered> {
        few::answer(few, &shared.work, &memory).await
    }

    fn partition_bytes<W: GroupKey>(&self, partitions: &HashPartitions<Self, W>, part: usize) -> usize {
        partition::worker_bytes(partitions, part)
    }

    /// Distinct keys of few groups are brought together all the same.
    fn oversized_rows(&self, rows: usize, threads: usize) -> Option<usize> {
        let mut columns = self.plan.aggregates.columns.iter();
        let may_be = self.plan.has_byte_strings() || !columns.any(|column| column.distinct);
        // A hash partition of usual size is none, however many threads there are.
        may_be.then(|| {
            (rows / (4 * threads))
                .max(4 * rows / HASH_PARTITIONS)
                .max(GATHERED)
        })
    }

    /// What oversized ones work in was seen to be there, and byte strings may take all.
    fn oversized_alone(&self, shared: &Shared<Self>) -> bool {
        shared.is_bounded() || self.plan.has_byte_strings()
    }

    fn oversized<W: GroupKey>(
        partitions: &Arc<Partitions<W>>,
        groups: &Count,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        oversized_partition::batches(partitions, groups)
    }

    fn worker<W: GroupKey>(partitions: &Partitions<W>) -> Result<PartitionWorker<W>> {
        PartitionWorker::try_new(partitions)
    }

    fn partition<W: GroupKey>(
        worker: &mut PartitionWorker<W>,
        partitions: &Partitions<W>,
        part: usize,
    ) -> Result<Option<Answered>> {
        worker.part(partitions, part)
    }
}
