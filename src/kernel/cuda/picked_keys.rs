//! Keys of some of the sorted records of a device, on the host.

use super::launch::key_of;
use crate::key::KeyBits;

/// Keys of some records, as they were copied from the device.
#[derive(Debug, Default)]
pub struct PickedKeys {
    records: Vec<u8>,
    /// Bytes of a record.
    width: usize,
    /// The bits of a record that are the key.
    mask: KeyBits,
    /// The key that the keys in records count from.
    pub(super) least: KeyBits,
}

impl PickedKeys {
    /// The keys in these bytes, `width` for each record, whose lowest `key_bits` bits are the key.
    pub(super) fn new(records: Vec<u8>, width: usize, key_bits: u32) -> Self {
        let mask = match key_bits {
            0 => 0,
            bits => KeyBits::MAX >> (KeyBits::BITS - bits),
        };
        Self {
            records,
            width,
            mask,
            least: 0,
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.records.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// These keys with others between them: for each of `known` that key, which counts from [`Self::least`], or the next of these.
    pub(super) fn with(self, known: impl Iterator<Item = Option<KeyBits>>) -> Self {
        let mut own = self.records.chunks_exact(self.width.max(1));
        let mut records = Vec::with_capacity(self.records.len());
        for key in known {
            match key {
                Some(key) => records.extend_from_slice(&key.to_le_bytes()[..self.width]),
                None => records.extend_from_slice(own.next().unwrap_or_default()),
            }
        }
        Self { records, ..self }
    }

    /// These keys, and behind them others of the same column.
    pub(super) fn and(mut self, mut others: Self) -> Self {
        if self.is_empty() {
            return others;
        }
        if self.width != others.width && !others.is_empty() {
            (self, others) = (self.widened(), others.widened());
        }
        self.records.append(&mut others.records);
        self
    }

    /// These keys, each with as many bytes as [`KeyBits`] has.
    fn widened(self) -> Self {
        let keys = self.records.chunks_exact(self.width.max(1)).map(key_of);
        Self {
            records: keys.flat_map(KeyBits::to_le_bytes).collect(),
            width: size_of::<KeyBits>(),
            ..self
        }
    }

    /// The key at `index`, or `None` beyond the last.
    pub fn get(&self, index: usize) -> Option<KeyBits> {
        let from = index.checked_mul(self.width)?;
        let record = self.records.get(from..from + self.width)?;
        Some((key_of(record) & self.mask) + self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_records() {
        let keys = PickedKeys {
            records: [0x0102_u64, 0xff03]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect(),
            width: 8,
            mask: 0xff,
            least: 1000,
        };
        assert_eq!((keys.len(), keys.is_empty()), (2, false));
        assert_eq!(
            [0, 1, 2].map(|index| keys.get(index)),
            [Some(1002), Some(1003), None]
        );
        let joined = keys.with([None, Some(0x77), None].into_iter());
        assert_eq!(
            [0, 1, 2, 3].map(|index| joined.get(index)),
            [Some(1002), Some(1000 + 0x77), Some(1003), None]
        );
        let narrow = || PickedKeys {
            records: vec![7, 9],
            width: 1,
            mask: 0xff,
            least: 1000,
        };
        let all = narrow().and(narrow()).and(joined).and(PickedKeys::default());
        let found: Vec<_> = (0..8).map(|index| all.get(index)).collect();
        let expected = [1007, 1009, 1007, 1009, 1002, 1000 + 0x77, 1003].map(Some);
        assert_eq!(found, [expected.as_slice(), &[None]].concat());
        let none = PickedKeys::default();
        assert_eq!((none.len(), none.is_empty()), (0, true));
    }
}
