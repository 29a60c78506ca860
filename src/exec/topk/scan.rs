//! One input partition, read once.
//!
//! While groups are few, a sieve holds their best rows ([`Phase::Few`]). Once any partition has met too many groups, rows
//! wait in order of their group's part ([`Phase::Many`]); past the pool's limit they go to disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::{filter, not, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, Time,
};
use futures::StreamExt;

use super::super::grouped::{FEW_GROUPS, Grouping, SEED, share};
use super::plan::TopKPlan;
use super::select::{AnySieve, keys};
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::runs::{
    RUN_ROWS, Run, Staged, StagedColumn, StagedValues, run_bytes, scatter,
};
use crate::kernel::cpu::groups::words::{Word, part_of};
use crate::key::{KeySpec, Width};
use crate::memory::FreePages;
use crate::memory::{SpillFile, Spiller};

/// A scan gives way to others, and to being cancelled, after so much work.
const YIELD: Duration = Duration::from_millis(10);
/// Bytes of rows from which on a scan tries to drop some that are not wanted.
const COMPACT_BYTES: usize = 64 << 20;
/// Rows that go over to partitions at a time.
const MOVED_ROWS: usize = 1 << 12;

/// What the scans of one execution share.
pub(super) struct Shared {
    pub(super) plan: Arc<TopKPlan>,
    /// Whether any scan has met too many groups.
    pub(super) many: AtomicBool,
    pub(super) free: Option<Arc<FreePages>>,
    pub(super) spiller: Spiller,
    /// Bytes that the rows of one scan may hold, so that it leaves the others theirs.
    pub(super) share: usize,
    pub(super) rows: Count,
    /// Rows below the floor of their group.
    pub(super) rejected: Count,
    /// Rows that were held, and were not among the best.
    pub(super) dropped: Count,
    pub(super) times: [Time; 2],
}

impl Shared {
    /// For as many scans of one output partition.
    pub(super) fn new(
        plan: Arc<TopKPlan>,
        scans: usize,
        (metrics, partition): (&ExecutionPlanMetricsSet, usize),
        baseline: &BaselineMetrics,
        context: &TaskContext,
    ) -> Self {
        let builder = || MetricBuilder::new(metrics);
        let pool = context.memory_pool().as_ref();
        Self {
            plan,
            many: AtomicBool::new(false),
            free: FreePages::of(pool),
            spiller: Spiller::new(&context.runtime_env()),
            share: share(pool, scans),
            rows: builder().counter("input_rows", partition),
            rejected: builder().counter("rejected_rows", partition),
            dropped: builder().counter("dropped_rows", partition),
            times: [
                builder().subset_time("scan_time", partition),
                baseline.elapsed_compute().clone(),
            ],
        }
    }
}

/// Reserves `bytes`.
///
/// # Errors
/// `ResourcesExhausted` that says what they were for.
pub(super) fn reserve(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "the best rows of groups: {bytes} more bytes wanted, {} bytes held",
            reservation.size()
        ))
    })
}

/// The spec that says no more than a width: keys are made already.
pub(super) fn spec_of(width: Width) -> Result<KeySpec> {
    KeySpec::try_new(&match width {
        Width::W32 => DataType::UInt32,
        Width::W64 => DataType::UInt64,
        Width::W128 => DataType::Decimal128(38, 0),
    })
}

/// Most bytes that the rows of a run carry before it is made: far below the 2 GiB that a column of strings can hold.
const RUN_BYTES: usize = 256 << 20;

/// Bytes of what rows carry beside group and key.
fn carried_bytes<W>(batch: &Staged<W>) -> usize {
    let carried = batch.others.iter().map(|column| match column {
        ColumnarValue::Array(column) => row_bytes(column),
        ColumnarValue::Scalar(_) => 0,
    });
    carried.sum()
}

