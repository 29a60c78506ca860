//! The end of a scan with many groups: rows lie in parts, and each part has groups of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::take;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::{ColumnarValue, EmitTo};
use datafusion::physical_plan::aggregates::group_values::GroupValues;
use datafusion::physical_plan::metrics::{Count, Time};

use super::super::grouped::group_values;
use super::plan::TopKPlan;
use super::scan::{Many, Phase, Shared, TopKScan, repeated, reserve};
use super::select::{AnySieve, BestRows, part_keys};
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::runs::Run;
use crate::kernel::cpu::groups::words::{GroupTable, NULL_PART, PARTS, Word};
use crate::memory::SpillFile;

/// Rows of a part that a worker sets memory aside for; what larger ones need is asked for on the way.
const USUAL_ROWS: usize = 1 << 17;

/// All rows, in parts.
pub(super) struct Parts<W> {
    shared: Arc<Shared>,
    scans: Vec<Many<W>>,
    next: AtomicUsize,
    memory: MemoryReservation,
    /// Of `memory`, what each worker may use.
    each: usize,
}

impl<W: Word> Parts<W> {
    /// Of scans that have partitioned their rows. Reserves what workers usually need; how many they may be.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is not enough for one worker.
    pub(super) fn try_new(
        shared: Arc<Shared>,
        scans: Vec<TopKScan<W>>,
        memory: MemoryReservation,
        threads: usize,
    ) -> Result<(Self, usize)> {
        let scans = scans.into_iter().map(|scan| match scan.phase {
            Phase::Many(many) => Ok(*many),
            Phase::Few(_) => internal_err!("rows are not partitioned"),
        });
        let mut parts = Self {
            scans: scans.collect::<Result<_>>()?,
            shared,
            next: AtomicUsize::new(0),
            memory,
            each: 0,
        };
        parts.each = parts.worker_bytes();
        let workers = parts.reserve_workers(threads.max(1))?;
        Ok((parts, workers))
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.scans
            .iter()
            .flat_map(|many| many.rows.runs.iter().chain(&many.absent.runs))
    }

    /// Bytes for the largest part, as far as it is usual.
    fn worker_bytes(&self) -> usize {
        let rows = |part| self.runs().map(|run| run.part_range(part).len()).sum::<usize>();
        let most = (0..PARTS).map(rows).max().unwrap_or(0);
        let all: usize = self.runs().map(Run::rows).sum();
        let carried: usize = self.runs().map(Run::bytes).sum();
        // What a row takes, three times: as it was, in the sieve, and in order; and the places of groups.
        let row = carried / all.max(1) + size_of::<W>() + 16;
        most.min(USUAL_ROWS) * (3 * row + 24)
    }

    /// For as many workers as there is memory for, if need be on disk's account.
    fn reserve_workers(&mut self, threads: usize) -> Result<usize> {
        let each = self.each;
        if self.memory.try_grow(threads * each).is_ok() {
            return Ok(threads);
        }
        for many in &mut self.scans {
            many.make_room(&self.shared)?;
        }
        for workers in (1..=threads).rev() {
            if self.memory.try_grow(workers * each).is_ok() {
                return Ok(workers);
            }
        }
        for many in &mut self.scans {
            many.spill(&self.shared)?;
        }
        reserve(&self.memory, each)?;
        Ok(1)
    }
}

/// What tells the groups of a part apart.
pub(super) enum Numbers<'a, W> {
    Words(&'a mut GroupTable<W>),
    /// One group, that has no word, or none.
    Null {
        any: bool,
    },
    Interned(Box<dyn GroupValues>),
}

impl<'a, W: Word> Numbers<'a, W> {
    /// Of a part without any group yet; `table` is memory to use.
    pub(super) fn new(plan: &TopKPlan, part: usize, table: &'a mut GroupTable<W>) -> Result<Self> {
        Ok(match &plan.packing {
            None => Numbers::Interned(group_values(plan.group_schema())?),
            Some(_) if part == usize::from(NULL_PART) => Numbers::Null { any: false },
            Some(_) => {
                table.clear();
                Numbers::Words(table)
            }
        })
    }

    /// The word of each group; of groups that have none, what rows have in its place.
    pub(super) fn words(&self) -> Vec<W> {
        match self {
            Numbers::Words(table) => table.words().to_vec(),
            _ => vec![W::default(); self.len()],
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Numbers::Words(table) => table.len(),
            Numbers::Null { any } => usize::from(*any),
            Numbers::Interned(values) => values.len(),
        }
    }

    /// Appends the number of each row's group.
    fn number(&mut self, words: &[W], groups: &[ArrayRef], ids: &mut Vec<u32>) -> Result<()> {
        match self {
            Numbers::Words(table) => ids.extend(words.iter().map(|word| table.id(*word))),
            Numbers::Null { any } => {
                *any |= !words.is_empty();
                ids.resize(ids.len() + words.len(), 0);
            }
            Numbers::Interned(values) => {
                let mut own = Vec::with_capacity(words.len());
                values.intern(groups, &mut own)?;
                ids.extend(own.into_iter().map(|id| id as u32));
            }
        }
        Ok(())
    }

    fn into_columns(self, plan: &TopKPlan) -> Result<Vec<ArrayRef>> {
        match (self, &plan.packing) {
            (Numbers::Words(table), Some(packing)) => packing.columns(table.words(), None),
            (Numbers::Null { .. }, Some(packing)) => packing.columns(&[W::default()], Some(0)),
            (Numbers::Interned(mut values), _) => values.emit(EmitTo::All),
            _ => internal_err!("groups without words"),
        }
    }
}

