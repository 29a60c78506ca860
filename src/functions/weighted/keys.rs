//! Keys with weights, and window frames of them.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::common::{Result, ScalarValue};

use super::weights::counted;
use super::{MERGED_FROM, add_selected, weights_of};
use crate::functions::collected::{Collected, Frame, reserve};
use crate::functions::keys::{KeyFrame, take_runs};
use crate::kernel::cpu::groups::segments::Plan;
use crate::kernel::cpu::groups::weighted::{merge_equal, select_weighted, too_many, total};
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::{Found, QuantileSpec, TypedAnswerSpec};

/// The keys of a column and their weights, none of which is 0.
#[derive(Debug)]
pub(in crate::functions) struct WeightedKeys<K>(Vec<(K, u64)>);

impl<K> Default for WeightedKeys<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Keys and their weights as columns of states.
fn columns<K: Key>(spec: &KeySpec, items: impl Iterator<Item = (K, u64)>) -> Result<Vec<ArrayRef>> {
    let (keys, weights): (Vec<K>, Vec<u64>) = items.unzip();
    Ok(vec![spec.values_of(&keys)?, Arc::new(UInt64Array::from(weights))])
}

impl<K: Key> Collected for WeightedKeys<K> {
    type Spec = KeySpec;
    type Item = (K, u64);
    type Value<'a> = KeyBits;
    type Frame = KeyFrame<K>;

    const MERGED_FROM: usize = MERGED_FROM;

    fn counted(
        args: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        counted(args, filter)
    }

    fn append(&mut self, spec: &KeySpec, columns: &[ArrayRef]) -> Result<usize> {
        let mut keys = Vec::<K>::with_capacity(columns[0].len());
        spec.append_keys(columns[0].as_ref(), &mut keys)?;
        reserve(&mut self.0, keys.len())?;
        let weights = weights_of(columns).values().iter().copied();
        let before = self.0.len();
        self.0.extend(keys.into_iter().zip(weights));
        Ok(self.0.len() - before)
    }

    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [(K, u64)],
    ) -> Result<Self> {
        take_runs(&mut self.0, runs, items);
        // A key is its own value.
        Ok(Self::default())
    }

    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [(K, u64)]) -> T) -> T {
        with(&Self::default(), &mut self.0)
    }

    fn find(
        &self,
        _column: &TypedAnswerSpec,
        items: &mut [(K, u64)],
        plan_of: impl FnOnce(u64) -> Arc<Plan>,
        found: &mut Found<KeyBits>,
    ) -> Result<u64> {
        let n = total(items)?;
        if n > 0 {
            let plan = plan_of(n);
            let selected = select_weighted(items, &plan.ranks, &K::cmp);
            add_selected(&plan, &selected, K::to_bits, found)?;
        }
        Ok(n)
    }

    fn merge_equal(&self, items: &mut [(K, u64)]) -> Result<usize> {
        merge_equal(items, &K::cmp)
    }

    fn add_items(&mut self, _other: &Self, items: &[(K, u64)]) -> Result<()> {
        reserve(&mut self.0, items.len())?;
        self.0.extend_from_slice(items);
        Ok(())
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    fn answers(quantile_spec: &QuantileSpec, spec: &KeySpec, found: &Found<KeyBits>) -> Result<ArrayRef> {
        quantile_spec.values(spec, found)
    }

    fn columns(&self, spec: &KeySpec, items: &[(K, u64)]) -> Result<Vec<ArrayRef>> {
        columns(spec, items.iter().copied())
    }

    fn held_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(K, u64)>()
    }
}

impl<K: Key> KeyFrame<K> {
    /// Adds a key as often as its weight says.
    fn insert_weighted(&mut self, key: K, weight: u64) -> Result<()> {
        if self.tree.len().checked_add(weight).is_none() {
            return Err(too_many());
        }
        self.tree
            .insert_by(key, weight, &|other| other.cmp(&key))
            .map(drop)
    }
}

/// Calls `each` with the key and the weight of each row of columns that [`counted`] gives.
fn each_weighted<K: Key>(
    spec: &KeySpec,
    columns: &[ArrayRef],
    mut each: impl FnMut(K, u64) -> Result<()>,
) -> Result<()> {
    let mut weights = weights_of(columns).values().iter();
    spec.for_each_key(columns[0].as_ref(), |key| {
        let weight = weights.next().copied().unwrap_or(0);
        each(K::from_bits(key), weight)
    })
}

impl<K: Key> Frame<WeightedKeys<K>> for KeyFrame<K> {
    fn of(column: &TypedAnswerSpec, values: WeightedKeys<K>) -> Result<Self> {
        let mut frame = Self::empty(column)?;
        let mut items = values.0.into_iter();
        items.try_for_each(|(key, weight)| frame.insert_weighted(key, weight))?;
        Ok(frame)
    }

    fn insert(&mut self, column: &TypedAnswerSpec, args: &[ArrayRef]) -> Result<()> {
        let (columns, _) = counted(args, None)?;
        each_weighted(column.spec(), &columns, |key, weight| {
            self.insert_weighted(key, weight)
        })
    }

    fn remove(&mut self, column: &TypedAnswerSpec, args: &[ArrayRef]) -> Result<()> {
        let (columns, _) = counted(args, None)?;
        each_weighted(column.spec(), &columns, |key: K, weight| {
            self.tree.remove_by(weight, &|other| other.cmp(&key)).map(drop)
        })
    }

    fn answer(&mut self, column: &TypedAnswerSpec) -> Result<ScalarValue> {
        self.row(column)
    }

    fn columns(&self, spec: &KeySpec) -> Result<Vec<ArrayRef>> {
        columns(spec, self.tree.iter())
    }

    fn size(&self) -> usize {
        self.held_bytes()
    }
}
