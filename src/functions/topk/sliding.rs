//! The accumulator of moving window frames: rows come and go, and every row of the window needs an answer.
//!
//! Time of a row: logarithmic in the size of its frame, and linear in the `k` values of the answer.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::mem::size_of;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::Accumulator;

use super::column::TopKColumn;
use crate::key::{Key, KeyBits, RowOrder, Width, with_key};

/// Keeps the rows of a frame in order, with a count for equal rows.
#[derive(Debug)]
pub(super) struct SlidingTopKAccumulator {
    column: TopKColumn,
    order: RowOrder,
    /// The number of equal rows at each position in the order, and their value.
    rows: BTreeMap<OrderKey, (usize, ScalarValue)>,
    /// Memory of the entries in `rows`, in bytes.
    bytes: usize,
}

/// The position of a row in the order, best first: the complement of its key's bits, then its row encoding among equal keys.
type OrderKey = (KeyBits, Box<[u8]>);

impl SlidingTopKAccumulator {
    pub(super) fn try_new(column: TopKColumn) -> Result<Self> {
        Ok(Self {
            order: column.order()?,
            column,
            rows: BTreeMap::new(),
            bytes: 0,
        })
    }

    /// Calls `each` for each row that counts, with its position in the order, the column of values, and the row's index there.
    fn each(
        &mut self,
        values: &[ArrayRef],
        mut each: impl FnMut(&mut Self, OrderKey, &ArrayRef, usize) -> Result<()>,
    ) -> Result<()> {
        let kept = self.column.kept(values, None)?;
        let dense = self.column.dense(values, kept.as_ref())?;
        let keys = with_key!(self.column.width(), K => bits(self.column.keys::<K>(&dense)?));
        let columns = self.order.columns().map(|column| dense[column].clone());
        let rows = self.order.rows(&columns.collect::<Vec<_>>())?;
        for (at, (key, row)) in keys.into_iter().zip(&rows).enumerate() {
            each(self, (!key, row.data().into()), &dense[0], at)?;
        }
        Ok(())
    }
}

/// The bits of keys.
fn bits<K: Key>(keys: Vec<K>) -> Vec<KeyBits> {
    keys.into_iter().map(Key::to_bits).collect()
}

/// Memory of an entry of the frame, in bytes.
fn entry_bytes(order_key: &OrderKey, value: &ScalarValue) -> usize {
    size_of::<OrderKey>() + order_key.1.len() + size_of::<usize>() + value.size()
}

impl Accumulator for SlidingTopKAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.each(values, |frame, order_key, values, at| {
            if let Some((count, _)) = frame.rows.get_mut(&order_key) {
                *count += 1;
                return Ok(());
            }
            let value = ScalarValue::try_from_array(values, at)?;
            frame.bytes += entry_bytes(&order_key, &value);
            frame.rows.insert(order_key, (1, value));
            Ok(())
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.each(values, |frame, order_key, _, _| {
            match frame.rows.get_mut(&order_key) {
                Some((count, _)) if *count > 1 => {
                    *count -= 1;
                    Ok(())
                }
                Some((_, value)) => {
                    frame.bytes -= entry_bytes(&order_key, value).min(frame.bytes);
                    frame.rows.remove(&order_key);
                    Ok(())
                }
                None => internal_err!("a window retracts a row that it never added"),
            }
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
        let values = if best.is_empty() {
            self.column.no_rows().swap_remove(0)
        } else {
            ScalarValue::iter_to_array(best)?
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