/// The batches of groups and their best rows, at most `most` rows each.
pub(super) fn batches(
    plan: &TopKPlan,
    groups: Vec<ArrayRef>,
    best: BestRows,
    most: usize,
) -> Result<Vec<RecordBatch>> {
    may_fail!("topk_answer");
    let batch = match plan.rows() {
        None => plan.lists(groups, &best.rows, &best.lengths)?,
        Some(_) => {
            let ids = UInt32Array::from(repeated(&best.lengths));
            let groups = groups.iter().map(|column| Ok(take(column.as_ref(), &ids, None)?));
            plan.row_batch(&groups.collect::<Result<Vec<_>>>()?, &best.rows, best.numbers)?
        }
    };
    let most = most.max(1);
    let slices = (0..batch.num_rows()).step_by(most);
    Ok(slices
        .map(|from| batch.slice(from, most.min(batch.num_rows() - from)))
        .collect())
}

/// Works parts off, until none is left. Its memory is used again from part to part.
pub(super) struct PartWorker<W> {
    parts: Arc<Parts<W>>,
    table: GroupTable<W>,
    reader: PartReader<W>,
    memory: MemoryReservation,
    batch_rows: usize,
    groups_out: Count,
    time: Time,
}

impl<W: Word> PartWorker<W> {
    pub(super) fn try_new(
        parts: Arc<Parts<W>>,
        batch_rows: usize,
        groups_out: Count,
        time: Time,
    ) -> Result<Self> {
        Ok(Self {
            table: GroupTable::new(),
            reader: PartReader::try_new(&parts.shared.plan)?,
            memory: parts.memory.new_empty(),
            parts,
            batch_rows,
            groups_out,
            time,
        })
    }

    /// The answers of the next part that has groups; `None` when no part is left.
    ///
    /// # Errors
    /// Those of reading rows back; `ResourcesExhausted`.
    pub(super) fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let time = self.time.clone();
        let _timer = time.timer();
        loop {
            let part = self.parts.next.fetch_add(1, Ordering::Relaxed);
            if part >= PARTS {
                self.parts
                    .shared
                    .rejected
                    .add(self.reader.sieve.rejected() as usize);
                return Ok(None);
            }
            let batches = self.part(part)?;
            if !batches.is_empty() {
                return Ok(Some(batches));
            }
        }
    }

    fn part(&mut self, part: usize) -> Result<Vec<RecordBatch>> {
        may_fail!("topk_part");
        let (parts, mut table) = (
            Arc::clone(&self.parts),
            std::mem::replace(&mut self.table, GroupTable::new()),
        );
        let plan = &parts.shared.plan;
        let mut numbers = Numbers::new(plan, part, &mut table)?;
        for many in &parts.scans {
            for run in &many.rows.runs {
                self.reader
                    .push(plan, part, run, many.file.as_ref(), &mut numbers)?;
                // What workers usually need is set aside.
                let held = 2 * self.reader.sieve.held_bytes();
                reserve(&self.memory, held.saturating_sub(self.memory.size() + parts.each))?;
            }
        }
        for many in &parts.scans {
            for run in &many.absent.runs {
                self.reader
                    .number(plan, part, run, many.file.as_ref(), &mut numbers)?;
            }
        }
        let count = numbers.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let best = self.reader.take(plan, count)?;
        let groups = numbers.into_columns(plan)?;
        self.table = table;
        self.groups_out.add(count);
        batches(plan, groups, best, self.batch_rows)
    }
}

/// Brings the rows of one part together. Its memory is used again from part to part.
pub(super) struct PartReader<W> {
    sieve: AnySieve,
    words: Vec<W>,
    ids: Vec<u32>,
}

impl<W: Word> PartReader<W> {
    pub(super) fn try_new(plan: &TopKPlan) -> Result<Self> {
        Ok(Self {
            sieve: AnySieve::new(plan)?,
            words: Vec::new(),
            ids: Vec::new(),
        })
    }

    /// The best rows of a part's groups.
    pub(super) fn take(&mut self, plan: &TopKPlan, groups: usize) -> Result<BestRows> {
        // Groups without rows are there too.
        self.sieve
            .push(groups, &[], &Buffer::from(&[0_u8; 0]), &plan.no_rows())?;
        self.sieve.take(groups, plan)
    }

    /// Numbers the groups of a run's share of a part; what its rows carry.
    fn number(
        &mut self,
        plan: &TopKPlan,
        part: usize,
        run: &Run,
        file: Option<&SpillFile>,
        numbers: &mut Numbers<'_, W>,
    ) -> Result<Vec<ArrayRef>> {
        self.words.clear();
        self.ids.clear();
        if run.part_range(part).is_empty() {
            return Ok(Vec::new());
        }
        run.words.append_part(part, file, &mut self.words)?;
        let carried = run.part_carried(part, file)?;
        let column = |value| match value {
            ColumnarValue::Array(column) => Ok(column),
            ColumnarValue::Scalar(value) => internal_err!("rows carry the one value {value}"),
        };
        let carried: Vec<ArrayRef> = carried.into_iter().map(column).collect::<Result<_>>()?;
        numbers.number(&self.words, &carried[..plan.carried_groups()], &mut self.ids)?;
        Ok(carried)
    }

    /// Adds a run's share of a part.
    pub(super) fn push(
        &mut self,
        plan: &TopKPlan,
        part: usize,
        run: &Run,
        file: Option<&SpillFile>,
        numbers: &mut Numbers<'_, W>,
    ) -> Result<()> {
        let carried = self.number(plan, part, run, file, numbers)?;
        if self.ids.is_empty() {
            return Ok(());
        }
        let keys = part_keys(plan.keys.width(), run.columns[0].keys()?, part, file)?;
        self.sieve.push(numbers.len(), &self.ids, &keys, &carried)
    }
}
