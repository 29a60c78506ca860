//! Prefix keys of byte strings.
//!
//! A prefix key packs the start of a byte string into an integer, for the shards of [`crate::kernel`]:
//! ```text
//! u64    b0 b1 .. b6  m     m = min(length, 8): below 8, the key is the whole string
//! u128   b0 b1 .. b14 m     m = min(length, 16)
//! ```
//! Missing bytes are 0. Keys are ordered as their strings are, except that strings with equal first bytes that go on
//! have equal keys: `"a"` and `"a\0"` differ in `m`. The bytes that refine such equal keys start 7 or 15 bytes later,
//! so refining always ends.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Decimal128Array, UInt64Array};
use datafusion::arrow::datatypes::DataType;

use super::{Encoding, Key, KeyBits, KeySpec, Width};

/// A prefix key: the first [`Self::BYTES`] bytes of a byte string, then its length or a mark that it goes on.
pub(crate) trait PrefixKey: Key {
    /// Number of bytes of the string that a key holds.
    const BYTES: usize;

    /// The key of a byte string.
    fn of(bytes: &[u8]) -> Self;

    /// The bytes of a key, of which the first [`Self::BYTES`] matter.
    fn bytes(bits: KeyBits) -> [u8; 16];

    /// The length in bytes of the whole byte string; `None` if it goes on behind the key.
    fn whole(bits: KeyBits) -> Option<usize> {
        let mark = (bits & 0xff) as usize;
        (mark <= Self::BYTES).then_some(mark)
    }

    /// The specification by which a shard takes such keys.
    fn spec() -> KeySpec;

    /// The keys as an array of the type of [`Self::spec`].
    fn array(keys: Vec<Self>) -> ArrayRef;
}

macro_rules! prefix_key {
    ($type:ty, $spec:expr, $array:expr) => {
        impl PrefixKey for $type {
            const BYTES: usize = size_of::<$type>() - 1;

            #[inline]
            fn of(bytes: &[u8]) -> Self {
                const SIZE: usize = size_of::<$type>();
                let word = match bytes.first_chunk::<SIZE>() {
                    Some(start) => <$type>::from_be_bytes(*start),
                    None => {
                        let mut padded = [0; SIZE];
                        padded[..bytes.len()].copy_from_slice(bytes);
                        <$type>::from_be_bytes(padded)
                    }
                };
                (word & !0xff) | bytes.len().min(SIZE) as $type
            }

            fn bytes(bits: KeyBits) -> [u8; 16] {
                (bits << (128 - 8 * size_of::<$type>())).to_be_bytes()
            }

            fn spec() -> KeySpec {
                let (data_type, encoding) = $spec;
                KeySpec {
                    data_type,
                    encoding,
                }
            }

            fn array(keys: Vec<Self>) -> ArrayRef {
                let array: fn(Vec<Self>) -> ArrayRef = $array;
                array(keys)
            }
        }
    };
}
prefix_key!(u64, (DataType::UInt64, Encoding::Unsigned(Width::W64)), |keys| {
    Arc::new(UInt64Array::from(keys))
});
// The widest integers that shards know are signed: their keys are these words with the sign bit flipped.
prefix_key!(
    u128,
    (DataType::Decimal128(38, 10), Encoding::Signed(Width::W128)),
    |keys| {
        let signed = keys.into_iter().map(|key| (key ^ (1 << 127)) as i128);
        Arc::new(Decimal128Array::from_iter_values(signed))
    }
);

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    fn check_prefixes<K: PrefixKey>(strings: &[Vec<u8>]) {
        for a in strings {
            let key = K::of(a);
            if let Some(length) = K::whole(key.to_bits()) {
                assert_eq!(&K::bytes(key.to_bits())[..length], a.as_slice());
            } else {
                assert!(a.len() > K::BYTES);
            }
            for b in strings {
                match key.cmp(&K::of(b)) {
                    Ordering::Equal if K::whole(key.to_bits()).is_some() => assert_eq!(a, b),
                    Ordering::Equal => assert_eq!(a[..K::BYTES], b[..K::BYTES]),
                    order => assert_eq!(order, a.cmp(b), "{a:?} {b:?}"),
                }
            }
        }
    }

    #[test]
    fn prefix_keys_order_as_their_strings() {
        let mut strings = Vec::new();
        for length in 0..20 {
            for byte in [0, 1, 7, 8, 15, 16, 255] {
                strings.push(vec![byte; length]);
                let mut ends_in_zero = vec![byte; length];
                ends_in_zero.extend([0, 0]);
                strings.push(ends_in_zero);
            }
        }
        check_prefixes::<u64>(&strings);
        check_prefixes::<u128>(&strings);
    }

    #[test]
    fn shards_take_prefix_keys_as_they_are() {
        fn check<K: PrefixKey>() {
            let keys: Vec<K> = ["", "a", "zzzzzzzzzzzzzzzzzzzzz", "\u{7f}"]
                .map(|s| K::of(s.as_bytes()))
                .into();
            let bits: Vec<KeyBits> = keys.iter().map(|key| key.to_bits()).collect();
            assert_eq!(K::spec().keys(&K::array(keys)).unwrap(), bits);
        }
        check::<u64>();
        check::<u128>();
    }
}
