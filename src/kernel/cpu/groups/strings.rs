//! Byte strings of a part brought together by group, and ranks selected inside each group.
//!
//! ```text
//! ids    2 0 1 0 2          counting sort of rows      |1 3|2|0 4|     select inside each group by the
//! bytes  OsloBonn..         --------------------->                     8 bytes behind its common prefix
//! ```
//! What keys are for [`segments`](super::segments), byte strings are here; whole ones are compared only where these 8
//! bytes are equal. Nothing is allocated for a group.

use std::cmp::Ordering;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::segments::{Plans, select_ranks_by};
use crate::kernel::byte_strings::common_prefix;
use crate::key::{ByteSpec, PrefixKey};
use crate::memory::reserve;
use crate::quantile::Found;

/// The answers of many groups, in the order of groups.
#[derive(Debug)]
pub(crate) struct ByteAnswers {
    /// For each call: the answers of the groups that have values, one after the other.
    pub(crate) calls: Vec<ArrayRef>,
    /// Values of each group.
    pub(crate) lengths: Vec<u64>,
}

/// Where a value's row is among the others, behind the key of what follows its group's common prefix.
type Keyed = (u64, u32);

/// Byte strings of a part: memory that is used again for the next part.
#[derive(Debug, Default)]
pub(crate) struct ByteSegments {
    /// Values one after the other, and their lengths.
    pub(crate) bytes: Vec<u8>,
    pub(crate) lengths: Vec<u32>,
    /// Where each value ends.
    ends: Vec<usize>,
    /// By group, and where each group starts.
    rows: Vec<Keyed>,
    starts: Vec<usize>,
    next: Vec<usize>,
}

impl ByteSegments {
    /// Memory for a value, beside its bytes: length, end, key and row, and the number of its group.
    pub(crate) const VALUE_BYTES: usize =
        size_of::<u32>() + size_of::<usize>() + size_of::<Keyed>() + size_of::<u32>();
    /// Memory for a group: where it starts, and where its next value goes.
    pub(crate) const GROUP_BYTES: usize = 2 * size_of::<usize>();

    /// Forgets all values, and has memory for so many of so many bytes together.
    pub(crate) fn begin(&mut self, values: usize, bytes: usize) {
        self.bytes.clear();
        self.bytes.reserve_exact(bytes);
        self.lengths.clear();
        self.lengths.reserve_exact(values);
    }

    /// Adds a value.
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.lengths.push(value.len() as u32);
    }

    /// Brings the values together by group: `ids` holds the number of each one's group among `groups`.
    fn fill(&mut self, groups: usize, ids: &[u32]) {
        self.starts.clear();
        self.starts.resize(groups + 1, 0);
        for id in ids {
            self.starts[*id as usize + 1] += 1;
        }
        for group in 0..groups {
            self.starts[group + 1] += self.starts[group];
        }
        self.next.clear();
        self.next.extend_from_slice(&self.starts[..groups]);
        self.rows.clear();
        self.rows.reserve_exact(ids.len());
        self.rows.resize(ids.len(), Keyed::default());
        for (row, id) in ids.iter().enumerate() {
            let next = &mut self.next[*id as usize];
            self.rows[*next].1 = row as u32;
            *next += 1;
        }
        self.ends.clear();
        self.ends.reserve_exact(ids.len());
        let mut end = 0;
        self.ends.extend(self.lengths.iter().map(|length| {
            end += *length as usize;
            end
        }));
    }

    /// Selects in every group what the calls of `plans` want; with `distinct`, among its distinct values. Arrays of
    /// answers are reserved in `memory`, in place of what it held.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is no memory for the answers; those of [`ByteSpec::to_array`].
    pub(crate) fn answers(
        &mut self,
        groups: usize,
        ids: &[u32],
        spec: &ByteSpec,
        plans: &mut Plans,
        distinct: bool,
        memory: &MemoryReservation,
    ) -> Result<ByteAnswers> {
        if ids.len() != self.lengths.len() {
            let values = self.lengths.len();
            return Err(internal_datafusion_err!(
                "{} groups for {values} values",
                ids.len()
            ));
        }
        self.fill(groups, ids);
        let values = Values {
            bytes: &self.bytes,
            lengths: &self.lengths,
            ends: &self.ends,
        };
        let mut found: Vec<Found<&[u8]>> = Vec::new();
        found.resize_with(plans.calls(), Found::default);
        let mut lengths = Vec::with_capacity(groups);
        for group in 0..groups {
            let rows = &mut self.rows[self.starts[group]..self.starts[group + 1]];
            let common = values.key(rows);
            let compare = |a: &Keyed, b: &Keyed| values.compare(common, a, b);
            let mut n = rows.len();
            if distinct {
                rows.sort_unstable_by(compare);
                n = dedup(rows, compare);
            }
            lengths.push(n as u64);
            if n == 0 {
                continue;
            }
            let plan = plans.of(n as u64);
            if !distinct {
                select_ranks_by(rows, &plan.ranks, &compare);
            }
            let value_at = |rank: u64| match rows[..n].get(rank as usize - 1) {
                Some((_, row)) => Ok(values.value(*row)),
                None => Err(internal_datafusion_err!("rank {rank} of {n} values")),
            };
            for (found, picks) in found.iter_mut().zip(&plan.picks) {
                found.add(picks, &value_at)?;
            }
        }
        memory.free();
        reserve(memory, found.iter().map(Found::array_bytes).sum())?;
        let quantile_specs = plans.quantile_specs().iter();
        let arrays = quantile_specs
            .zip(&found)
            .map(|(quantile_spec, found)| quantile_spec.byte_strings(spec, found));
        Ok(ByteAnswers {
            calls: arrays.collect::<Result<_>>()?,
            lengths,
        })
    }
}

