//! The accumulators of calls without `DISTINCT`: a count for each cell between the cuts, and one for NULLs.
//!
//! Time of a value: a comparison with each cut, or a search among many. Memory: eight bytes for each cell of each group, whatever the number
//! of rows. Values that leave a window frame are subtracted.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array};
use datafusion::arrow::compute::filter;
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::spec::RankSpec;
use crate::functions::groups::emitted_count;
use crate::functions::states::{state_column, state_rows};
use crate::key::{dense, kept};

/// More rows than there are, for which counts of all cells can still be added up.
const MOST_ROWS: u64 = 1 << 47;

/// Counts of groups, `width` each, as a state column.
fn counts_column(counts: Vec<u64>, width: usize) -> Result<ArrayRef> {
    let groups = counts.len() / width;
    state_column(Arc::new(UInt64Array::from(counts)), vec![width; groups])
}

/// The counts in a state column of groups, `width` each.
///
/// # Errors
/// An execution error for other lists, which damaged states have.
fn state_counts(states: &[ArrayRef], width: usize) -> Result<UInt64Array> {
    let lists = state_rows(states)?;
    let offsets = lists.offsets();
    let (start, end) = match (offsets.first(), offsets.last()) {
        (Some(start), Some(end)) => (*start as usize, *end as usize),
        _ => (0, 0),
    };
    let counts = lists.values().as_primitive_opt::<UInt64Type>();
    match counts {
        Some(counts)
            if lists.null_count() == 0
                && counts.null_count() == 0
                && offsets.lengths().all(|length| length == width) =>
        {
            Ok(counts.slice(start, end - start))
        }
        _ => exec_err!("a damaged state of a rank: lists of {width} counts were expected"),
    }
}

/// Adds a count of a state.
///
/// # Errors
/// An execution error past [`MOST_ROWS`], which only damaged states have.
pub(super) fn add(count: &mut u64, more: u64) -> Result<()> {
    let sum = count.saturating_add(more);
    if sum > MOST_ROWS {
        return exec_err!("a damaged state of a rank: {sum} rows");
    }
    *count = sum;
    Ok(())
}

/// The accumulator of one group or one window frame.
#[derive(Debug)]
pub(super) struct RankAccumulator {
    spec: RankSpec,
    counts: Vec<u64>,
    /// The counts of a batch that leaves a frame.
    left: Vec<u64>,
}

impl RankAccumulator {
    pub(super) fn new(spec: RankSpec) -> Self {
        Self {
            counts: vec![0; spec.width()],
            left: Vec::new(),
            spec,
        }
    }
}

/// Adds the values and the NULLs of an array to the counts of one group.
fn count(spec: &RankSpec, values: &ArrayRef, counts: &mut [u64]) -> Result<()> {
    let dense = dense(values.as_ref(), None)?;
    let valid = dense.as_ref().unwrap_or(values);
    let (cells, nulls) = counts.split_at_mut(spec.cells());
    if spec.counts_nulls() {
        nulls[0] += (values.len() - valid.len()) as u64;
    }
    spec.counter().count(valid, cells)
}

