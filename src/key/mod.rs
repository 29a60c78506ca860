//! Order-preserving keys: every value that can be ranked maps to an unsigned integer of the same order.
//!
//! Algorithms never see SQL types. They work on `u32`, `u64` or `u128` inside a lane and on
//! [`KeyBits`] outside, where a [`KeySpec`] says what the bits mean. NULLs have no key: they stay out of band.
//!
//! Two orders exist, and they differ in floating point only. The functions' own order (that of
//! [`KeySpec::try_new`]) makes all NaNs one value above `+inf`; `ORDER BY`'s order ([`KeySpec::for_order_by`]) is
//! IEEE 754 `totalOrder`, which puts a NaN with its sign bit set below `-inf`. In both, `-0.0` lies just below
//! `0.0`.
//!
//! Types that no integer of up to 128 bits can hold (strings, binary, lists, structs, 256-bit decimals) are ordered as
//! byte strings, whose prefixes serve as keys.

mod bound;
mod bytes;
mod fixed;
mod keys;
mod single;
mod sort;

use std::fmt::Debug;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::{filter, is_not_null};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

pub(crate) use bound::{LeadBound, Least};
pub(crate) use bytes::{ByteSpec, PrefixKey};
use fixed::Bits;
pub(crate) use fixed::Encoding;
#[cfg(test)]
pub(crate) use fixed::tests::samples;
pub use keys::{KeyVec, LaneKey};
pub(crate) use sort::{OrderBy, RowOrder, SortColumn, SortKeys, with_one_nan};

/// A key outside a lane: the key's bits, zero-extended to 128.
pub type KeyBits = u128;

/// An unsigned integer that serves as key inside a lane.
pub trait Key:
    Bits + Copy + Ord + Default + Debug + Send + Sync + bytemuck::Pod + std::hash::Hash + 'static
{
    /// Width in bits.
    const BITS: u32;
    /// Largest key.
    const MAX: Self;
    /// Zero-extends.
    fn to_bits(self) -> KeyBits;
    /// Truncates: the caller passes bits of this width only.
    fn from_bits(bits: KeyBits) -> Self;
    /// `self - other`, modulo the width.
    fn minus(self, other: Self) -> Self;
    /// `self >> shift` as far as it fits in 32 bits; `shift < BITS`.
    fn shr32(self, shift: u32) -> u32;
    /// `self` shifted left by `shift` in a field of `max(64, BITS)` bits, then its upper 64 bits.
    fn upper64(self, shift: u32) -> u64;
}

macro_rules! key {
    ($type:ty, $upper:expr) => {
        impl Key for $type {
            const BITS: u32 = <$type>::BITS;
            const MAX: Self = <$type>::MAX;
            #[inline(always)]
            fn to_bits(self) -> KeyBits {
                self as KeyBits
            }
            #[inline(always)]
            fn from_bits(bits: KeyBits) -> Self {
                bits as $type
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn shr32(self, shift: u32) -> u32 {
                (self >> shift) as u32
            }
            #[inline(always)]
            fn upper64(self, shift: u32) -> u64 {
                let upper: fn($type, u32) -> u64 = $upper;
                upper(self, shift)
            }
        }
    };
}
key!(u32, |key, shift| (key as u64) << shift);
key!(u64, |key, shift| key << shift);
key!(u128, |key, shift| ((key << shift) >> 64) as u64);

/// Width of a key inside a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Width {
    /// `u32`: types of at most 32 bits.
    W32,
    /// `u64`.
    W64,
    /// `u128`: Decimal128.
    W128,
}

impl Width {
    /// Bytes of one key.
    pub fn bytes(self) -> usize {
        match self {
            Width::W32 => 4,
            Width::W64 => 8,
            Width::W128 => 16,
        }
    }

    /// The largest key of this width.
    pub fn max_key(self) -> KeyBits {
        match self {
            Width::W32 => u32::MAX as KeyBits,
            Width::W64 => u64::MAX as KeyBits,
            Width::W128 => u128::MAX,
        }
    }
}

/// How the values of a type are ordered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// By fixed-width keys.
    Keys(KeySpec),
    /// As byte strings.
    Bytes(ByteSpec),
}

impl Order {
    /// # Errors
    /// A planning error that names the type, and those that are allowed.
    pub(crate) fn try_new(data_type: &DataType) -> Result<Self> {
        match ByteSpec::of(data_type) {
            Some(spec) => Ok(Order::Bytes(spec)),
            None => KeySpec::try_new(data_type).map(Order::Keys),
        }
    }
}

