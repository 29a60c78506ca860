//! Types without a fixed-width key, as byte strings of the same order.
//!
//! | type | bytes |
//! | --- | --- |
//! | strings and binary, of fixed size too | their own |
//! | Decimal256 | 32, big-endian, sign bit flipped |
//! | lists of numbers, booleans and times | Arrow's row of each item (a mark, then its bytes), then 0 |
//! | other lists, and structs | Arrow's row format, NULLs inside them last |
//!
//! Byte strings are compared byte by byte; a prefix comes before the strings that continue it. That is `ORDER BY`'s
//! ascending order. Inside lists and structs this holds for floating point too (IEEE 754 `totalOrder`): NaNs stay
//! distinct there.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayAccessor, ArrayRef, AsArray, BinaryViewBuilder, Decimal256Array, FixedSizeBinaryBuilder,
    GenericBinaryBuilder, GenericStringBuilder, OffsetSizeTrait, StringViewBuilder,
};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::datatypes::{DataType, Decimal256Type, i256};
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};

use super::Encoding;
use super::lists::{each_list, item_bytes, lists};
use super::rows::{converter, each_kept, from_rows, pieces};

/// The representation of a type's values as byte strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Representation {
    /// The values are byte strings themselves.
    Plain,
    /// Big-endian bytes of a Decimal256, sign bit flipped.
    Decimal,
    /// Arrow's rows of the items of a list, all of equal length, and an end ([`lists`]). Arrow's own format of a list
    /// takes up to 19 bytes for an item of 8.
    Items,
    /// Arrow's row format.
    Rows,
}

/// A type whose values are ordered as byte strings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ByteSpec {
    data_type: DataType,
    representation: Representation,
}

impl ByteSpec {
    /// The specification for a type; `None` if the type has fixed-width keys or no order.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        use DataType::*;
        let representation = match data_type {
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => {
                Representation::Plain
            }
            Decimal256(..) => Representation::Decimal,
            List(item) | LargeList(item) if item_bytes(item.data_type()).is_some() => Representation::Items,
            List(_) | LargeList(_) | FixedSizeList(..) | Struct(_) if is_ordered(data_type) => {
                Representation::Rows
            }
            _ => return None,
        };
        Some(Self {
            data_type: data_type.clone(),
            representation,
        })
    }

    /// The type whose values the bytes stand for.
    pub(crate) fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Calls `each` with the bytes of the values where `kept` is set (`None`: of all values), in row order. A row that
    /// is kept must not be NULL.
    ///
    /// # Errors
    /// Errors of `each`; an internal error if `values` has another type.
    pub(crate) fn each(
        &self,
        values: &dyn Array,
        kept: Option<&BooleanBuffer>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        use DataType::*;
        if *values.data_type() != self.data_type {
            return internal_err!(
                "bytes of {} asked of an array of {}",
                self.data_type,
                values.data_type()
            );
        }
        match values.data_type() {
            Utf8 => each_plain(values.as_string::<i32>(), kept, each),
            LargeUtf8 => each_plain(values.as_string::<i64>(), kept, each),
            Utf8View => each_plain(values.as_string_view(), kept, each),
            Binary => each_plain(values.as_binary::<i32>(), kept, each),
            LargeBinary => each_plain(values.as_binary::<i64>(), kept, each),
            BinaryView => each_plain(values.as_binary_view(), kept, each),
            FixedSizeBinary(_) => each_plain(values.as_fixed_size_binary(), kept, each),
            Decimal256(..) => {
                let decimals = values.as_primitive::<Decimal256Type>();
                each_kept(values.len(), kept, |row| {
                    each(&decimal_bytes(decimals.value(row)))
                })
            }
            List(_) if self.representation == Representation::Items => {
                each_list(values.as_list::<i32>(), kept, each)
            }
            LargeList(_) if self.representation == Representation::Items => {
                each_list(values.as_list::<i64>(), kept, each)
            }
            _ => self.each_row(values, kept, each),
        }
    }

    fn each_row(
        &self,
        values: &dyn Array,
        kept: Option<&BooleanBuffer>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let converter = converter(&self.data_type)?;
        for piece in pieces(values, kept) {
            for row in &converter.convert_columns(&[piece?])? {
                each(row.data())?;
            }
        }
        Ok(())
    }

    /// An array of the values that byte strings of [`Self::each`] stand for.
    ///
    /// # Errors
    /// An execution error if the values are too long together for the type's offsets; an internal error for other
    /// bytes.
    pub(crate) fn to_array(&self, values: &[&[u8]]) -> Result<ArrayRef> {
        use DataType::*;
        Ok(match &self.data_type {
            Utf8 => strings::<i32>(values)?,
            LargeUtf8 => strings::<i64>(values)?,
            Utf8View => {
                let mut builder = StringViewBuilder::with_capacity(values.len());
                for value in values {
                    builder.append_value(text(value)?);
                }
                Arc::new(builder.finish())
            }
            Binary => binaries::<i32>(values)?,
            LargeBinary => binaries::<i64>(values)?,
            BinaryView => {
                let mut builder = BinaryViewBuilder::with_capacity(values.len());
                values.iter().for_each(|value| builder.append_value(value));
                Arc::new(builder.finish())
            }
            FixedSizeBinary(size) => {
                let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), *size);
                values.iter().try_for_each(|value| builder.append_value(value))?;
                Arc::new(builder.finish())
            }
            Decimal256(precision, scale) => {
                let decimals = values.iter().map(|value| decimal(value));
                let decimals = decimals.collect::<Result<Vec<i256>>>()?;
                let array = Decimal256Array::from_iter_values(decimals);
                Arc::new(array.with_precision_and_scale(*precision, *scale)?)
            }
            List(item) if self.representation == Representation::Items => lists::<i32>(item, values)?,
            LargeList(item) if self.representation == Representation::Items => lists::<i64>(item, values)?,
            whole => from_rows(whole, values)?,
        })
    }
}

