//! Window frames: keys come and go, and every row wants an answer.
//!
//! ```sql
//! SELECT exact_quantiles(price, 0.5) OVER (ORDER BY day ROWS BETWEEN 999 PRECEDING AND CURRENT ROW) FROM trades
//! ```
//! DataFusion hands over what enters a frame and what leaves it, mostly a row each, and asks for the answer. Cost of a row:
//! logarithmic in the frame ([`OrderedKeys`]), for each quantile; ranks are computed anew only when the number of values
//! has changed.

use std::fmt::Debug;
use std::mem::size_of;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::logical_expr::Accumulator;

use super::accumulator::state_rows;
use crate::key::{Key, KeyBits, KeySpec, Width};
use crate::quantile::SelectedColumn;
use crate::quantile::{Interpolation, Picks};
use crate::select::ordered::OrderedKeys;

/// The values of one frame, in order.
#[derive(Debug)]
pub(super) struct Frame {
    keys: Keys,
    answers: Answers,
    /// Until something comes or goes.
    answer: Option<ScalarValue>,
}

/// From the order statistics of a frame to the value of its row.
#[derive(Debug)]
pub(super) struct Answers {
    interpolation: Interpolation,
    /// Where the answers lie, among this many values.
    picks: (u64, Picks),
    null: ScalarValue,
}

impl Answers {
    pub(super) fn try_new(column: &SelectedColumn) -> Result<Self> {
        Ok(Self {
            interpolation: column.ask().interpolation(column.spec())?,
            picks: (0, Picks::default()),
            null: ScalarValue::try_from(&column.result_type()?)?,
        })
    }

