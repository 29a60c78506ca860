//! The first read of a partition: intervals that hold the keys of each group.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::super::grouped::Grouping;
use super::super::rows::Seen;
use super::rows::{Guard, Guards, Header, Rows, class_of, of_part};
use super::{GroupedColumns, MOST_GROUPS};
use crate::kernel::cpu::groups::cells::{Chunk, NumberedKeys};
use crate::kernel::cpu::groups::intervals::{self, GroupCounts};
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::{self, KeySpec, Width, mixed, words};
use crate::memory::FreePages;
use crate::sketch::dyadic::{Interval, merged};
use crate::threads::Stop;

/// Keys of a column that are counted at a time, at most.
const COUNTED_ROWS: usize = 1 << 24;

/// The values of a key column in a batch, without NULLs, and which rows have one (`None`: all).
pub(super) fn dense(values: &ArrayRef) -> Result<(ArrayRef, Option<BooleanArray>)> {
    let kept = key::kept(values.as_ref(), None)?;
    let dense = match &kept {
        None => Arc::clone(values),
        Some(kept) => filter(values.as_ref(), kept)?,
    };
    Ok((dense, kept))
}

/// Counts, by group, the rows that have no value.
pub(super) fn count_nulls(nulls: &mut [u64], ids: &[usize], kept: Option<&BooleanArray>) {
    if let Some(kept) = kept {
        let missing = !kept.values();
        missing.set_indices().for_each(|row| nulls[ids[row]] += 1);
    }
}

/// The items of the rows that are kept.
pub(super) fn of_rows<T: Copy>(items: &[T], kept: Option<&BooleanArray>) -> Vec<T> {
    match kept {
        None => items.to_vec(),
        Some(kept) => kept.values().set_indices().map(|row| items[row]).collect(),
    }
}

/// A partition's groups while they are counted.
pub(super) struct Counting<W> {
    plan: Arc<GroupedColumns>,
    grouping: Grouping<W>,
    keys: Vec<NumberedKeys>,
    free: Option<Arc<FreePages>>,
    /// Of each key column, what was counted before.
    counts: Vec<GroupCounts>,
    /// Of each group: rows without a value in the first key column.
    nulls: Vec<u64>,
    /// Whether groups are too many, so that only classes are told apart.
    many: bool,
    guards: Guards,
    /// Groups and their counts.
    memory: MemoryReservation,
    ids: Vec<usize>,
    parts: Vec<u16>,
    stop: Stop,
}

