//! Rows partitioned by group: a run holds some hundred thousand rows, ordered by the part that their group's hash
//! names, so that each part can be taken out of every run in one piece.
//!
//! ```text
//! batches as they come     words  k m a m z ..        run     part 0 | part 1 | part 2 ..
//!   (staged)               keys   3 1 4 1 5 ..   ->   words   a      | k k    | m m z
//!                                                     keys    4      | 3 9    | 1 1 5
//! ```
//! Values are written once to where they belong, in memory that the second-level cache holds, and nothing is
//! allocated for a group.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;

use super::super::pages::{FreePages, Pages};
use super::super::store::encode;
use super::words::PARTS;
use crate::key::{Encoding, Key, KeySpec, Width, words};

/// Rows of a run.
pub(crate) const RUN_ROWS: usize = 1 << 18;

/// Where each part starts, and where the last one ends.
#[derive(Debug, Clone)]
pub(crate) struct Starts(Arc<[u32]>);

impl Starts {
    /// From the number of rows in each part.
    fn from_counts(counts: &[u32]) -> Self {
        let mut sum = 0;
        let ends = counts.iter().map(|count| {
            sum += count;
            sum
        });
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// Rows of a part.
    pub(crate) fn range(&self, part: usize) -> Range<usize> {
        self.0[part] as usize..self.0[part + 1] as usize
    }

    fn rows(&self) -> usize {
        self.0.last().map_or(0, |end| *end as usize)
    }
}

/// Plain integers in order of part.
pub(crate) struct Parted {
    pub(crate) starts: Starts,
    pages: Pages<u8>,
}

impl Parted {
    /// Room for values of `T`.
    fn new<T>(starts: &Starts, free: Option<&Arc<FreePages>>) -> Result<Self> {
        Ok(Self {
            starts: starts.clone(),
            pages: Pages::new(starts.rows() * size_of::<T>(), free)?,
        })
    }

    fn values_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let bytes = self.starts.rows() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self.pages.words_mut()[..bytes])
    }

    /// The values of a part, of the type that was written.
    pub(crate) fn part<T: bytemuck::Pod>(&self, part: usize) -> &[T] {
        let Range { start, end } = self.starts.range(part);
        let size = size_of::<T>();
        bytemuck::cast_slice(&self.pages.words()[start * size..end * size])
    }
}

/// The values of one column in a batch that waits for its run.
pub(crate) struct StagedColumn {
    /// The rows that have one, ascending; `None`: all.
    pub(crate) rows: Option<Vec<u32>>,
    /// Their words, as wide as the column's keys.
    pub(crate) values: StagedValues,
}

/// Words of a batch.
pub(crate) enum StagedValues {
    /// Arrow's.
    Raw(Buffer),
    /// Keys already.
    Keys(Vec<u8>),
}

/// A batch that waits for its run.
pub(crate) struct Staged<W> {
    /// Word of each row's group.
    pub(crate) words: Vec<W>,
    /// Part of each row's group.
    pub(crate) parts: Vec<u16>,
    pub(crate) columns: Vec<StagedColumn>,
}

/// A column of a run.
pub(crate) struct RunColumn {
    /// Group words of its values, unless every row has one.
    pub(crate) own: Option<Parted>,
    /// Keys, as wide as the column's spec says.
    pub(crate) keys: Parted,
}

/// Rows in order of part.
pub(crate) struct Run {
    /// Group words of all rows.
    pub(crate) words: Parted,
    pub(crate) columns: Vec<RunColumn>,
    /// Place of each staged row, a batch after the other: what else belongs to the rows follows it.
    pub(crate) places: Vec<u32>,
}

/// Counts of parts.
fn histogram<'a>(parts: impl Iterator<Item = &'a u16>) -> Vec<u32> {
    let mut counts = vec![0; PARTS];
    for part in parts {
        counts[usize::from(*part)] += 1;
    }
    counts
}

