//! One input partition of a grouped aggregation, read once.
//!
//! While groups are few, keys stay in the order in which they come, each with its group's number ([`Phase::Few`]).
//! Once any partition has met too many groups, rows are partitioned by the hash of their group ([`Phase::Many`]);
//! past the pool's limit they go to disk. Where there are byte strings, they are partitioned from the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::compute::{filter, filter_record_batch};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::GroupPlan;
use super::groups::Grouping;
use super::plain::{PlainGroups, PlainStates};
use crate::exec::aggregate::KeyColumn;
use crate::exec::scan::{YIELD, mask, values};
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::bytes::StagedBytes;
use crate::kernel::cpu::groups::cells::NumberedKeys;
use crate::kernel::cpu::groups::runs::{
    RUN_ROWS, Run, Staged, StagedColumn, StagedValues, run_bytes, scatter, with_key,
};
use crate::kernel::cpu::groups::words::Word;
use crate::key::{self, KeySpec, Width};
use crate::memory::{FreePages, reserve};
use crate::memory::{SpillFile, Spiller};

/// More groups than this, and rows are partitioned.
pub(in crate::exec) const FEW_GROUPS: usize = 4096;

/// Bytes that a scan keeps for going over to partitions, on disk if there is no memory.
const FLOOR: usize = 1 << 18;
/// Rows that go over at a time.
const MOVED_ROWS: usize = 1 << 12;

/// Fewest rows of a batch that are taken in at a time because their byte strings are long.
const LEAST_ROWS: usize = 64;
/// Bytes of rows that wait to become a run, at most, but for one batch.
const STAGED_BYTES: usize = 64 << 20;

/// What the scans of one execution share.
pub(super) struct Shared {
    pub(super) plan: Arc<GroupPlan>,
    /// Whether any scan has met too many groups.
    many: AtomicBool,
    pub(super) free: Option<Arc<FreePages>>,
    pub(super) spiller: Spiller,
    /// Bytes that the rows of one scan may hold, so that it leaves the others theirs.
    share: usize,
    pub(super) rows: Count,
    pub(super) times: [Time; 2],
}

impl Shared {
    /// Whether the pool has a limit that is known.
    pub(super) fn is_bounded(&self) -> bool {
        self.share < usize::MAX
    }

    pub(super) fn new(
        plan: Arc<GroupPlan>,
        free: Option<Arc<FreePages>>,
        spiller: Spiller,
        share: usize,
        rows: Count,
        times: [Time; 2],
    ) -> Self {
        Self {
            plan,
            many: AtomicBool::new(false),
            free,
            spiller,
            share,
            rows,
            times,
        }
    }

    pub(super) fn specs(&self) -> Vec<&KeySpec> {
        let columns = self.plan.aggregates.columns.iter();
        columns.map(|column| &column.spec).collect()
    }

    /// A batch in pieces whose byte strings leave room for others.
    fn pieces(&self, batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
        let rows = batch.num_rows();
        let most = match self.plan.has_byte_strings() {
            true => {
                let columns = batch.columns().iter();
                let bytes: usize = columns.map(row_bytes).sum();
                let share = STAGED_BYTES.min(self.share / 8);
                let fair = (rows as f64 * share as f64 / bytes.max(1) as f64) as usize;
                fair.clamp(LEAST_ROWS, rows.max(LEAST_ROWS))
            }
            false => rows.max(1),
        };
        let pieces = (0..rows).step_by(most);
        pieces.map(move |from| batch.slice(from, most.min(rows - from)))
    }
}

/// Keys beside the numbers of their groups, one for each key column.
type Few = Vec<NumberedKeys>;

/// What a scan held when its groups became many.
#[derive(Default)]
pub(super) struct Old<W> {
    pub(super) columns: Few,
    /// Word and part of each group that the numbers mean.
    pub(super) words: Vec<W>,
    pub(super) parts: Vec<u16>,
}

/// Rows in runs, and where those are that left memory.
pub(super) struct Runs {
    pub(super) list: Vec<Run>,
    pub(super) file: Option<SpillFile>,
    /// For what is in memory.
    memory: MemoryReservation,
}

impl Runs {
    /// Moves all runs to disk, if there is one.
    pub(super) fn spill<W>(&mut self, shared: &Shared) -> Result<()> {
        if !self.list.iter().any(Run::is_in_memory) || !shared.spiller.is_enabled() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(shared.spiller.create("grouped quantiles")?),
        };
        for run in &mut self.list {
            self.memory.shrink(run.spill::<W>(&shared.specs(), file)?);
        }
        Ok(())
    }

    /// Adds a run, whose memory has been granted.
    fn push(&mut self, run: Run) {
        self.memory.grow(run.bytes() + run.index_bytes());
        self.list.push(run);
    }
}

