//! Quantiles over moving window frames: of all frames at once, and as a window function for frames of `ROWS`.
//!
//! ```text
//! row        4 5 6 7 8 9 10 11 12        rows seen: each key is made once, with its batch
//!            [-------)                   in the tree: the frame of the last row
//!              [-------)                 the next frame: 4 leaves, 8 enters
//! ```
//! DataFusion would hand an accumulator a slice of an array for each row that enters or leaves, which costs more than
//! the order statistics. Here the rows of a frame are known by their numbers alone. The frame holds the keys of its
//! rows, so DataFusion can drop each row that has its answer. Time of a row: as in [`keys`](super::keys).
//!
//! Where all rows of many frames are known, as in [`MovingQuantilesExec`](crate::exec::MovingQuantilesExec), [`answers`] ranks them once.

pub(crate) mod answers;
pub(crate) mod call;
#[cfg(feature = "ballista")]
mod plan_bytes;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, plan_err};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    PartitionEvaluator, Signature, Volatility, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowUDFImpl,
};

use self::answers::answers_of_frames;
use super::ExactQuantiles;
use super::keys::{FrameAnswers, key_at};
use crate::key::{Key, Width, kept, with_key};
use crate::quantile::{AnswerSpec, Quantiles, TypedAnswerSpec};
use crate::select::ordered::OrderedKeys;
use crate::threads::Stop;

/// The window function of one call over frames of `ROWS`. The call's quantiles and its frame are part of the function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct MovingQuantiles {
    function: ExactQuantiles,
    quantiles: Quantiles,
    offsets: FrameOffsets,
    is_distinct: bool,
    signature: Signature,
}

/// First and last row of a frame, as offsets from the current row. `None`: the frame goes to the start, or the end, of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FrameOffsets {
    first: Option<i64>,
    last: Option<i64>,
}

impl FrameOffsets {
    /// The offsets of a frame of `ROWS` that moves; `None` for other frames.
    fn of(frame: &WindowFrame) -> Option<Self> {
        let offset = |bound: &WindowFrameBound| {
            let rows = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
            match bound {
                WindowFrameBound::CurrentRow => Some(Some(0)),
                WindowFrameBound::Preceding(ScalarValue::UInt64(n)) => Some(n.map(|n| -rows(n))),
                WindowFrameBound::Following(ScalarValue::UInt64(n)) => Some(n.map(rows)),
                _ => None,
            }
        };
        let (first, last) = (offset(&frame.start_bound)?, offset(&frame.end_bound)?);
        let is_constant = first.is_none() && last.is_none();
        (frame.units == WindowFrameUnits::Rows && !is_constant).then_some(Self { first, last })
    }

    /// The row numbers, from 0, in the frame of `row`, of the first `rows` rows of a partition.
    fn frame(self, row: u64, rows: u64) -> Range<u64> {
        let bound = |offset: i64, after: u64| (row + after).saturating_add_signed(offset).min(rows);
        let start = self.first.map_or(0, |offset| bound(offset, 0));
        let end = self.last.map_or(rows, |offset| bound(offset, 1));
        start..end.max(start)
    }
}

impl MovingQuantiles {
    /// A call of `function` over values of a type; `None` unless `frame` moves by rows and the values have keys of fixed width.
    pub(crate) fn try_new(
        function: &ExactQuantiles,
        quantiles: Quantiles,
        frame: &WindowFrame,
        is_distinct: bool,
        data_type: &DataType,
    ) -> Option<Self> {
        let moving = Self {
            function: ExactQuantiles::new(function.sql_name(), function.method(), function.is_descending()),
            quantiles,
            offsets: FrameOffsets::of(frame)?,
            is_distinct,
            signature: Signature::any(1, Volatility::Immutable),
        };
        moving.column(data_type).ok().map(|_| moving)
    }

    /// The column that the call ranks, for values of this type.
    fn column(&self, data_type: &DataType) -> Result<TypedAnswerSpec> {
        let quantile_spec = self.function.quantile_spec(&self.quantiles, false);
        match AnswerSpec::try_new(data_type, quantile_spec, self.quantiles.is_list, self.is_distinct)? {
            AnswerSpec::Keys(column) => Ok(column),
            AnswerSpec::Bytes(_) => plan_err!("values of type {data_type} have no keys of fixed width"),
        }
    }
}

impl WindowUDFImpl for MovingQuantiles {
    fn name(&self) -> &str {
        self.function.registered_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        let column = self.column(single_argument(args.input_fields())?.data_type())?;
        Ok(Field::new(args.name(), column.result_type()?, true).into())
    }