/// Whether Arrow's row format orders values of this type as `ORDER BY` does. Dictionaries are not considered.
fn is_ordered(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        List(item) | LargeList(item) | FixedSizeList(item, _) => is_ordered(item.data_type()),
        Struct(fields) => fields.iter().all(|field| is_ordered(field.data_type())),
        flat => Encoding::of(flat).is_some() || ByteSpec::of(flat).is_some(),
    }
}

fn each_plain<A>(
    array: A,
    kept: Option<&BooleanBuffer>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()>
where
    A: ArrayAccessor,
    A::Item: AsRef<[u8]>,
{
    each_kept(array.len(), kept, |row| each(array.value(row).as_ref()))
}

fn text(value: &[u8]) -> Result<&str> {
    std::str::from_utf8(value).map_err(|error| internal_datafusion_err!("bytes are not a string: {error}"))
}

/// # Errors
/// An execution error if offsets of type `O` cannot count the bytes.
fn check_offsets<O: OffsetSizeTrait>(values: &[&[u8]]) -> Result<usize> {
    let bytes = values.iter().map(|value| value.len()).sum();
    match O::from_usize(bytes) {
        Some(_) => Ok(bytes),
        None => exec_err!(
            "{bytes} bytes of quantile values do not fit into one array with {}-bit offsets: cast the argument to \
             Utf8View or BinaryView",
            8 * size_of::<O>()
        ),
    }
}

fn strings<O: OffsetSizeTrait>(values: &[&[u8]]) -> Result<ArrayRef> {
    let bytes = check_offsets::<O>(values)?;
    let mut builder = GenericStringBuilder::<O>::with_capacity(values.len(), bytes);
    for value in values {
        builder.append_value(text(value)?);
    }
    Ok(Arc::new(builder.finish()))
}

fn binaries<O: OffsetSizeTrait>(values: &[&[u8]]) -> Result<ArrayRef> {
    let bytes = check_offsets::<O>(values)?;
    let mut builder = GenericBinaryBuilder::<O>::with_capacity(values.len(), bytes);
    values.iter().for_each(|value| builder.append_value(value));
    Ok(Arc::new(builder.finish()))
}

fn decimal_bytes(value: i256) -> [u8; 32] {
    let mut bytes = value.to_be_bytes();
    bytes[0] ^= 0x80;
    bytes
}

fn decimal(bytes: &[u8]) -> Result<i256> {
    let Ok(mut bytes) = <[u8; 32]>::try_from(bytes) else {
        return internal_err!("{} bytes are not a 256-bit decimal", bytes.len());
    };
    bytes[0] ^= 0x80;
    Ok(i256::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::*;
    use datafusion::arrow::compute::SortOptions;
    use datafusion::arrow::datatypes::{Float64Type, Int32Type, Int64Type};

    use super::*;

    fn bytes_of(array: &dyn Array) -> (ByteSpec, Vec<Vec<u8>>) {
        let spec = ByteSpec::of(array.data_type()).unwrap();
        let mut bytes = Vec::new();
        spec.each(array, None, |value| {
            bytes.push(value.to_vec());
            Ok(())
        })
        .unwrap();
        (spec, bytes)
    }

    fn samples() -> Vec<ArrayRef> {
        let texts = [
            "",
            "a",
            "a\0",
            "a\0\0",
            "ab",
            "b",
            "äöü",
            "a long string that is not inline",
            "a long string",
        ];
        let bytes: Vec<&[u8]> = vec![b"", b"\0", b"\xff\xff", b"\xff", b"\0\xff\0", b"0123456789abcdef"];
        let lists = [
            Some(vec![Some(1), None]),
            Some(vec![]),
            Some(vec![None]),
            Some(vec![Some(-1), Some(7)]),
            Some(vec![Some(1)]),
            Some(vec![Some(1), Some(0)]),
        ];
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
        let mut booleans = ListBuilder::new(BooleanBuilder::new());
        for list in [&[Some(true), None][..], &[], &[Some(false)], &[Some(true)]] {
            booleans.append_value(list.iter().copied());
        }
        let floats = [
            Some(vec![Some(-0.0), Some(1.5)]),
            Some(vec![Some(0.0)]),
            Some(vec![Some(f64::NAN)]),
            Some(vec![Some(f64::NEG_INFINITY), None]),
        ];
        let fixed = [
            [Some(1), None],
            [Some(-1), Some(2)],
            [None, Some(3)],
            [Some(1), Some(1)],
        ];
        let rows: ArrayRef = Arc::new(
            StructArray::try_from(vec![
                (
                    "n",
                    Arc::new(Int32Array::from(vec![Some(2), None, Some(1), Some(2)])) as ArrayRef,
                ),
                (
                    "s",
                    Arc::new(StringArray::from(vec![Some("x"), Some(""), None, Some("w")])) as ArrayRef,
                ),
            ])
            .unwrap(),
        );
        let decimals = [0, 1, -1, 5, i128::MAX, i128::MIN].map(i256::from_i128);
        let decimals = decimals.into_iter().chain([i256::MIN, i256::MAX]);
        vec![
            Arc::new(StringArray::from_iter_values(texts)),
            Arc::new(LargeStringArray::from_iter_values(texts)),
            Arc::new(StringViewArray::from_iter_values(texts)),
            Arc::new(BinaryArray::from_iter_values(bytes.clone())),
            Arc::new(LargeBinaryArray::from_iter_values(bytes.clone())),
            Arc::new(BinaryViewArray::from_iter_values(bytes)),
            Arc::new(
                FixedSizeBinaryArray::try_from_iter([b"ab\0", b"\xff\0\0", b"ab\x01"].into_iter()).unwrap(),
            ),
            Arc::new(
                Decimal256Array::from_iter_values(decimals)
                    .with_precision_and_scale(76, 3)
                    .unwrap(),
            ),
            Arc::new(list),
            Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists)),
            Arc::new(booleans.finish()),
            Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(floats)),
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                fixed.into_iter().map(Some),
                2,
            )),
            rows,
        ]
    }

    #[test]
    fn bytes_compare_as_arrow_compares() {
        for array in samples() {
            let (_, bytes) = bytes_of(&array);
            let options = SortOptions {
                descending: false,
                nulls_first: false,
            };
            let compare = make_comparator(&array, &array, options).unwrap();
            for (i, a) in bytes.iter().enumerate() {
                for (j, b) in bytes.iter().enumerate() {
                    assert_eq!(a.cmp(b), compare(i, j), "{} {i} {j}", array.data_type());
                }
            }
        }
    }

    #[test]
    fn values_come_back() {
        for array in samples() {
            let (spec, bytes) = bytes_of(&array);
            let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            assert_eq!(&spec.to_array(&slices).unwrap(), &array);
            let none = spec.to_array(&[]).unwrap();
            assert_eq!((none.len(), none.data_type()), (0, array.data_type()));
        }
    }

    #[test]
    fn lists_of_integers_take_nine_bytes_an_item() {
        let items = |n: i64| Some((0..n).map(Some).collect::<Vec<_>>());
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([items(30), items(0), items(1)]);
        let lengths: Vec<usize> = bytes_of(&lists).1.iter().map(Vec::len).collect();
        assert_eq!(lengths, [9 * 30 + 1, 1, 9 + 1]);
    }

    #[test]
    fn what_is_no_list_of_items_is_an_error() {
        let spec = ByteSpec::of(&DataType::new_list(DataType::Int64, true)).unwrap();
        for bytes in [&[][..], &[1], &[1, 0], &[1; 10]] {
            let error = spec.to_array(&[bytes]).unwrap_err();
            assert!(error.to_string().contains("are no list of Int64"), "{error}");
        }
    }

    #[test]
    fn only_kept_rows_are_visited() {
        for array in samples() {
            let (spec, all) = bytes_of(&array);
            let kept = BooleanBuffer::collect_bool(array.len(), |row| row % 2 == 1);
            let mut odd = Vec::new();
            spec.each(&array, Some(&kept), |value| {
                odd.push(value.to_vec());
                Ok(())
            })
            .unwrap();
            let expected: Vec<_> = all.into_iter().skip(1).step_by(2).collect();
            assert_eq!(odd, expected, "{}", array.data_type());
        }
    }

    #[test]
    fn offsets_that_overflow_are_an_error() {
        let long = vec![b'x'; 1 << 20];
        let values = vec![long.as_slice(); 2048];
        let error = ByteSpec::of(&DataType::Utf8)
            .unwrap()
            .to_array(&values)
            .unwrap_err()
            .strip_backtrace();
        assert!(
            error.contains("2147483648 bytes of quantile values do not fit"),
            "{error}"
        );
    }
}
