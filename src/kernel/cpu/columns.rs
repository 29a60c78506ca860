//! Columns that are carried beside keys: their size in bytes, and copies of some rows that keep no other values alive.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, StructArray, UInt32Array,
    make_array,
};
use datafusion::arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;

/// The longest string or binary value that a view holds itself, without a buffer, in bytes.
const INLINE_BYTES: u32 = 12;

/// Bytes of the rows of an array, which may be a slice of a larger one. Values that views point to count only where
/// these rows use them.
pub(crate) fn row_bytes(column: &ArrayRef) -> usize {
    let data = column.to_data();
    let own = data.get_slice_memory_size();
    own.map_or_else(
        |_| column.get_array_memory_size(),
        |own| own + behind_views(&data),
    )
}

/// Bytes of the string and binary values that the views of an array, or of arrays nested in it, point to.
fn behind_views(data: &ArrayData) -> usize {
    let own = match data.data_type() {
        DataType::Utf8View | DataType::BinaryView => {
            let views = &data.buffer::<u128>(0)[..data.len()];
            // A view begins with the length of its value.
            let lengths = views.iter().map(|view| *view as u32);
            lengths
                .filter(|length| *length > INLINE_BYTES)
                .map(|length| length as usize)
                .sum()
        }
        _ => 0,
    };
    own + data.child_data().iter().map(behind_views).sum::<usize>()
}

/// Copies of some rows of each column, which keep no values of other rows alive.
///
/// # Errors
/// When a row index is too large, or Arrow cannot copy the type.
pub(crate) fn taken(columns: &[ArrayRef], rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
    let taken = columns
        .iter()
        .map(|column| without_others(&take(column.as_ref(), rows, None)?));
    taken.collect()
}

/// The values of arrays of one type, each at its index among all, of which `indices` has one for each value, array by array. `None` if the type
/// has no fixed width of whole bytes, or if there are NULLs.
///
/// # Errors
/// Errors of Arrow, which finds the answer not to be an array of this type.
pub(crate) fn scattered(arrays: &[ArrayRef], indices: &[u32]) -> Result<Option<ArrayRef>> {
    let Some(first) = arrays.first() else {
        return Ok(None);
    };
    let buffer = match first.data_type().primitive_width() {
        _ if arrays.iter().any(|array| array.null_count() > 0) => None,
        Some(1) => scattered_words::<u8>(arrays, indices),
        Some(2) => scattered_words::<u16>(arrays, indices),
        Some(4) => scattered_words::<u32>(arrays, indices),
        Some(8) => scattered_words::<u64>(arrays, indices),
        Some(16) => scattered_words::<[u64; 2]>(arrays, indices),
        Some(32) => scattered_words::<[u64; 4]>(arrays, indices),
        _ => None,
    };
    let Some(buffer) = buffer else {
        return Ok(None);
    };
    let data = ArrayData::builder(first.data_type().clone())
        .len(indices.len())
        .add_buffer(buffer);
    Ok(Some(make_array(data.build()?)))
}

/// [`scattered`] for values of type `T`.
fn scattered_words<T: bytemuck::Pod>(arrays: &[ArrayRef], indices: &[u32]) -> Option<Buffer> {
    let mut out = MutableBuffer::from_len_zeroed(indices.len() * size_of::<T>());
    let words = bytemuck::try_cast_slice_mut::<u8, T>(out.as_slice_mut()).ok()?;
    let mut rest = indices;
    for array in arrays {
        let data = array.to_data();
        let (from, rows) = (data.offset() * size_of::<T>(), data.len());
        let bytes = data.buffers().first()?.as_slice();
        let values = bytes.get(from..from + rows * size_of::<T>())?;
        let (own, others) = rest.split_at_checked(rows)?;
        write(bytemuck::try_cast_slice(values).ok()?, own, words);
        rest = others;
    }
    Some(out.into())
}

/// Writes each value to its index in `out`, which `indices` gives.
pub(super) fn write<T: Copy>(values: &[T], indices: &[u32], out: &mut [T]) {
    for (value, index) in values.iter().zip(indices) {
        out[*index as usize] = *value;
    }
}

/// A copy of an array whose views, nested ones too, point to values of its own rows only.
///
/// # Errors
/// Errors of Arrow's kernels.
pub(crate) fn without_others(column: &ArrayRef) -> Result<ArrayRef> {
    Ok(match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        DataType::Struct(fields) => {
            let columns = column.as_struct().columns().iter().map(without_others);
            let columns = columns.collect::<Result<_>>()?;
            let nulls = column.nulls().cloned();
            Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                nulls,
                column.len(),
            )?)
        }
        DataType::List(_) => list_without_others::<i32>(column)?,
        DataType::LargeList(_) => list_without_others::<i64>(column)?,
        _ => Arc::clone(column),
    })
}

