//! Tukey's fences with the numbers of values beyond, as profiles of columns show them: `tukey_fences(x)` in plans, which SQL does not have.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, StructArray, UInt64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue};

use super::asked::Asked;
use super::number::{key_at, key_of};
use super::sorted::Sorted;
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::fences::{Cuts, FencePair, fence_type, quartile_ranks};

/// The fields of an answer over values of this type.
pub(super) fn fences_fields(x: &DataType) -> Fields {
    let edge = fence_type(x);
    Fields::from(vec![
        Field::new("low", edge.clone(), true),
        Field::new("high", edge, true),
        Field::new("below", DataType::UInt64, true),
        Field::new("above", DataType::UInt64, true),
    ])
}

/// The fences of a group, with the numbers of values below and above.
pub(crate) struct Fenced {
    edges: FencePair,
    below: u64,
    above: u64,
}

impl Fenced {
    /// The fences of `n` values. `key_at` gives the key of a rank, `less_than` counts the values of lesser keys. `None` where there are no fences.
    ///
    /// # Errors
    /// Those of `key_at` and `less_than`, and of casts.
    pub(crate) fn of(
        spec: &KeySpec,
        n: u64,
        key_at: impl Fn(u64) -> Result<KeyBits>,
        less_than: impl Fn(KeyBits) -> Result<u64>,
    ) -> Result<Option<Self>> {
        if n == 0 {
            return Ok(None);
        }
        let [first, third] = quartile_ranks(n)?;
        let Some(edges) = FencePair::of_keys(spec, [key_at(first)?, key_at(third)?])? else {
            return Ok(None);
        };
        let Cuts { first, after } = edges.cuts(spec)?;
        let below = less_than(first)?;
        let within = after.map_or(Ok(n), less_than)?;
        Ok(Some(Self {
            edges,
            below,
            above: n - within,
        }))
    }
}

/// Answers as an array, NULL where there are no fences.
///
/// # Errors
/// Those of making arrays.
pub(crate) fn fences_array(x: &DataType, rows: &[Option<Fenced>]) -> Result<ArrayRef> {
    let null = ScalarValue::try_new_null(&fence_type(x))?;
    let edges = |edge: fn(&FencePair) -> &ScalarValue| {
        let values = rows
            .iter()
            .map(|row| row.as_ref().map_or(null.clone(), |row| edge(&row.edges).clone()));
        ScalarValue::iter_to_array(values)
    };
    let counts = |count: fn(&Fenced) -> u64| {
        let counts = rows.iter().map(|row| row.as_ref().map(count));
        Arc::new(counts.collect::<UInt64Array>()) as ArrayRef
    };
    let columns = vec![
        edges(|edges| &edges.low)?,
        edges(|edges| &edges.high)?,
        counts(|row| row.below),
        counts(|row| row.above),
    ];
    let valid = NullBuffer::from_iter(rows.iter().map(Option::is_some));
    Ok(Arc::new(StructArray::try_new(
        fences_fields(x),
        columns,
        Some(valid),
    )?))
}

/// Fences of groups.
#[derive(Debug)]
pub(super) struct TukeyFences;

impl<K: Key> Asked<Vec<K>> for TukeyFences {
    type Answers = Vec<Option<Fenced>>;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Self::Answers) -> Result<()> {
        let less_than = |cut| Ok(sorted.count_while(|item| key_of(item) < cut));
        let key_at = |rank| key_at(sorted, rank);
        answers.push(Fenced::of(spec, sorted.n(), key_at, less_than)?);
        Ok(())
    }

    fn finish(&self, spec: &KeySpec, _: &Vec<K>, answers: Self::Answers) -> Result<ArrayRef> {
        fences_array(spec.data_type(), &answers)
    }
}
