//! Quantiles of frames whose rows are all known.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{Result, internal_datafusion_err, resources_err};

use crate::functions::keys::FrameAnswers;
use crate::kernel::cpu::moving::RankedRows;
use crate::key::{Key, Width, dense, kept, with_key};
use crate::quantile::TypedAnswerSpec;
use crate::threads::Stop;

/// Most rows that are ranked at once: their numbers have 32 bits.
const MOST_ROWS: usize = u32::MAX as usize;

/// Frames between two looks at the flag that ends the work.
const FRAMES_PER_CHECK: usize = 4096;

/// The answers of `column` over frames of `values`, one row for each frame. Frames are ranges of rows of which each begins and ends nowhere
/// before the last one.
///
/// # Errors
/// Those of types that the method cannot interpolate; `ResourcesExhausted` for more than 2^32 - 1 rows; an execution error once `stop` is
/// set.
pub(crate) fn answers_of_frames(
    column: &TypedAnswerSpec,
    values: &ArrayRef,
    frames: impl Iterator<Item = Range<usize>>,
    stop: &Stop,
) -> Result<ArrayRef> {
    if values.len() > MOST_ROWS {
        return resources_err!(
            "frames over {} rows: at most {MOST_ROWS} rows are ranked at once",
            values.len()
        );
    }
    let kept = kept(values.as_ref(), None)?;
    let values = dense(values.as_ref(), None)?.unwrap_or_else(|| values.clone());
    with_key!(column.spec().width(), K => {
        let mut keys: Vec<K> = Vec::with_capacity(values.len());
        column.spec().append_keys(values.as_ref(), &mut keys)?;
        let ranked = ranked(keys, kept.as_ref(), column.is_distinct());
        answers(column, ranked, frames, stop)
    })
}

/// Rows of which those in the mask `kept` have the next one of `keys` each, the others none. Without a mask each has one.
fn ranked<K: Key>(keys: Vec<K>, kept: Option<&BooleanArray>, is_distinct: bool) -> RankedRows<K> {
    match kept {
        None => RankedRows::new(keys.into_iter().map(Some), is_distinct),
        Some(kept) => {
            let mut keys = keys.into_iter();
            let rows: Vec<Option<K>> = kept
                .values()
                .iter()
                .map(|kept| if kept { keys.next() } else { None })
                .collect();
            RankedRows::new(rows.into_iter(), is_distinct)
        }
    }
}

fn answers<K: Key>(
    column: &TypedAnswerSpec,
    ranked: RankedRows<K>,
    frames: impl Iterator<Item = Range<usize>>,
    stop: &Stop,
) -> Result<ArrayRef> {
    let mut answers = FrameAnswers::try_new(column)?;
    let (ranked, cursor) = (RefCell::new(ranked), Cell::new(0));
    let key_at = |rank| {
        // The answers ask for their ranks in the same order each time.
        let key = ranked.borrow_mut().key(cursor.replace(cursor.get() + 1), rank);
        key.map(Key::to_bits)
            .ok_or_else(|| internal_datafusion_err!("rank {rank} is not in the frame"))
    };
    let (mut keys, mut lengths) = (Vec::new(), Vec::with_capacity(frames.size_hint().0));
    for (number, frame) in frames.enumerate() {
        if number % FRAMES_PER_CHECK == 0 {
            stop.check()?;
        }
        ranked.borrow_mut().move_to(frame);
        cursor.set(0);
        let length = ranked.borrow().len();
        answers.keys(column, length, &key_at, &mut keys)?;
        lengths.push(length);
    }
    column.group_rows(answers.array(&keys)?, &lengths)
}
