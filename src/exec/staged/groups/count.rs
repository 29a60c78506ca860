//! The first read of a partition: it counts the keys of each group in intervals.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::fingerprint::{ColumnFingerprint, InputFingerprint};
use super::super::rows::{Header, Rows};
use super::super::stage::{Consume, StageOutput, reached};
use super::classes::{ClassFingerprints, class_of, of_part};
use super::columns::{GroupedColumns, MOST_GROUPS};
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::intervals::{self, GroupCounts};
use crate::kernel::cpu::groups::numbered::{Chunk, NumberedKeys};
use crate::key::with_key;
use crate::key::{self, KeySpec, Width, mixed, words};
use crate::memory::{FreePages, is_exhausted};
use crate::sketch::dyadic::{Interval, merged};
use crate::threads::Stop;

/// Most keys of a column that are held before they are counted.
const COUNTED_ROWS: usize = 1 << 24;

/// The values of a key column in a batch, without NULLs, and the rows that have one (`None`: all rows).
pub(super) fn non_null_values(values: &ArrayRef) -> Result<(ArrayRef, Option<BooleanArray>)> {
    let kept = key::kept(values.as_ref(), None)?;
    let values = match &kept {
        None => Arc::clone(values),
        Some(kept) => filter(values.as_ref(), kept)?,
    };
    Ok((values, kept))
}

/// Adds the rows without a value to the number of each group.
pub(super) fn count_nulls(nulls: &mut [u64], ids: &[usize], kept: Option<&BooleanArray>) {
    if let Some(kept) = kept {
        let missing = !kept.values();
        missing.set_indices().for_each(|row| nulls[ids[row]] += 1);
    }
}

/// The items of the kept rows.
pub(super) fn of_rows<'a, T: Copy>(items: &'a [T], kept: Option<&BooleanArray>) -> Cow<'a, [T]> {
    match kept {
        None => Cow::Borrowed(items),
        Some(kept) => kept.values().set_indices().map(|row| items[row]).collect(),
    }
}

/// The groups of a partition while they are counted.
pub(super) struct Counting<W> {
    plan: Arc<GroupedColumns>,
    grouping: GroupIds<W>,
    /// The keys of each key column that are not counted yet.
    keys: Vec<NumberedKeys>,
    free: Option<Arc<FreePages>>,
    /// The counts of each key column so far.
    counts: Vec<GroupCounts>,
    /// Number of rows of each group without a value in the first key column.
    nulls: Vec<u64>,
    /// Whether there are too many groups to count, so that only the classes are read.
    many: bool,
    classes: ClassFingerprints,
    /// Memory for groups and their counts.
    memory: MemoryReservation,
    /// The group number of each row of a batch.
    ids: Vec<usize>,
    /// The hash partition of each row of a batch.
    parts: Vec<u16>,
    stop: Stop,
}

impl<W: GroupKey> Counting<W> {
    pub(super) fn try_new(
        plan: &Arc<GroupedColumns>,
        memory: &MemoryReservation,
        free: Option<Arc<FreePages>>,
        stop: &Stop,
    ) -> Result<Self> {
        let columns = plan
            .columns
            .specs()
            .map(|_| NumberedKeys::new(memory.new_empty(), free.clone()));
        Ok(Self {
            grouping: plan.grouping()?,
            keys: columns.collect(),
            counts: plan.columns.specs().map(|_| GroupCounts::default()).collect(),
            plan: Arc::clone(plan),
            free,
            nulls: Vec::new(),
            many: false,
            classes: ClassFingerprints::of(plan.columns.len()),
            memory: memory.new_empty(),
            ids: Vec::new(),
            parts: Vec::new(),
            stop: stop.clone(),
        })
    }

