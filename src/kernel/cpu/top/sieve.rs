//! The best `k` rows of each group, from rows that come in batches, with the columns that belong to them.
//!
//! ```text
//! batch -- key below its group's floor? --yes--> dropped, nothing is copied
//!              | no
//!           held rows --too many--> cut: `k` of each group stay, floors rise
//! ```
//! Rows are held in flat memory, in any order. They are cut when there are twice as many as the last cut left and
//! [`LEAST`] more, or when their further columns take twice as many bytes and [`LEAST_BYTES`] more. So the cost of all
//! cuts is linear in the number of rows that reach a floor. Loses to radix partitioning where groups are so many that
//! floors and cuts miss the cache at every row.

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, resources_err};

use super::chunks::Chunks;
use super::rows::{HeldRows, Rows};
use super::segments::{GroupedRows, SegmentBest};
use super::slots::Segments;
use super::ties::{Chosen, Ties};
use crate::kernel::cpu::columns::taken;
use crate::key::Key;

/// Least rows that are held before a cut. Tests cut more often.
const LEAST: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// Least bytes of further columns that are held before a cut, for wide rows.
const LEAST_BYTES: usize = if cfg!(test) { 1 << 15 } else { 16 << 20 };

/// The rows that are kept of each group.
#[derive(Debug)]
pub(crate) struct GroupLimit {
    /// Number of rows.
    pub(crate) k: usize,
    /// The choice among rows with equal keys.
    pub(crate) ties: Ties,
    /// Whether rows that are equal by key and by the order of ties count once.
    pub(crate) distinct: bool,
}

/// The best rows, in order of group.
#[derive(Debug)]
pub(crate) struct BestRows<K> {
    /// The index of each group's first row, and the number of all rows.
    pub(crate) offsets: Vec<usize>,
    /// Keys, best first in each group.
    pub(crate) keys: Vec<K>,
    /// Further columns that belong to the rows, in the same order.
    pub(crate) payload: Vec<ArrayRef>,
}

impl<K> BestRows<K> {
    /// Number of rows of each group.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.offsets.windows(2).map(|ends| ends[1] - ends[0]).collect()
    }
}

/// Rows of many groups, from which the best of each group are chosen.
#[derive(Debug)]
pub(crate) struct Sieve<K> {
    spec: GroupLimit,
    groups: usize,
    /// The key that a row must reach, by group. Groups beyond the end have no floor yet.
    floors: Vec<K>,
    ids: Vec<u32>,
    keys: Vec<K>,
    /// Further columns.
    payload: Chunks,
    /// Number of rows at which they are cut.
    full: usize,
    /// Bytes of further columns at which the rows are cut.
    full_bytes: usize,
    /// Whether no row came since the last cut.
    is_cut: bool,
    rejected: u64,
    segments: SegmentBest<K, u32>,
    found: Segments<K, u32>,
    row_indices: Vec<u32>,
}

impl<K: Key> Sieve<K> {
    /// An empty sieve. Each row will have a value of each of `types`.
    pub(crate) fn new(spec: GroupLimit, types: Vec<DataType>) -> Self {
        Self {
            spec,
            payload: Chunks::new(types),
            groups: 0,
            floors: Vec::new(),
            ids: Vec::new(),
            keys: Vec::new(),
            full: LEAST,
            full_bytes: LEAST_BYTES,
            is_cut: true,
            rejected: 0,
            segments: SegmentBest::default(),
            found: Segments::default(),
            row_indices: Vec::new(),
        }
    }