fn unordered<T>(data_type: &DataType) -> Result<T> {
    let reason = match data_type {
        DataType::Interval(_) => "days and months have no fixed length; ",
        _ => "",
    };
    plan_err!(
        "quantiles of type {data_type} are not supported: {reason}allowed are integers, floating-point numbers, \
         decimals, Boolean, Date, Time, Timestamp, Duration, Interval(YearMonth), strings, binary, lists \
         (List, LargeList, FixedSizeList) and structs of these, and dictionaries of these"
    )
}

/// What the keys of one column mean: the Arrow type that they come from, their width and order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeySpec {
    data_type: DataType,
    encoding: Encoding,
}

impl KeySpec {
    /// Keys in the order of the functions: all NaNs are one value, the greatest.
    ///
    /// # Errors
    /// A planning error that names the type if it has no fixed-width key.
    pub fn try_new(data_type: &DataType) -> Result<Self> {
        match Encoding::of(data_type) {
            Some(encoding) => Ok(Self {
                data_type: data_type.clone(),
                encoding,
            }),
            None if ByteSpec::of(data_type).is_some() => {
                plan_err!("values of type {data_type} have no fixed-width key")
            }
            None => unordered(data_type),
        }
    }

    /// Keys in the order of `ORDER BY` (ascending): IEEE 754 `totalOrder` for floating point, as Arrow sorts.
    ///
    /// # Errors
    /// A planning error that names the type if it has no fixed-width key.
    pub fn for_order_by(data_type: &DataType) -> Result<Self> {
        let mut spec = Self::try_new(data_type)?;
        spec.encoding = spec.encoding.total_order();
        Ok(spec)
    }

    /// Whether [`KeySpec::try_new`] accepts the type.
    pub fn supports(data_type: &DataType) -> bool {
        Encoding::of(data_type).is_some()
    }

