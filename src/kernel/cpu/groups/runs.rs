//! Rows partitioned by the hash of their group. A run holds some hundred thousand rows in order of hash partition, so
//! that the rows of a hash partition can be taken out of every run in one piece.
//!
//! ```text
//! batches as they come  group keys  k m a m z ..        run         part 0 | part 1 | part 2 ..
//!   (waiting)                keys  3 1 4 1 5 ..   ->   group keys  a      | k k    | m m z
//!                                                           keys  4      | 3 9    | 1 1 5
//! ```
//! Each value is written once, to its final index, in memory that fits the second-level cache. Nothing is allocated for
//! a group.

use std::cell::LazyCell;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::{concat, take};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::ColumnarValue;

use super::super::columns::{scattered, without_others, write};
use super::super::store::encode;
use super::bytes::{PartitionedBytes, WaitingBytes};
use super::carried::Carried;
use super::group_key::HASH_PARTITIONS;
use super::partitioned::{PartitionStarts, Partitioned, append_together, spill_together};
use crate::key::{Encoding, Key, KeySpec, Width, with_key, words};
use crate::memory::{FreePages, SpillFile};

/// Rows of a full run.
pub(crate) const RUN_ROWS: usize = 1 << 18;

/// Most rows of the runs that become one on disk.
const JOINED_ROWS: usize = 1 << 24;

/// The values of one column of a batch that waits for its run.
pub(crate) struct WaitingColumn {
    /// The indices of the rows that have a value, ascending. `None`: all rows have one.
    pub(crate) rows: Option<Vec<u32>>,
    /// The values.
    pub(crate) values: WaitingValues,
}

/// Values of one column of a batch: words as wide as the column's keys, or bytes.
pub(crate) enum WaitingValues {
    /// Arrow's words, which are not encoded as keys yet.
    Raw(Buffer),
    /// Keys.
    Keys(Buffer),
    /// Byte strings, of a type without keys.
    Bytes(WaitingBytes),
}

/// A batch whose rows wait for their run.
pub(crate) struct WaitingRows<W> {
    /// The group key of each row.
    pub(crate) group_keys: Vec<W>,
    /// The hash partition of each row.
    pub(crate) parts: Vec<u16>,
    pub(crate) columns: Vec<WaitingColumn>,
    /// Further columns that belong to the rows.
    pub(crate) others: Vec<ColumnarValue>,
}

/// One column of a run.
pub(crate) struct RunColumn {
    /// The group keys of the column's values. `None`: every row has a value, and the keys are those of the run.
    pub(crate) own: Option<Partitioned>,
    pub(crate) values: RunValues,
}

/// Values of one column of a run.
pub(crate) enum RunValues {
    /// Keys, as wide as the column's [`KeySpec`] says.
    Keys(Partitioned),
    /// Byte strings.
    Bytes(PartitionedBytes),
}

impl RunColumn {
    /// The keys, if every row has one.
    fn of_all_rows(&self) -> Option<&Partitioned> {
        match (&self.own, &self.values) {
            (None, RunValues::Keys(keys)) => Some(keys),
            _ => None,
        }
    }

    /// As [`Self::of_all_rows`], to be replaced.
    fn of_all_rows_mut(&mut self) -> Option<&mut Partitioned> {
        match (&self.own, &mut self.values) {
            (None, RunValues::Keys(keys)) => Some(keys),
            _ => None,
        }
    }

    /// The keys.
    ///
    /// # Errors
    /// An internal error if the column has byte strings.
    pub(crate) fn keys(&self) -> Result<&Partitioned> {
        match &self.values {
            RunValues::Keys(keys) => Ok(keys),
            RunValues::Bytes(_) => internal_err!("byte strings have no keys"),
        }
    }

    /// The byte strings.
    ///
    /// # Errors
    /// An internal error if the column has keys.
    pub(crate) fn byte_strings(&self) -> Result<&PartitionedBytes> {
        match &self.values {
            RunValues::Bytes(values) => Ok(values),
            RunValues::Keys(_) => internal_err!("keys are no byte strings"),
        }
    }
}

/// Rows in order of hash partition.
pub(crate) struct Run {
    /// The group keys of all rows.
    pub(crate) group_keys: Partitioned,
    pub(crate) columns: Vec<RunColumn>,
    /// Further columns that belong to the rows, in the same order.
    pub(crate) carried: Carried,
    /// Bytes of group keys and values in memory; 0 once they are spilled.
    bytes: usize,
}

