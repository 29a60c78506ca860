//! The values that accumulators collect of a column: keys of one width, or byte strings, in flat memory.
//!
//! Accumulators are written once, over [`Collected`]. Whether that is [`keys`](super::keys) or
//! [`strings`](super::strings) is decided when an accumulator is made. Memory of a value: its key (4, 8 or 16 bytes),
//! or its bytes and four more.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use crate::kernel::cpu::groups::segments::Plan;
use crate::quantile::{Found, QuantileSpec, Typed, TypedAnswerSpec};

/// The values of a column that are not NULL, in the order in which they came.
pub(super) trait Collected: Default + Debug + Send + Sync + 'static {
    /// How values of the column's type become keys or byte strings.
    type Spec: Typed + Debug + Send + Sync + 'static;
    /// The item that is moved and sorted for a value: its key, or the position of its byte string.
    type Item: Copy + Default + Send;
    /// The form of a value from which answers are made.
    type Value<'a>;
    /// The structure that holds the values of a window frame, in order.
    type Frame: Frame<Self>;

    /// Adds the values of the rows that are true in `kept` (`None`: of all rows), none of which is NULL. Returns their number.
    ///
    /// # Errors
    /// An execution error where memory ends; an internal error for values of another type.
    fn append(&mut self, spec: &Self::Spec, values: &ArrayRef, kept: Option<&BooleanArray>) -> Result<usize>;

    /// Takes out values, by runs that follow each other from the first value on. The items of a run `(Some(to), length)` go to
    /// `items[to..to + length]`; a run `(None, length)` stays. Returns what [`Self::value`] needs for the items that were taken out.
    ///
    /// # Errors
    /// An execution error where memory ends.
    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [Self::Item],
    ) -> Result<Self>;

    /// Calls `with` with the items of all values, which it may reorder.
    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [Self::Item]) -> T) -> T;

    /// Reorders items so that the item of each of `ranks` (from 1, ascending, distinct, at most the number of items) is where a sort would
    /// put it.
    fn select(&self, items: &mut [Self::Item], ranks: &[u64]);

    /// Sorts items and moves one item of each distinct value to the front. Returns those.
    fn sort_distinct<'a>(&self, items: &'a mut [Self::Item]) -> &'a mut [Self::Item];

    /// The value of an item.
    fn value(&self, item: Self::Item) -> Self::Value<'_>;

    /// The answers of `quantile_spec` from the values that were found: each answer is one of them, or lies between two.
    ///
    /// # Errors
    /// Those of building an array.
    fn answers(
        quantile_spec: &QuantileSpec,
        spec: &Self::Spec,
        found: &Found<Self::Value<'_>>,
    ) -> Result<ArrayRef>;

    /// The values of some items as an array of the column's type.
    ///
    /// # Errors
    /// Those of building an array.
    fn array(&self, spec: &Self::Spec, items: &[Self::Item]) -> Result<ArrayRef>;

    /// Bytes held.
    fn held_bytes(&self) -> usize;
}

/// The values of one window frame, kept in order.
pub(super) trait Frame<C: Collected>: Debug + Send + Sync + Sized {
    /// A frame with these values in it.
    ///
    /// # Errors
    /// Those of [`Self::insert`].
    fn of(column: &TypedAnswerSpec<C::Spec>, values: C) -> Result<Self>;

    /// Adds the values that are not NULL.
    ///
    /// # Errors
    /// `ResourcesExhausted` past 2^32 - 1 copies of one value.
    fn insert(&mut self, column: &TypedAnswerSpec<C::Spec>, values: &ArrayRef) -> Result<()>;

    /// Removes the values that are not NULL.
    ///
    /// # Errors
    /// An internal error if a value is not in the frame.
    fn remove(&mut self, column: &TypedAnswerSpec<C::Spec>, values: &ArrayRef) -> Result<()>;

    /// The answer for a row that has this frame.
    ///
    /// # Errors
    /// Those of building an array.
    fn answer(&mut self, column: &TypedAnswerSpec<C::Spec>) -> Result<ScalarValue>;

    /// All values, in any order, as an array of the column's type.
    ///
    /// # Errors
    /// Those of building an array.
    fn array(&self, spec: &C::Spec) -> Result<ArrayRef>;

    /// Bytes held.
    fn size(&self) -> usize;
}

/// Adds the answers of `column` over the values of `items` to `found`. Returns the number of values that were ranked.
/// `plan_of` gives the plan for a number of values.
///
/// # Errors
/// Internal errors only.
pub(super) fn find_answers<'a, C: Collected>(
    column: &TypedAnswerSpec<C::Spec>,
    values: &'a C,
    items: &mut [C::Item],
    plan_of: impl FnOnce(u64) -> Arc<Plan>,
    found: &mut Found<C::Value<'a>>,
) -> Result<u64> {
    let ranked = if column.is_distinct() {
        values.sort_distinct(items)
    } else {
        items
    };
    let n = ranked.len() as u64;
    if n == 0 {
        return Ok(0);
    }
    let plan = plan_of(n);
    if !column.is_distinct() {
        values.select(ranked, &plan.ranks);
    }
    for picks in &plan.picks {
        found.add(picks, &|rank| match ranked.get(rank as usize - 1) {
            Some(item) => Ok(values.value(*item)),
            None => Err(internal_datafusion_err!("rank {rank} of {n} values")),
        })?;
    }
    Ok(n)
}
