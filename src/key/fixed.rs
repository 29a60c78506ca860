//! Keys of fixed-width types.
//!
//! ```text
//! unsigned   u                      the value itself
//! signed     s .......              sign bit flipped
//! float      s eeee mmmm            positive: sign bit flipped; negative: all bits flipped
//! boolean    0 | 1
//! ```
//! Types of 8 and 16 bits are widened to `u32`. All others keep their width, so that encoding needs no second layout:
//! Arrow's own buffer is read as unsigned words and encoded word by word. The layouts are those of Arrow's row format
//! (`arrow-row/src/fixed.rs`), without the NULL sentinel byte and in the machine's byte order; tests compare the order
//! with it.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, make_array};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Int8Type, Int16Type, IntervalUnit, UInt8Type, UInt16Type,
};
use datafusion::common::{Result, internal_err};

use super::{Key, KeyBits, Width};

/// The encoding of the words of a type as keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    /// Unsigned words of this width.
    Unsigned(Width),
    /// Two's complement of this width.
    Signed(Width),
    /// IEEE 754 of this many bits (16, 32, 64). All NaNs are one key above `+inf`.
    Float(u8),
    /// IEEE 754 of this many bits, in `totalOrder`.
    FloatTotal(u8),
}

impl Encoding {
    /// The encoding of a type; `None` if it has no key of at most 128 bits.
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        use DataType::*;
        Some(match data_type {
            Boolean | UInt8 | UInt16 | UInt32 | Null => Encoding::Unsigned(Width::W32),
            Int8 | Int16 | Int32 | Date32 | Time32(_) | Decimal32(..) | Interval(IntervalUnit::YearMonth) => {
                Encoding::Signed(Width::W32)
            }
            UInt64 => Encoding::Unsigned(Width::W64),
            Int64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) | Decimal64(..) => {
                Encoding::Signed(Width::W64)
            }
            Decimal128(..) => Encoding::Signed(Width::W128),
            Float16 => Encoding::Float(16),
            Float32 => Encoding::Float(32),
            Float64 => Encoding::Float(64),
            _ => return None,
        })
    }

    /// The encoding of the same values in `ORDER BY`'s order.
    pub(crate) fn total_order(self) -> Self {
        match self {
            Encoding::Float(bits) => Encoding::FloatTotal(bits),
            other => other,
        }
    }

    pub(crate) fn width(self) -> Width {
        match self {
            Encoding::Unsigned(width) | Encoding::Signed(width) => width,
            Encoding::Float(64) | Encoding::FloatTotal(64) => Width::W64,
            Encoding::Float(_) | Encoding::FloatTotal(_) => Width::W32,
        }
    }

    /// Number of bits that the encoding uses: those of the type, not of the word.
    fn bits(self) -> u32 {
        match self {
            Encoding::Float(bits) | Encoding::FloatTotal(bits) => bits.into(),
            Encoding::Unsigned(width) | Encoding::Signed(width) => 8 * width.bytes() as u32,
        }
    }

    /// Encodes words as keys; both slices have equal lengths. Inlined, so that it is compiled for the instruction set
    /// of its caller.
    #[inline(always)]
    pub(crate) fn encode<K: Key>(self, words: &[K], keys: &mut [K]) {
        let sign = K::one() << (self.bits() - 1);
        let pairs = words.iter().zip(keys);
        match self {
            Encoding::Unsigned(_) => pairs.for_each(|(word, key)| *key = *word),
            Encoding::Signed(_) => pairs.for_each(|(word, key)| *key = *word ^ sign),
            Encoding::FloatTotal(bits) => {
                pairs.for_each(|(word, key)| *key = fold_sign(*word, sign, bits.into()))
            }
            Encoding::Float(bits) => {
                let (infinity, nan) = (K::infinity(bits), K::nan(bits));
                let magnitude = sign - K::one();
                // NaNs are rare: one pass only looks for them, by a sum that reaches the sign bit for a NaN alone.
                let lift = magnitude - infinity;
                let seen = words
                    .iter()
                    .fold(K::default(), |seen, word| seen | ((*word & magnitude) + lift));
                if seen & sign == sign {
                    let one_nan = |word: K| if (word & magnitude) > infinity { nan } else { word };
                    pairs.for_each(|(word, key)| *key = fold_sign(one_nan(*word), sign, bits.into()));
                } else {
                    pairs.for_each(|(word, key)| *key = fold_sign(*word, sign, bits.into()));
                }
            }
        }
    }

    /// The key of one word.
    #[inline(always)]
    pub(crate) fn key<K: Key>(self, word: K) -> K {
        let mut key = [K::default()];
        self.encode(&[word], &mut key);
        key[0]
    }

    pub(super) fn integer(self, bits: KeyBits) -> i128 {
        match self {
            Encoding::Signed(Width::W32) => self.decode(bits as u32) as i32 as i128,
            Encoding::Signed(Width::W64) => self.decode(bits as u64) as i64 as i128,
            _ => self.decode(bits) as i128,
        }
    }

    pub(super) fn integer_key(self, value: i128) -> KeyBits {
        match self.width() {
            Width::W32 => self.decode(value as u32).to_bits(),
            Width::W64 => self.decode(value as u64).to_bits(),
            Width::W128 => self.decode(value as u128),
        }
    }

    pub(super) fn float(self, bits: KeyBits) -> Option<f64> {
        match self {
            Encoding::Float(16) | Encoding::FloatTotal(16) => {
                let half =
                    <Float16Type as ArrowPrimitiveType>::Native::from_bits(self.decode(bits as u32) as u16);
                Some(half.to_f64())
            }
            Encoding::Float(32) | Encoding::FloatTotal(32) => {
                Some(f32::from_bits(self.decode(bits as u32)).into())
            }
            Encoding::Float(_) | Encoding::FloatTotal(_) => Some(f64::from_bits(self.decode(bits as u64))),
            _ => None,
        }
    }

    pub(super) fn append_floats<K: Key>(self, keys: &[K], numbers: &mut Vec<f64>) {
        match self {
            Encoding::Float(64) | Encoding::FloatTotal(64) => {
                let number = |key: &K| f64::from_bits(self.decode(key.to_bits() as u64));
                numbers.extend(keys.iter().map(number));
            }
            _ => numbers.extend(keys.iter().filter_map(|key| self.float(key.to_bits()))),
        }
    }

    pub(super) fn float_key(self, value: f64) -> KeyBits {
        match self.bits() {
            16 => {
                let half = <Float16Type as ArrowPrimitiveType>::Native::from_f64(value);
                self.key(u32::from(half.to_bits())).to_bits()
            }
            32 => self.key((value as f32).to_bits()).to_bits(),
            _ => self.key(value.to_bits()).to_bits(),
        }
    }

    pub(super) fn rounded(self, value: f64) -> f64 {
        match self.bits() {
            16 => <Float16Type as ArrowPrimitiveType>::Native::from_f64(value).to_f64(),
            32 => f64::from(value as f32),
            _ => value,
        }
    }

    /// The word whose key is `key`. Flipping the sign bit is its own inverse, so integers encode by it too.
    pub(super) fn decode<K: Key>(self, key: K) -> K {
        let sign = K::one() << (self.bits() - 1);
        match self {
            Encoding::Unsigned(_) => key,
            Encoding::Signed(_) => key ^ sign,
            Encoding::Float(_) | Encoding::FloatTotal(_) if (key & sign) == sign => key ^ sign,
            Encoding::Float(_) | Encoding::FloatTotal(_) => key ^ (sign | (sign - K::one())),
        }
    }
}

