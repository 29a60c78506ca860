//! The keys that accumulators collect, and window frames of keys, in which keys come and go and every row needs an answer.
//!
//! ```sql
//! SELECT exact_quantiles(price, 0.5) OVER (ORDER BY day ROWS BETWEEN 999 PRECEDING AND CURRENT ROW) FROM trades
//! ```
//! DataFusion hands over the rows that enter a frame and those that leave it, mostly one each, and asks for the
//! answer. Time of a row: for each quantile, logarithmic in the size of the frame ([`OrderedKeys`]). Ranks are
//! computed again only when the number of values has changed.

use std::cmp::Ordering;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use super::collected::{Collected, Frame, InOrder, Ranking, counted_values, find_answers, reserve};
use crate::kernel::cpu::groups::segments::{Plan, select_ranks, sorted_distinct};
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::{Found, Interpolation, Picks, QuantileSpec, TypedAnswerSpec};
use crate::select::ordered::OrderedKeys;

impl<K: Key> Collected for Vec<K> {
    type Spec = KeySpec;
    type Item = K;
    type Value<'a> = KeyBits;
    type Frame = KeyFrame<K>;

    fn counted(
        args: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        counted_values(args, filter)
    }

    fn append(&mut self, spec: &KeySpec, columns: &[ArrayRef]) -> Result<usize> {
        let values = &columns[0];
        reserve(self, values.len())?;
        spec.append_keys(values.as_ref(), self)?;
        Ok(values.len())
    }

    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [K],
    ) -> Result<Self> {
        take_runs(self, runs, items);
        // A key is its own value.
        Ok(Vec::new())
    }

    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [K]) -> T) -> T {
        with(&Vec::new(), self)
    }

    fn find(
        &self,
        column: &TypedAnswerSpec,
        items: &mut [K],
        plan_of: impl FnOnce(u64) -> Arc<Plan>,
        found: &mut Found<KeyBits>,
    ) -> Result<u64> {
        let ranking = Ranking {
            select: &|items, ranks| select_ranks(items, ranks),
            sort_distinct: &|items| sorted_distinct(items).len(),
            value: &K::to_bits,
        };
        find_answers(column, items, &ranking, plan_of, found)
    }

    fn add_items(&mut self, _other: &Self, items: &[K]) -> Result<()> {
        reserve(self, items.len())?;
        self.extend_from_slice(items);
        Ok(())
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn answers(quantile_spec: &QuantileSpec, spec: &KeySpec, found: &Found<KeyBits>) -> Result<ArrayRef> {
        quantile_spec.values(spec, found)
    }

    fn columns(&self, spec: &KeySpec, items: &[K]) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.array(spec, items)?])
    }

    fn held_bytes(&self) -> usize {
        self.capacity() * size_of::<K>()
    }
}

impl<K: Key> InOrder for Vec<K> {
    fn sort(&self, items: &mut [K]) {
        items.sort();
    }

    fn compare(&self, item: K, _others: &Self, other: K) -> Ordering {
        item.cmp(&other)
    }

    fn adopt(&mut self, _others: &Self, other: K) -> Result<K> {
        // A key is its own value.
        Ok(other)
    }

    fn sort_distinct<'a>(&self, items: &'a mut [K]) -> &'a mut [K] {
        sorted_distinct(items)
    }

    fn array(&self, spec: &KeySpec, items: &[K]) -> Result<ArrayRef> {
        spec.values_of(items)
    }
}

/// Takes items out of `all` by runs: see [`Collected::take_out`].
pub(super) fn take_runs<T: Copy>(
    all: &mut Vec<T>,
    runs: impl Iterator<Item = (Option<usize>, usize)>,
    items: &mut [T],
) {
    let (mut from, mut stay) = (0, 0);
    for (to, length) in runs {
        match to {
            Some(to) if length == 1 => items[to] = all[from],
            Some(to) => items[to..to + length].copy_from_slice(&all[from..from + length]),
            None => {
                all.copy_within(from..from + length, stay);
                stay += length;
            }
        }
        from += length;
    }
    all.truncate(stay);
    if stay == 0 {
        *all = Vec::new();
    }
}

/// Makes the answer of a row from the order statistics of its frame.
#[derive(Debug)]
pub(super) struct FrameAnswers {
    interpolation: Interpolation,
    /// A number of values, and the ranks between which the answers lie among that many.
    picks: (u64, Picks),
    /// The answer of a frame without values.
    null: ScalarValue,
}

impl FrameAnswers {
    /// The answers of `column`.
    ///
    /// # Errors
    /// Those of types that the method cannot interpolate.
    pub(super) fn try_new(column: &TypedAnswerSpec) -> Result<Self> {
        Ok(Self {
            interpolation: column.quantile_spec().interpolation(column.spec())?,
            picks: (0, Picks::default()),
            null: ScalarValue::try_from(&column.result_type()?)?,
        })
    }

