//! What a question says of its reads.

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::functions::CHANGED;
use crate::key::{Key, KeySpec, dense};

/// A question about the rows of an input that is answered by reads of them all. Each read counts rows and keeps few; what it counted proves the
/// answer, or tells what the next read is to keep.
pub(super) trait ByReads: Send + Sync + Sized {
    /// What one partition of a read counts and keeps.
    type Part: ReadPart;

    /// One of so many `parts` of the next read before its first row. What it holds is reserved in `memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory to begin.
    fn part(&self, parts: usize, memory: MemoryReservation) -> Result<Self::Part>;

    /// Whether another plan is to answer, because it is known to be faster.
    fn is_left(&self) -> bool {
        false
    }

    /// Takes in what all parts of a read found. `true` once the answer is known.
    ///
    /// # Errors
    /// An execution error if the rows are others than before; `ResourcesExhausted` if no number of reads would answer in the memory there is.
    fn narrow(&mut self, parts: Vec<Self::Part>) -> Result<bool>;

    /// The answer, as a column of one row.
    ///
    /// # Errors
    /// Internal errors only.
    fn answer(&self) -> Result<ArrayRef>;
}

/// One partition of a read.
pub(super) trait ReadPart: Send + 'static {
    /// Takes in rows.
    ///
    /// # Errors
    /// An execution error for values that are not allowed.
    fn push(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Number of rows, or values, that are held.
    fn held(&self) -> usize;
}

/// Appends the keys of the values in the first column that are not NULL.
///
/// # Errors
/// Internal errors only.
pub(super) fn append_values<K: Key>(spec: &KeySpec, batch: &RecordBatch, keys: &mut Vec<K>) -> Result<()> {
    let values = batch.column(0);
    let dense = dense(values.as_ref(), None)?;
    spec.append_keys(dense.as_ref().unwrap_or(values).as_ref(), keys)
}

/// The keys of the values in the first columns of batches that are not NULL.
///
/// # Errors
/// Internal errors only.
pub(super) fn keys_of<K: Key>(spec: &KeySpec, batches: &[RecordBatch]) -> Result<Vec<K>> {
    let mut keys = Vec::new();
    for batch in batches {
        append_values(spec, batch, &mut keys)?;
    }
    Ok(keys)
}

/// The number of values, which every read sees. `seen` is that of the first read, once there was one.
///
/// # Errors
/// An execution error if a read saw `now` others.
pub(super) fn same_number(seen: &mut Option<u64>, now: u64) -> Result<u64> {
    match *seen.get_or_insert(now) {
        first if first == now => Ok(now),
        first => exec_err!("{first} values were read first, {now} later: {CHANGED}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_changes_between_two_reads_is_an_error() {
        let mut seen = None;
        for _ in 0..2 {
            assert_eq!(same_number(&mut seen, 3).unwrap(), 3);
        }
        let error = same_number(&mut seen, 4).unwrap_err().to_string();
        assert!(
            error.contains(CHANGED) && error.contains("3 values were read first, 4 later"),
            "{error}"
        );
    }
}
