//! The most frequent values.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, StructArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::Result;

use super::asked::Asked;
use super::call::Constants;
use super::name::ShapeName;
use super::sorted::Sorted;
use crate::functions::collected::InOrder;
use crate::functions::topk::{firsts, lists};
use crate::key::{Key, KeySpec};

/// Which of the most frequent values are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Frequency {
    /// The smallest of the most frequent values.
    Mode,
    /// A list of the most frequent values, at most so many.
    Values(usize),
    /// A list of the most frequent values, at most so many, each with the number of its copies.
    Counts(usize),
}

/// The fields of a value with the number of its copies.
pub(super) fn counted_fields(value: &DataType) -> Fields {
    Fields::from(vec![
        Field::new("value", value.clone(), true),
        Field::new("count", DataType::UInt64, true),
    ])
}

/// The most frequent values of groups.
#[derive(Debug, Default)]
pub(super) struct Frequent<I> {
    items: Vec<I>,
    counts: Vec<u64>,
    /// Number of values of each group.
    lengths: Vec<usize>,
}

impl Frequency {
    /// What a function of this name asks for with these constants; `None` if it asks for something else.
    pub(super) fn of(name: ShapeName, constants: Constants) -> Option<Self> {
        match (name, constants) {
            (ShapeName::Mode, _) => Some(Frequency::Mode),
            (ShapeName::TopValues, Constants::Number(k)) => Some(Frequency::Counts(k)),
            (ShapeName::ApproxTopK, Constants::Number(k)) => Some(Frequency::Values(k)),
            _ => None,
        }
    }

    /// Most values that are wanted.
    pub(crate) fn k(self) -> usize {
        match self {
            Frequency::Mode => 1,
            Frequency::Values(k) | Frequency::Counts(k) => k,
        }
    }

    /// The answer for one group, of which these are the most frequent keys with their counts, best first: a column of one row.
    ///
    /// # Errors
    /// Those of making arrays.
    pub(crate) fn row<K: Key>(self, spec: &KeySpec, best: &[(K, u64)]) -> Result<ArrayRef> {
        let (items, counts): (Vec<K>, Vec<u64>) = best.iter().copied().unzip();
        let answers = Frequent {
            lengths: vec![items.len()],
            items,
            counts,
        };
        Asked::<Vec<K>>::finish(&self, spec, &Vec::new(), answers)
    }

    /// Adds the best values of a group.
    fn best<C: InOrder>(self, sorted: &Sorted<'_, C>, into: &mut Frequent<C::Item>) {
        let before = into.items.len();
        let k = match self {
            Frequency::Mode => {
                let mut best = None;
                sorted.for_each_distinct(|item, count| {
                    if best.is_none_or(|(_, most)| count > most) {
                        best = Some((item, count));
                    }
                });
                into.items.extend(best.map(|(item, _)| item));
                into.counts.extend(best.map(|(_, count)| count));
                into.lengths.push(into.items.len() - before);
                return;
            }
            Frequency::Values(k) | Frequency::Counts(k) => k,
        };
        // The best so far, the worst of them on top. Values come in ascending order, so of equal counts the earlier one is better.
        let mut best = BinaryHeap::new();
        let (mut items, mut at) = (Vec::new(), 0_u64);
        sorted.for_each_distinct(|item, count| {
            at += 1;
            let is_better = || best.peek().is_some_and(|Reverse((least, _, _))| count > *least);
            let slot = if best.len() < k {
                items.push(item);
                items.len() - 1
            } else if is_better() {
                let slot = best.pop().map_or(0, |Reverse((_, _, slot))| slot);
                items[slot] = item;
                slot
            } else {
                return;
            };
            best.push(Reverse((count, Reverse(at), slot)));
        });
        for Reverse((count, _, slot)) in best.into_sorted_vec() {
            into.items.push(items[slot]);
            into.counts.push(count);
        }
        into.lengths.push(into.items.len() - before);
    }
}

impl<C: InOrder> Asked<C> for Frequency {
    type Answers = Frequent<C::Item>;

    fn answer(&self, _: &C::Spec, sorted: &Sorted<'_, C>, answers: &mut Self::Answers) -> Result<()> {
        self.best(sorted, answers);
        Ok(())
    }

    fn finish(&self, spec: &C::Spec, values: &C, answers: Self::Answers) -> Result<ArrayRef> {
        let Frequent {
            items,
            counts,
            lengths,
        } = answers;
        let values = values.array(spec, &items)?;
        match self {
            Frequency::Mode => firsts(&values, &lengths),
            Frequency::Values(_) => lists(&values, &lengths),
            Frequency::Counts(_) => {
                let fields = counted_fields(values.data_type());
                let counts = Arc::new(UInt64Array::from(counts));
                let rows = StructArray::try_new(fields, vec![values, counts], None)?;
                lists(&(Arc::new(rows) as ArrayRef), &lengths)
            }
        }
    }
}