    /// The row of a frame of `n` values; `key_at` gives the key of a rank.
    ///
    /// # Errors
    /// Those of `key_at`.
    pub(super) fn row(
        &mut self,
        column: &SelectedColumn,
        n: u64,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
    ) -> Result<ScalarValue> {
        if n == 0 {
            return Ok(self.null.clone());
        }
        if column.is_list() {
            let mut keys = Vec::with_capacity(column.ask().quantiles.len());
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

    /// Adds the keys of one frame's answers; none if `n` is 0.
    pub(super) fn keys(
        &mut self,
        column: &SelectedColumn,
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

    /// Ranks change only with the number of values.
    fn pick(&mut self, column: &SelectedColumn, n: u64) {
        if n != self.picks.0 {
            self.picks = (n, column.ask().picks(n));
        }
    }

    /// Answers by their keys.
    pub(super) fn array(&self, keys: &[KeyBits]) -> Result<ArrayRef> {
        self.interpolation.result.to_array(keys)
    }
}

/// Keys in a tree of their own width.
#[derive(Debug)]
enum Keys {
    W32(OrderedKeys<u32>),
    W64(OrderedKeys<u64>),
    W128(OrderedKeys<u128>),
}

macro_rules! each_width {
    ($keys:expr, $tree:ident => $do:expr) => {
        match $keys {
            Keys::W32($tree) => $do,
            Keys::W64($tree) => $do,
            Keys::W128($tree) => $do,
        }
    };
}

impl Keys {
    fn insert(&mut self, key: KeyBits) -> Result<()> {
        each_width!(self, tree => tree.insert(Key::from_bits(key)))
    }

    fn remove(&mut self, key: KeyBits) -> Result<()> {
        each_width!(self, tree => tree.remove(Key::from_bits(key)))
    }

    fn len(&self) -> u64 {
        each_width!(self, tree => tree.len())
    }

    fn at(&self, rank: u64) -> Result<KeyBits> {
        let key = each_width!(self, tree => tree.select(rank).map(Key::to_bits));
        key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values in a frame", self.len()))
    }
}

impl Frame {
    /// No values.
    ///
    /// # Errors
    /// None for a column that was made for its method.
    pub(super) fn try_new(column: &SelectedColumn) -> Result<Self> {
        let distinct = column.is_distinct();
        Ok(Self {
            keys: match column.spec().width() {
                Width::W32 => Keys::W32(OrderedKeys::new(distinct)),
                Width::W64 => Keys::W64(OrderedKeys::new(distinct)),
                Width::W128 => Keys::W128(OrderedKeys::new(distinct)),
            },
            answers: Answers::try_new(column)?,
            answer: None,
        })
    }

    /// Adds what is not NULL.
    ///
    /// # Errors
    /// `ResourcesExhausted` past 2^32 - 1 copies of one value.
    pub(super) fn insert(&mut self, column: &SelectedColumn, values: &dyn Array) -> Result<()> {
        self.answer = None;
        column.spec().for_each_key(values, |key| self.keys.insert(key))
    }

    pub(super) fn insert_key(&mut self, key: KeyBits) -> Result<()> {
        self.answer = None;
        self.keys.insert(key)
    }

    /// Takes out what is not NULL.
    ///
    /// # Errors
    /// An internal error if it is not there.
    fn remove(&mut self, column: &SelectedColumn, values: &dyn Array) -> Result<()> {
        self.answer = None;
        column.spec().for_each_key(values, |key| self.keys.remove(key))
    }

    /// The value of a row with this frame.
    pub(super) fn evaluate(&mut self, column: &SelectedColumn) -> Result<ScalarValue> {
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let keys = &self.keys;
        let answer = self.answers.row(column, keys.len(), &|rank| keys.at(rank))?;
        self.answer = Some(answer.clone());
        Ok(answer)
    }

    /// Every value's key.
    pub(super) fn keys(&self) -> Vec<KeyBits> {
        fn copied<K: Key>((key, copies): (K, u32)) -> impl Iterator<Item = KeyBits> {
            std::iter::repeat_n(key.to_bits(), copies as usize)
        }
        each_width!(&self.keys, tree => tree.iter().flat_map(copied).collect())
    }

    pub(super) fn size(&self) -> usize {
        let keys = each_width!(&self.keys, tree => tree.size());
        size_of::<Self>() + keys
    }
}

/// Values of a column that come and go.
pub(super) trait Moving<S>: Debug + Send + Sync + 'static {
    /// Adds what is not NULL.
    fn insert(&mut self, column: &SelectedColumn<S>, values: &ArrayRef) -> Result<()>;

    /// Takes out what is not NULL.
    fn remove(&mut self, column: &SelectedColumn<S>, values: &ArrayRef) -> Result<()>;

    /// The value of a row with this frame.
    fn evaluate(&mut self, column: &SelectedColumn<S>) -> Result<ScalarValue>;

    /// All values.
    fn state(&self, column: &SelectedColumn<S>) -> Result<Vec<ScalarValue>>;

    /// Bytes held.
    fn size(&self) -> usize;
}

impl Moving<KeySpec> for Frame {
    fn insert(&mut self, column: &SelectedColumn, values: &ArrayRef) -> Result<()> {
        self.insert(column, values.as_ref())
    }

    fn remove(&mut self, column: &SelectedColumn, values: &ArrayRef) -> Result<()> {
        self.remove(column, values.as_ref())
    }

    fn evaluate(&mut self, column: &SelectedColumn) -> Result<ScalarValue> {
        self.evaluate(column)
    }

    fn state(&self, column: &SelectedColumn) -> Result<Vec<ScalarValue>> {
        column.state(&self.keys())
    }

    fn size(&self) -> usize {
        self.size()
    }
}

/// A frame that moves.
#[derive(Debug)]
pub(super) struct SlidingAccumulator<S, F> {
    column: SelectedColumn<S>,
    frame: F,
}

impl<S, F> SlidingAccumulator<S, F> {
    /// Over the values of `column`; `frame` has none yet.
    pub(super) fn over(column: SelectedColumn<S>, frame: F) -> Self {
        Self { column, frame }
    }
}

/// One of keys.
pub(super) type SlidingQuantilesAccumulator = SlidingAccumulator<KeySpec, Frame>;

impl SlidingQuantilesAccumulator {
    pub(super) fn try_new(column: SelectedColumn) -> Result<Self> {
        let frame = Frame::try_new(&column)?;
        Ok(Self::over(column, frame))
    }
}

impl<S: Debug + Send + Sync + 'static, F: Moving<S>> Accumulator for SlidingAccumulator<S, F> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.frame.insert(&self.column, &values[0])
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.frame.remove(&self.column, &values[0])
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.frame.evaluate(&self.column)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.frame.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.frame.state(&self.column)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let lists = state_rows(states)?;
        let mut lists = lists.iter().flatten();
        lists.try_for_each(|list| self.frame.insert(&self.column, &list))
    }
}