    /// The type whose values the keys stand for.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Width of the keys.
    pub fn width(&self) -> Width {
        self.encoding.width()
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The values that `bits` stand for, in the same order, as an array of [`Self::data_type`].
    ///
    /// A NaN comes back as the one positive quiet NaN, whatever its bits were.
    ///
    /// # Errors
    /// An internal error if the type cannot be built from keys (not for a spec made by this type's constructors).
    pub fn to_array(&self, bits: &[KeyBits]) -> Result<ArrayRef> {
        fixed::to_array(&self.data_type, self.encoding, bits)
    }

    /// The same from keys of the type that [`Self::width`] says.
    pub(crate) fn values_of<K: Key>(&self, keys: &[K]) -> Result<ArrayRef> {
        fixed::to_array(&self.data_type, self.encoding, keys)
    }

    /// Appends the keys of values without NULL, of the type that [`Self::width`] says.
    ///
    /// # Errors
    /// An internal error if `values` is not of [`Self::data_type`].
    pub(crate) fn append_keys<K: Key>(&self, values: &dyn Array, keys: &mut Vec<K>) -> Result<()> {
        let raw = fixed::raw(values, &self.data_type)?;
        let mut block = [K::default(); 1024];
        for words in words::<K>(&raw).chunks(1024) {
            let block = &mut block[..words.len()];
            self.encoding.encode(words, block);
            keys.extend_from_slice(block);
        }
        Ok(())
    }

    /// The keys of the non-NULL values, in row order.
    ///
    /// # Errors
    /// An internal error if `values` is not of [`Self::data_type`].
    pub fn keys(&self, values: &dyn Array) -> Result<Vec<KeyBits>> {
        let dense = dense(values, None)?;
        let words = fixed::raw(dense.as_deref().unwrap_or(values), &self.data_type)?;
        Ok(match self.width() {
            Width::W32 => encode::<u32>(self.encoding, &words),
            Width::W64 => encode::<u64>(self.encoding, &words),
            Width::W128 => encode::<u128>(self.encoding, &words),
        })
    }

    /// How many values are not NULL, and the sum of their mixed keys, modulo 2^64: the same in any order.
    ///
    /// # Errors
    /// An internal error if `values` is not of [`Self::data_type`].
    pub(crate) fn checksum(&self, values: &dyn Array) -> Result<(u64, u64)> {
        let dense = dense(values, None)?;
        let words = fixed::raw(dense.as_deref().unwrap_or(values), &self.data_type)?;
        Ok(match self.width() {
            Width::W32 => checksum::<u32>(self.encoding, &words),
            Width::W64 => checksum::<u64>(self.encoding, &words),
            Width::W128 => checksum::<u128>(self.encoding, &words),
        })
    }

    /// The number behind a key of an integer, decimal, Boolean, date or time type (units as in the type).
    pub(crate) fn integer(&self, bits: KeyBits) -> i128 {
        self.encoding.integer(bits)
    }

    /// The key of such a number, which the type can hold.
    pub(crate) fn integer_key(&self, value: i128) -> KeyBits {
        self.encoding.integer_key(value)
    }

    /// The key of a number in a floating-point type, rounded to the type.
    pub(crate) fn float_key(&self, value: f64) -> KeyBits {
        self.encoding.float_key(value)
    }

    /// `value` rounded to the floating-point type.
    pub(crate) fn rounded(&self, value: f64) -> f64 {
        self.encoding.rounded(value)
    }

    /// The number behind a key of a floating-point type; `None` for other types.
    pub(crate) fn float(&self, bits: KeyBits) -> Option<f64> {
        self.encoding.float(bits)
    }

    /// Whether words are wider than Arrow's, so that [`Self::raw`] copies.
    pub(crate) fn widens(&self) -> bool {
        self.data_type.primitive_width() != Some(self.width().bytes())
    }

    /// The raw words of a dense array of this type: Arrow's buffer itself where the width allows.
    pub(crate) fn raw(&self, values: &dyn Array) -> Result<Buffer> {
        fixed::raw(values, &self.data_type)
    }
}

/// A buffer of [`KeySpec::raw`] as words: Arrow aligns buffers to the type that they were made for.
pub(crate) fn words<K: Key>(raw: &Buffer) -> &[K] {
    bytemuck::cast_slice(raw)
}

fn checksum<K: Key>(encoding: Encoding, raw: &Buffer) -> (u64, u64) {
    let words = words::<K>(raw);
    let (mut keys, mut sum) = ([K::default(); 1024], 0_u64);
    for block in words.chunks(1024) {
        let keys = &mut keys[..block.len()];
        encoding.encode(block, keys);
        for key in keys {
            sum = sum.wrapping_add(mixed(key.to_bits()));
        }
    }
    (words.len() as u64, sum)
}

/// Distance of states in Steele, Lea and Flood's SplitMix64 (2014).
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a product, as in Wang's wyhash (2019): a multiplication a word. It need not withstand an adversary.
/// The key [`GOLDEN`] becomes 0, and so is told by the number of keys beside a sum alone.
#[inline(always)]
pub(crate) fn mixed(key: KeyBits) -> u64 {
    let fold = |word: u64| {
        let product = u128::from(word ^ GOLDEN) * 0xbf58_476d_1ce4_e5b9;
        product as u64 ^ (product >> 64) as u64
    };
    match (key >> 64) as u64 {
        0 => fold(key as u64),
        upper => fold(key as u64 ^ fold(upper)),
    }
}

/// SplitMix64's number for a state.
pub fn finalised(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn encode<K: Key>(encoding: Encoding, raw: &Buffer) -> Vec<KeyBits> {
    let words = words::<K>(raw);
    let mut keys = vec![K::default(); words.len()];
    encoding.encode(words, &mut keys);
    keys.into_iter().map(Key::to_bits).collect()
}

/// Which rows are not NULL and, where there is a `mask`, true in it. `None`: all of them.
///
/// # Errors
/// Arrow's, if `mask` is not as long as `values`.
pub(crate) fn kept(values: &dyn Array, mask: Option<&BooleanArray>) -> Result<Option<BooleanArray>> {
    if mask.is_none() && values.logical_null_count() == 0 {
        return Ok(None);
    }
    let valid = is_not_null(values)?;
    let keep = match mask {
        None => valid,
        Some(mask) => {
            let mask = match mask.nulls() {
                None => mask.values().clone(),
                Some(nulls) => mask.values() & nulls.inner(),
            };
            BooleanArray::new(valid.values() & &mask, None)
        }
    };
    Ok((keep.true_count() < values.len()).then_some(keep))
}

/// `values` without its NULLs and without the rows where `mask` is false or NULL. `None`: nothing to drop.
///
/// # Errors
/// Arrow's, if `mask` is not as long as `values`.
pub fn dense(values: &dyn Array, mask: Option<&BooleanArray>) -> Result<Option<ArrayRef>> {
    Ok(match kept(values, mask)? {
        None => None,
        Some(keep) => Some(filter(values, &keep)?),
    })
}
