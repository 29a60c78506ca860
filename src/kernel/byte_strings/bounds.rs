//! What byte strings have in common.

/// Length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Longest prefix that is watched while values come: others are kept for each part of them.
const WATCHED: usize = 256;

/// What some values have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Their longest common prefix, or the first [`WATCHED`] bytes of it.
    pub(crate) prefix: Vec<u8>,
    /// Length of the longest of them.
    pub(crate) longest: usize,
}

impl Bounds {
    pub(crate) fn of(value: &[u8]) -> Self {
        Self {
            prefix: value.to_vec(),
            longest: value.len(),
        }
    }

    /// The same of a value that others are to follow.
    pub(super) fn watching(value: &[u8]) -> Self {
        Self {
            prefix: value[..value.len().min(WATCHED)].to_vec(),
            longest: value.len(),
        }
    }

    /// Whether the prefix may go on.
    pub(crate) fn is_cut(&self) -> bool {
        self.prefix.len() == WATCHED && self.longest > WATCHED
    }

    /// With one more value, or the common prefix of others.
    pub(crate) fn add(&mut self, value: &[u8]) {
        if !value.starts_with(&self.prefix) {
            self.prefix.truncate(common_prefix(&self.prefix, value));
        }
        self.longest = self.longest.max(value.len());
    }

    /// What the values of two sets have in common.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.add(&other.prefix);
        self.longest = self.longest.max(other.longest);
        self
    }
}

/// Sums over values.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) len: u64,
    /// Of the values alone.
    pub(crate) bytes: u64,
    /// `None` without values.
    pub(crate) bounds: Option<Bounds>,
}

impl Totals {
    pub(crate) fn add(&mut self, value: &[u8]) {
        match &mut self.bounds {
            Some(bounds) => bounds.add(value),
            none => *none = Some(Bounds::watching(value)),
        }
        self.len += 1;
        self.bytes += value.len() as u64;
    }

    pub(super) fn join(&mut self, other: Self) {
        self.len += other.len;
        self.bytes += other.bytes;
        self.bounds = match (self.bounds.take(), other.bounds) {
            (Some(a), Some(b)) => Some(a.joined(b)),
            (a, b) => a.or(b),
        };
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.bounds.as_ref().map_or(0, |bounds| bounds.prefix.capacity())
    }
}
