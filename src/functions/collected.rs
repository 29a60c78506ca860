//! The values that accumulators collect of a column: keys of one width, or byte strings, in flat memory, and in calls with weights each value's
//! weight.
//!
//! Accumulators are written once, over [`Collected`]. Whether that is [`keys`](super::keys), [`strings`](super::strings) or one of
//! [`weighted`](super::weighted) is decided when an accumulator is made. Memory of a value: its key (4, 8 or 16 bytes),
//! or its bytes and four more.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_datafusion_err};

use crate::kernel::cpu::groups::segments::Plan;
use crate::key::kept;
use crate::quantile::{Found, QuantileSpec, Typed, TypedAnswerSpec};

/// The values of a column that count, in the order in which they came.
pub(super) trait Collected: Default + Debug + Send + Sync + 'static {
    /// How values of the column's type become keys or byte strings.
    type Spec: Typed + Debug + Send + Sync + 'static;
    /// The item that is moved and sorted for a value: its key, or the position of its byte string, with its weight if it has one.
    type Item: Copy + Default + Debug + Send + Sync;
    /// The form of a value from which answers are made.
    type Value<'a>;
    /// The structure that holds the values of a window frame, in order.
    type Frame: Frame<Self>;

    /// The rows that count: those that are true in `filter` (`None`: all), and whose arguments say nothing else. Gives the columns that
    /// states have, with these rows only, and a mask of the rows (`None`: all of them count).
    ///
    /// `args`: the arguments of the call, or the columns of a state.
    ///
    /// # Errors
    /// An error of Arrow for a filter of another length; an execution error for arguments that no row may have.
    fn counted(
        args: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)>;

    /// Adds the rows of columns that [`Self::counted`] gave. Returns their number.
    ///
    /// # Errors
    /// An execution error where memory ends; an internal error for values of another type.
    fn append(&mut self, spec: &Self::Spec, columns: &[ArrayRef]) -> Result<usize>;

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

    /// Adds the answers of `column` over the values of `items`, which it may reorder, to `found`. Returns the number of values that were ranked,
    /// each as often as its weight says. `plan_of` gives the plan for a number of values.
    ///
    /// # Errors
    /// An execution error for more values than 64 bits count.
    fn find<'a>(
        &'a self,
        column: &TypedAnswerSpec<Self::Spec>,
        items: &mut [Self::Item],
        plan_of: impl FnOnce(u64) -> Arc<Plan>,
        found: &mut Found<Self::Value<'a>>,
    ) -> Result<u64>;

    /// Number of values from which on [`Self::merge_equal`] makes fewer of them; `usize::MAX` where equal values are several items.
    const MERGED_FROM: usize = usize::MAX;

    /// Brings items of equal values together as one item at the front. Returns their number.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    fn merge_equal(&self, items: &mut [Self::Item]) -> Result<usize> {
        Ok(items.len())
    }

    /// Adds items of `other`, after those that are there.
    ///
    /// # Errors
    /// An execution error where memory ends.
    fn add_items(&mut self, other: &Self, items: &[Self::Item]) -> Result<()>;

    /// Number of items.
    fn count(&self) -> usize;

    /// The answers of `quantile_spec` from the values that were found: each answer is one of them, or lies between two.
    ///
    /// # Errors
    /// Those of building an array.
    fn answers(
        quantile_spec: &QuantileSpec,
        spec: &Self::Spec,
        found: &Found<Self::Value<'_>>,
    ) -> Result<ArrayRef>;

    /// Some items as the columns that states have.
    ///
    /// # Errors
    /// Those of building an array.
    fn columns(&self, spec: &Self::Spec, items: &[Self::Item]) -> Result<Vec<ArrayRef>>;

    /// Bytes held.
    fn held_bytes(&self) -> usize;
}

/// Values that can be brought in order, each of which is an item.
pub(super) trait InOrder: Collected {
    /// Sorts items by their values. Fast where they consist of a few ascending runs.
    fn sort(&self, items: &mut [Self::Item]);

    /// Sorts items and moves one item of each distinct value to the front. Returns those.
    fn sort_distinct<'a>(&self, items: &'a mut [Self::Item]) -> &'a mut [Self::Item];

    /// How the value of an item compares with that of an item of other values.
    fn compare(&self, item: Self::Item, others: &Self, other: Self::Item) -> Ordering;

    /// Copies the value of an item of other values, and returns the item of the copy.
    ///
    /// # Errors
    /// An execution error where memory ends.
    fn adopt(&mut self, others: &Self, other: Self::Item) -> Result<Self::Item>;

    /// Some items as an array.
    ///
    /// # Errors
    /// Those of building an array.
    fn array(&self, spec: &Self::Spec, items: &[Self::Item]) -> Result<ArrayRef>;
}

/// The values of one window frame, kept in order.
pub(super) trait Frame<C: Collected>: Debug + Send + Sync + Sized {
    /// A frame with these values in it.
    ///
    /// # Errors
    /// Those of [`Self::insert`].
    fn of(column: &TypedAnswerSpec<C::Spec>, values: C) -> Result<Self>;