/// Rows with keys, or rows that only tell that their group is there.
pub(super) struct Stage<W> {
    specs: Vec<KeySpec>,
    staged: Vec<Staged<W>>,
    staged_rows: usize,
    /// Bytes of what the staged rows carry.
    carried_bytes: usize,
    pub(super) runs: Vec<Run>,
}

impl<W: Word> Stage<W> {
    pub(super) fn new(specs: Vec<KeySpec>) -> Self {
        Self {
            specs,
            staged: Vec::new(),
            staged_rows: 0,
            carried_bytes: 0,
            runs: Vec::new(),
        }
    }

    /// Adds rows to those that wait.
    pub(super) fn add(&mut self, batch: Staged<W>) {
        self.staged_rows += batch.words.len();
        self.carried_bytes += carried_bytes(&batch);
        self.staged.push(batch);
    }

    /// Whether the rows that wait make a run, by their number or by the bytes that they carry.
    pub(super) fn is_full(&self) -> bool {
        self.staged_rows >= RUN_ROWS || self.carried_bytes >= RUN_BYTES
    }

    /// Makes a run of what is staged; its bytes.
    pub(super) fn flush(&mut self, free: Option<&Arc<FreePages>>) -> Result<usize> {
        if self.staged_rows == 0 {
            return Ok(0);
        }
        may_fail!("topk_scatter");
        let specs: Vec<&KeySpec> = self.specs.iter().collect();
        let run = scatter(&self.staged, &specs, free)?;
        self.staged.clear();
        (self.staged_rows, self.carried_bytes) = (0, 0);
        let bytes = run.bytes();
        self.runs.push(run);
        Ok(bytes)
    }

    fn spill(&mut self, file: &mut SpillFile) -> Result<()> {
        let specs: Vec<&KeySpec> = self.specs.iter().collect();
        self.runs
            .iter_mut()
            .try_for_each(|run| run.spill::<W>(&specs, file).map(|_| ()))
    }
}

/// Rows in order of part.
pub(super) struct Many<W> {
    pub(super) rows: Stage<W>,
    /// Rows that do not count, of groups that are wanted all the same.
    pub(super) absent: Stage<W>,
    pub(super) file: Option<SpillFile>,
    /// For what is staged, and as much again for the run that it becomes.
    staging: MemoryReservation,
    /// For runs in memory.
    pub(super) held: MemoryReservation,
    /// Once runs hold so many bytes, they are cut to the best of each group, if that drops most.
    compact_at: usize,
}

impl<W: Word> Many<W> {
    fn try_new(plan: &TopKPlan, memory: &MemoryReservation) -> Result<Self> {
        Ok(Self {
            rows: Stage::new(vec![spec_of(plan.keys.width())?]),
            absent: Stage::new(Vec::new()),
            file: None,
            staging: memory.new_empty(),
            held: memory.new_empty(),
            compact_at: COMPACT_BYTES,
        })
    }

    fn stage(&mut self, batch: Staged<W>, shared: &Shared) -> Result<()> {
        let is_absent = batch.columns.is_empty();
        let stage = if is_absent { &self.absent } else { &self.rows };
        let specs: Vec<&KeySpec> = stage.specs.iter().collect();
        let rows = batch.words.len();
        let wanted = 2 * (run_bytes(&batch, &specs) + 2 * rows + carried_bytes(&batch));
        if self.held.size() + self.staging.size() + wanted > shared.share {
            self.make_room(shared)?;
        }
        if self.staging.try_grow(wanted).is_err() {
            self.flush(shared)?;
            if self.staging.try_grow(wanted).is_err() {
                self.make_room(shared)?;
                if self.staging.try_grow(wanted).is_err() {
                    self.spill(shared)?;
                    reserve(&self.staging, wanted)?;
                }
            }
        }
        let stage = if is_absent {
            &mut self.absent
        } else {
            &mut self.rows
        };
        stage.add(batch);
        if stage.is_full() {
            self.flush(shared)?;
            self.compact_at_times(shared)?;
        }
        Ok(())
    }

