//! Window frames that move: rows come and go, and every row of the window wants an answer.
//!
//! Cost of a row: the logarithm of its frame, and the answer's `k` values.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::mem::size_of;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::Accumulator;

use super::column::TopKColumn;
use crate::key::{Key, KeyBits, RowOrder, Width};

/// The rows of a frame in order, equal ones together.
#[derive(Debug)]
pub(super) struct SlidingTopKAccumulator {
    column: TopKColumn,
    order: RowOrder,
    /// By the bits of the key, those of the best first, and the row among equal keys: how many, and their value.
    rows: BTreeMap<Place, (usize, ScalarValue)>,
    /// Of the entries.
    bytes: usize,
}

type Place = (KeyBits, Box<[u8]>);

impl SlidingTopKAccumulator {
    pub(super) fn try_new(column: TopKColumn) -> Result<Self> {
        Ok(Self {
            order: column.order()?,
            column,
            rows: BTreeMap::new(),
            bytes: 0,
        })
    }

    /// Calls `each` with the place and the row of what counts.
    fn each(
        &mut self,
        values: &[ArrayRef],
        mut each: impl FnMut(&mut Self, Place, &ArrayRef, usize) -> Result<()>,
    ) -> Result<()> {
        let kept = self.column.kept(values, None)?;
        let dense = self.column.dense(values, kept.as_ref())?;
        let keys: Vec<KeyBits> = match self.column.width() {
            Width::W32 => bits(self.column.keys::<u32>(&dense)?),
            Width::W64 => bits(self.column.keys::<u64>(&dense)?),
            Width::W128 => self.column.keys(&dense)?,
        };
        let columns = self.order.columns().map(|column| dense[column].clone());
        let rows = self.order.rows(&columns.collect::<Vec<_>>())?;
        for (at, (key, row)) in keys.into_iter().zip(&rows).enumerate() {
            each(self, (!key, row.data().into()), &dense[0], at)?;
        }
        Ok(())
    }
}

fn bits<K: Key>(keys: Vec<K>) -> Vec<KeyBits> {
    keys.into_iter().map(Key::to_bits).collect()
}

fn entry_bytes(place: &Place, value: &ScalarValue) -> usize {
    size_of::<Place>() + place.1.len() + size_of::<usize>() + value.size()
}

impl Accumulator for SlidingTopKAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.each(values, |frame, place, values, at| {
            if let Some((count, _)) = frame.rows.get_mut(&place) {
                *count += 1;
                return Ok(());
            }
            let value = ScalarValue::try_from_array(values, at)?;
            frame.bytes += entry_bytes(&place, &value);
            frame.rows.insert(place, (1, value));
            Ok(())
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.each(values, |frame, place, _, _| match frame.rows.get_mut(&place) {
            Some((count, _)) if *count > 1 => {
                *count -= 1;
                Ok(())
            }
            Some((_, value)) => {
                frame.bytes -= entry_bytes(&place, value).min(frame.bytes);
                frame.rows.remove(&place);
                Ok(())
            }
            None => internal_err!("a window retracts a row that it never added"),
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let distinct = self.column.is_distinct();
        let copies = |(count, value): &(usize, ScalarValue)| {
            repeat_n(value.clone(), if distinct { 1 } else { *count })
        };
        let best: Vec<ScalarValue> = self
            .rows
            .values()
            .flat_map(copies)
            .take(self.column.call().rows())
            .collect();
        let values = match best.is_empty() {
            true => self.column.no_rows().swap_remove(0),
            false => ScalarValue::iter_to_array(best)?,
        };
        let answer = self.column.answers(&values, &[values.len()])?;
        ScalarValue::try_from_array(&answer, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("a moving frame has no state to merge")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        not_impl_err!("a moving frame has no state to merge")
    }
}