    /// Adds the rows that count: see [`Collected::counted`], which says what arguments are.
    ///
    /// # Errors
    /// Those of [`Collected::counted`]; `ResourcesExhausted` past 2^64 - 1 values.
    fn insert(&mut self, column: &TypedAnswerSpec<C::Spec>, args: &[ArrayRef]) -> Result<()>;

    /// Removes the rows that count.
    ///
    /// # Errors
    /// Those of [`Collected::counted`]; an internal error if a value is not in the frame.
    fn remove(&mut self, column: &TypedAnswerSpec<C::Spec>, args: &[ArrayRef]) -> Result<()>;

    /// The answer for a row that has this frame.
    ///
    /// # Errors
    /// Those of building an array.
    fn answer(&mut self, column: &TypedAnswerSpec<C::Spec>) -> Result<ScalarValue>;

    /// All values, in any order, as the columns that states have.
    ///
    /// # Errors
    /// Those of building an array.
    fn columns(&self, spec: &C::Spec) -> Result<Vec<ArrayRef>>;

    /// Bytes held.
    fn size(&self) -> usize;
}

/// The ways to rank items of equal weight.
pub(super) struct Ranking<'a, T, V> {
    /// Reorders items so that the item of each rank (from 1, ascending, distinct, at most the number of items) is where a sort would put it.
    pub(super) select: &'a dyn Fn(&mut [T], &[u64]),
    /// Sorts items and moves one item of each distinct value to the front. Returns the number of those.
    pub(super) sort_distinct: &'a dyn Fn(&mut [T]) -> usize,
    /// The value of an item.
    pub(super) value: &'a dyn Fn(T) -> V,
}

/// Adds the answers of `column` over the values of `items` to `found`: see [`Collected::find`].
///
/// # Errors
/// Internal errors only.
pub(super) fn find_answers<S: Typed, T: Copy, V>(
    column: &TypedAnswerSpec<S>,
    items: &mut [T],
    ranking: &Ranking<'_, T, V>,
    plan_of: impl FnOnce(u64) -> Arc<Plan>,
    found: &mut Found<V>,
) -> Result<u64> {
    let ranked = if column.is_distinct() {
        let distinct = (ranking.sort_distinct)(items);
        &mut items[..distinct]
    } else {
        items
    };
    let n = ranked.len() as u64;
    if n == 0 {
        return Ok(0);
    }
    let plan = plan_of(n);
    if !column.is_distinct() {
        (ranking.select)(ranked, &plan.ranks);
    }
    for picks in &plan.picks {
        found.add(picks, &|rank| match ranked.get(rank as usize - 1) {
            Some(item) => Ok((ranking.value)(*item)),
            None => Err(internal_datafusion_err!("rank {rank} of {n} values")),
        })?;
    }
    Ok(n)
}

/// Makes room for `count` more items in `buffer`.
///
/// # Errors
/// An execution error where memory ends, instead of an abort.
pub(super) fn reserve<T>(buffer: &mut Vec<T>, count: usize) -> Result<()> {
    buffer.try_reserve(count).map_err(|error| {
        exec_datafusion_err!(
            "the values of groups cannot be kept: {} more bytes wanted: {error}",
            count * size_of::<T>()
        )
    })
}

/// The rows of a call without weights that count, those whose value is not NULL: see [`Collected::counted`].
pub(super) fn counted_values(
    args: &[ArrayRef],
    mask: Option<&BooleanArray>,
) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
    let values = args
        .first()
        .ok_or_else(|| internal_datafusion_err!("quantiles of no column"))?;
    let kept = kept(values.as_ref(), mask)?;
    let values = match &kept {
        None => Arc::clone(values),
        Some(kept) => filter(values.as_ref(), kept)?,
    };
    Ok((vec![values], kept))
}

/// When items of equal values are brought together: once there are many, and again whenever they have doubled, as long as that makes them fewer.
#[derive(Debug)]
pub(super) struct Merging {
    /// Number of items from which on they are merged next.
    from: usize,
    /// Least number of items for which it is done.
    least: usize,
    /// Whether the last time made them a quarter fewer.
    is_useful: bool,
}

impl Merging {
    /// Before the first item of `C`.
    pub(super) fn of<C: Collected>() -> Self {
        Self {
            from: C::MERGED_FROM,
            least: C::MERGED_FROM,
            is_useful: true,
        }
    }

    /// Whether so many items are to be merged.
    pub(super) fn is_due(&self, count: usize) -> bool {
        count >= self.from
    }

    /// Notes that a state of `count` items comes, none of them equal: they are merged once several states of that size are there.
    pub(super) fn expect(&mut self, count: usize) {
        self.from = self.from.max(count.saturating_mul(4));
    }

    /// Whether items that leave are worth merging.
    pub(super) fn is_useful(&self) -> bool {
        self.is_useful
    }

    /// Notes that `before` items became `after`. Where that was little, the next time is far away.
    pub(super) fn done(&mut self, before: usize, after: usize) {
        self.is_useful = after <= before / 4 * 3;
        let times = if self.is_useful { 2 } else { 16 };
        self.from = after.saturating_mul(times).max(self.least);
    }
}
