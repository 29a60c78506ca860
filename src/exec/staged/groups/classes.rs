//! Classes of groups, by hash, and what was read of each.

use std::collections::BTreeMap;

use super::super::fingerprint::{ColumnFingerprint, InputFingerprint};
use crate::key::mixed;

/// Classes of groups: as many machines can select answers.
const CLASSES: u16 = 64;

/// The class of a group whose hash has this part.
pub(super) fn class_of(part: u16) -> u32 {
    u32::from(part % CLASSES)
}

/// What was read of a group whose hash has this part, as it is added to what is known of its class: values that change places between
/// groups change the checksum, unless the parts are the same.
pub(super) fn of_part(read: ColumnFingerprint, part: u16) -> ColumnFingerprint {
    ColumnFingerprint {
        n: read.n,
        check: read.check.wrapping_mul(mixed(part.into()) | 1),
    }
}

/// What was read of each class.
#[derive(Debug, Default)]
pub(super) struct ClassFingerprints {
    /// Number of key columns.
    columns: usize,
    pub(super) classes: BTreeMap<u32, InputFingerprint>,
}

impl ClassFingerprints {
    /// Nothing read yet, of this number of key columns.
    pub(super) fn of(columns: usize) -> Self {
        Self {
            columns,
            classes: BTreeMap::new(),
        }
    }

    pub(super) fn class(&mut self, class: u32) -> &mut InputFingerprint {
        let columns = self.columns;
        let own = self.classes.entry(class);
        own.or_insert_with(|| InputFingerprint::of(columns))
    }

    /// What was read of a class, which may be nothing.
    pub(super) fn read(&self, class: u32) -> InputFingerprint {
        let own = self.classes.get(&class).cloned();
        own.unwrap_or_else(|| InputFingerprint::of(self.columns))
    }

    /// Adds rows of groups that have no value in the first key column; `parts` are those of the groups' hashes.
    pub(super) fn add_nulls(&mut self, parts: &[u16], nulls: &[u64]) {
        for (part, nulls) in parts.iter().zip(nulls) {
            self.class(class_of(*part)).rows += nulls;
        }
    }

    /// Adds what was read of a key column for each group: how many values, and their checksum.
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