/// Flips the sign bit of positive numbers and all `bits` of negative ones.
#[inline(always)]
fn fold_sign<K: Key>(word: K, sign: K, bits: u32) -> K {
    // 0 or all ones below the sign bit, without a branch: 0 - (sign bit), masked.
    let negative = K::default().minus(word >> (bits - 1)) & (sign - K::one());
    word ^ (negative | sign)
}

/// The words of `values`, each as wide as the type's key. `values` must have no NULL; its validity is not read. For
/// types of 32 bits and more this is Arrow's buffer, without a copy.
pub(super) fn raw(values: &dyn Array, data_type: &DataType) -> Result<Buffer> {
    if values.data_type() != data_type {
        return internal_err!("keys of {data_type} asked of an array of {}", values.data_type());
    }
    fn widened<T: ArrowPrimitiveType>(values: &dyn Array, word: impl Fn(T::Native) -> u32) -> Buffer {
        let values = values.as_primitive::<T>().values();
        Buffer::from_vec(values.iter().map(|value| word(*value)).collect::<Vec<u32>>())
    }
    Ok(match data_type {
        DataType::Null => Buffer::from_vec(Vec::<u32>::new()),
        DataType::Boolean => Buffer::from_vec(
            values
                .as_boolean()
                .values()
                .iter()
                .map(u32::from)
                .collect::<Vec<u32>>(),
        ),
        DataType::UInt8 => widened::<UInt8Type>(values, u32::from),
        DataType::UInt16 => widened::<UInt16Type>(values, u32::from),
        DataType::Int8 => widened::<Int8Type>(values, |value| value as i32 as u32),
        DataType::Int16 => widened::<Int16Type>(values, |value| value as i32 as u32),
        DataType::Float16 => widened::<Float16Type>(values, |value| u32::from(value.to_bits())),
        _ => {
            let data = values.to_data();
            let Some(encoding) = Encoding::of(data_type) else {
                return internal_err!("values of type {data_type} have no keys");
            };
            let size = encoding.width().bytes();
            data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size)
        }
    })
}

