//! Lists of keys of one width.

use datafusion::common::{Result, internal_err};

use super::{Key, KeyBits, Width, on_width, with_key};

/// A list of keys of one width, as a shard returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyVec {
    /// Keys of at most 32 bits.
    W32(Vec<u32>),
    /// 64-bit keys.
    W64(Vec<u64>),
    /// 128-bit keys.
    W128(Vec<u128>),
}

impl KeyVec {
    /// An empty list of keys of a width.
    pub fn new(width: Width) -> Self {
        with_key!(width, K => K::vec(Vec::new()))
    }

    /// Width of the keys.
    pub(crate) fn width(&self) -> Width {
        match self {
            KeyVec::W32(_) => Width::W32,
            KeyVec::W64(_) => Width::W64,
            KeyVec::W128(_) => Width::W128,
        }
    }

    /// A copy of a slice of keys.
    pub(crate) fn of<K: Key>(keys: &[K]) -> Self {
        let width = match K::BITS {
            32 => Width::W32,
            64 => Width::W64,
            _ => Width::W128,
        };
        Self::from_bits(keys.iter().map(|key| key.to_bits()), width)
    }

    /// A list of keys of a width from their bits.
    pub(crate) fn from_bits(bits: impl Iterator<Item = KeyBits>, width: Width) -> Self {
        with_key!(width, K => K::vec(bits.map(K::from_bits).collect()))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        on_width!(KeyVec, self, keys => keys.len())
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at `index`, which is less than [`Self::len`].
    pub fn get(&self, index: usize) -> KeyBits {
        on_width!(KeyVec, self, keys => Key::to_bits(keys[index]))
    }

    /// Sorts the keys, ascending. Fast where they consist of a few ascending runs.
    pub fn sort(&mut self) {
        on_width!(KeyVec, self, keys => keys.sort())
    }

    /// Sorts the keys, ascending, and drops duplicates.
    pub fn sort_distinct(&mut self) {
        on_width!(KeyVec, self, keys => {
            keys.sort_unstable();
            keys.dedup();
        })
    }

    /// Number of keys that are less than `key`. The keys must be ascending.
    pub fn lower_bound(&self, key: KeyBits) -> usize {
        on_width!(KeyVec, self, keys => keys.partition_point(|own| own.to_bits() < key))
    }

    /// Number of keys that are at most `key`. The keys must be ascending.
    pub fn upper_bound(&self, key: KeyBits) -> usize {
        on_width!(KeyVec, self, keys => keys.partition_point(|own| own.to_bits() <= key))
    }

    /// The keys of ranks from 0 (ascending, each less than [`Self::len`]). Reorders the keys.
    pub fn select(&mut self, ranks: &[u64]) -> Vec<KeyBits> {
        on_width!(KeyVec, self, keys => select(keys, ranks))
    }

    /// Number of keys that are less than `key`, in whatever order they are.
    pub(crate) fn count_below(&self, key: KeyBits) -> u64 {
        on_width!(KeyVec, self, keys => keys.iter().filter(|own| own.to_bits() < key).count() as u64)
    }

    /// The keys of ranks as [`Self::select`] gives them, each with the number of keys that are less, and of those that are at most it.
    pub(crate) fn select_with_counts(&mut self, ranks: &[u64]) -> Vec<(KeyBits, [u64; 2])> {
        let found = self.select(ranks);
        on_width!(KeyVec, self, keys => with_counts(keys, found))
    }

    /// Copies of the keys in pieces of at most `length` keys.
    pub(crate) fn pieces(&self, length: usize) -> impl Iterator<Item = KeyVec> {
        let piece = move |start: usize| {
            let end = (start + length).min(self.len());
            on_width!(KeyVec, self, keys => KeyVec::of(&keys[start..end]))
        };
        (0..self.len()).step_by(length.max(1)).map(piece)
    }

    /// Makes room for exactly `more` further keys.
    pub(crate) fn reserve(&mut self, more: usize) {
        on_width!(KeyVec, self, keys => keys.reserve_exact(more));
    }

    /// Adds the keys of `other` behind these.
    ///
    /// # Errors
    /// An internal error for keys of another width.
    pub(crate) fn append(&mut self, other: KeyVec) -> Result<()> {
        match (self, other) {
            (KeyVec::W32(own), KeyVec::W32(other)) => append(own, other),
            (KeyVec::W64(own), KeyVec::W64(other)) => append(own, other),
            (KeyVec::W128(own), KeyVec::W128(other)) => append(own, other),
            (own, other) => return internal_err!("keys of two widths: {own:?} and {other:?}"),
        }
        Ok(())
    }
}

/// Makes room for exactly the keys of the other side, because no more memory is reserved.
fn append<K>(own: &mut Vec<K>, mut other: Vec<K>) {
    own.reserve_exact(other.len());
    own.append(&mut other);
}

/// Most ranks that are selected. A selection reads about 2n keys, a sort about n log n: past a handful of ranks the sort wins.
const SELECTED: usize = 4;

/// Each of `found`, which were selected from `keys`, with the number of keys that are less, and of those that are at most it.
fn with_counts<K: Key>(keys: &[K], found: Vec<KeyBits>) -> Vec<(KeyBits, [u64; 2])> {
    let is_sorted = found.len() > SELECTED;
    let count = |is_below: &dyn Fn(K) -> bool| match is_sorted {
        true => keys.partition_point(|key| is_below(*key)) as u64,
        false => keys.iter().filter(|key| is_below(**key)).count() as u64,
    };
    let mut counted: Vec<(KeyBits, [u64; 2])> = Vec::with_capacity(found.len());
    for bits in found {
        let key = K::from_bits(bits);
        let counts = match counted.last() {
            Some((last, counts)) if *last == bits => *counts,
            _ => [count(&|own| own < key), count(&|own| own <= key)],
        };
        counted.push((bits, counts));
    }
    counted
}

fn select<K: Key>(keys: &mut [K], ranks: &[u64]) -> Vec<KeyBits> {
    if ranks.len() > SELECTED {
        keys.sort_unstable();
        return ranks.iter().map(|rank| keys[*rank as usize].to_bits()).collect();
    }
    let (mut rest, mut skipped) = (keys, 0);
    let mut found: Vec<KeyBits> = Vec::with_capacity(ranks.len());
    for &rank in ranks {
        let index = rank as usize;
        if index < skipped {
            // The same rank again.
            found.extend(found.last().copied());
            continue;
        }
        let (_, key, above) = rest.select_nth_unstable(index - skipped);
        found.push(key.to_bits());
        (rest, skipped) = (above, index + 1);
    }
    found
}

/// A key type that a shard can hold, and its variant of [`KeyVec`].
pub trait ShardKey: Key {
    const WIDTH: Width;
    fn vec(keys: Vec<Self>) -> KeyVec;
    /// The keys of a list; `None` if their width is another.
    fn keys(keys: KeyVec) -> Option<Vec<Self>>;
}

macro_rules! shard_key {
    ($type:ty, $variant:ident) => {
        impl ShardKey for $type {
            const WIDTH: Width = Width::$variant;

            fn vec(keys: Vec<Self>) -> KeyVec {
                KeyVec::$variant(keys)
            }

            fn keys(keys: KeyVec) -> Option<Vec<Self>> {
                match keys {
                    KeyVec::$variant(keys) => Some(keys),
                    _ => None,
                }
            }
        }
    };
}
shard_key!(u32, W32);
shard_key!(u64, W64);
shard_key!(u128, W128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_of_few_and_of_many_ranks_agree_with_a_sort() {
        let keys: Vec<u64> = (0..1000_u64).map(|i| (i * 7919) % 512).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        for ranks in [
            vec![],
            vec![0],
            vec![999],
            vec![3, 3, 500],
            vec![0, 1, 2, 500, 998, 999],
        ] {
            let found = KeyVec::W64(keys.clone()).select(&ranks);
            let expected: Vec<u128> = ranks.iter().map(|rank| sorted[*rank as usize].into()).collect();
            assert_eq!(found, expected, "{ranks:?}");
        }
    }
}