impl<W: Word> Counting<W> {
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
            guards: Guards::new(),
            memory: memory.new_empty(),
            ids: Vec::new(),
            parts: Vec::new(),
            stop: stop.clone(),
        })
    }

    /// Takes the rows of a batch.
    ///
    /// # Errors
    /// Internal errors, or when the work was stopped.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if !self.many && !self.number(batch)? {
            self.leave()?;
        }
        match self.many {
            true => self.classify(batch),
            false => Ok(()),
        }
    }

    /// Takes the rows by the numbers of their groups; false, and nothing was taken, if there is no room for that.
    fn number(&mut self, batch: &RecordBatch) -> Result<bool> {
        let plan = Arc::clone(&self.plan);
        let (groups, values) = plan.split(batch)?;
        self.grouping.number(groups, &mut self.ids)?;
        if self.grouping.len() > MOST_GROUPS || self.memory.try_resize(self.held()).is_err() {
            return Ok(false);
        }
        let mut dense_values = Vec::with_capacity(values.len());
        for (index, spec) in plan.columns.specs().enumerate() {
            let (values, kept) = dense(&values[index])?;
            let make_room =
                |keys: &mut NumberedKeys| with_key!(spec.width(), K => keys.make_room::<K>(values.len()));
            let is_full = self.keys[index].rows() >= COUNTED_ROWS;
            let wants_room = is_full || make_room(&mut self.keys[index]).is_err();
            if wants_room && (!self.count_held()? || make_room(&mut self.keys[index]).is_err()) {
                return Ok(false);
            }
            dense_values.push((values, kept));
        }
        self.nulls.resize(self.grouping.len(), 0);
        let first = dense_values.first().and_then(|(_, kept)| kept.as_ref());
        count_nulls(&mut self.nulls, &self.ids, first);
        // There are at most as many as 16 bits tell apart.
        let ids: Vec<u16> = self.ids.iter().map(|id| *id as u16).collect();
        for (index, spec) in plan.columns.specs().enumerate() {
            let (values, kept) = &dense_values[index];
            let raw = spec.raw(values.as_ref())?;
            let keys = &mut self.keys[index];
            match kept {
                None => with_key!(spec.width(), K => keys.append::<K>(&ids, &raw, spec)?),
                Some(_) => {
                    let ids = of_rows(&ids, kept.as_ref());
                    with_key!(spec.width(), K => keys.append::<K>(&ids, &raw, spec)?);
                }
            }
        }
        Ok(true)
    }

    fn held(&self) -> usize {
        let lists = self.counts.iter().flat_map(|counts| &counts.intervals);
        let intervals: usize = lists
            .map(|list| list.capacity() * size_of::<Interval>() + size_of::<Vec<Interval>>())
            .sum();
        self.grouping.bytes() + self.grouping.len() * (2 + self.counts.len()) * size_of::<u64>() + intervals
    }

    /// Counts the keys that are held, and lets go of them; false if there is no room for counters.
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
                    self.guard(index, spec, &chunks)?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            };
            drop((chunks, held));
            add_counts(&mut self.counts[index], counted);
        }
        Ok(self.memory.try_resize(self.held()).is_ok())
    }

    /// The classes of the groups.
    fn classes(&self) -> Vec<u32> {
        self.grouping.group_parts().into_iter().map(class_of).collect()
    }

    /// Adds what was read of a group to what is known of its class.
    fn read(&mut self, part: u16, index: usize, seen: Seen) {
        self.class(class_of(part)).read(index, of_part(seen, part));
    }

    fn class(&mut self, class: u32) -> &mut Guard {
        let columns = self.plan.columns.len();
        self.guards.entry(class).or_insert_with(|| Guard::of(columns))
    }

    /// Adds keys by number to what is known of their classes.
    fn guard(&mut self, index: usize, spec: &KeySpec, chunks: &[Chunk]) -> Result<()> {
        let mut seen = vec![Seen::default(); self.grouping.len()];
        for chunk in chunks {
            with_key!(spec.width(), K => {
                for (id, key) in chunk.ids().iter().zip(chunk.keys::<K>()) {
                    let check = mixed(key::Key::to_bits(*key));
                    seen[usize::from(*id)].add(Seen { n: 1, check });
                }
            });
        }
        for (part, seen) in self.grouping.group_parts().into_iter().zip(seen) {
            self.read(part, index, seen);
        }
        Ok(())
    }

    /// Adds what was counted to what is known of classes.
    fn guard_counted(&mut self) {
        let nulls = std::mem::take(&mut self.nulls);
        let parts = self.grouping.group_parts();
        for (part, nulls) in parts.iter().zip(nulls) {
            self.class(class_of(*part)).rows += nulls;
        }
        for index in 0..self.counts.len() {
            for (group, part) in parts.iter().enumerate() {
                let own = seen(&self.counts[index], group);
                self.read(*part, index, own);
            }
        }
    }

    /// From groups to classes.
    fn leave(&mut self) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        self.guard_counted();
        for (index, spec) in plan.columns.specs().enumerate() {
            let empty = NumberedKeys::new(self.memory.new_empty(), self.free.clone());
            let (chunks, _held) = std::mem::replace(&mut self.keys[index], empty).into_parts();
            self.guard(index, spec, &chunks)?;
        }
        self.counts.clear();
        self.grouping = plan.grouping()?;
        self.memory.free();
        self.many = true;
        Ok(())
    }

    /// Takes rows by the classes of their groups.
    fn classify(&mut self, batch: &RecordBatch) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let (groups, values) = plan.split(batch)?;
        self.parts.clear();
        self.grouping.parts_of(groups, &mut self.parts)?;
        let classes: Vec<u32> = self.parts.iter().map(|part| class_of(*part)).collect();
        let mut own =
            vec![Guard::of(plan.columns.len()); classes.iter().max().map_or(0, |most| *most as usize + 1)];
        classes.iter().for_each(|class| own[*class as usize].rows += 1);
        for (index, spec) in plan.columns.specs().enumerate() {
            let (values, kept) = dense(&values[index])?;
            let raw = spec.raw(values.as_ref())?;
            let parts = of_rows(&self.parts, kept.as_ref());
            with_key!(spec.width(), K => {
                let raw = words::<K>(&raw);
                let mut keys = vec![K::default(); raw.len()];
                spec.encoding().encode(raw, &mut keys);
                for (part, key) in parts.iter().zip(keys) {
                    let check = mixed(key::Key::to_bits(key));
                    own[class_of(*part) as usize].seen[index].add(of_part(Seen { n: 1, check }, *part));
                }
            });
        }
        for (class, guard) in (0..).zip(own).filter(|(_, guard)| guard.rows > 0) {
            self.class(class).add(&guard);
        }
        Ok(())
    }

    /// What this partition says.
    ///
    /// # Errors
    /// As for [`Self::push`].
    pub(super) fn finish(mut self) -> Result<(Rows, Vec<ArrayRef>)> {
        if !self.many && !self.count_held()? {
            self.leave()?;
        }
        let mut rows = Rows::default();
        let mut values = self.plan.no_groups();
        if !self.many {
            self.guard_counted();
            for (group, class) in self.classes().into_iter().enumerate() {
                rows.intervals(
                    class,
                    group,
                    self.counts
                        .iter()
                        .map(|counts| counts.intervals[group].as_slice()),
                );
            }
            if self.grouping.len() > 0 {
                values = self.grouping.values()?;
            }
        }
        for (class, own) in std::mem::take(&mut self.guards) {
            let (many, expected) = (self.many, Guard::default());
            rows.header(class, &Header { many, own, expected });
        }
        Ok((rows, values))
    }
}

/// Values of a group, and their checksum.
fn seen(counts: &GroupCounts, group: usize) -> Seen {
    let intervals = counts.intervals.get(group);
    Seen {
        n: intervals.map_or(0, |list| list.iter().map(|interval| interval.count).sum()),
        check: counts.checks.get(group).copied().unwrap_or(0),
    }
}

fn add_counts(own: &mut GroupCounts, more: GroupCounts) {
    if own.intervals.is_empty() {
        *own = more;
        return;
    }
    own.intervals.resize_with(more.intervals.len(), Vec::new);
    own.checks.resize(more.checks.len(), 0);
    for (own, more) in own.intervals.iter_mut().zip(more.intervals) {
        *own = match own.is_empty() {
            true => more,
            false => merged(own, &more),
        };
    }
    for (own, more) in own.checks.iter_mut().zip(more.checks) {
        *own = own.wrapping_add(more);
    }
}

fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}