impl Accumulator for RankAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        count(&self.spec, &values[0], &mut self.counts)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.left.clear();
        self.left.resize(self.counts.len(), 0);
        count(&self.spec, &values[0], &mut self.left)?;
        for (count, left) in self.counts.iter_mut().zip(&self.left) {
            match count.checked_sub(*left) {
                Some(rest) => *count = rest,
                None => return internal_err!("a window retracts a row that it never added"),
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let answers = self.spec.answers([self.counts.as_slice()].into_iter())?;
        ScalarValue::try_from_array(&answers, 0)
    }

    fn size(&self) -> usize {
        let counts = (self.counts.capacity() + self.left.capacity()) * size_of::<u64>();
        size_of::<Self>() + self.spec.size() + counts
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let state = counts_column(self.counts.clone(), self.spec.width())?;
        Ok(vec![ScalarValue::try_from_array(&state, 0)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let width = self.spec.width();
        for state in state_counts(states, width)?.values().chunks_exact(width) {
            for (count, more) in self.counts.iter_mut().zip(state) {
                add(count, *more)?;
            }
        }
        Ok(())
    }
}

/// The accumulator of many groups.
#[derive(Debug)]
pub(super) struct RankGroups {
    spec: RankSpec,
    /// The counts of each group, one group after the other.
    counts: Vec<u64>,
    /// The cells of a batch.
    numbers: Vec<u16>,
}

impl RankGroups {
    pub(super) fn new(spec: RankSpec) -> Self {
        Self {
            spec,
            counts: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Takes out the counts of the groups that are emitted.
    fn emitted(&mut self, emit_to: EmitTo) -> Vec<u64> {
        let width = self.spec.width();
        let count = emitted_count(emit_to, self.counts.len() / width);
        let rest = self.counts.split_off(count * width);
        std::mem::replace(&mut self.counts, rest)
    }
}

/// Whether a filter lets a row pass.
pub(super) fn passes(opt_filter: Option<&BooleanArray>, row: usize) -> bool {
    opt_filter.is_none_or(|mask| mask.is_valid(row) && mask.value(row))
}

/// Adds rows to the counts at `place(row)`, which is where those of the row's group start. `numbers` is scratch.
fn count_rows(
    spec: &RankSpec,
    values: &ArrayRef,
    opt_filter: Option<&BooleanArray>,
    numbers: &mut Vec<u16>,
    counts: &mut [u64],
    place: impl Fn(usize) -> usize,
) -> Result<()> {
    numbers.clear();
    match kept(values.as_ref(), opt_filter)? {
        None => {
            spec.counter().numbers(values, numbers)?;
            for (row, number) in numbers.iter().enumerate() {
                counts[place(row) + usize::from(*number)] += 1;
            }
        }
        Some(kept) => {
            spec.counter()
                .numbers(&filter(values.as_ref(), &kept)?, numbers)?;
            for (row, number) in kept.values().set_indices().zip(numbers.iter()) {
                counts[place(row) + usize::from(*number)] += 1;
            }
        }
    }
    if let Some(nulls) = values.logical_nulls().filter(|_| spec.counts_nulls()) {
        for row in (!nulls.inner())
            .set_indices()
            .filter(|row| passes(opt_filter, *row))
        {
            counts[place(row) + spec.cells()] += 1;
        }
    }
    Ok(())
}

impl GroupsAccumulator for RankGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let width = self.spec.width();
        self.counts.resize(total_num_groups * width, 0);
        let place = |row: usize| group_indices[row] * width;
        count_rows(
            &self.spec,
            &values[0],
            opt_filter,
            &mut self.numbers,
            &mut self.counts,
            place,
        )
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let width = self.spec.width();
        self.counts.resize(total_num_groups * width, 0);
        let counts = state_counts(states, width)?;
        if counts.len() != group_indices.len() * width {
            return internal_err!("{} counts for {} groups", counts.len(), group_indices.len());
        }
        for (state, group) in counts.values().chunks_exact(width).zip(group_indices) {
            let own = &mut self.counts[group * width..][..width];
            for (count, more) in own.iter_mut().zip(state) {
                add(count, *more)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let emitted = self.emitted(emit_to);
        self.spec.answers(emitted.chunks_exact(self.spec.width()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let width = self.spec.width();
        Ok(vec![counts_column(self.emitted(emit_to), width)?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let width = self.spec.width();
        let mut counts = vec![0; values[0].len() * width];
        count_rows(
            &self.spec,
            &values[0],
            opt_filter,
            &mut Vec::new(),
            &mut counts,
            |row| row * width,
        )?;
        Ok(vec![counts_column(counts, width)?])
    }

    fn size(&self) -> usize {
        let counts = self.counts.capacity() * size_of::<u64>() + self.numbers.capacity() * size_of::<u16>();
        size_of::<Self>() + self.spec.size() + counts
    }
}
