//! Fingerprints of a read of the input: numbers that do not depend on the order of rows, and in which all reads of the same rows agree.
//!
//! Ballista can lose a partition, or deliver one twice, when an executor is lost, and files can change between two reads. Every read
//! reports how many values it saw and the sum of their mixed keys. Sums of partitions add up. If the sums of two reads differ, the
//! statement fails.

use std::fmt::{self, Display};

use datafusion::common::{Result, exec_err};

use crate::wire::{Reader, put};

/// First words of the error if two reads of one input differ.
pub(crate) const READ_DIFFERENTLY: &str =
    "input changed between rounds, or a partition was lost or read twice";

/// Fingerprint of a key column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ColumnFingerprint {
    /// Number of values.
    pub(super) n: u64,
    /// The sum of the values' mixed keys, modulo 2^64.
    pub(super) check: u64,
}

impl ColumnFingerprint {
    pub(super) fn add(&mut self, other: ColumnFingerprint) {
        // Another process may send any number. No read sees 2^64 - 1 values, so that a sum this large never agrees.
        self.n = self.n.saturating_add(other.n);
        self.check = self.check.wrapping_add(other.check);
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put(out, self.n);
        out.extend(self.check.to_le_bytes());
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            n: input.number("number of values")?,
            check: input.key::<u64>()?,
        })
    }
}

/// Fingerprint of rows: their number, and the fingerprint of each key column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct InputFingerprint {
    pub(super) rows: u64,
    pub(super) columns: Vec<ColumnFingerprint>,
}

impl InputFingerprint {
    /// The fingerprint of no rows, with this number of key columns.
    pub(super) fn of(columns: usize) -> Self {
        Self {
            rows: 0,
            columns: vec![ColumnFingerprint::default(); columns],
        }
    }

    pub(super) fn add(&mut self, other: &InputFingerprint) {
        self.rows = self.rows.saturating_add(other.rows);
        let columns = self.columns.len().max(other.columns.len());
        self.columns.resize(columns, ColumnFingerprint::default());
        let columns = self.columns.iter_mut().zip(&other.columns);
        columns.for_each(|(own, other)| own.add(*other));
    }

    /// Adds values of a key column. Each value of the first key column also counts as a row; rows without a value there are added
    /// elsewhere.
    pub(super) fn add_values(&mut self, column: usize, values: ColumnFingerprint) {
        self.columns[column].add(values);
        if column == 0 {
            self.rows = self.rows.saturating_add(values.n);
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put(out, self.rows);
        put(out, self.columns.len() as u64);
        self.columns.iter().for_each(|column| column.write(out));
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            rows: input.number("number of rows")?,
            columns: input.list("columns", ColumnFingerprint::read)?,
        })
    }
}

/// Checks that a later read saw the same rows as the first read.
///
/// # Errors
/// An execution error with both fingerprints, if they differ.
pub(super) fn compare<F: Display + PartialEq>(first: &F, later: &F) -> Result<()> {
    if first == later {
        Ok(())
    } else {
        exec_err!("{READ_DIFFERENTLY}: {first} were read first, {later} later")
    }
}

impl Display for ColumnFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values with checksum {:016x}", self.n, self.check)
    }
}

impl Display for InputFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values = ColumnFingerprint::default();
        self.columns.iter().for_each(|column| values.add(*column));
        write!(f, "{} rows with {values}", self.rows)
    }
}
