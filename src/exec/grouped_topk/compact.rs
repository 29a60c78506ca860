//! Partitioned rows, cut to the best of each group: what a scan tries now and then, and before it writes rows to disk.
//!
//! So a scan holds about what its answer takes, where groups are much larger than the rows that are wanted of them.

use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;

use super::super::group_engine::{GroupedWork, PartitionedRows, Shared, Waiting, staged_bytes};
use super::execution::{GroupTopK, repeated};
use super::partition::PartitionReader;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, Staged, StagedColumn, StagedValues};

/// Hash partitions that tell whether it is worth it.
const TRIED: usize = 16;

/// Cuts the rows in memory to the best of each group; whether half of them or more were dropped. If not, all stay.
///
/// # Errors
/// Those of taking rows; `ResourcesExhausted` when the system gives no memory.
pub(super) fn compact<W: GroupKey>(
    work: &GroupTopK,
    rows: &mut PartitionedRows<W>,
    shared: &Shared<GroupTopK>,
) -> Result<bool> {
    if rows.resident().map(Run::rows).sum::<usize>() < RUN_ROWS {
        return Ok(false);
    }
    may_fail!("topk_compact");
    let mut compaction = Compaction::<W> {
        reader: PartitionReader::try_new(&work.plan)?,
        waiting: Waiting::new(),
        seen: 0,
        kept: 0,
    };
    let (extra, mut runs) = (rows.new_reservation(), Vec::new());
    for part in 0..HASH_PARTITIONS {
        compaction.add(work, part, rows.resident())?;
        if part == TRIED && 2 * compaction.kept > compaction.seen {
            return Ok(false);
        }
        // Old and new are there at the same time.
        let made = runs.iter().map(Run::bytes).sum();
        if made > extra.size() && extra.try_resize(made).is_err() {
            return Ok(false);
        }
        if compaction.waiting.is_full(GroupTopK::STAGED_BYTES) {
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

struct Compaction<W> {
    reader: PartitionReader<W>,
    waiting: Waiting<W>,
    seen: usize,
    kept: usize,
}

impl<W: GroupKey> Compaction<W> {
    /// Adds the best rows of a hash partition.
    fn add<'a>(&mut self, work: &GroupTopK, part: usize, runs: impl Iterator<Item = &'a Run>) -> Result<()> {
        self.reader.begin()?;
        for run in runs {
            self.seen += run.partition_range(part).len();
            self.reader.push(&work.plan, part, run, None)?;
        }
        if self.reader.groups.len() == 0 {
            return Ok(());
        }
        let best = self.reader.take(&work.plan)?;
        let words = self.reader.groups.keys();
        let ids = repeated(&best.lengths);
        self.kept += ids.len();
        let staged = Staged {
            words: ids.iter().map(|id| words[*id as usize]).collect(),
            parts: vec![part as u16; ids.len()],
            columns: vec![StagedColumn {
                rows: None,
                values: StagedValues::Keys(best.keys),
            }],
            others: best.rows.into_iter().map(ColumnarValue::Array).collect(),
        };
        let bytes = staged_bytes(&staged, work.specs());
        self.waiting.add(staged, bytes);
        Ok(())
    }
}
