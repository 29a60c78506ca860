//! The accumulators of calls without `DISTINCT`: a count for each cell between the cuts, and one for NULLs.
//!
//! Time of a value: a comparison with each cut, or a search among many. Memory: eight bytes for each cell of each group, whatever the number
//! of rows. Values that leave a window frame are subtracted.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array};
use datafusion::arrow::buffer::OffsetBuffer;
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

/// The states in a column, one list of numbers for each group: its counts, or the cell of its only row, or nothing of no rows.
struct States {
    numbers: UInt64Array,
    offsets: OffsetBuffer<i64>,
}

impl States {
    /// # Errors
    /// An execution error for other lists, which damaged states have.
    fn try_new(states: &[ArrayRef]) -> Result<Self> {
        let lists = state_rows(states)?;
        let numbers = lists.values().as_primitive_opt::<UInt64Type>();
        match numbers.filter(|numbers| lists.null_count() == 0 && numbers.null_count() == 0) {
            Some(numbers) => Ok(Self {
                numbers: numbers.clone(),
                offsets: lists.offsets().clone(),
            }),
            None => exec_err!("a damaged state of a rank: lists of counts were expected"),
        }
    }

    /// Number of states.
    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The numbers of each state.
    fn iter(&self) -> impl Iterator<Item = &[u64]> {
        let numbers = self.numbers.values();
        self.offsets
            .windows(2)
            .map(|ends| &numbers[ends[0] as usize..ends[1] as usize])
    }
}

/// Adds a state to the counts of its group.
///
/// # Errors
/// An execution error for a state that is damaged.
fn merge(state: &[u64], counts: &mut [u64]) -> Result<()> {
    match state {
        [] => Ok(()),
        [cell] if *cell < counts.len() as u64 => add(&mut counts[*cell as usize], 1),
        all if all.len() == counts.len() => {
            let mut most = 0;
            for (count, more) in counts.iter_mut().zip(all) {
                *count = count.saturating_add(*more);
                most = most.max(*count);
            }
            add(&mut most, 0)
        }
        other => exec_err!(
            "a damaged state of a rank: {} counts were expected, or the number of one, got {} numbers",
            counts.len(),
            other.len()
        ),
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
        let states = States::try_new(states)?;
        states.iter().try_for_each(|state| merge(state, &mut self.counts))
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

/// Calls `each(row, cell)` for all rows that count. `numbers` is scratch.
fn each_row(
    spec: &RankSpec,
    values: &ArrayRef,
    opt_filter: Option<&BooleanArray>,
    numbers: &mut Vec<u16>,
    mut each: impl FnMut(usize, usize),
) -> Result<()> {
    numbers.clear();
    match kept(values.as_ref(), opt_filter)? {
        None => {
            spec.counter().numbers(values, numbers)?;
            for (row, number) in numbers.iter().enumerate() {
                each(row, usize::from(*number));
            }
        }
        Some(kept) => {
            spec.counter()
                .numbers(&filter(values.as_ref(), &kept)?, numbers)?;
            for (row, number) in kept.values().set_indices().zip(numbers.iter()) {
                each(row, usize::from(*number));
            }
        }
    }
    if let Some(nulls) = values.logical_nulls().filter(|_| spec.counts_nulls()) {
        for row in (!nulls.inner())
            .set_indices()
            .filter(|row| passes(opt_filter, *row))
        {
            each(row, spec.cells());
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
        let (counts, numbers) = (&mut self.counts, &mut self.numbers);
        each_row(&self.spec, &values[0], opt_filter, numbers, |row, cell| {
            counts[group_indices[row] * width + cell] += 1;
        })
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let width = self.spec.width();
        self.counts.resize(total_num_groups * width, 0);
        let states = States::try_new(states)?;
        if states.len() != group_indices.len() {
            return internal_err!("{} states for {} groups", states.len(), group_indices.len());
        }
        for (state, group) in states.iter().zip(group_indices) {
            merge(state, &mut self.counts[group * width..][..width])?;
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

    /// The cell of each row: counts of all cells would be mostly zeros.
    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let mut cells = vec![None; values[0].len()];
        each_row(
            &self.spec,
            &values[0],
            opt_filter,
            &mut Vec::new(),
            |row, cell| {
                cells[row] = Some(cell as u64);
            },
        )?;
        let lengths = cells.iter().map(|cell| usize::from(cell.is_some())).collect();
        let cells = UInt64Array::from_iter_values(cells.into_iter().flatten());
        Ok(vec![state_column(Arc::new(cells), lengths)?])
    }

    fn size(&self) -> usize {
        let counts = self.counts.capacity() * size_of::<u64>() + self.numbers.capacity() * size_of::<u16>();
        size_of::<Self>() + self.spec.size() + counts
    }
}
