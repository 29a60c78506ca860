//! Quantiles of groups, as a work of the engine for groups.

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
    BatchValues, QuantilesScan, QuantilesScanned, ScanGroups, append_few, column_values, reserve_few,
};
use super::select::GATHERED_ROWS;
use super::worker::PartitionWorker;
use super::{few, oversized_partition};
use crate::exec::expressions::values;
use crate::exec::group_engine::{
    AnsweredGroups, EvaluatedBatch, FEW_GROUPS, FewGroups, GroupColumns, GroupIds, GroupScan, GroupedWork,
    HashPartitions, Shared,
};
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::numbered::NumberedKeys;
use crate::kernel::cpu::groups::runs::{WaitingColumn, WaitingRows, WaitingValues};
use crate::key::with_key;
use crate::key::{KeySpec, Width};

/// Rows that are moved to hash partitions at a time.
const MOVED_ROWS: usize = 1 << 12;

impl GroupedWork for GroupQuantiles {
    const ROWS: &'static str = "grouped quantiles";
    const WAITING_BYTES: usize = 64 << 20;

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

    fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedBatch<BatchValues>> {
        let groups = self.plan.group.iter().map(|expr| values(expr, batch));
        let aggregates = &self.plan.aggregates;
        let columns = aggregates.columns.iter();
        let columns = columns.map(|column| column_values(column, batch));
        Ok(EvaluatedBatch {
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
        let plan = &self.plan;
        let mut few = Vec::new();
        if !self.starts_partitioned() {
            let columns = self.specs.iter();
            few.extend(columns.map(|_| NumberedKeys::new(memory.new_empty(), shared.free.clone())));
        }
        let plain = &plan.aggregates.plain;
        Ok(QuantilesScan {
            few,
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
        batch: EvaluatedBatch<BatchValues>,
    ) -> Result<Option<EvaluatedBatch<BatchValues>>> {
        let aggregates = &scan.shared.work.plan.aggregates;
        let (held, ids, wanted) = (&mut scan.held, &scan.numbers, &batch.values);
        if reserve_few(&mut held.few, &aggregates.columns, &wanted.columns, ids.len()).is_err() {
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
        let (group_keys, parts) = (scan.ids.keys(), scan.ids.group_partitions());
        if scan.ids.is_packed() {
            scan.held.end_numbers(&mut scan.ids)?;
        }
        let few = std::mem::take(&mut scan.held.few);
        if group_keys.is_empty() {
            return Ok(());
        }
        let empty = |spec: &KeySpec| WaitingColumn {
            rows: Some(Vec::new()),
            values: WaitingValues::Keys(with_key!(spec.width(), K => Vec::<K>::new().into())),
        };
        let waiting = |group_keys, parts| WaitingRows {
            group_keys,
            parts,
            columns: specs.iter().map(empty).collect(),
            others: Vec::new(),
        };
        let at_a_time = scan.rows.rows_at_a_time(&[], MOVED_ROWS, &shared);
        for (index, column) in few.into_iter().enumerate() {
            let (chunks, memory) = column.into_parts();
            for chunk in chunks {
                for from in (0..chunk.len()).step_by(at_a_time) {
                    let range = from..chunk.len().min(from + at_a_time);
                    let ids = || chunk.ids()[range.clone()].iter().map(|id| usize::from(*id));
                    let mut batch = waiting(
                        ids().map(|id| group_keys[id]).collect(),
                        ids().map(|id| parts[id]).collect(),
                    );
                    let keys = with_key!(
                        specs[index].width(),
                        K => chunk.keys::<K>()[range.clone()].to_vec().into()
                    );
                    batch.columns[index] = WaitingColumn {
                        rows: None,
                        values: WaitingValues::Keys(keys),
                    };
                    scan.rows.append(batch, &shared)?;
                }
                memory.shrink(chunk.held_bytes().min(memory.size()));
            }
        }
        // Groups without any value have an answer too.
        for (group_keys, parts) in group_keys.chunks(at_a_time).zip(parts.chunks(at_a_time)) {
            scan.rows
                .append(waiting(group_keys.to_vec(), parts.to_vec()), &shared)?;
        }
        Ok(())
    }

    fn push_many<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: EvaluatedBatch<BatchValues>,
    ) -> Result<()> {
        let (held, ids, numbers) = (&mut scan.held, &mut scan.ids, &scan.numbers);
        if held.numbers && ids.is_packed() && ids.len() > FEW_GROUPS {
            held.end_numbers(ids)?;
        }
        let (group_keys, parts) = ids.place(&batch.groups, held.numbers.then_some(numbers))?;
        let BatchValues { columns, mut inputs } = batch.values;
        if held.numbers {
            let plain = &scan.shared.work.plan.aggregates.plain;
            held.plain.update(plain, &inputs, numbers, ids.len())?;
            inputs.clear();
        }
        let waiting = WaitingRows {
            group_keys,
            parts,
            columns,
            others: inputs,
        };
        scan.rows.append(waiting, &scan.shared)
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
            let (states, group_keys) = scan.states.unzip();
            memory.try_resize(states.as_ref().map_or(0, PlainStates::bytes))?;
            return Ok(QuantilesScanned {
                states,
                group_keys: group_keys.unwrap_or_default(),
                groups: None,
            });
        }
        let order = PartitionOrder::new(&ids.group_partitions());
        let states = scan.plain.states(&ids.group_partitions())?;
        let groups = ScanGroups::new(ids.values()?, order);
        memory.try_resize(groups.bytes() + states.bytes())?;
        Ok(QuantilesScanned {
            states: Some(states),
            group_keys: Vec::new(),
            groups: Some(groups),
        })
    }

    /// Few groups are partitioned in two cases. First, if a column of distinct values has many rows: for few groups, one thread would
    /// have to bring its keys together. Second, if the pool has no room for counters and for the keys of wanted cells: hash partitions
    /// can go to disk.
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
            || columns.any(|(index, column)| column.distinct && rows(index) > GATHERED_ROWS)
    }

    async fn few<W: GroupKey>(
        shared: Arc<Shared<Self>>,
        few: FewGroups<Self, W>,
        memory: Arc<MemoryReservation>,
    ) -> Result<AnsweredGroups> {
        few::answer(few, &shared.work, &memory).await
    }

    fn partition_bytes<W: GroupKey>(&self, partitions: &HashPartitions<Self, W>) -> Vec<usize> {
        partition::worker_bytes(partitions)
    }

    /// Without byte strings, no hash partition is oversized if a call is over distinct values: counting does not help then. A hash
    /// partition of usual size is never oversized, however many threads there are.
    fn oversized_rows(&self, rows: usize, threads: usize) -> Option<usize> {
        let mut columns = self.plan.aggregates.columns.iter();
        let may_be = self.plan.has_byte_strings() || !columns.any(|column| column.distinct);
        may_be.then(|| oversized_rows(rows, threads))
    }

    /// With a memory limit, the memory for oversized hash partitions was only seen to be free, not reserved. Byte strings may take
    /// all memory.
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
    ) -> Result<Option<AnsweredGroups>> {
        worker.answer(partitions, part)
    }
}

/// Most rows of a hash partition that one of `threads` workers answers, of `rows` rows in all: several times as many as usual.
fn oversized_rows(rows: usize, threads: usize) -> usize {
    (rows / (4 * threads))
        .max(4 * rows / HASH_PARTITIONS)
        .max(GATHERED_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many threads there are, hash partitions of usual size are left to workers.
    #[test]
    fn partitions_of_usual_size_are_not_oversized() {
        for threads in [1, 2, 16, 256, 512, 4096] {
            for rows in [0, 1000, 150_000_000, 10_000_000_000] {
                assert!(
                    oversized_rows(rows, threads) >= 3 * rows / HASH_PARTITIONS,
                    "{threads} {rows}"
                );
            }
        }
        assert_eq!(oversized_rows(1 << 30, 2), 1 << 27);
    }
}