    /// Makes runs of what is staged.
    fn flush(&mut self, shared: &Shared) -> Result<()> {
        let free = shared.free.as_ref();
        let bytes = self.rows.flush(free)? + self.absent.flush(free)?;
        // The runs' share of the reservation goes with them: nobody else may take it in between.
        self.held.grow(bytes);
        self.staging.free();
        Ok(())
    }

    /// Drops rows that are not among the best of their group, whenever twice as many are held as after the last time: so
    /// what is held grows with the groups, not with the input.
    fn compact_at_times(&mut self, shared: &Shared) -> Result<()> {
        if self.held.size() >= self.compact_at {
            self.compact(shared)?;
            self.compact_at = COMPACT_BYTES.max(2 * self.held.size());
        }
        Ok(())
    }

    /// Drops rows that are not among the best of their group, or if that would not drop most, moves all to disk, if there is
    /// one.
    pub(super) fn make_room(&mut self, shared: &Shared) -> Result<()> {
        self.flush(shared)?;
        match self.compact(shared)? {
            true => Ok(()),
            false => self.spill(shared),
        }
    }

    /// Moves all to disk, if there is one.
    pub(super) fn spill(&mut self, shared: &Shared) -> Result<()> {
        self.flush(shared)?;
        let mut runs = self.rows.runs.iter().chain(&self.absent.runs);
        if !shared.spiller.is_enabled() || !runs.any(Run::is_in_memory) {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(shared.spiller.create("the best rows of groups")?),
        };
        self.rows.spill(file)?;
        self.absent.spill(file)?;
        let runs = self.rows.runs.iter().chain(&self.absent.runs);
        self.held.try_resize(runs.map(Run::bytes).sum())
    }
}

/// How rows are kept.
pub(super) enum Phase<W> {
    Few(Box<AnySieve>),
    Many(Box<Many<W>>),
}

/// What is wanted of a batch.
struct Ready {
    /// Group columns of all rows.
    groups: Vec<ArrayRef>,
    /// Which rows count; `None`: all.
    kept: Option<BooleanArray>,
    /// Group columns of the rows that count.
    counted: Vec<ArrayRef>,
    keys: Buffer,
    carried: Vec<ArrayRef>,
}

/// The scan of one partition.
pub(super) struct TopKScan<W> {
    pub(super) shared: Arc<Shared>,
    pub(super) grouping: Grouping<W>,
    pub(super) phase: Phase<W>,
    /// For groups and their best rows while groups are few.
    pub(super) memory: MemoryReservation,
    ids: Vec<usize>,
}

