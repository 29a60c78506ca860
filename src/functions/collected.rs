//! What accumulators collect of a column: keys of one width, or byte strings, each in flat memory.
//!
//! Accumulators are written once over [`Collected`]; what it is ([`keys`](super::keys), [`strings`](super::strings)) is
//! decided when an accumulator is made. Cost of a value: its key (4, 8 or 16 bytes), or its bytes and four more.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use crate::kernel::cpu::groups::segments::Plan;
use crate::quantile::{Found, QuantileSpec, SelectedColumn, Typed};

/// The values of a column that are not NULL, in the order in which they came.
pub(super) trait Collected: Default + Debug + Send + Sync + 'static {
    /// How values of the column's type become what is collected.
    type Spec: Typed + Debug + Send + Sync + 'static;
    /// What is moved and sorted in place of a value: the key itself, or where a byte string lies.
    type Item: Copy + Default + Send;
    /// What answers are made of.
    type Value<'a>;
    /// The values of a window frame, in order.
    type Frame: Frame<Self>;

    /// Adds the values of the rows that are true in `kept` (`None`: of all rows), none of which is NULL; how many.
    ///
    /// # Errors
    /// Where memory ends; an internal error for values of another type.
    fn append(&mut self, spec: &Self::Spec, values: &ArrayRef, kept: Option<&BooleanArray>) -> Result<usize>;

    /// Takes out runs of values, the first of which starts with the first value. A run of `(Some(to), length)` goes to
    /// `items[to..to + length]`; what [`Self::value`] needs of it is in the result. One of `(None, length)` stays.
    ///
    /// # Errors
    /// Where memory ends.
    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [Self::Item],
    ) -> Result<Self>;

    /// Calls `with` with the items of all values, to be reordered as it likes.
    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [Self::Item]) -> T) -> T;

    /// Reorders items so that each of `ranks` (1-based, ascending, distinct, at most their number) is in its place.
    fn select(&self, items: &mut [Self::Item], ranks: &[u64]);

    /// Sorts items, and moves those of distinct values to the front: these.
    fn sort_distinct<'a>(&self, items: &'a mut [Self::Item]) -> &'a mut [Self::Item];

    /// The value of an item.
    fn value(&self, item: Self::Item) -> Self::Value<'_>;

    /// The answers of `quantile_spec` from the values that they are, or lie between.
    ///
    /// # Errors
    /// Those of making an array.
    fn answers(
        quantile_spec: &QuantileSpec,
        spec: &Self::Spec,
        found: &Found<Self::Value<'_>>,
    ) -> Result<ArrayRef>;

    /// The values of some items as an array of the column's type.
    ///
    /// # Errors
    /// Those of making an array.
    fn array(&self, spec: &Self::Spec, items: &[Self::Item]) -> Result<ArrayRef>;

    /// Bytes held.
    fn held_bytes(&self) -> usize;
}

/// The values of one window frame, in order.
pub(super) trait Frame<C: Collected>: Debug + Send + Sync + Sized {
    /// A frame of some values.
    ///
    /// # Errors
    /// As [`Self::insert`].
    fn of(column: &SelectedColumn<C::Spec>, values: C) -> Result<Self>;

    /// Adds what is not NULL.
    ///
    /// # Errors
    /// `ResourcesExhausted` past 2^32 - 1 copies of one value.
    fn insert(&mut self, column: &SelectedColumn<C::Spec>, values: &ArrayRef) -> Result<()>;

    /// Takes out what is not NULL.
    ///
    /// # Errors
    /// An internal error if it is not there.
    fn remove(&mut self, column: &SelectedColumn<C::Spec>, values: &ArrayRef) -> Result<()>;

    /// The value of a row with this frame.
    ///
    /// # Errors
    /// Those of making an array.
    fn answer(&mut self, column: &SelectedColumn<C::Spec>) -> Result<ScalarValue>;

    /// All values, in no order, as an array of the column's type.
    ///
    /// # Errors
    /// Those of making an array.
    fn array(&self, spec: &C::Spec) -> Result<ArrayRef>;

    /// Bytes held.
    fn size(&self) -> usize;
}

/// Adds the answers of `column` over the values of some items to `found`; how many values were ranked. `plan_of` gives
/// the plan for some number of values.
///
/// # Errors
/// Internal errors only.
pub(super) fn find_answers<'a, C: Collected>(
    column: &SelectedColumn<C::Spec>,
    values: &'a C,
    items: &mut [C::Item],
    plan_of: impl FnOnce(u64) -> Arc<Plan>,
    found: &mut Found<C::Value<'a>>,
) -> Result<u64> {
    let ranked = match column.is_distinct() {
        true => values.sort_distinct(items),
        false => items,
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