    /// Number of rows that a floor rejected.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        (self.ids.capacity() + self.row_indices.capacity()) * size_of::<u32>()
            + (self.keys.capacity() + self.floors.capacity()) * size_of::<K>()
            + self.payload.bytes()
            + self.segments.held_bytes()
            + self.found.held_bytes()
    }

    /// Bytes of memory held, and as many again: a cut copies the rows that it keeps.
    pub(crate) fn working_bytes(&self) -> usize {
        2 * self.held_bytes()
    }

    /// Adds rows. From now on there are at least `groups` groups.
    ///
    /// # Errors
    /// If the slices and columns differ in length, or a group's number is not below the number of groups; the errors of
    /// a cut.
    pub(crate) fn push(&mut self, groups: usize, rows: Rows<'_, K>) -> Result<()> {
        self.groups = self.groups.max(groups);
        let len = rows.groups.len();
        if rows.keys.len() != len
            || rows.payload.len() != self.payload.width()
            || rows.payload.iter().any(|column| column.len() != len)
        {
            return internal_err!("{len} groups for {} keys and their columns", rows.keys.len());
        }
        let reach = self.reach(&rows);
        match reach {
            None => self.add(rows)?,
            Some(reach) => {
                self.rejected += (len - reach.len()) as u64;
                let (groups, keys): (Vec<u32>, Vec<K>) = reach
                    .iter()
                    .map(|row| (rows.groups[*row as usize], rows.keys[*row as usize]))
                    .unzip();
                let payload = taken(rows.payload, &UInt32Array::from(reach))?;
                self.add(Rows {
                    groups: &groups,
                    keys: &keys,
                    payload: &payload,
                })?;
            }
        }
        if self.ids.len() >= self.full || self.payload.bytes() >= self.full_bytes {
            self.cut()?;
        }
        Ok(())
    }

    /// The indices of the rows that reach the floor of their group. `None`: all of them.
    fn reach(&self, rows: &Rows<'_, K>) -> Option<Vec<u32>> {
        if self.floors.is_empty() {
            return None;
        }
        let mut reach = vec![0; rows.keys.len()];
        let mut count = 0;
        for (row, (group, key)) in rows.groups.iter().zip(rows.keys).enumerate() {
            let floor = self.floors.get(*group as usize).copied().unwrap_or_default();
            // Without a branch, because the outcome is unpredictable.
            reach[count] = row as u32;
            count += usize::from(*key >= floor);
        }
        reach.truncate(count);
        (count < rows.keys.len()).then_some(reach)
    }

    fn add(&mut self, rows: Rows<'_, K>) -> Result<()> {
        if rows.groups.is_empty() {
            return Ok(());
        }
        if u32::try_from(self.ids.len() + rows.groups.len()).is_err() {
            return resources_err!("more than {} of the best rows at a time", u32::MAX);
        }
        self.is_cut = false;
        self.ids.extend_from_slice(rows.groups);
        self.keys.extend_from_slice(rows.keys);
        self.payload.push(rows.payload, rows.groups.len());
        Ok(())
    }

    /// Keeps only the best rows of each group, sorted by group, the best first.
    ///
    /// # Errors
    /// Errors of Arrow's kernels; `ResourcesExhausted` when the system gives no memory.
    pub(crate) fn cut(&mut self) -> Result<()> {
        if self.is_cut {
            return Ok(());
        }
        self.payload.join()?;
        let chosen = self.choose()?;
        let rows = UInt32Array::from(chosen.rows);
        self.keys = rows.values().iter().map(|row| self.keys[*row as usize]).collect();
        self.ids.clear();
        self.floors.resize(self.groups, K::default());
        for (group, ends) in chosen.offsets.windows(2).enumerate() {
            let len = ends[1] - ends[0];
            self.ids.resize(ends[0] + len, group as u32);
            if len >= self.spec.k {
                self.floors[group] = self.spec.ties.floor(self.keys[ends[0] + self.spec.k - 1]);
            }
        }
        let columns = self.payload.taken(&rows)?;
        self.payload.replace(columns, rows.len());
        self.set_limits();
        self.is_cut = true;
        Ok(())
    }

    /// Sets the size at which the next cut comes: twice the present one, and the least sizes more.
    fn set_limits(&mut self) {
        self.full = self.ids.len().saturating_mul(2).saturating_add(LEAST);
        self.full_bytes = self.payload.bytes().saturating_mul(2).saturating_add(LEAST_BYTES);
    }

    fn choose(&mut self) -> Result<Chosen> {
        let spec = &self.spec;
        let rows = HeldRows {
            groups: &self.ids,
            keys: &self.keys,
            payload: &self.payload,
        };
        if spec.distinct {
            return spec.ties.choose_distinct(self.groups, rows, spec.k);
        }
        let from = self.row_indices.len().min(self.ids.len());
        self.row_indices.truncate(from);
        self.row_indices.extend(from as u32..self.ids.len() as u32);
        self.found.clear();
        let piece = GroupedRows {
            groups: &self.ids,
            keys: &self.keys,
            rows: &self.row_indices,
        };
        let k = spec.ties.rows_to_find(spec.k);
        self.segments.best(self.groups, &[piece], k, &mut self.found)?;
        spec.ties.choose(&mut self.found, rows, spec.k)
    }

    /// Takes out the best rows of the first `groups` groups. The numbers of the other groups decrease by `groups`.
    ///
    /// # Errors
    /// Errors of [`Self::cut`].
    pub(crate) fn take_first(&mut self, groups: usize) -> Result<BestRows<K>> {
        self.cut()?;
        let groups = groups.min(self.groups);
        let end = self.ids.partition_point(|id| (*id as usize) < groups);
        let mut offsets = vec![0; groups + 1];
        for id in &self.ids[..end] {
            offsets[*id as usize + 1] += 1;
        }
        for group in 0..groups {
            offsets[group + 1] += offsets[group];
        }
        let columns = self.payload.whole()?;
        let len = self.ids.len();
        let best = BestRows {
            offsets,
            keys: self.keys[..end].to_vec(),
            payload: columns.iter().map(|column| column.slice(0, end)).collect(),
        };
        self.groups -= groups;
        self.floors.drain(..groups.min(self.floors.len()));
        self.keys.drain(..end);
        self.ids.drain(..end);
        self.ids.iter_mut().for_each(|id| *id -= groups as u32);
        let rest = columns.iter().map(|column| column.slice(end, len - end));
        self.payload.replace(rest.collect(), len - end);
        self.set_limits();
        Ok(best)
    }

    /// A copy of the best rows of all groups.
    ///
    /// # Errors
    /// Errors of [`Self::cut`].
    pub(crate) fn best(&mut self) -> Result<BestRows<K>> {
        self.cut()?;
        let offsets = (0..=self.groups).map(|group| self.ids.partition_point(|id| (*id as usize) < group));
        Ok(BestRows {
            offsets: offsets.collect(),
            keys: self.keys.clone(),
            payload: self.payload.whole()?,
        })
    }
}