/// Puts batches in order of part.
///
/// # Errors
/// When the system gives no memory.
pub(crate) fn scatter<W: Key>(
    staged: &[Staged<W>],
    specs: &[&KeySpec],
    free: Option<&Arc<FreePages>>,
) -> Result<Run> {
    let starts = Starts::from_counts(&histogram(staged.iter().flat_map(|batch| &batch.parts)));
    let mut run_words = Parted::new::<W>(&starts, free)?;
    let mut next = starts.0.to_vec();
    let mut places = Vec::with_capacity(starts.rows());
    let out = run_words.values_mut::<W>();
    for batch in staged {
        let from = places.len();
        place(&batch.parts, &mut next, &mut places);
        write(&batch.words, &places[from..], out);
    }
    let columns = specs.iter().enumerate().map(|(index, spec)| {
        if staged.iter().all(|batch| batch.columns[index].rows.is_none()) {
            dense_column(staged, index, spec, &starts, &places, free)
        } else {
            sparse_column(staged, index, spec, free)
        }
    });
    Ok(Run {
        columns: columns.collect::<Result<_>>()?,
        words: run_words,
        places,
    })
}

/// The next free place in each row's part.
fn place(parts: &[u16], next: &mut [u32], places: &mut Vec<u32>) {
    for part in parts {
        let next = &mut next[usize::from(*part)];
        places.push(*next);
        *next += 1;
    }
}

fn write<T: Copy>(values: &[T], places: &[u32], out: &mut [T]) {
    for (value, place) in values.iter().zip(places) {
        out[*place as usize] = *value;
    }
}

fn write_keys<K: Key>(
    values: &StagedValues,
    encoding: Encoding,
    places: &[u32],
    scratch: &mut Vec<K>,
    out: &mut [K],
) {
    match values {
        StagedValues::Raw(raw) => {
            let raw = words::<K>(raw);
            scratch.resize(raw.len(), K::default());
            encode(encoding, raw, scratch);
            write(scratch, places, out);
        }
        StagedValues::Keys(keys) => write(bytemuck::cast_slice(keys), places, out),
    }
}

/// Calls `$body` with the key type of a width.
macro_rules! with_key {
    ($width:expr, $key:ident => $body:expr) => {
        match $width {
            Width::W32 => {
                type $key = u32;
                $body
            }
            Width::W64 => {
                type $key = u64;
                $body
            }
            Width::W128 => {
                type $key = u128;
                $body
            }
        }
    };
}
pub(crate) use with_key;

/// A column that has a value in every row: it goes where the rows went.
fn dense_column<W>(
    staged: &[Staged<W>],
    index: usize,
    spec: &KeySpec,
    starts: &Starts,
    places: &[u32],
    free: Option<&Arc<FreePages>>,
) -> Result<RunColumn> {
    with_key!(spec.width(), K => {
        let mut keys = Parted::new::<K>(starts, free)?;
        let (out, mut scratch, mut from) = (keys.values_mut::<K>(), Vec::new(), 0);
        for batch in staged {
            let places = &places[from..from + batch.parts.len()];
            write_keys(&batch.columns[index].values, spec.encoding(), places, &mut scratch, out);
            from += batch.parts.len();
        }
        Ok(RunColumn { own: None, keys })
    })
}

/// A column without a value in some rows: it has group words of its own.
fn sparse_column<W: Key>(
    staged: &[Staged<W>],
    index: usize,
    spec: &KeySpec,
    free: Option<&Arc<FreePages>>,
) -> Result<RunColumn> {
    let kept = |batch: &Staged<W>| -> (Vec<W>, Vec<u16>) {
        match &batch.columns[index].rows {
            None => (batch.words.clone(), batch.parts.clone()),
            Some(rows) => {
                let rows = || rows.iter().map(|row| *row as usize);
                (
                    rows().map(|row| batch.words[row]).collect(),
                    rows().map(|row| batch.parts[row]).collect(),
                )
            }
        }
    };
    let kept: Vec<_> = staged.iter().map(kept).collect();
    let starts = Starts::from_counts(&histogram(kept.iter().flat_map(|(_, parts)| parts)));
    let mut own = Parted::new::<W>(&starts, free)?;
    with_key!(spec.width(), K => {
        let mut keys = Parted::new::<K>(&starts, free)?;
        let (own_out, out) = (own.values_mut::<W>(), keys.values_mut::<K>());
        let (mut next, mut places, mut scratch) = (starts.0.to_vec(), Vec::new(), Vec::new());
        for (batch, (words, parts)) in staged.iter().zip(&kept) {
            places.clear();
            place(parts, &mut next, &mut places);
            write(words, &places, own_out);
            write_keys(&batch.columns[index].values, spec.encoding(), &places, &mut scratch, out);
        }
        Ok(RunColumn { own: Some(own), keys })
    })
}