impl<W: Word> TopKScan<W> {
    pub(super) fn try_new(shared: Arc<Shared>, memory: &MemoryReservation) -> Result<Self> {
        let plan = &shared.plan;
        Ok(Self {
            grouping: Grouping::try_new(plan.packing.as_ref(), plan.group_schema())?,
            phase: Phase::Few(Box::new(AnySieve::new(plan)?)),
            memory: memory.new_empty(),
            ids: Vec::new(),
            shared,
        })
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted` where neither memory nor disk is left.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            let start = Instant::now();
            let pushed = self.push(&batch);
            self.shared.times.iter().for_each(|time| time.add_elapsed(start));
            pushed?;
            // A stream that is always ready would not notice that the query is gone.
            if since.elapsed() > YIELD {
                tokio::task::yield_now().await;
                since = Instant::now();
            }
        }
        if let Phase::Many(many) = &mut self.phase {
            many.flush(&self.shared)?;
        }
        Ok(self)
    }

    /// Reads while groups are few and there is memory for their best rows: to the end, or up to a row from which on the rest
    /// of `stream` has not been looked at.
    ///
    /// # Errors
    /// The stream's or an expression's.
    pub(super) async fn read_few(mut self, stream: &mut SendableRecordBatchStream) -> Result<Self> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let (batch, start) = (batch?, Instant::now());
            self.shared.rows.add(batch.num_rows());
            if batch.num_rows() > 0 {
                let prepared = self.prepare(&batch)?;
                // Rows that are held are given out all the same.
                self.push_few(&prepared)?;
            }
            self.shared.times.iter().for_each(|time| time.add_elapsed(start));
            if !self.is_few() {
                break;
            }
            if since.elapsed() > YIELD {
                tokio::task::yield_now().await;
                since = Instant::now();
            }
        }
        Ok(self)
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        may_fail!("topk_scan");
        self.shared.rows.add(batch.num_rows());
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let ready = self.prepare(batch)?;
        if matches!(self.phase, Phase::Few(_)) {
            if self.is_few() {
                self.push_few(&ready)?;
                if !self.is_few() {
                    self.leave_few()?;
                }
                return Ok(());
            }
            // The groups of this batch are numbered, and none of its rows is held yet.
            self.leave_few()?;
        }
        self.push_many(&ready.counted, Some(ready.keys), ready.carried)?;
        self.push_absent(&ready.groups, ready.kept.as_ref())
    }

    /// Whether no scan has met too many groups.
    fn is_few(&self) -> bool {
        !self.shared.many.load(Ordering::Relaxed)
    }

    /// What is wanted of a batch; while groups are few, its groups are numbered.
    fn prepare(&mut self, batch: &RecordBatch) -> Result<Ready> {
        let plan = &self.shared.plan;
        let prepared = plan.prepare(batch)?;
        if matches!(self.phase, Phase::Few(_)) {
            self.grouping.number(&prepared.groups, &mut self.ids)?;
            if self.grouping.len() > FEW_GROUPS {
                self.shared.many.store(true, Ordering::Relaxed);
            }
        }
        let counted: Vec<ArrayRef> = match &prepared.kept {
            None => prepared.groups.clone(),
            Some(kept) => filtered(&prepared.groups, kept)?,
        };
        let carried = counted[..plan.carried_groups()].iter().chain(&prepared.carried);
        Ok(Ready {
            keys: keys(plan, &prepared.order)?,
            carried: carried.cloned().collect(),
            groups: prepared.groups,
            kept: prepared.kept,
            counted,
        })
    }

    /// Adds rows by the numbers of their groups. Where that takes too much memory, groups are no longer few.
    fn push_few(&mut self, ready: &Ready) -> Result<()> {
        let Phase::Few(sieve) = &mut self.phase else {
            return Ok(());
        };
        let ids: Vec<u32> = match &ready.kept {
            None => self.ids.iter().map(|id| *id as u32).collect(),
            Some(kept) => {
                let rows = kept.values().set_indices();
                rows.map(|row| self.ids[row] as u32).collect()
            }
        };
        sieve.push(self.grouping.len(), &ids, &ready.keys, &ready.carried)?;
        // What is held, and a copy while it is cut.
        let held = self.grouping.bytes() + 2 * sieve.held_bytes();
        if held > self.shared.share || self.memory.try_resize(held).is_err() {
            self.shared.many.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Partitions rows; without keys, they only tell that their groups are there.
    fn push_many(&mut self, groups: &[ArrayRef], keys: Option<Buffer>, carried: Vec<ArrayRef>) -> Result<()> {
        let rows = groups.first().map_or(0, |column| column.len());
        let Phase::Many(many) = &mut self.phase else {
            return Ok(());
        };
        if rows == 0 {
            return Ok(());
        }
        let (words, parts) = placed(&self.shared.plan, groups)?;
        let column = |keys| StagedColumn {
            rows: None,
            values: StagedValues::Keys(keys),
        };
        let staged = Staged {
            words,
            parts,
            columns: keys.map(column).into_iter().collect(),
            others: carried.into_iter().map(ColumnarValue::Array).collect(),
        };
        many.stage(staged, &self.shared)
    }

    /// Groups of rows that do not count, where they have an answer all the same.
    fn push_absent(&mut self, groups: &[ArrayRef], kept: Option<&BooleanArray>) -> Result<()> {
        let (Some(kept), true) = (kept, self.shared.plan.answers_every_group()) else {
            return Ok(());
        };
        let absent = filtered(groups, &not(kept)?)?;
        let carried = absent[..self.shared.plan.carried_groups()].to_vec();
        self.push_many(&absent, None, carried)
    }

    /// From a sieve to partitions.
    fn leave_few(&mut self) -> Result<()> {
        let plan = Arc::clone(&self.shared.plan);
        let many = Phase::Many(Box::new(Many::try_new(&plan, &self.memory)?));
        let mut sieve = match std::mem::replace(&mut self.phase, many) {
            Phase::Few(sieve) => sieve,
            many => {
                self.phase = many;
                return Ok(());
            }
        };
        let best = sieve.take(self.grouping.len(), &plan)?;
        self.shared.rejected.add(sieve.rejected() as usize);
        drop(sieve);
        let groups = if self.grouping.len() > 0 {
            self.grouping.values()?
        } else {
            Vec::new()
        };
        let held: usize = groups.iter().chain(&best.rows).map(row_bytes).sum();
        self.memory
            .shrink(self.memory.size().saturating_sub(held + best.keys.len()));
        let ids = UInt32Array::from(repeated(&best.lengths));
        let key_bytes = plan.keys.width().bytes();
        for from in (0..ids.len()).step_by(MOVED_ROWS) {
            let rows = MOVED_ROWS.min(ids.len() - from);
            let own = ids.slice(from, rows);
            let groups = groups.iter().map(|column| Ok(take(column.as_ref(), &own, None)?));
            let groups = groups.collect::<Result<Vec<_>>>()?;
            let keys = Buffer::from_slice_ref(&best.keys[from * key_bytes..(from + rows) * key_bytes]);
            let carried = best.rows.iter().map(|column| column.slice(from, rows)).collect();
            self.push_many(&groups, Some(keys), carried)?;
        }
        if plan.answers_every_group() && !groups.is_empty() {
            let carried = groups[..plan.carried_groups()].to_vec();
            self.push_many(&groups, None, carried)?;
        }
        self.grouping = Grouping::try_new(plan.packing.as_ref(), plan.group_schema())?;
        self.memory.free();
        Ok(())
    }

    /// Goes over to partitions if it has not yet.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub(super) fn into_many(mut self) -> Result<Self> {
        self.leave_few()?;
        if let Phase::Many(many) = &mut self.phase {
            many.flush(&self.shared)?;
        }
        Ok(self)
    }
}

/// The number of each row's group, from the number of rows that each group has.
pub(super) fn repeated(lengths: &[usize]) -> Vec<u32> {
    let mut ids = Vec::with_capacity(lengths.iter().sum());
    for (group, length) in lengths.iter().enumerate() {
        ids.resize(ids.len() + length, group as u32);
    }
    ids
}

fn filtered(columns: &[ArrayRef], kept: &BooleanArray) -> Result<Vec<ArrayRef>> {
    columns.iter().map(|column| Ok(filter(column, kept)?)).collect()
}

/// Word and part of each row's group. Groups that have no words are told apart by what their rows carry.
fn placed<W: Word>(plan: &TopKPlan, groups: &[ArrayRef]) -> Result<(Vec<W>, Vec<u16>)> {
    let mut parts = Vec::new();
    if let Some(packing) = &plan.packing {
        let words = packing.place(groups, &mut parts)?;
        return Ok((words, parts));
    }
    let rows = groups.first().map_or(0, |column| column.len());
    let mut hashes = vec![0; rows];
    create_hashes(groups, &RandomState::with_seed(SEED), &mut hashes)
        .map_err(|error| resources_datafusion_err!("cannot hash the groups: {error}"))?;
    parts.extend(hashes.iter().map(|hash| part_of(hash.hash_word())));
    Ok((vec![W::default(); rows], parts))
}