impl Run {
    /// Bytes of memory held: group keys, values, and the further columns, or the list of their chunks on disk.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.carried.bytes()
    }

    /// Whether the run is not spilled.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.bytes > 0
    }

    /// Number of rows in all hash partitions.
    pub(crate) fn rows(&self) -> usize {
        self.group_keys.starts.rows()
    }

    /// Bytes that stay in memory when the run is spilled: the offsets of byte strings.
    pub(crate) fn index_bytes(&self) -> usize {
        let index = |column: &RunColumn| match (&column.values, &column.own) {
            (RunValues::Keys(_), _) => 0,
            (RunValues::Bytes(_), None) => PartitionedBytes::INDEX_BYTES,
            (RunValues::Bytes(_), Some(_)) => 2 * PartitionedBytes::INDEX_BYTES,
        };
        self.columns.iter().map(index).sum()
    }

    /// The indices of the rows of a hash partition.
    pub(crate) fn partition_range(&self, partition: usize) -> Range<usize> {
        self.group_keys.starts.range(partition)
    }

    /// Appends the group keys of the rows of a hash partition, and their keys in the first column, which has one in every row. `file` is the
    /// file that the run was spilled to, if it was.
    ///
    /// # Errors
    /// Errors of reading the file; an internal error if the column has byte strings.
    pub(crate) fn append_rows<W: Key, K: Key>(
        &self,
        partition: usize,
        file: Option<&SpillFile>,
        group_keys: &mut Vec<W>,
        keys: &mut Vec<K>,
    ) -> Result<()> {
        let values = self.columns[0].keys()?;
        append_together((&self.group_keys, values), partition, file, (group_keys, keys))
    }

    /// The further columns of the rows of a hash partition. `file` is the file that the run was spilled to, if it was.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub(crate) fn partition_carried(
        &self,
        partition: usize,
        file: Option<&SpillFile>,
    ) -> Result<Vec<ColumnarValue>> {
        self.carried.range(self.partition_range(partition), file)
    }

    /// Adds the number of rows in each hash partition to `rows`.
    pub(crate) fn add_partition_rows(&self, rows: &mut [usize]) {
        for (rows, own) in rows.iter_mut().zip(self.group_keys.starts.lengths()) {
            *rows += own;
        }
    }

    /// Raises `bytes` to the bytes that the further columns take in each hash partition, as if all rows took equally many.
    pub(crate) fn raise_to_carried_bytes(&self, bytes: &mut [usize]) {
        let row = self.carried.row_bytes() as f64 / self.rows().max(1) as f64;
        if row > 0.0 {
            for (bytes, rows) in bytes.iter_mut().zip(self.group_keys.starts.lengths()) {
                *bytes = (*bytes).max((row * rows as f64) as usize);
            }
        }
    }

    /// Whether the run is in memory, and has nothing but group keys and keys of all rows.
    fn is_plain(&self) -> bool {
        let is_plain = |column: &RunColumn| column.of_all_rows().is_some();
        self.is_in_memory() && self.carried.is_empty() && self.columns.iter().all(is_plain)
    }

    /// The number of first runs of `rest` that can be written as one with this run.
    fn joined(&self, rest: &[Run]) -> usize {
        let mut rows = self.rows();
        let joins = |other: &&Run| {
            rows += other.rows();
            other.is_plain() && other.columns.len() == self.columns.len() && rows <= JOINED_ROWS
        };
        if self.is_plain() {
            rest.iter().take_while(joins).count()
        } else {
            0
        }
    }

    /// Moves the run, and the rows of `others`, to the end of `file`. After an error the run cannot be used.
    fn spill<W>(&mut self, others: &[Run], specs: &[KeySpec], file: &mut SpillFile) -> Result<()> {
        let mut sizes = vec![size_of::<W>()];
        for (column, spec) in self.columns.iter_mut().zip(specs) {
            let size = spec.width().bytes();
            match (&mut column.own, &mut column.values) {
                (None, RunValues::Keys(_)) => sizes.push(size),
                (Some(own), RunValues::Keys(keys)) => {
                    own.spill(size_of::<W>(), file)?;
                    keys.spill(size, file)?;
                }
                (own, RunValues::Bytes(values)) => {
                    if let Some(own) = own {
                        own.spill(size_of::<W>(), file)?;
                    }
                    values.spill(file)?;
                }
            }
        }
        let all: Vec<_> = std::iter::once(&*self)
            .chain(others)
            .map(Run::of_all_rows)
            .collect();
        let mut on_disk = spill_together(&all, &sizes, file)?.into_iter();
        let columns = self.columns.iter_mut().filter_map(RunColumn::of_all_rows_mut);
        for column in std::iter::once(&mut self.group_keys).chain(columns) {
            *column = on_disk
                .next()
                .ok_or_else(|| internal_datafusion_err!("a spilled column is missing"))?;
        }
        let starts = &self.group_keys.starts;
        self.carried.spill(
            (0..HASH_PARTITIONS).map(|partition| starts.range(partition)),
            file,
        )?;
        self.bytes = 0;
        Ok(())
    }

    /// The group keys, and the keys of the columns that have one in every row.
    fn of_all_rows(&self) -> Vec<&Partitioned> {
        let columns = self.columns.iter().filter_map(RunColumn::of_all_rows);
        std::iter::once(&self.group_keys).chain(columns).collect()
    }
}

