//! Rows in parts, cut to the best of each group: what a scan tries now and then, and before it writes rows to disk.
//!
//! So a scan holds about what its answer takes, where groups are much larger than the rows that are wanted of them.

use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;

use super::many::{Numbers, PartReader};
use super::plan::TopKPlan;
use super::scan::{Many, Shared, Stage, repeated, spec_of};
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, Staged, StagedColumn, StagedValues};
use crate::kernel::cpu::groups::words::{GroupTable, PARTS, Word};

/// Parts that tell whether it is worth it.
const TRIED: usize = 16;

impl<W: Word> Many<W> {
    /// Cuts the rows in memory to the best of each group; whether half of them or more were dropped. If not, all stay.
    ///
    /// # Errors
    /// Those of taking rows; `ResourcesExhausted` when the system gives no memory.
    pub(super) fn compact(&mut self, shared: &Shared) -> Result<bool> {
        let in_memory: Vec<bool> = self.rows.runs.iter().map(Run::is_in_memory).collect();
        let rows: usize = self.resident().map(Run::rows).sum();
        if rows < RUN_ROWS {
            return Ok(false);
        }
        may_fail!("topk_compact");
        let mut compaction = Compaction::<W>::try_new(&shared.plan)?;
        let extra = self.held.new_empty();
        for part in 0..PARTS {
            compaction.add(&shared.plan, part, self.resident())?;
            if part == TRIED && 2 * compaction.kept > compaction.seen {
                return Ok(false);
            }
            // Old and new are there at the same time.
            let made = compaction.stage.runs.iter().map(Run::bytes).sum();
            if made > extra.size() && extra.try_resize(made).is_err() {
                return Ok(false);
            }
            if compaction.stage.is_full() {
                compaction.stage.flush(shared.free.as_ref())?;
            }
        }
        if 2 * compaction.kept > compaction.seen {
            return Ok(false);
        }
        compaction.stage.flush(shared.free.as_ref())?;
        let mut keep = in_memory.iter().map(|in_memory| !in_memory);
        self.rows.runs.retain(|_| keep.next().unwrap_or(true));
        self.rows.runs.append(&mut compaction.stage.runs);
        shared.dropped.add(compaction.seen - compaction.kept);
        let runs = self.rows.runs.iter().chain(&self.absent.runs);
        self.held.try_resize(runs.map(Run::bytes).sum())?;
        Ok(true)
    }

    fn resident(&self) -> impl Iterator<Item = &Run> {
        self.rows.runs.iter().filter(|run| run.is_in_memory())
    }
}

struct Compaction<W> {
    reader: PartReader<W>,
    table: GroupTable<W>,
    stage: Stage<W>,
    seen: usize,
    kept: usize,
}

impl<W: Word> Compaction<W> {
    fn try_new(plan: &TopKPlan) -> Result<Self> {
        Ok(Self {
            reader: PartReader::try_new(plan)?,
            table: GroupTable::new(),
            stage: Stage::new(vec![spec_of(plan.keys.width())?]),
            seen: 0,
            kept: 0,
        })
    }

    /// Adds the best rows of a part.
    fn add<'a>(&mut self, plan: &TopKPlan, part: usize, runs: impl Iterator<Item = &'a Run>) -> Result<()> {
        let mut numbers = Numbers::new(plan, part, &mut self.table)?;
        for run in runs {
            self.seen += run.part_range(part).len();
            self.reader.push(plan, part, run, None, &mut numbers)?;
        }
        if numbers.len() == 0 {
            return Ok(());
        }
        let best = self.reader.take(plan, numbers.len())?;
        let words = numbers.words();
        let ids = repeated(&best.lengths);
        self.kept += ids.len();
        self.stage.add(Staged {
            words: ids.iter().map(|id| words[*id as usize]).collect(),
            parts: vec![part as u16; ids.len()],
            columns: vec![StagedColumn {
                rows: None,
                values: StagedValues::Keys(best.keys),
            }],
            others: best.rows.into_iter().map(ColumnarValue::Array).collect(),
        });
        Ok(())
    }
}
