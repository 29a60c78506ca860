//! Classes of groups by their hashes, and the fingerprint of each class.

use std::collections::BTreeMap;

use super::super::fingerprint::{ColumnFingerprint, InputFingerprint};
use crate::key::mixed;

/// Number of classes: at most as many machines select answers.
const CLASSES: u16 = 64;

/// The class of the groups in a hash partition.
pub(super) fn class_of(part: u16) -> u32 {
    u32::from(part % CLASSES)
}

/// The fingerprint of a group in a hash partition, as its class adds it up. A value that moves to a group of another hash partition
/// changes the checksum of its class.
pub(super) fn of_part(read: ColumnFingerprint, part: u16) -> ColumnFingerprint {
    ColumnFingerprint {
        n: read.n,
        check: read.check.wrapping_mul(mixed(part.into()) | 1),
    }
}

/// The fingerprints of what was read of each class.
#[derive(Debug, Default)]
pub(super) struct ClassFingerprints {
    /// Number of key columns.
    columns: usize,
    pub(super) classes: BTreeMap<u32, InputFingerprint>,
}

impl ClassFingerprints {
    /// No class yet. There are this many key columns.
    pub(super) fn of(columns: usize) -> Self {
        Self {
            columns,
            classes: BTreeMap::new(),
        }
    }

    /// The fingerprint of a class, to add to.
    pub(super) fn class(&mut self, class: u32) -> &mut InputFingerprint {
        let columns = self.columns;
        let own = self.classes.entry(class);
        own.or_insert_with(|| InputFingerprint::of(columns))
    }

    /// The fingerprint of a class; that of no rows if nothing was read of it.
    pub(super) fn read(&self, class: u32) -> InputFingerprint {
        let own = self.classes.get(&class).cloned();
        own.unwrap_or_else(|| InputFingerprint::of(self.columns))
    }

    /// Adds rows that have no value in the first key column. `parts` has the hash partition of each group, `nulls` its number of such
    /// rows.
    pub(super) fn add_nulls(&mut self, parts: &[u16], nulls: &[u64]) {
        for (part, nulls) in parts.iter().zip(nulls) {
            self.class(class_of(*part)).rows += nulls;
        }
    }

    /// Adds the fingerprint of each group in a key column. `parts` has the hash partition of each group.
    pub(super) fn add_groups(
        &mut self,
        parts: &[u16],
        column: usize,
        read: impl Iterator<Item = ColumnFingerprint>,
    ) {
        for (part, read) in parts.iter().zip(read) {
            self.class(class_of(*part))
                .add_values(column, of_part(read, *part));
        }
    }
}