/// Rows that wait to become a run, and the runs.
pub(super) struct Many<W> {
    staged: Vec<Staged<W>>,
    staged_rows: usize,
    /// Bytes of the run that they become.
    staged_bytes: usize,
    /// For the staged rows, and as much again for the run that they become.
    memory: MemoryReservation,
    pub(super) runs: Runs,
    pub(super) old: Old<W>,
}

/// How rows are kept.
pub(super) enum Phase<W> {
    Few(Few),
    Many(Box<Many<W>>),
}

/// The scan of one partition.
pub(super) struct GroupScan<W> {
    shared: Arc<Shared>,
    pub(super) grouping: Grouping<W>,
    pub(super) phase: Phase<W>,
    /// Aggregates of DataFusion's by the numbers of this scan.
    pub(super) plain: PlainGroups,
    /// Whether rows have numbers for them although they are partitioned: while groups are few.
    numbers_plain: bool,
    /// Their states when numbers ended, and the words of the groups that they are of.
    pub(super) states: Option<PlainStates>,
    pub(super) state_words: Vec<W>,
    /// For [`Self::held_bytes`].
    pub(super) memory: MemoryReservation,
    /// What is kept while groups are few.
    floor: MemoryReservation,
    ids: Vec<usize>,
}

impl<W: Word> GroupScan<W> {
    pub(super) fn try_new(shared: Arc<Shared>, memory: &MemoryReservation) -> Result<Self> {
        let grouping = Grouping::try_new(shared.plan.packing.as_ref(), shared.plan.group_schema())?;
        let floor = memory.new_empty();
        let partitions = shared.plan.has_byte_strings();
        let phase = match partitions {
            true => Phase::Many(Box::new(Many::new(Old::default(), memory))),
            false => {
                reserve(&floor, FLOOR)?;
                let columns = shared.plan.aggregates.columns.iter();
                let few = columns.map(|_| NumberedKeys::new(memory.new_empty(), shared.free.clone()));
                Phase::Few(few.collect())
            }
        };
        let plain = &shared.plan.aggregates.plain;
        Ok(Self {
            phase,
            plain: PlainGroups::try_new(plain)?,
            numbers_plain: partitions && !plain.is_empty() && !grouping.numbers_every_row(),
            grouping,
            states: None,
            state_words: Vec::new(),
            memory: memory.new_empty(),
            floor,
            ids: Vec::new(),
            shared,
        })
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted` where neither memory nor disk is left.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        let shared = Arc::clone(&self.shared);
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            for piece in shared.pieces(&batch) {
                let start = Instant::now();
                let pushed = self.push(&piece);
                shared.times.iter().for_each(|time| time.add_elapsed(start));
                pushed?;
                // As without groups: a stream that is always ready would not notice that the query is gone.
                if since.elapsed() > YIELD {
                    tokio::task::yield_now().await;
                    since = Instant::now();
                }
            }
        }
        if let Phase::Many(many) = &mut self.phase {
            many.flush(&self.shared)?;
        }
        Ok(self)
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        may_fail!("group_scan");
        self.shared.rows.add(batch.num_rows());
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let plan = Arc::clone(&self.shared.plan);
        let groups = plan.group.iter().map(|expr| values(expr, batch));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let is_few = matches!(self.phase, Phase::Few(_));
        if is_few || self.numbers_plain || self.grouping.numbers_every_row() {
            self.grouping.number(&groups, &mut self.ids)?;
        }
        if is_few && self.grouping.len() > FEW_GROUPS {
            self.shared.many.store(true, Ordering::Relaxed);
        }
        if self.numbers_plain && self.grouping.len() > FEW_GROUPS {
            self.end_numbers()?;
        }
        if is_few && self.shared.many.load(Ordering::Relaxed) {
            self.leave_few()?;
        }
        let columns = plan.aggregates.columns.iter();
        let columns = columns.map(|column| column_values(column, batch));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        if let Phase::Few(few) = &mut self.phase
            && (make_few_room(few, &plan.aggregates.columns, &columns, batch.num_rows()).is_err()
                || few.iter().map(NumberedKeys::bytes).sum::<usize>() > self.shared.share)
        {
            // On disk, by partitions, is room.
            self.shared.many.store(true, Ordering::Relaxed);
            self.leave_few()?;
        }
        match &mut self.phase {
            Phase::Few(few) => {
                append_few(few, &plan.aggregates.columns, &self.ids, &columns)?;
                self.plain
                    .update(&plan.aggregates.plain, batch, &self.ids, self.grouping.len())?;
            }
            Phase::Many(many) => {
                let (mut words, mut parts) = (Vec::new(), Vec::new());
                self.grouping.words(&groups, &self.ids, &mut words, &mut parts)?;
                let others = if self.numbers_plain || self.grouping.numbers_every_row() {
                    let groups = self.grouping.len();
                    self.plain
                        .update(&plan.aggregates.plain, batch, &self.ids, groups)?;
                    Vec::new()
                } else {
                    PlainGroups::inputs(&plan.aggregates.plain, batch)?
                };
                let staged = Staged {
                    words,
                    parts,
                    columns,
                    others,
                };
                many.stage(staged, &self.shared)?;
            }
        }
        if self.memory.try_resize(self.held_bytes()).is_err() {
            self.shared.many.store(true, Ordering::Relaxed);
            self.leave_few()?;
            if let Phase::Many(many) = &mut self.phase {
                many.make_room(&self.shared)?;
            }
            let held = self.held_bytes();
            let wanted = held.saturating_sub(self.memory.size());
            reserve(&self.memory, wanted).map_err(|error| {
                error.context(format!(
                    "groups and the aggregates beside exact quantiles: {held} bytes wanted"
                ))
            })?;
        }
        Ok(())
    }

    /// Bytes of groups and plain aggregates.
    fn held_bytes(&self) -> usize {
        let states = self.states.as_ref().map_or(0, PlainStates::bytes);
        self.grouping.bytes() + self.plain.bytes() + states
    }

    /// From numbers to partitions. What is held by number is partitioned in the end.
    fn leave_few(&mut self) -> Result<()> {
        let Phase::Few(few) = &mut self.phase else {
            return Ok(());
        };
        let old = Old {
            columns: std::mem::take(few),
            words: self.grouping.group_words(),
            parts: self.grouping.group_parts(),
        };
        if !self.grouping.numbers_every_row() {
            self.states = Some(self.plain.states(&old.parts)?);
            self.state_words = old.words.clone();
            self.grouping.forget();
        }
        self.phase = Phase::Many(Box::new(Many::new(old, &self.memory)));
        self.floor.free();
        Ok(())
    }

    /// From numbers to words, where rows are partitioned already: what plain aggregates want stays with the rows from
    /// now on.
    fn end_numbers(&mut self) -> Result<()> {
        if let Phase::Many(many) = &mut self.phase {
            // What is staged has no inputs of plain aggregates with it.
            many.flush(&self.shared)?;
        }
        self.states = Some(self.plain.states(&self.grouping.group_parts())?);
        self.state_words = self.grouping.group_words();
        self.grouping.forget();
        self.numbers_plain = false;
        Ok(())
    }

    /// Goes over to partitions if it has not yet.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub(super) fn into_many(mut self) -> Result<Self> {
        self.leave_few()?;
        if self.numbers_plain {
            self.end_numbers()?;
        }
        let shared = Arc::clone(&self.shared);
        if let Phase::Many(many) = &mut self.phase {
            many.partition_old(&shared)?;
        }
        Ok(self)
    }
}

impl<W: Word> Many<W> {
    fn new(old: Old<W>, memory: &MemoryReservation) -> Self {
        Self {
            staged: Vec::new(),
            staged_rows: 0,
            staged_bytes: 0,
            memory: memory.new_empty(),
            runs: Runs {
                list: Vec::new(),
                file: None,
                memory: memory.new_empty(),
            },
            old,
        }
    }

    fn stage(&mut self, batch: Staged<W>, shared: &Shared) -> Result<()> {
        let rows = batch.words.len();
        let others = batch.others.iter().map(|value| match value {
            // Batches may be slices of one array, each of which would count as all of it.
            ColumnarValue::Array(array) => row_bytes(array),
            ColumnarValue::Scalar(_) => 0,
        });
        let bytes = run_bytes(&batch, &shared.specs()) + 2 * rows + others.sum::<usize>();
        // What waits, and the run that it becomes: about as much.
        let wanted = 2 * bytes;
        if self.runs.memory.size() + self.memory.size() + wanted > shared.share {
            self.make_room(shared)?;
        }
        if self.memory.try_grow(wanted).is_err() {
            self.flush(shared)?;
            if self.memory.try_grow(wanted).is_err() {
                self.make_room(shared)?;
                reserve(&self.memory, wanted)?;
            }
        }
        self.staged_rows += rows;
        self.staged_bytes += bytes;
        self.staged.push(batch);
        if self.staged_rows >= RUN_ROWS || self.staged_bytes >= STAGED_BYTES {
            self.flush(shared)?;
        }
        Ok(())
    }

    /// Makes a run of what is staged.
    fn flush(&mut self, shared: &Shared) -> Result<()> {
        if self.staged_rows == 0 {
            return Ok(());
        }
        may_fail!("group_scatter");
        let specs = shared.specs();
        let run = scatter(&self.staged, &specs, shared.free.as_ref())?;
        self.staged.clear();
        (self.staged_rows, self.staged_bytes) = (0, 0);
        // The run's share of the reservation goes with it.
        self.runs.push(run);
        self.memory.free();
        Ok(())
    }

    /// Moves all rows to disk, if there is one.
    fn make_room(&mut self, shared: &Shared) -> Result<()> {
        self.partition_old(shared)?;
        self.flush(shared)?;
        self.runs.spill::<W>(shared)
    }

    /// Partitions what was held by number.
    fn partition_old(&mut self, shared: &Shared) -> Result<()> {
        if self.old.words.is_empty() {
            return Ok(());
        }
        // What is staged has the inputs of plain aggregates with it; what is old has not.
        self.flush(shared)?;
        let specs = shared.specs();
        let empty = |spec: &&KeySpec| StagedColumn {
            rows: Some(Vec::new()),
            values: StagedValues::Keys(with_key!(spec.width(), K => Vec::<K>::new().into())),
        };
        let columns = std::mem::take(&mut self.old.columns);
        let (words, parts) = (
            std::mem::take(&mut self.old.words),
            std::mem::take(&mut self.old.parts),
        );
        let staged = |words, parts| Staged {
            words,
            parts,
            columns: specs.iter().map(empty).collect(),
            others: Vec::new(),
        };
        for (index, column) in columns.into_iter().enumerate() {
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
                    self.stage(batch, shared)?;
                }
                memory.shrink(chunk.held_bytes().min(memory.size()));
            }
        }
        // Groups without any value are groups too.
        self.stage(staged(words, parts), shared)?;
        self.flush(shared)
    }
}

/// Makes room for the values of a batch.
fn make_few_room(few: &mut Few, columns: &[KeyColumn], staged: &[StagedColumn], rows: usize) -> Result<()> {
    for ((keys, column), staged) in few.iter_mut().zip(columns).zip(staged) {
        let rows = staged.rows.as_ref().map_or(rows, Vec::len);
        with_key!(column.spec.width(), K => keys.make_room::<K>(rows)?);
    }
    Ok(())
}

/// Adds the values of a batch by the numbers of its rows.
fn append_few(few: &mut Few, columns: &[KeyColumn], ids: &[usize], staged: &[StagedColumn]) -> Result<()> {
    // There are at most as many as `FEW_GROUPS`.
    let all: Vec<u16> = ids.iter().map(|id| *id as u16).collect();
    for ((keys, column), staged) in few.iter_mut().zip(columns).zip(staged) {
        let own: Vec<u16>;
        let ids = match &staged.rows {
            None => &all,
            Some(rows) => {
                own = rows.iter().map(|row| all[*row as usize]).collect();
                &own
            }
        };
        let StagedValues::Raw(raw) = &staged.values else {
            continue;
        };
        with_key!(column.spec.width(), K => keys.append::<K>(ids, raw, &column.spec)?);
    }
    Ok(())
}

/// The values of a key column in a batch, without NULLs and rows that are filtered out.
fn column_values(column: &KeyColumn, batch: &RecordBatch) -> Result<StagedColumn> {
    let Some(predicate) = &column.filter else {
        return kept(&values(&column.argument, batch)?, None, column);
    };
    let passed = mask(predicate, batch)?;
    if column.argument.downcast_ref::<Column>().is_some() {
        return kept(&values(&column.argument, batch)?, Some(&passed), column);
    }
    // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
    let rows: Vec<u32> = passed.values().set_indices_u32().collect();
    let batch = filter_record_batch(batch, &passed)?;
    let mut staged = kept(&values(&column.argument, &batch)?, None, column)?;
    staged.rows = Some(match staged.rows {
        None => rows,
        Some(inner) => inner.into_iter().map(|row| rows[row as usize]).collect(),
    });
    Ok(staged)
}

fn kept(values: &ArrayRef, passed: Option<&BooleanArray>, column: &KeyColumn) -> Result<StagedColumn> {
    let kept = key::kept(values.as_ref(), passed)?;
    let values = match (&column.bytes, &kept) {
        (Some(spec), kept) => {
            let kept = kept.as_ref().map(BooleanArray::values);
            StagedValues::Bytes(StagedBytes::of(spec, values.as_ref(), kept)?)
        }
        (None, None) => StagedValues::Raw(column.spec.raw(values.as_ref())?),
        (None, Some(kept)) => StagedValues::Raw(column.spec.raw(filter(values, kept)?.as_ref())?),
    };
    Ok(StagedColumn {
        rows: kept.map(|kept| kept.values().set_indices_u32().collect()),
        values,
    })
}