/// Moves the first of equal neighbours to the front; how many there are.
fn dedup(rows: &mut [Keyed], compare: impl Fn(&Keyed, &Keyed) -> Ordering) -> usize {
    let mut distinct = 0;
    for at in 0..rows.len() {
        if at == 0 || compare(&rows[distinct - 1], &rows[at]).is_ne() {
            rows.swap(distinct, at);
            distinct += 1;
        }
    }
    distinct
}

/// Values to look at.
#[derive(Clone, Copy)]
struct Values<'a> {
    bytes: &'a [u8],
    lengths: &'a [u32],
    ends: &'a [usize],
}

impl<'a> Values<'a> {
    fn value(self, row: u32) -> &'a [u8] {
        let end = self.ends[row as usize];
        &self.bytes[end - self.lengths[row as usize] as usize..end]
    }

    /// Gives each row the key of what follows the common prefix of all, whose length it returns.
    fn key(self, rows: &mut [Keyed]) -> usize {
        let Some(first) = rows.first().map(|(_, row)| self.value(*row)) else {
            return 0;
        };
        let mut common = first.len();
        for (_, row) in &rows[1..] {
            let value = self.value(*row);
            if !value.starts_with(&first[..common]) {
                common = common_prefix(&first[..common], value);
            }
        }
        for (key, row) in rows {
            *key = u64::of(&self.value(*row)[common..]);
        }
        common
    }

    fn compare(self, common: usize, a: &Keyed, b: &Keyed) -> Ordering {
        a.0.cmp(&b.0).then_with(|| match u64::whole(a.0.into()) {
            Some(_) => Ordering::Equal,
            None => {
                let rest = |row: u32| &self.value(row)[common + u64::BYTES..];
                rest(a.1).cmp(rest(b.1))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Array, StringArray};
    use datafusion::arrow::datatypes::DataType;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;
    use crate::key::Order;
    use crate::quantile::{Method, Quantile, QuantileSpec};

    fn quantile_spec(quantiles: &[f64]) -> QuantileSpec {
        let quantiles = quantiles.iter().map(|q| Quantile::try_from_f64(*q).unwrap());
        QuantileSpec {
            quantiles: quantiles.collect(),
            method: Method::Disc,
            descending: false,
        }
    }

    #[test]
    fn groups_are_selected_each_by_itself() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(10_000));
        let memory = MemoryConsumer::new("answers").register(&pool);
        let Ok(Order::Bytes(spec)) = Order::try_new(&DataType::Utf8) else {
            unreachable!("strings have no keys");
        };
        let mut plans = Plans::new([quantile_spec(&[0.5]), quantile_spec(&[0.0, 1.0])].into());
        let mut segments = ByteSegments::default();
        let values = [
            "x",
            "prefixed 2",
            "prefixed 10",
            "",
            "prefixed 2",
            "a\0",
            "a",
            "prefixed 1",
        ];
        let ids = [3, 1, 1, 0, 1, 0, 0, 1];
        // Twice, so that memory is used again.
        for distinct in [false, true] {
            segments.begin(values.len(), 100);
            values.iter().for_each(|value| segments.push(value.as_bytes()));
            let answers = segments
                .answers(4, &ids, &spec, &mut plans, distinct, &memory)
                .unwrap();
            assert_eq!(
                answers.lengths,
                if distinct { [3, 3, 0, 1] } else { [3, 4, 0, 1] }
            );
            let expected = StringArray::from(vec!["a", "prefixed 10", "x"]);
            assert_eq!(answers.calls[0].as_ref(), &expected as &dyn Array);
            let expected = StringArray::from(vec!["", "a\0", "prefixed 1", "prefixed 2", "x", "x"]);
            assert_eq!(answers.calls[1].as_ref(), &expected as &dyn Array);
            assert!(memory.size() > 0);
        }
        assert!(
            segments
                .answers(4, &ids[1..], &spec, &mut plans, false, &memory)
                .is_err()
        );
    }
}
