//! The meaning of the keys of one column.

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

use super::fixed;
use super::{ByteSpec, Encoding, Key, KeyBits, Width, dense, mixed, with_key};

/// The way in which the values of a type are ordered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// The values have fixed-width keys.
    Keys(KeySpec),
    /// The values are ordered as byte strings.
    Bytes(ByteSpec),
}

impl Order {
    /// # Errors
    /// A planning error that names the type and the allowed ones.
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

/// The meaning of the keys of one column: the Arrow type that they come from, their width and their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeySpec {
    pub(super) data_type: DataType,
    pub(super) encoding: Encoding,
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

    /// The values that `bits` stand for, in the same order, as an array of type [`Self::data_type`].
    ///
    /// A NaN comes back as the one positive quiet NaN, whatever its bits were.
    ///
    /// # Errors
    /// An internal error if the type cannot be built from keys (not for a spec made by this type's constructors).
    pub fn to_array(&self, bits: &[KeyBits]) -> Result<ArrayRef> {
        fixed::to_array(&self.data_type, self.encoding, bits)
    }

    /// [`Self::to_array`] of keys whose type has the width of [`Self::width`].
    pub(crate) fn values_of<K: Key>(&self, keys: &[K]) -> Result<ArrayRef> {
        fixed::to_array(&self.data_type, self.encoding, keys)
    }

    /// Appends the keys of values without NULL. `K` has the width of [`Self::width`].
    ///
    /// # Errors
    /// An internal error if `values` does not have type [`Self::data_type`].
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

    /// The keys of the values that are not NULL, in row order.
    ///
    /// # Errors
    /// An internal error if `values` does not have type [`Self::data_type`].
    pub fn keys(&self, values: &dyn Array) -> Result<Vec<KeyBits>> {
        let dense = dense(values, None)?;
        let words = fixed::raw(dense.as_deref().unwrap_or(values), &self.data_type)?;
        Ok(with_key!(self.width(), K => encode::<K>(self.encoding, &words)))
    }

    /// The number of values that are not NULL, and the sum of their mixed keys, modulo 2^64. It does not depend on the
    /// order of the values.
    ///
    /// # Errors
    /// An internal error if `values` does not have type [`Self::data_type`].
    pub(crate) fn checksum(&self, values: &dyn Array) -> Result<(u64, u64)> {
        let dense = dense(values, None)?;
        let words = fixed::raw(dense.as_deref().unwrap_or(values), &self.data_type)?;
        Ok(with_key!(self.width(), K => checksum::<K>(self.encoding, &words)))
    }

    /// The number that a key of an integer, decimal, Boolean, date or time type stands for, in the unit of the type.
    pub(crate) fn integer(&self, bits: KeyBits) -> i128 {
        self.encoding.integer(bits)
    }

    /// The key of a number as [`Self::integer`] gives it, which the type must be able to hold.
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

    /// The number that a key of a floating-point type stands for; `None` for other types.
    pub(crate) fn float(&self, bits: KeyBits) -> Option<f64> {
        self.encoding.float(bits)
    }

    /// The number that a key of type `Float32` stands for; a NaN for a key of another type.
    #[cfg(feature = "cuda")]
    pub(crate) fn float_of(&self, bits: KeyBits) -> f32 {
        self.float(bits).map_or(f32::NAN, |value| value as f32)
    }

    /// Adds the numbers that keys of a floating-point type stand for to `numbers`; none for other types.
    pub(crate) fn append_floats<K: Key>(&self, keys: &[K], numbers: &mut Vec<f64>) {
        self.encoding.append_floats(keys, numbers);
    }

    /// Whether words are wider than Arrow's values, so that [`Self::raw`] copies them.
    pub(crate) fn widens(&self) -> bool {
        self.data_type.primitive_width() != Some(self.width().bytes())
    }

    /// The raw words of an array of this type without NULLs: Arrow's buffer itself where the width allows it.
    pub(crate) fn raw(&self, values: &dyn Array) -> Result<Buffer> {
        fixed::raw(values, &self.data_type)
    }
}

/// A buffer of [`KeySpec::raw`] as words. Arrow aligns buffers for the type that they were made for.
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

fn encode<K: Key>(encoding: Encoding, raw: &Buffer) -> Vec<KeyBits> {
    let words = words::<K>(raw);
    let mut keys = vec![K::default(); words.len()];
    encoding.encode(words, &mut keys);
    keys.into_iter().map(Key::to_bits).collect()
}
