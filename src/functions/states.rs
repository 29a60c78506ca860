//! The state columns of accumulators of exact quantiles: lists of values, one list for each group, and in calls with weights lists of their
//! weights beside them.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, LargeListArray};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::common::{Result, internal_datafusion_err};

use crate::quantile::state_item;

/// The lists of values in a state column, one list for each row.
pub(super) fn state_rows(states: &[ArrayRef]) -> Result<&LargeListArray> {
    states
        .first()
        .and_then(|state| state.as_list_opt::<i64>())
        .ok_or_else(|| internal_datafusion_err!("a state of exact_quantiles is one column of large lists"))
}

/// The lists in all columns of states, which are of the same lengths in each column.
///
/// # Errors
/// An internal error for anything else, as damaged states are.
pub(super) fn state_lists(states: &[ArrayRef]) -> Result<Vec<&LargeListArray>> {
    let first = state_rows(states)?;
    let lists = states.iter().map(|state| {
        state
            .as_list_opt::<i64>()
            .filter(|list| {
                list.len() == first.len() && list.offsets().lengths().eq(first.offsets().lengths())
            })
            .ok_or_else(|| {
                internal_datafusion_err!("the columns of a state of exact_quantiles are equal in length")
            })
    });
    lists.collect()
}

/// The items of all lists, one list behind the other.
pub(super) fn items_of(lists: &LargeListArray) -> ArrayRef {
    let offsets = lists.offsets();
    let start = offsets.first().map_or(0, |start| *start as usize);
    let end = offsets.last().map_or(0, |end| *end as usize);
    lists.values().slice(start, end - start)
}

/// The state columns of `rows` rows, one state for each row: what `columns` have for those that are true in `kept` (`None`: for each), and
/// nothing for others.
pub(super) fn rows_as_states(
    columns: Vec<ArrayRef>,
    kept: Option<&BooleanArray>,
    rows: usize,
) -> Result<Vec<ArrayRef>> {
    let lengths: Vec<usize> = match kept {
        None => vec![1; rows],
        Some(kept) => kept.values().iter().map(usize::from).collect(),
    };
    let states = columns
        .into_iter()
        .map(|column| state_column(column, lengths.clone()));
    states.collect()
}

/// A state column of lists: row `row` has the next `lengths[row]` of `values`.
pub(super) fn state_column(values: ArrayRef, lengths: Vec<usize>) -> Result<ArrayRef> {
    let item = state_item(values.data_type());
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(LargeListArray::try_new(item, offsets, values, None)?))
}