/// An array of `data_type` from keys, which are given in integers of their width or wider ones.
pub(super) fn to_array<B: Key>(data_type: &DataType, encoding: Encoding, bits: &[B]) -> Result<ArrayRef> {
    fn narrow<T: ArrowPrimitiveType>(bits: &[impl Key], value: impl Fn(KeyBits) -> T::Native) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter_values(
            bits.iter().map(|key| value(key.to_bits())),
        ))
    }
    fn words<K: Key>(encoding: Encoding, bits: &[impl Key]) -> Vec<K> {
        bits.iter()
            .map(|key| encoding.decode(K::from_bits(key.to_bits())))
            .collect()
    }
    let buffer = match data_type {
        DataType::Null => {
            return internal_err!("a value of type Null has no key");
        }
        DataType::Boolean => {
            return Ok(Arc::new(BooleanArray::from_iter(
                bits.iter().map(|key| Some(*key != B::default())),
            )));
        }
        DataType::UInt8 => return Ok(narrow::<UInt8Type>(bits, |key| key as u8)),
        DataType::UInt16 => return Ok(narrow::<UInt16Type>(bits, |key| key as u16)),
        DataType::Int8 => {
            return Ok(narrow::<Int8Type>(bits, |key| {
                encoding.decode(key as u32) as i32 as i8
            }));
        }
        DataType::Int16 => {
            return Ok(narrow::<Int16Type>(bits, |key| {
                encoding.decode(key as u32) as i32 as i16
            }));
        }
        DataType::Float16 => {
            return Ok(narrow::<Float16Type>(bits, |key| {
                <Float16Type as ArrowPrimitiveType>::Native::from_bits(encoding.decode(key as u32) as u16)
            }));
        }
        _ => match encoding.width() {
            Width::W32 => Buffer::from_vec(words::<u32>(encoding, bits)),
            Width::W64 => Buffer::from_vec(words::<u64>(encoding, bits)),
            Width::W128 => Buffer::from_vec(
                words::<u128>(encoding, bits)
                    .into_iter()
                    .map(|word| word as i128)
                    .collect::<Vec<i128>>(),
            ),
        },
    };
    let data = datafusion::arrow::array::ArrayData::builder(data_type.clone())
        .len(bits.len())
        .add_buffer(buffer)
        .build()?;
    Ok(make_array(data))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::key::{KeySpec, Order};
    use datafusion::arrow::array::*;
    use datafusion::arrow::compute::{SortOptions, sort_to_indices};
    use datafusion::arrow::datatypes::{Field, Float32Type, Float64Type, TimeUnit};
    use datafusion::arrow::row::{RowConverter, SortField};
    use half::f16;

    fn floats64() -> Vec<f64> {
        vec![
            1.5,
            -1.5,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            -f64::NAN,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            5e-324,
            -5e-324,
            f64::from_bits(0x7ff0_0000_0000_0001),
            f64::from_bits(0xffff_ffff_ffff_ffff),
        ]
    }

    /// One array of each supported type, with extremes.
    pub(crate) fn samples() -> Vec<ArrayRef> {
        let i64s = vec![0, -1, 1, i64::MIN, i64::MAX, 42, -42];
        let i32s = vec![0, -1, 1, i32::MIN, i32::MAX, 42];
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(BooleanArray::from(vec![true, false, true])),
            Arc::new(Int8Array::from(vec![0, -1, 1, i8::MIN, i8::MAX])),
            Arc::new(Int16Array::from(vec![0, -1, 1, i16::MIN, i16::MAX])),
            Arc::new(Int32Array::from(i32s.clone())),
            Arc::new(Int64Array::from(i64s.clone())),
            Arc::new(UInt8Array::from(vec![0, 1, u8::MAX])),
            Arc::new(UInt16Array::from(vec![0, 1, u16::MAX])),
            Arc::new(UInt32Array::from(vec![0, 1, u32::MAX, 1 << 31])),
            Arc::new(UInt64Array::from(vec![0, 1, u64::MAX, 1 << 63])),
            Arc::new(Float64Array::from(floats64())),
            Arc::new(Float32Array::from(
                floats64().iter().map(|v| *v as f32).collect::<Vec<_>>(),
            )),
            Arc::new(Float16Array::from(
                floats64().iter().map(|v| f16::from_f64(*v)).collect::<Vec<_>>(),
            )),
            Arc::new(Decimal128Array::from(vec![
                0,
                -1,
                1,
                i128::MIN / 2,
                i128::MAX / 2,
            ])),
            Arc::new(Decimal64Array::from(vec![0, -1, 1, 999_999])),
            Arc::new(Decimal32Array::from(vec![0, -1, 1, 9_999])),
            Arc::new(Date32Array::from(i32s.clone())),
            Arc::new(Date64Array::from(i64s.clone())),
            Arc::new(Time32SecondArray::from(i32s.clone())),
            Arc::new(Time32MillisecondArray::from(i32s)),
            Arc::new(Time64MicrosecondArray::from(i64s.clone())),
            Arc::new(Time64NanosecondArray::from(i64s.clone())),
            Arc::new(TimestampNanosecondArray::from(i64s.clone()).with_timezone("+02:00")),
            Arc::new(DurationSecondArray::from(i64s.clone())),
            Arc::new(IntervalYearMonthArray::from(vec![0, -1, 1, i32::MIN, i32::MAX])),
        ];
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond] {
            let stamps: ArrayRef = Arc::new(Int64Array::from(i64s.clone()));
            arrays.push(datafusion::arrow::compute::cast(&stamps, &DataType::Timestamp(unit, None)).unwrap());
        }
        arrays
    }

    #[test]
    fn order_by_keys_sort_as_arrow_sorts() {
        for array in samples() {
            let keys = KeySpec::for_order_by(array.data_type())
                .unwrap()
                .keys(&array)
                .unwrap();
            let options = SortOptions {
                descending: false,
                nulls_first: true,
            };
            let sorted = sort_to_indices(&array, Some(options), None).unwrap();
            let by_arrow: Vec<KeyBits> = sorted.values().iter().map(|row| keys[*row as usize]).collect();
            assert!(by_arrow.is_sorted(), "{}: {by_arrow:?}", array.data_type());
        }
    }

    #[test]
    fn order_by_keys_compare_as_rows_compare() {
        for array in samples() {
            let keys = KeySpec::for_order_by(array.data_type())
                .unwrap()
                .keys(&array)
                .unwrap();
            let converter = RowConverter::new(vec![SortField::new(array.data_type().clone())]).unwrap();
            let rows = converter.convert_columns(&[Arc::clone(&array)]).unwrap();
            for i in 0..array.len() {
                for j in 0..array.len() {
                    let expected = rows.row(i).cmp(&rows.row(j));
                    assert_eq!(keys[i].cmp(&keys[j]), expected, "{} {i} {j}", array.data_type());
                }
            }
        }
    }

    #[test]
    fn keys_decode_to_the_values_they_came_from() {
        for array in samples() {
            let spec = KeySpec::for_order_by(array.data_type()).unwrap();
            let back = spec.to_array(&spec.keys(&array).unwrap()).unwrap();
            assert_eq!(
                back.to_data().buffers(),
                array.to_data().buffers(),
                "{}",
                array.data_type()
            );
            assert_eq!(back.data_type(), array.data_type());
        }
    }

    #[test]
    fn all_nans_are_one_value_above_infinity() {
        let values = Float64Array::from(vec![
            f64::INFINITY,
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0x7ff0_0000_0000_0001),
        ]);
        let keys = KeySpec::try_new(&DataType::Float64)
            .unwrap()
            .keys(&values)
            .unwrap();
        assert!(keys[0] < keys[1]);
        assert_eq!(keys[1..], [keys[1]; 3]);
        let values = Float32Array::from(vec![f32::INFINITY, f32::NAN, -f32::NAN]);
        let keys = KeySpec::try_new(&DataType::Float32)
            .unwrap()
            .keys(&values)
            .unwrap();
        assert!(keys[0] < keys[1] && keys[1] == keys[2]);
        let values = Float16Array::from(vec![f16::INFINITY, f16::NAN, f16::from_bits(0xfe01)]);
        let keys = KeySpec::try_new(&DataType::Float16)
            .unwrap()
            .keys(&values)
            .unwrap();
        assert!(keys[0] < keys[1] && keys[1] == keys[2]);
    }

    #[test]
    fn negative_zero_lies_just_below_zero() {
        let keys = |values: ArrayRef| {
            KeySpec::try_new(values.data_type())
                .unwrap()
                .keys(&values)
                .unwrap()
        };
        let wide = keys(Arc::new(PrimitiveArray::<Float64Type>::from(vec![-0.0, 0.0])));
        assert_eq!(wide[0] + 1, wide[1]);
        let narrow = keys(Arc::new(PrimitiveArray::<Float32Type>::from(vec![-0.0, 0.0])));
        assert_eq!(narrow[0] + 1, narrow[1]);
    }

    #[test]
    fn nulls_and_slices() {
        let values = Int64Array::from(vec![Some(7), None, Some(-3), None, Some(9)]);
        let spec = KeySpec::try_new(&DataType::Int64).unwrap();
        let back = spec.to_array(&spec.keys(&values.slice(1, 4)).unwrap()).unwrap();
        assert_eq!(back.as_ref(), &Int64Array::from(vec![-3, 9]) as &dyn Array);
        assert!(spec.keys(&Int64Array::from(vec![None, None])).unwrap().is_empty());
        assert!(
            KeySpec::try_new(&DataType::Null)
                .unwrap()
                .keys(&NullArray::new(3))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn other_types_are_refused_by_name() {
        let map = Field::new_map(
            "m",
            "entries",
            Field::new("k", DataType::Utf8, false),
            Field::new("v", DataType::Utf8, true),
            false,
            true,
        );
        let map = map.data_type().clone();
        for data_type in [
            DataType::Interval(IntervalUnit::DayTime),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::new_list(DataType::Interval(IntervalUnit::MonthDayNano), true),
            DataType::new_list(map.clone(), true),
            map,
        ] {
            let error = Order::try_new(&data_type).unwrap_err().to_string();
            assert!(
                error.contains(&format!("quantiles of type {data_type} are not supported"))
                    && error.contains("strings, binary, lists"),
                "{error}"
            );
        }
        let error = KeySpec::try_new(&DataType::Utf8).unwrap_err().to_string();
        assert!(
            error.contains("values of type Utf8 have no fixed-width key"),
            "{error}"
        );
    }
}
