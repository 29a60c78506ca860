//! Keys one at a time, for window frames: they take in and answer single rows, so that making an array for each row
//! would be most of the work.

use datafusion::arrow::array::{Array, AsArray, downcast_primitive};
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, TimeUnit};
use datafusion::common::{Result, ScalarValue};

use super::{Encoding, Key, KeyBits, KeySpec, Width, with_key};

impl KeySpec {
    /// Calls `take` with each key that [`KeySpec::keys`] gives. Allocates nothing where there is no NULL and the key is
    /// as wide as the value.
    ///
    /// # Errors
    /// Errors of [`KeySpec::keys`] and of `take`.
    pub(crate) fn for_each_key(
        &self,
        values: &dyn Array,
        mut take: impl FnMut(KeyBits) -> Result<()>,
    ) -> Result<()> {
        let width = self.width();
        // An empty buffer of narrower values need not be aligned for words.
        let bytes =
            if values.data_type() == self.data_type() && !values.is_empty() && values.null_count() == 0 {
                primitive_bytes(values).filter(|bytes| bytes.len() == values.len() * width.bytes())
            } else {
                None
            };
        let Some(bytes) = bytes else {
            return self.keys(values)?.into_iter().try_for_each(take);
        };
        with_key!(width, K => encode_each::<K>(self.encoding, bytes, &mut take))
    }

    /// The value that a key stands for, as [`KeySpec::to_array`] gives it.
    ///
    /// # Errors
    /// Errors of [`KeySpec::to_array`].
    pub(crate) fn scalar(&self, key: KeyBits) -> Result<ScalarValue> {
        use ScalarValue as S;
        let float = || self.encoding.float(key);
        let number = || self.encoding.integer(key);
        Ok(match &self.data_type {
            DataType::Int64 => S::Int64(Some(number() as i64)),
            DataType::Int32 => S::Int32(Some(number() as i32)),
            DataType::UInt64 => S::UInt64(Some(number() as u64)),
            DataType::UInt32 => S::UInt32(Some(number() as u32)),
            DataType::Float64 => S::Float64(float()),
            // Not by way of Float64, which would change the bits of some NaNs.
            DataType::Float32 => {
                let word = self.encoding.decode(key as u32);
                S::Float32(Some(f32::from_bits(word)))
            }
            DataType::Decimal64(precision, scale) => S::Decimal64(Some(number() as i64), *precision, *scale),
            DataType::Decimal128(precision, scale) => S::Decimal128(Some(number()), *precision, *scale),
            DataType::Date32 => S::Date32(Some(number() as i32)),
            DataType::Timestamp(unit, zone) => {
                let (time, zone) = (Some(number() as i64), zone.clone());
                match unit {
                    TimeUnit::Second => S::TimestampSecond(time, zone),
                    TimeUnit::Millisecond => S::TimestampMillisecond(time, zone),
                    TimeUnit::Microsecond => S::TimestampMicrosecond(time, zone),
                    TimeUnit::Nanosecond => S::TimestampNanosecond(time, zone),
                }
            }
            _ => ScalarValue::try_from_array(&self.to_array(&[key])?, 0)?,
        })
    }
}

/// The words of a primitive array, as bytes.
fn primitive_bytes(values: &dyn Array) -> Option<&[u8]> {
    fn bytes<T: ArrowPrimitiveType>(values: &dyn Array) -> Option<&[u8]> {
        Some(values.as_primitive_opt::<T>()?.values().inner().as_slice())
    }
    macro_rules! typed {
        ($type:ty, $values:expr) => {
            bytes::<$type>($values)
        };
    }
    downcast_primitive! {
        values.data_type() => (typed, values),
        _ => None
    }
}

fn encode_each<K: Key>(
    encoding: Encoding,
    bytes: &[u8],
    take: &mut impl FnMut(KeyBits) -> Result<()>,
) -> Result<()> {
    let words: &[K] = bytemuck::cast_slice(bytes);
    words
        .iter()
        .try_for_each(|word| take(encoding.key(*word).to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::fixed::tests::samples;

    #[test]
    fn single_keys_and_values_are_those_of_arrays() {
        for array in samples() {
            for spec in [KeySpec::try_new, KeySpec::for_order_by] {
                let spec = spec(array.data_type()).unwrap();
                let keys = spec.keys(&array).unwrap();
                let mut single = Vec::new();
                for row in 0..array.len() {
                    let take = |key| {
                        single.push(key);
                        Ok(())
                    };
                    spec.for_each_key(array.slice(row, 1).as_ref(), take).unwrap();
                }
                assert_eq!(single, keys, "{}", array.data_type());
                for key in keys {
                    let expected = spec.to_array(&[key]).unwrap();
                    let found = spec.scalar(key).unwrap().to_array().unwrap();
                    assert_eq!(found.to_data(), expected.to_data(), "{}", array.data_type());
                    assert_eq!(
                        found.to_data().buffers(),
                        expected.to_data().buffers(),
                        "{}",
                        array.data_type()
                    );
                }
            }
        }
    }
}
