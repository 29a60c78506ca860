//! Conversion of values to and from Arrow's row format, some thousand rows at a time.

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::{SortOptions, filter};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, internal_err};

/// Number of rows that are converted at a time.
const ROWS: usize = 8192;

/// The kept rows of an array, in pieces of [`ROWS`] of all rows.
pub(super) fn pieces(
    values: &dyn Array,
    kept: Option<&BooleanBuffer>,
) -> impl Iterator<Item = Result<ArrayRef>> {
    (0..values.len()).step_by(ROWS).map(move |start| {
        let length = ROWS.min(values.len() - start);
        let piece = values.slice(start, length);
        match kept {
            Some(kept) => Ok(filter(&piece, &kept.slice(start, length).into())?),
            None => Ok(piece),
        }
    })
}

pub(super) fn converter(data_type: &DataType) -> Result<RowConverter> {
    let options = SortOptions {
        descending: false,
        nulls_first: false,
    };
    let field = SortField::new_with_options(data_type.clone(), options);
    Ok(RowConverter::new(vec![field])?)
}

pub(super) fn from_rows(data_type: &DataType, values: &[&[u8]]) -> Result<ArrayRef> {
    let converter = converter(data_type)?;
    let parser = converter.parser();
    let rows = values.iter().map(|value| parser.parse(value));
    let mut columns = converter.convert_rows(rows)?;
    match (columns.pop(), columns.is_empty()) {
        (Some(column), true) => Ok(column),
        _ => internal_err!("rows of {data_type} are one column"),
    }
}

pub(super) fn each_kept(
    len: usize,
    kept: Option<&BooleanBuffer>,
    each: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    match kept {
        None => (0..len).try_for_each(each),
        Some(kept) => kept.set_indices().try_for_each(each),
    }
}
