//! Lists as byte strings: the rows of their items, all of equal length, and an end.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait};
use datafusion::arrow::buffer::{BooleanBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, exec_err, internal_err};

use super::Encoding;
use super::rows::{converter, from_rows, pieces};

/// The byte that ends a list: less than the first byte of the row of any item.
const LIST_END: u8 = 0;

/// Bytes of the row of one item of type `data_type`; `None` if items differ in length.
pub(super) fn item_bytes(data_type: &DataType) -> Option<usize> {
    Encoding::of(data_type)?;
    match data_type {
        DataType::Boolean => Some(2),
        number => number.primitive_width().map(|width| 1 + width),
    }
}

/// Calls `each` with the bytes of every list that is kept.
///
/// # Errors
/// Errors of `each`.
pub(super) fn each_list<O: OffsetSizeTrait>(
    lists: &GenericListArray<O>,
    kept: Option<&BooleanBuffer>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let converter = converter(&lists.value_type())?;
    let mut bytes = Vec::new();
    for piece in pieces(lists, kept) {
        let piece = piece?;
        let piece = piece.as_list::<O>();
        let (first, last) = (
            piece.offsets()[0].as_usize(),
            piece.offsets()[piece.len()].as_usize(),
        );
        let rows = converter.convert_columns(&[piece.values().slice(first, last - first)])?;
        let mut items = rows.iter();
        for length in piece.offsets().lengths() {
            bytes.clear();
            for item in items.by_ref().take(length) {
                bytes.extend_from_slice(item.data());
            }
            bytes.push(LIST_END);
            each(&bytes)?;
        }
    }
    Ok(())
}

/// An array of the lists that byte strings of [`each_list`] stand for.
///
/// # Errors
/// An internal error for bytes that are no list; an execution error for more items than the offsets can count.
pub(super) fn lists<O: OffsetSizeTrait>(item: &FieldRef, values: &[&[u8]]) -> Result<ArrayRef> {
    let Some(width) = item_bytes(item.data_type()) else {
        return internal_err!("items of {} are not of one length", item.data_type());
    };
    let (mut items, mut lengths) = (Vec::new(), Vec::with_capacity(values.len()));
    for value in values {
        match value.split_last() {
            Some((&LIST_END, rows)) if rows.len().is_multiple_of(width) => {
                lengths.push(rows.len() / width);
                items.extend(rows.chunks_exact(width));
            }
            _ => return internal_err!("{} bytes are no list of {}", value.len(), item.data_type()),
        }
    }
    if O::from_usize(items.len()).is_none() {
        return exec_err!(
            "{} items of quantile values do not fit into one array with {}-bit offsets: cast the argument to LargeList",
            items.len(),
            8 * size_of::<O>()
        );
    }
    let items = from_rows(item.data_type(), &items)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(GenericListArray::<O>::try_new(
        Arc::clone(item),
        offsets,
        items,
        None,
    )?))
}
