//! Common prefixes and lengths of byte strings.

/// Length in bytes of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Longest prefix, in bytes, that is tracked while values come: each partition keeps one.
const WATCHED: usize = 256;

/// The common prefix and the greatest length of some values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The longest common prefix of the values, or the first [`WATCHED`] bytes of it.
    pub(crate) prefix: Vec<u8>,
    /// Length in bytes of the longest value.
    pub(crate) longest: usize,
}

impl Bounds {
    pub(crate) fn of(value: &[u8]) -> Self {
        Self {
            prefix: value.to_vec(),
            longest: value.len(),
        }
    }

    /// The bounds of a first value, of whose prefix only [`WATCHED`] bytes are tracked.
    pub(super) fn watching(value: &[u8]) -> Self {
        Self {
            prefix: value[..value.len().min(WATCHED)].to_vec(),
            longest: value.len(),
        }
    }

    /// Whether the common prefix may be longer than the one that is tracked.
    pub(crate) fn is_cut(&self) -> bool {
        self.prefix.len() == WATCHED && self.longest > WATCHED
    }

    /// Adds a value, or the common prefix of others.
    pub(crate) fn add(&mut self, value: &[u8]) {
        if !value.starts_with(&self.prefix) {
            self.prefix.truncate(common_prefix(&self.prefix, value));
        }
        self.longest = self.longest.max(value.len());
    }

    /// The bounds of the values of both sides.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.add(&other.prefix);
        self.longest = self.longest.max(other.longest);
        self
    }
}

/// Number, bytes and bounds of values.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) len: u64,
    /// Bytes of the values alone.
    pub(crate) bytes: u64,
    /// Bounds of the values; `None` if there are none.
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
