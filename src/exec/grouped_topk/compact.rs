//! Compaction of partitioned rows: drops all but the best rows of each group. A scan tries it each time that its rows have doubled in bytes, and
//! before it writes rows to disk.
//!
//! So a scan holds little more than its answer if groups are much larger than k.

use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;

use super::super::group_engine::{GroupedWork, PartitionedRows, Shared, WaitingBatches, waiting_bytes};
use super::execution::{TopKExecution, repeated};
use super::partition::PartitionReader;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, WaitingColumn, WaitingRows, WaitingValues};

/// Number of hash partitions that are compacted to see whether it is worth it.
const PROBED_PARTITIONS: usize = 16;

/// Drops all rows in memory but the best of each group, and returns whether at least half of them were dropped. If fewer would be, all
/// stay.
///
/// # Errors
/// Errors of taking rows; `ResourcesExhausted` if the system gives no memory.
pub(super) fn compact<W: GroupKey>(
    work: &TopKExecution,
    rows: &mut PartitionedRows<W>,
    shared: &Shared<TopKExecution>,
) -> Result<bool> {
    if rows.resident().map(Run::rows).sum::<usize>() < RUN_ROWS {
        return Ok(false);
    }
    may_fail!("topk_compact");
    let mut compaction = Compaction::<W> {
        reader: PartitionReader::try_new(&work.plan)?,
        waiting: WaitingBatches::new(),
        seen: 0,
        kept: 0,
    };
    let (extra, mut runs) = (rows.new_reservation(), Vec::new());
    for part in 0..HASH_PARTITIONS {
        compaction.add(work, part, rows.resident())?;
        if part == PROBED_PARTITIONS && 2 * compaction.kept > compaction.seen {
            return Ok(false);
        }
        // The old runs and the new ones are in memory at the same time.
        let new_bytes: usize = runs.iter().map(Run::bytes).sum();
        let more = new_bytes.saturating_sub(extra.size());
        if shared.reserve(&extra, more).is_err() {
            return Ok(false);
        }
        if compaction.waiting.is_full(TopKExecution::WAITING_BYTES) {
            runs.extend(compaction.waiting.run(work.specs(), shared.free.as_ref())?);
        }
    }
    if 2 * compaction.kept > compaction.seen {
        return Ok(false);
    }
    runs.extend(compaction.waiting.run(work.specs(), shared.free.as_ref())?);
    work.dropped.add(compaction.seen - compaction.kept);
    rows.replace_resident(runs)?;
    Ok(true)
}

/// A compaction under way.
struct Compaction<W> {
    reader: PartitionReader<W>,
    /// Best rows that wait to become a run.
    waiting: WaitingBatches<W>,
    /// Number of rows read.
    seen: usize,
    /// Number of rows kept.
    kept: usize,
}

impl<W: GroupKey> Compaction<W> {
    /// Adds the best rows of a hash partition.
    fn add<'a>(
        &mut self,
        work: &TopKExecution,
        part: usize,
        runs: impl Iterator<Item = &'a Run>,
    ) -> Result<()> {
        self.reader.begin()?;
        for run in runs {
            self.seen += run.partition_range(part).len();
            self.reader.push(&work.plan, part, run, None)?;
        }
        if self.reader.groups.len() == 0 {
            return Ok(());
        }
        let best = self.reader.take(&work.plan)?;
        let group_keys = self.reader.groups.keys();
        let ids = repeated(&best.lengths);
        self.kept += ids.len();
        let waiting = WaitingRows {
            group_keys: ids.iter().map(|id| group_keys[*id as usize]).collect(),
            parts: vec![part as u16; ids.len()],
            columns: vec![WaitingColumn {
                rows: None,
                values: WaitingValues::Keys(best.keys),
            }],
            others: best.rows.into_iter().map(ColumnarValue::Array).collect(),
        };
        let bytes = waiting_bytes(&waiting, work.specs());
        self.waiting.add(waiting, bytes);
        Ok(())
    }
}
