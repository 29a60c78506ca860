//! The accumulator of one group: for aggregations without groups, and for window frames that only grow.

use std::mem::size_of;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;

use super::column::TopKColumn;
use super::groups::state_rows;
use crate::functions::states::state_column;
use crate::kernel::cpu::top::Sieve;
use crate::key::Key;

/// Keeps the best rows of one group.
#[derive(Debug)]
pub(super) struct TopKAccumulator<K> {
    column: TopKColumn,
    /// The rows; `None` before the first one.
    sieve: Option<Sieve<K>>,
}

impl<K: Key> TopKAccumulator<K> {
    pub(super) fn new(column: TopKColumn) -> Self {
        Self { column, sieve: None }
    }

    fn push(&mut self, dense: &[ArrayRef]) -> Result<()> {
        let sieve = match &mut self.sieve {
            Some(sieve) => sieve,
            none => none.insert(self.column.sieve()?),
        };
        self.column.push(sieve, 1, &vec![0; dense[0].len()], dense)
    }

    /// The columns of the best rows.
    fn best(&mut self) -> Result<Vec<ArrayRef>> {
        match &mut self.sieve {
            Some(sieve) => Ok(sieve.best()?.payload),
            None => Ok(self.column.no_rows()),
        }
    }
}

impl<K: Key> Accumulator for TopKAccumulator<K> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let kept = self.column.kept(values, None)?;
        let dense = self.column.dense(values, kept.as_ref())?;
        self.push(&dense)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let rows = self.best()?;
        let answer = self.column.answers(&rows[0], &[rows[0].len()])?;
        ScalarValue::try_from_array(&answer, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sieve.as_ref().map_or(0, Sieve::working_bytes)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let state = |column: ArrayRef| {
            let length = column.len();
            ScalarValue::try_from_array(&state_column(column, vec![length])?, 0)
        };
        self.best()?.into_iter().map(state).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (_, rows) = state_rows(states, std::iter::repeat(0))?;
        self.push(&rows)
    }
}