    /// Numbers the groups of a batch and takes its keys. False, and no keys taken, if there are too many groups or no memory.
    fn number(&mut self, batch: &RecordBatch) -> Result<bool> {
        let plan = Arc::clone(&self.plan);
        let (groups, values) = plan.split(batch)?;
        self.grouping.number(groups, &mut self.ids)?;
        if self.grouping.len() > MOST_GROUPS || self.memory.try_resize(self.held()).is_err() {
            return Ok(false);
        }
        let non_null = values.iter().map(non_null_values).collect::<Result<Vec<_>>>()?;
        let is_full = self.keys.iter().any(|keys| keys.rows() >= COUNTED_ROWS);
        // Counting takes the keys of all columns away, and the memory that was made ready for more of them.
        if (is_full || !self.makes_room(&non_null)) && (!self.count_held()? || !self.makes_room(&non_null)) {
            return Ok(false);
        }
        self.nulls.resize(self.grouping.len(), 0);
        let first = non_null.first().and_then(|(_, kept)| kept.as_ref());
        count_nulls(&mut self.nulls, &self.ids, first);
        // There are at most as many as 16 bits tell apart.
        let ids: Vec<u16> = self.ids.iter().map(|id| *id as u16).collect();
        for (index, spec) in plan.columns.specs().enumerate() {
            let (values, kept) = &non_null[index];
            let (raw, ids) = (spec.raw(values.as_ref())?, of_rows(&ids, kept.as_ref()));
            let keys = &mut self.keys[index];
            with_key!(spec.width(), K => keys.append::<K>(&ids, &raw, spec)?);
        }
        Ok(true)
    }

    /// Makes room for the values of all key columns; false if there is too little memory.
    fn makes_room(&mut self, non_null: &[(ArrayRef, Option<BooleanArray>)]) -> bool {
        let specs = self.plan.columns.specs();
        let mut columns = self.keys.iter_mut().zip(specs).zip(non_null);
        columns.all(|((keys, spec), (values, _))| {
            with_key!(spec.width(), K => keys.make_room::<K>(values.len()).is_ok())
        })
    }

    /// Bytes of memory held for groups and their counts.
    fn held(&self) -> usize {
        let lists = self.counts.iter().flat_map(|counts| &counts.intervals);
        let intervals: usize = lists
            .map(|list| list.capacity() * size_of::<Interval>() + size_of::<Vec<Interval>>())
            .sum();
        self.grouping.bytes() + self.grouping.len() * (2 + self.counts.len()) * size_of::<u64>() + intervals
    }

    /// Counts the keys that are held, and frees them. False if there is no memory for counters.
    fn count_held(&mut self) -> Result<bool> {
        let plan = Arc::clone(&self.plan);
        let groups = self.grouping.len();
        for (index, spec) in plan.columns.specs().enumerate() {
            let empty = NumberedKeys::new(self.memory.new_empty(), self.free.clone());
            let (chunks, held) = std::mem::replace(&mut self.keys[index], empty).into_parts();
            let (ranks, memory, stop) = (plan.ranks(index), &self.memory, &self.stop);
            let counted =
                with_key!(spec.width(), K => intervals::count::<K>(&chunks, groups, ranks, memory, stop));
            let counted = match counted {
                Ok(counted) => counted,
                Err(error) if is_exhausted(&error) => {
                    self.add_keys(index, spec, &chunks);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            };
            drop((chunks, held));
            add_counts(&mut self.counts[index], counted);
        }
        Ok(self.memory.try_resize(self.held()).is_ok())
    }

    /// Adds numbered keys to the fingerprints of their classes.
    fn add_keys(&mut self, index: usize, spec: &KeySpec, chunks: &[Chunk]) {
        let mut read = vec![ColumnFingerprint::default(); self.grouping.len()];
        for chunk in chunks {
            with_key!(spec.width(), K => {
                for (id, key) in chunk.ids().iter().zip(chunk.keys::<K>()) {
                    let check = mixed(key::Key::to_bits(*key));
                    read[usize::from(*id)].add(ColumnFingerprint { n: 1, check });
                }
            });
        }
        let parts = self.grouping.group_partitions();
        self.classes.add_groups(&parts, index, read.into_iter());
    }

    /// Adds all counted keys to the fingerprints of their classes.
    fn add_counted(&mut self) {
        let parts = self.grouping.group_partitions();
        self.classes.add_nulls(&parts, &std::mem::take(&mut self.nulls));
        for (index, counts) in self.counts.iter().enumerate() {
            let read = (0..parts.len()).map(|group| read_of(counts, group));
            self.classes.add_groups(&parts, index, read);
        }
    }

    /// Gives up counting groups: adds all groups to the fingerprints of their classes, and forgets them.
    fn leave(&mut self) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        self.add_counted();
        for (index, spec) in plan.columns.specs().enumerate() {
            let empty = NumberedKeys::new(self.memory.new_empty(), self.free.clone());
            let (chunks, _held) = std::mem::replace(&mut self.keys[index], empty).into_parts();
            self.add_keys(index, spec, &chunks);
        }
        self.counts.clear();
        self.grouping = plan.grouping()?;
        self.memory.free();
        self.many = true;
        Ok(())
    }