    /// The answer for a frame of `n` values. `key_at` gives the key of a rank, from 1.
    ///
    /// # Errors
    /// Those of `key_at`.
    pub(super) fn row(
        &mut self,
        column: &TypedAnswerSpec,
        n: u64,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
    ) -> Result<ScalarValue> {
        if n == 0 {
            return Ok(self.null.clone());
        }
        if column.is_list() {
            let mut keys = Vec::with_capacity(column.quantile_spec().quantiles.len());
            self.keys(column, n, key_at, &mut keys)?;
            return column.row(self.array(&keys)?, n);
        }
        self.pick(column, n);
        match self.picks.1.iter().next() {
            Some(pick) => {
                let key = self.interpolation.answer(column.spec(), pick, key_at)?;
                self.interpolation.result.scalar(key)
            }
            None => Ok(self.null.clone()),
        }
    }

    /// Adds the keys of the answers for a frame of `n` values to `keys`; none if `n` is 0.
    pub(super) fn keys(
        &mut self,
        column: &TypedAnswerSpec,
        n: u64,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
        keys: &mut Vec<KeyBits>,
    ) -> Result<()> {
        if n == 0 {
            return Ok(());
        }
        self.pick(column, n);
        for pick in self.picks.1.iter() {
            keys.push(self.interpolation.answer(column.spec(), pick, key_at)?);
        }
        Ok(())
    }

    /// Computes the ranks for `n` values, if those at hand are for another number.
    fn pick(&mut self, column: &TypedAnswerSpec, n: u64) {
        if n != self.picks.0 {
            self.picks = (n, column.quantile_spec().picks(n));
        }
    }

    /// The array of the answers with these keys.
    pub(super) fn array(&self, keys: &[KeyBits]) -> Result<ArrayRef> {
        self.interpolation.result.to_array(keys)
    }
}

/// A window frame of keys.
#[derive(Debug)]
pub(super) struct KeyFrame<K> {
    pub(super) tree: OrderedKeys<K>,
    answers: FrameAnswers,
}

impl<K: Key> KeyFrame<K> {
    /// A frame without values.
    ///
    /// # Errors
    /// Those of types that the method cannot interpolate.
    pub(super) fn empty(column: &TypedAnswerSpec) -> Result<Self> {
        Ok(Self {
            tree: OrderedKeys::new(column.is_distinct()),
            answers: FrameAnswers::try_new(column)?,
        })
    }

    /// The answer for a row that has this frame.
    ///
    /// # Errors
    /// Those of building an array.
    pub(super) fn row(&mut self, column: &TypedAnswerSpec) -> Result<ScalarValue> {
        let tree = &self.tree;
        self.answers.row(column, tree.len(), &|rank| key_at(tree, rank))
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.tree.size()
    }
}

/// The key of a rank, from 1, in a frame.
///
/// # Errors
/// An internal error for a rank that the frame does not have.
pub(super) fn key_at<K: Key>(tree: &OrderedKeys<K>, rank: u64) -> Result<KeyBits> {
    let key = tree.select(rank).map(Key::to_bits);
    key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values in a frame", tree.len()))
}

impl<K: Key> Frame<Vec<K>> for KeyFrame<K> {
    fn of(column: &TypedAnswerSpec, values: Vec<K>) -> Result<Self> {
        let mut frame = Self::empty(column)?;
        values.into_iter().try_for_each(|key| frame.tree.insert(key))?;
        Ok(frame)
    }

    fn insert(&mut self, column: &TypedAnswerSpec, args: &[ArrayRef]) -> Result<()> {
        let insert = |key| self.tree.insert(K::from_bits(key));
        column.spec().for_each_key(args[0].as_ref(), insert)
    }

    fn remove(&mut self, column: &TypedAnswerSpec, args: &[ArrayRef]) -> Result<()> {
        let remove = |key| self.tree.remove(K::from_bits(key));
        column.spec().for_each_key(args[0].as_ref(), remove)
    }

    fn answer(&mut self, column: &TypedAnswerSpec) -> Result<ScalarValue> {
        self.row(column)
    }

    fn columns(&self, spec: &KeySpec) -> Result<Vec<ArrayRef>> {
        let copies = |(key, copies)| std::iter::repeat_n(key, copies as usize);
        let keys: Vec<K> = self.tree.iter().flat_map(copies).collect();
        Ok(vec![spec.values_of(&keys)?])
    }

    fn size(&self) -> usize {
        self.held_bytes()
    }
}