/// Moves the runs that are in memory to the end of `file`, and returns the bytes of memory that this frees. Runs that follow on each other become
/// one where they can, so that each of their hash partitions is read at once. After an error the runs cannot be used.
///
/// # Errors
/// Errors of writing the file.
pub(crate) fn spill<W>(runs: &mut Vec<Run>, specs: &[KeySpec], file: &mut SpillFile) -> Result<usize> {
    let (mut freed, mut index) = (0, 0);
    while let Some((run, rest)) = runs[index..].split_first_mut() {
        index += 1;
        if run.is_in_memory() {
            let joined = run.joined(rest);
            let before = run.bytes() + rest[..joined].iter().map(Run::bytes).sum::<usize>();
            run.spill::<W>(&rest[..joined], specs, file)?;
            freed += before.saturating_sub(run.bytes());
            runs.drain(index..index + joined);
        }
    }
    Ok(freed)
}

/// Bytes of memory that [`scatter`] will hold for the group keys and values of a batch.
pub(crate) fn run_bytes<W>(batch: &WaitingRows<W>, specs: &[KeySpec]) -> usize {
    let rows = batch.group_keys.len();
    let column = |(column, spec): (&WaitingColumn, &KeySpec)| {
        let own = column.rows.as_ref().map(Vec::len);
        let values = match &column.values {
            WaitingValues::Bytes(waiting) => waiting.held_bytes(),
            WaitingValues::Raw(_) | WaitingValues::Keys(_) => own.unwrap_or(rows) * spec.width().bytes(),
        };
        values + own.map_or(0, |own| own * size_of::<W>())
    };
    rows * size_of::<W>() + batch.columns.iter().zip(specs).map(column).sum::<usize>()
}

/// Number of rows in each hash partition.
fn histogram<'a>(parts: impl Iterator<Item = &'a u16>) -> Vec<u32> {
    let mut counts = vec![0; HASH_PARTITIONS];
    for partition in parts {
        counts[usize::from(*partition)] += 1;
    }
    counts
}

/// Brings the rows of batches in order of hash partition.
///
/// # Errors
/// When the system gives no memory.
pub(crate) fn scatter<W: Key>(
    waiting: &[WaitingRows<W>],
    specs: &[KeySpec],
    free: Option<&Arc<FreePages>>,
) -> Result<Run> {
    let starts = PartitionStarts::from_counts(&histogram(waiting.iter().flat_map(|batch| &batch.parts)));
    let mut next = starts.offsets().to_vec();
    let mut indices = Vec::with_capacity(starts.rows());
    let group_keys = Partitioned::filled::<W>(&starts, free, |out| {
        for batch in waiting {
            let from = indices.len();
            assign_indices(&batch.parts, &mut next, &mut indices);
            write(&batch.group_keys, &indices[from..], out);
        }
    })?;
    let columns = specs.iter().enumerate().map(|(index, spec)| {
        if waiting.iter().all(|batch| batch.columns[index].rows.is_none()) {
            dense_column(waiting, index, spec, &starts, &indices, free)
        } else {
            sparse_column(waiting, index, spec, free)
        }
    });
    Ok(Run {
        columns: columns.collect::<Result<_>>()?,
        group_keys,
        carried: Carried::new(carried_columns(waiting, &indices)?),
        bytes: waiting.iter().map(|batch| run_bytes(batch, specs)).sum(),
    })
}

/// The further columns of all batches, in order of hash partition. A value that is the same in every row stays one
/// value.
fn carried_columns<W>(waiting: &[WaitingRows<W>], indices: &[u32]) -> Result<Vec<ColumnarValue>> {
    let Some(count) = waiting.first().map(|batch| batch.others.len()) else {
        return Ok(Vec::new());
    };
    // The row that comes to each index.
    let rows = LazyCell::new(|| {
        let mut rows = vec![0; indices.len()];
        for (row, index) in indices.iter().enumerate() {
            rows[*index as usize] = row as u32;
        }
        UInt32Array::from(rows)
    });
    let column = |index: usize| {
        if let ColumnarValue::Scalar(first) = &waiting[0].others[index] {
            let same = |batch: &WaitingRows<W>| match &batch.others[index] {
                ColumnarValue::Scalar(other) => other == first,
                ColumnarValue::Array(_) => false,
            };
            if waiting.iter().all(same) {
                return Ok(ColumnarValue::Scalar(first.clone()));
            }
        }
        let arrays = waiting
            .iter()
            .map(|batch| batch.others[index].clone().into_array(batch.group_keys.len()));
        let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
        if let Some(column) = scattered(&arrays, indices)? {
            return Ok(ColumnarValue::Array(column));
        }
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let column = take(&concat(&arrays)?, &*rows, None)?;
        Ok(ColumnarValue::Array(without_others(&column)?))
    };
    (0..count).map(column).collect()
}