    fn partition_evaluator(&self, args: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        let column = self.column(single_argument(args.input_fields())?.data_type())?;
        Ok(with_key!(column.spec().width(), K => {
            Box::new(MovingFrame::<K>::try_new(column, self.offsets)?)
        }))
    }
}

/// The only argument of the function.
fn single_argument<T>(arguments: &[T]) -> Result<&T> {
    arguments
        .first()
        .ok_or_else(|| internal_datafusion_err!("a moving quantile without its argument"))
}

/// The moving frame of one partition.
#[derive(Debug)]
struct MovingFrame<K> {
    column: TypedAnswerSpec,
    offsets: FrameOffsets,
    answers: FrameAnswers,
    /// Keys of the values in the frame.
    tree: OrderedKeys<K>,
    /// Keys of the rows that were seen, from row `first` on; `None` for NULL.
    rows: VecDeque<Option<K>>,
    /// Number of the first row in `rows`, from 0.
    first: u64,
    /// Number of the row after the last one that entered the tree; at least `first` once the tree is at a frame.
    entered: u64,
    /// Number of rows that have their answer.
    answered: u64,
    /// Number of rows that DataFusion has dropped. It counts rows from there.
    dropped: Cell<u64>,
}

impl<K: Key> MovingFrame<K> {
    fn try_new(column: TypedAnswerSpec, offsets: FrameOffsets) -> Result<Self> {
        Ok(Self {
            offsets,
            answers: FrameAnswers::try_new(&column)?,
            tree: OrderedKeys::new(column.is_distinct()),
            column,
            rows: VecDeque::new(),
            first: 0,
            entered: 0,
            answered: 0,
            dropped: Cell::new(0),
        })
    }

    /// Makes the keys of the rows of `values` that were not seen yet. The first row of `values` is the one after those that were dropped.
    fn see(&mut self, values: &dyn Array) -> Result<()> {
        let seen = (self.first + self.rows.len() as u64).saturating_sub(self.dropped.get()) as usize;
        if seen >= values.len() {
            return Ok(());
        }
        let new = values.slice(seen, values.len() - seen);
        let keys = self.column.spec().keys(new.as_ref())?.into_iter();
        let mut keys = keys.map(K::from_bits);
        match kept(new.as_ref(), None)? {
            None => self.rows.extend(keys.map(Some)),
            Some(kept) => {
                let valid = kept.values().iter();
                self.rows
                    .extend(valid.map(|valid| if valid { keys.next() } else { None }));
            }
        }
        Ok(())
    }

    /// Brings the tree to the frame of the next row. `rows`: number of rows of the partition so far.
    fn advance(&mut self, rows: u64) -> Result<()> {
        let frame = self.offsets.frame(self.answered, rows);
        self.answered += 1;
        while self.first < frame.start {
            let key = self.rows.pop_front().flatten();
            if let Some(key) = key
                && self.first < self.entered
            {
                self.tree.remove(key)?;
            }
            self.first += 1;
        }
        self.entered = self.entered.max(self.first);
        while self.entered < frame.end {
            let key = match self.offsets.first {
                Some(_) => self.rows.get((self.entered - self.first) as usize).copied(),
                None => self.rows.pop_front(),
            };
            if let Some(key) = key.flatten() {
                self.tree.insert(key)?;
            }
            self.entered += 1;
            if self.offsets.first.is_none() {
                self.first = self.entered;
            }
        }
        Ok(())
    }
}

impl<K: Key> PartitionEvaluator for MovingFrame<K> {
    /// The rows from row `index` to the end of its frame. Rows before it were seen.
    fn get_range(&self, index: usize, rows: usize) -> Result<Range<usize>> {
        let dropped = self.answered - (index as u64).min(self.answered);
        self.dropped.set(dropped);
        let end = self.offsets.frame(self.answered, dropped + rows as u64).end;
        Ok(index..(end.saturating_sub(dropped) as usize).max(index + 1))
    }

    fn is_causal(&self) -> bool {
        self.offsets.last.is_some_and(|last| last <= 0)
    }

    fn supports_bounded_execution(&self) -> bool {
        self.offsets.last.is_some()
    }

    fn evaluate(&mut self, values: &[ArrayRef], _range: &Range<usize>) -> Result<ScalarValue> {
        let values = single_argument(values)?;
        self.see(values.as_ref())?;
        self.advance(self.dropped.get() + values.len() as u64)?;
        let tree = &self.tree;
        self.answers
            .row(&self.column, tree.len(), &|rank| key_at(tree, rank))
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let frames = (0..rows as u64).map(|row| {
            let frame = self.offsets.frame(row, rows as u64);
            frame.start as usize..frame.end as usize
        });
        answers_of_frames(&self.column, single_argument(values)?, frames, &Stop::default())
    }
}
