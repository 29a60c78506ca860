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
use crate::quantile::fences::{Cuts, Edges, edge_type, quartile_ranks};

/// The fields of an answer over values of this type.
pub(super) fn fences_fields(x: &DataType) -> Fields {
    let edge = edge_type(x);
    Fields::from(vec![
        Field::new("low", edge.clone(), true),
        Field::new("high", edge, true),
        Field::new("below", DataType::UInt64, true),
        Field::new("above", DataType::UInt64, true),
    ])
}

/// The fences of a group, with the numbers of values below and above.
pub(crate) struct Fenced {
    edges: Edges,
    below: u64,
    above: u64,
}

impl Fenced {
    /// The fences of `n` values with these quartiles, where `less_than` counts the values of lesser keys. `None` where there are none.
    ///
    /// # Errors
    /// Those of `less_than`, and of casts.
    pub(crate) fn of(
        spec: &KeySpec,
        n: u64,
        quartiles: [KeyBits; 2],
        less_than: impl Fn(KeyBits) -> Result<u64>,
    ) -> Result<Option<Self>> {
        let Some(edges) = Edges::of_keys(spec, quartiles)? else {
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
    let null = ScalarValue::try_new_null(&edge_type(x))?;
    let edges = |edge: fn(&Edges) -> &ScalarValue| {
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
        let n = sorted.n();
        if n == 0 {
            answers.push(None);
            return Ok(());
        }
        let [first, third] = quartile_ranks(n)?;
        let quartiles = [key_at(sorted, first)?, key_at(sorted, third)?];
        let less_than = |cut| Ok(sorted.count_while(|item| key_of(item) < cut));
        answers.push(Fenced::of(spec, n, quartiles, less_than)?);
        Ok(())
    }

    fn finish(&self, spec: &KeySpec, _: &Vec<K>, answers: Self::Answers) -> Result<ArrayRef> {
        fences_array(spec.data_type(), &answers)
    }
}