/// Appends the next free index in each row's hash partition to `indices`.
fn assign_indices(parts: &[u16], next: &mut [u32], indices: &mut Vec<u32>) {
    for partition in parts {
        let next = &mut next[usize::from(*partition)];
        indices.push(*next);
        *next += 1;
    }
}

fn write_keys<K: Key>(
    values: &WaitingValues,
    encoding: Encoding,
    indices: &[u32],
    scratch: &mut Vec<K>,
    out: &mut [K],
) {
    match values {
        WaitingValues::Raw(raw) => {
            let raw = words::<K>(raw);
            scratch.resize(raw.len(), K::default());
            encode(encoding, raw, scratch);
            write(scratch, indices, out);
        }
        WaitingValues::Keys(keys) => write(words::<K>(keys), indices, out),
        // `run_values` handles these.
        WaitingValues::Bytes(_) => {}
    }
}

/// A column that has a value in every row: its values are ordered as the rows are.
fn dense_column<W>(
    waiting: &[WaitingRows<W>],
    index: usize,
    spec: &KeySpec,
    starts: &PartitionStarts,
    indices: &[u32],
    free: Option<&Arc<FreePages>>,
) -> Result<RunColumn> {
    let parts: Vec<&[u16]> = waiting.iter().map(|batch| batch.parts.as_slice()).collect();
    let values = run_values(waiting, index, spec, &parts, starts, indices, free)?;
    Ok(RunColumn { own: None, values })
}

/// A column without a value in some rows: it has group keys of its own.
fn sparse_column<W: Key>(
    waiting: &[WaitingRows<W>],
    index: usize,
    spec: &KeySpec,
    free: Option<&Arc<FreePages>>,
) -> Result<RunColumn> {
    let kept = |batch: &WaitingRows<W>| -> (Vec<W>, Vec<u16>) {
        match &batch.columns[index].rows {
            None => (batch.group_keys.clone(), batch.parts.clone()),
            Some(rows) => {
                let rows = || rows.iter().map(|row| *row as usize);
                (
                    rows().map(|row| batch.group_keys[row]).collect(),
                    rows().map(|row| batch.parts[row]).collect(),
                )
            }
        }
    };
    let kept: Vec<_> = waiting.iter().map(kept).collect();
    let starts = PartitionStarts::from_counts(&histogram(kept.iter().flat_map(|(_, parts)| parts)));
    let (mut next, mut indices) = (starts.offsets().to_vec(), Vec::with_capacity(starts.rows()));
    let own = Partitioned::filled::<W>(&starts, free, |out| {
        for (group_keys, parts) in &kept {
            let from = indices.len();
            assign_indices(parts, &mut next, &mut indices);
            write(group_keys, &indices[from..], out);
        }
    })?;
    let parts: Vec<&[u16]> = kept.iter().map(|(_, parts)| parts.as_slice()).collect();
    let values = run_values(waiting, index, spec, &parts, &starts, &indices, free)?;
    Ok(RunColumn {
        own: Some(own),
        values,
    })
}

/// The values of a column in order of hash partition. `parts` has the hash partition of each value, batch by batch.
fn run_values<W>(
    waiting: &[WaitingRows<W>],
    index: usize,
    spec: &KeySpec,
    parts: &[&[u16]],
    starts: &PartitionStarts,
    indices: &[u32],
    free: Option<&Arc<FreePages>>,
) -> Result<RunValues> {
    let values = || waiting.iter().map(|batch| &batch.columns[index].values);
    if values().any(|values| matches!(values, WaitingValues::Bytes(_))) {
        let bytes = values().zip(parts).map(|(values, parts)| match values {
            WaitingValues::Bytes(bytes) => Ok((bytes, *parts)),
            _ => Err(internal_datafusion_err!("keys among byte strings")),
        });
        let bytes = bytes.collect::<Result<Vec<_>>>()?;
        return Ok(RunValues::Bytes(PartitionedBytes::scattered(
            &bytes, starts, indices, free,
        )?));
    }
    with_key!(spec.width(), K => {
        let keys = Partitioned::filled::<K>(starts, free, |out| {
            let (mut scratch, mut from) = (Vec::new(), 0);
            for (values, parts) in values().zip(parts) {
                let indices = &indices[from..from + parts.len()];
                write_keys(values, spec.encoding(), indices, &mut scratch, out);
                from += parts.len();
            }
        })?;
        Ok(RunValues::Keys(keys))
    })
}
