//! What a scan holds of its groups and rows, and what it leaves behind.

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::{filter, filter_record_batch};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::Column;

use super::plain::{PartitionOrder, PlainGroups, PlainStates};
use crate::exec::aggregate::KeyColumn;
use crate::exec::expressions::{mask, values};
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::bytes::StagedBytes;
use crate::kernel::cpu::groups::cells::NumberedKeys;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::{StagedColumn, StagedValues};
use crate::key::{self, Width, with_key};

/// What is wanted of a batch: values of the key columns, and what plain aggregates are given.
pub(super) struct BatchValues {
    pub(super) columns: Vec<StagedColumn>,
    pub(super) inputs: Vec<ColumnarValue>,
}

/// What one scan holds.
pub(super) struct QuantilesScan<W> {
    /// Keys beside the numbers of their groups, for each key column, while groups are few.
    pub(super) few: Vec<NumberedKeys>,
    /// What is kept while groups are few.
    pub(super) floor: MemoryReservation,
    /// Aggregates of DataFusion's by the numbers of this scan.
    pub(super) plain: PlainGroups,
    /// Whether partitioned rows are numbered: where keys are not packed, and for plain aggregates beside byte strings while
    /// groups are few.
    pub(super) numbers: bool,
    /// The states of plain aggregates when numbers ended, and the keys of the groups that they are of.
    pub(super) states: Option<(PlainStates, Vec<W>)>,
}

impl<W: GroupKey> QuantilesScan<W> {
    /// Ends the numbers of packed groups: what plain aggregates want stays with the rows from now on.
    pub(super) fn end_numbers(&mut self, ids: &mut GroupIds<W>) -> Result<()> {
        let states = self.plain.states(&ids.group_partitions())?;
        self.states = Some((states, ids.keys()));
        self.numbers = false;
        ids.free()
    }
}

/// What one scan leaves behind, beside its rows.
pub(super) struct QuantilesScanned<W> {
    pub(super) states: Option<PlainStates>,
    /// Keys of the groups that `states` are of, where they are packed.
    pub(super) words: Vec<W>,
    /// Where groups have numbers in each scan.
    pub(super) numbered: Option<ScanGroups>,
}

/// The groups that a scan has numbered, where keys are not packed.
pub(super) struct ScanGroups {
    /// The group columns, by number.
    values: Vec<ArrayRef>,
    order: PartitionOrder,
    /// Position of each number in the order.
    positions: Vec<u32>,
}

impl ScanGroups {
    pub(super) fn new(values: Vec<ArrayRef>, order: PartitionOrder) -> Self {
        let mut positions = vec![0; order.ids.len()];
        for (position, id) in order.ids.iter().enumerate() {
            positions[*id as usize] = position as u32;
        }
        Self {
            values,
            order,
            positions,
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let values = self.values.iter().map(|values| values.get_array_memory_size());
        values.sum::<usize>() + 2 * size_of::<u32>() * self.positions.len()
    }

    /// The group columns of the groups in a hash partition; `None` if it has no groups.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn values_in(&self, part: usize) -> Result<Option<Vec<ArrayRef>>> {
        if self.order.part(part).is_empty() {
            return Ok(None);
        }
        self.order.take_partition(part, &self.values).map(Some)
    }

    /// Index of the group with this number among the groups of its hash partition, which is `part`.
    #[inline(always)]
    pub(super) fn index_in(&self, part: usize, number: usize) -> usize {
        self.positions[number] as usize - self.order.start(part)
    }
}

/// Makes room for the values of a batch.
pub(super) fn make_few_room(
    few: &mut [NumberedKeys],
    columns: &[KeyColumn],
    staged: &[StagedColumn],
    rows: usize,
) -> Result<()> {
    for ((keys, column), staged) in few.iter_mut().zip(columns).zip(staged) {
        let rows = staged.rows.as_ref().map_or(rows, Vec::len);
        with_key!(column.spec.width(), K => keys.make_room::<K>(rows)?);
    }
    Ok(())
}

/// Adds the values of a batch by the numbers of its rows.
pub(super) fn append_few(
    few: &mut [NumberedKeys],
    columns: &[KeyColumn],
    ids: &[usize],
    staged: &[StagedColumn],
) -> Result<()> {
    // There are at most as many as `FEW_GROUPS`.
    let all: Vec<u16> = ids.iter().map(|id| *id as u16).collect();
    for ((keys, column), staged) in few.iter_mut().zip(columns).zip(staged) {
        let own: Vec<u16>;
        let ids = match &staged.rows {
            None => &all,
            Some(rows) => {
                own = rows.iter().map(|row| all[*row as usize]).collect();
                &own
            }
        };
        let StagedValues::Raw(raw) = &staged.values else {
            continue;
        };
        with_key!(column.spec.width(), K => keys.append::<K>(ids, raw, &column.spec)?);
    }
    Ok(())
}

/// The values of a key column in a batch, without NULLs and rows that are filtered out.
pub(super) fn column_values(column: &KeyColumn, batch: &RecordBatch) -> Result<StagedColumn> {
    let Some(predicate) = &column.filter else {
        return collected(&values(&column.argument, batch)?, None, column);
    };
    let passed = mask(predicate, batch)?;
    if column.argument.downcast_ref::<Column>().is_some() {
        return collected(&values(&column.argument, batch)?, Some(&passed), column);
    }
    // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
    let rows: Vec<u32> = passed.values().set_indices_u32().collect();
    let batch = filter_record_batch(batch, &passed)?;
    let mut staged = collected(&values(&column.argument, &batch)?, None, column)?;
    staged.rows = Some(match staged.rows {
        None => rows,
        Some(inner) => inner.into_iter().map(|row| rows[row as usize]).collect(),
    });
    Ok(staged)
}

fn collected(values: &ArrayRef, passed: Option<&BooleanArray>, column: &KeyColumn) -> Result<StagedColumn> {
    let kept = key::kept(values.as_ref(), passed)?;
    let values = match (&column.bytes, &kept) {
        (Some(spec), kept) => {
            let kept = kept.as_ref().map(BooleanArray::values);
            StagedValues::Bytes(StagedBytes::of(spec, values.as_ref(), kept)?)
        }
        (None, None) => StagedValues::Raw(column.spec.raw(values.as_ref())?),
        (None, Some(kept)) => StagedValues::Raw(column.spec.raw(filter(values, kept)?.as_ref())?),
    };
    Ok(StagedColumn {
        rows: kept.map(|kept| kept.values().set_indices_u32().collect()),
        values,
    })
}