    /// Adds the rows of a batch to the fingerprints of their classes.
    fn classify(&mut self, batch: &RecordBatch) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let (groups, values) = plan.split(batch)?;
        self.parts.clear();
        self.grouping.hash_partitions_of(groups, &mut self.parts)?;
        let classes: Vec<u32> = self.parts.iter().map(|part| class_of(*part)).collect();
        let most = classes.iter().max().map_or(0, |most| *most as usize + 1);
        let mut own = vec![InputFingerprint::of(plan.columns.len()); most];
        classes.iter().for_each(|class| own[*class as usize].rows += 1);
        for (index, spec) in plan.columns.specs().enumerate() {
            let (values, kept) = non_null_values(&values[index])?;
            let raw = spec.raw(values.as_ref())?;
            let parts = of_rows(&self.parts, kept.as_ref());
            with_key!(spec.width(), K => {
                let raw = words::<K>(&raw);
                let mut keys = vec![K::default(); raw.len()];
                spec.encoding().encode(raw, &mut keys);
                for (part, key) in parts.iter().zip(keys) {
                    let check = mixed(key::Key::to_bits(key));
                    let read = of_part(ColumnFingerprint { n: 1, check }, *part);
                    own[class_of(*part) as usize].columns[index].add(read);
                }
            });
        }
        for (class, read) in (0..).zip(own).filter(|(_, read)| read.rows > 0) {
            self.classes.class(class).add(&read);
        }
        Ok(())
    }
}

impl<W: GroupKey> Consume for Counting<W> {
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        if !self.many && !self.number(batch)? {
            self.leave()?;
        }
        if self.many {
            self.classify(batch)?;
        }
        Ok(None)
    }

    /// The counts of each group of this partition, and the fingerprints of the classes.
    fn finish(mut self) -> Result<StageOutput> {
        reached!("groups_count");
        if !self.many && !self.count_held()? {
            self.leave()?;
        }
        let mut rows = Rows::default();
        if !self.many {
            self.add_counted();
            for (group, part) in self.grouping.group_partitions().into_iter().enumerate() {
                let counts = self.counts.iter();
                let intervals = counts.map(|counts| counts.intervals[group].as_slice());
                rows.intervals(class_of(part), group, intervals);
            }
        }
        let values = self.plan.values_of(&mut self.grouping)?;
        for (class, own) in self.classes.classes {
            let (many, expected) = (self.many, InputFingerprint::default());
            rows.header(class, &Header { many, own, expected });
        }
        rows.finish(&self.plan.rows, &values)
    }
}

/// The fingerprint of a group in one key column, by its counts.
fn read_of(counts: &GroupCounts, group: usize) -> ColumnFingerprint {
    let intervals = counts.intervals.get(group);
    ColumnFingerprint {
        n: intervals.map_or(0, |list| list.iter().map(|interval| interval.count).sum()),
        check: counts.checks.get(group).copied().unwrap_or(0),
    }
}

/// Adds counts of the same groups.
fn add_counts(own: &mut GroupCounts, more: GroupCounts) {
    if own.intervals.is_empty() {
        *own = more;
        return;
    }
    own.intervals.resize_with(more.intervals.len(), Vec::new);
    own.checks.resize(more.checks.len(), 0);
    for (own, more) in own.intervals.iter_mut().zip(more.intervals) {
        *own = if own.is_empty() { more } else { merged(own, &more) };
    }
    for (own, more) in own.checks.iter_mut().zip(more.checks) {
        *own = own.wrapping_add(more);
    }
}