fn list_without_others<O: OffsetSizeTrait>(column: &ArrayRef) -> Result<ArrayRef> {
    let list = column.as_list::<O>();
    let (DataType::List(field) | DataType::LargeList(field)) = list.data_type() else {
        return Ok(Arc::clone(column));
    };
    let offsets = list.value_offsets();
    let (first, last) = (offsets[0], offsets[list.len()]);
    let values = list.values().slice(first.as_usize(), (last - first).as_usize());
    Ok(Arc::new(GenericListArray::<O>::try_new(
        Arc::clone(field),
        OffsetBuffer::from_lengths(offsets.windows(2).map(|ends| (ends[1] - ends[0]).as_usize())),
        without_others(&values)?,
        list.nulls().cloned(),
    )?))
}

/// A copy of rows to be written to a file: without values of other rows, in views and in dictionaries.
///
/// # Errors
/// Errors of Arrow's kernels.
pub(crate) fn to_write(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Dictionary(_, values) => Ok(cast(&cast(column, values)?, column.data_type())?),
        _ => without_others(column),
    }
}

/// A column whose dictionary has no more values than there are rows: if it has, then only those of its rows.
///
/// # Errors
/// Errors of Arrow's kernels.
pub(crate) fn with_short_dictionary(column: &ArrayRef) -> Result<ArrayRef> {
    match column.as_any_dictionary_opt() {
        Some(dictionary) if dictionary.values().len() > column.len() => to_write(column),
        _ => Ok(Arc::clone(column)),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{DictionaryArray, Int64Array, ListArray, StringArray, StringViewArray};
    use datafusion::arrow::compute::concat;
    use datafusion::arrow::datatypes::{Field, Int32Type, TimeUnit};

    use super::*;

    /// A thousand different strings of 1000 bytes.
    fn long() -> Vec<String> {
        (0..1000).map(|row| format!("{row:0>1000}")).collect()
    }

    #[test]
    fn long_strings_behind_views_are_counted_by_slice() {
        let column: ArrayRef = Arc::new(StringViewArray::from_iter_values(long()));
        assert!(row_bytes(&column) >= 1_000_000);
        let few = row_bytes(&column.slice(10, 10));
        assert!((10_000..12_000).contains(&few), "{few}");
        let short: ArrayRef = Arc::new(StringViewArray::from_iter_values(vec!["twelve bytes"; 100]));
        assert_eq!(row_bytes(&short), 1600);
    }

    #[test]
    fn nested_views_are_counted_and_copied_for_their_own_rows() {
        let values: ArrayRef = Arc::new(StringViewArray::from_iter_values(long()));
        let list: ArrayRef = Arc::new(ListArray::new(
            Arc::new(Field::new_list_field(DataType::Utf8View, true)),
            OffsetBuffer::from_lengths(vec![10; 100]),
            values,
            None,
        ));
        let fields = vec![Field::new("l", list.data_type().clone(), true)];
        let column: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![list], None));
        assert!(row_bytes(&column) >= 1_000_000);
        let some = column.slice(50, 2);
        let own = without_others(&some).unwrap();
        assert_eq!(&own, &some);
        let bytes = own.get_array_memory_size();
        assert!(bytes < 64_000, "{bytes}");
    }

    #[test]
    fn dictionaries_are_written_with_the_values_of_their_rows() {
        let strings = long();
        let all: DictionaryArray<Int32Type> = strings.iter().map(|value| Some(value.as_str())).collect();
        let some: ArrayRef = Arc::new(all.slice(5, 3));
        let long: ArrayRef = Arc::new(all.clone());
        assert!(Arc::ptr_eq(&with_short_dictionary(&long).unwrap(), &long));
        let own = with_short_dictionary(&some).unwrap();
        assert_eq!(own.as_any_dictionary().values().len(), 3);
        let own = to_write(&some).unwrap();
        assert_eq!(own.data_type(), some.data_type());
        assert_eq!(own.as_any_dictionary().values().len(), 3);
        let text = |column: &ArrayRef| cast(column, &DataType::Utf8).unwrap();
        assert_eq!(&text(&own), &text(&some));
    }

    /// Values go where their indices say, as those that are joined and taken by row do.
    #[test]
    fn scattered_values_are_those_taken_by_row() {
        let types = [
            DataType::Int8,
            DataType::UInt16,
            DataType::Float32,
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::Decimal128(20, 3),
            DataType::Decimal256(50, 3),
        ];
        let numbers =
            |from: i64, rows: i64| Int64Array::from_iter_values((from..from + rows).map(|n| n % 90));
        let indices: Vec<u32> = (0..1000_u32).map(|row| row * 7 % 1000).collect();
        let mut rows = vec![0; 1000];
        for (row, index) in indices.iter().enumerate() {
            rows[*index as usize] = row as u32;
        }
        for data_type in types {
            let of = |numbers: &dyn Array| cast(numbers, &data_type).unwrap();
            let arrays = [
                of(&numbers(0, 300)),
                of(&numbers(5, 900)).slice(150, 700),
                of(&numbers(0, 0)),
            ];
            let all: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            let expected = take(&concat(&all).unwrap(), &UInt32Array::from(rows.clone()), None).unwrap();
            assert_eq!(
                scattered(&arrays, &indices).unwrap().as_ref(),
                Some(&expected),
                "{data_type}"
            );
        }
        let with_null: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        for other in [with_null, text] {
            assert!(scattered(&[other], &[1, 0]).unwrap().is_none());
        }
    }
}
