//! The state of a scan of quantiles by groups, and the part of it that remains at the end.

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::{filter, filter_record_batch};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::Column;

use super::plain::{PartitionOrder, PlainGroups, PlainStates};
use crate::exec::aggregate::KeyColumn;
use crate::exec::expressions::{mask, values};
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::bytes::WaitingBytes;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::numbered::NumberedKeys;
use crate::kernel::cpu::groups::runs::{WaitingColumn, WaitingValues};
use crate::key::{self, Width, with_key};

/// A batch's values of the key columns, and its inputs of plain aggregates.
pub(super) struct BatchValues {
    pub(super) columns: Vec<WaitingColumn>,
    pub(super) inputs: Vec<ColumnarValue>,
}

/// The state of one scan, besides the numbers of its groups and its partitioned rows.
pub(super) struct QuantilesScan<W> {
    /// Keys beside the numbers of their groups, for each key column, while groups are few.
    pub(super) few: Vec<NumberedKeys>,
    /// Plain aggregates, by the group numbers of this scan.
    pub(super) plain: PlainGroups,
    /// Whether rows are numbered by group although they are partitioned: if group keys are not packed, and for plain aggregates beside
    /// byte strings while groups are few.
    pub(super) numbers: bool,
    /// The states of plain aggregates from before numbering ended, and the keys of their groups.
    pub(super) states: Option<(PlainStates, Vec<W>)>,
}

impl<W: GroupKey> QuantilesScan<W> {
    /// Ends the numbering of packed groups. From now on, the inputs of plain aggregates stay with the rows.
    pub(super) fn end_numbers(&mut self, ids: &mut GroupIds<W>) -> Result<()> {
        let states = self.plain.states(&ids.group_partitions())?;
        self.states = Some((states, ids.keys()));
        self.numbers = false;
        ids.free()
    }
}

/// What remains of one scan at its end, besides its partitioned rows.
pub(super) struct QuantilesScanned<W> {
    /// States of plain aggregates.
    pub(super) states: Option<PlainStates>,
    /// Keys of the groups that `states` belong to, where group keys are packed.
    pub(super) group_keys: Vec<W>,
    /// The groups that the scan has numbered, where group keys are not packed.
    pub(super) groups: Option<ScanGroups>,
}

/// The groups that a scan has numbered, where keys are not packed.
pub(super) struct ScanGroups {
    /// The group columns, by number.
    values: Vec<ArrayRef>,
    order: PartitionOrder,
    /// Position of each group in the order, by number.
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

/// Reserves memory for the keys of a batch.
///
/// # Errors
/// `ResourcesExhausted`.
pub(super) fn reserve_few(
    few: &mut [NumberedKeys],
    columns: &[KeyColumn],
    waiting: &[WaitingColumn],
    rows: usize,
) -> Result<()> {
    for ((keys, column), waiting) in few.iter_mut().zip(columns).zip(waiting) {
        let rows = waiting.rows.as_ref().map_or(rows, Vec::len);
        with_key!(column.spec.width(), K => keys.make_room::<K>(rows)?);
    }
    Ok(())
}

/// Adds the keys of a batch. `ids` has the number of each row's group.
pub(super) fn append_few(
    few: &mut [NumberedKeys],
    columns: &[KeyColumn],
    ids: &[usize],
    waiting: &[WaitingColumn],
) -> Result<()> {
    // There are at most `FEW_GROUPS` groups.
    let all: Vec<u16> = ids.iter().map(|id| *id as u16).collect();
    for ((keys, column), waiting) in few.iter_mut().zip(columns).zip(waiting) {
        let own: Vec<u16>;
        let ids = match &waiting.rows {
            None => &all,
            Some(rows) => {
                own = rows.iter().map(|row| all[*row as usize]).collect();
                &own
            }
        };
        let WaitingValues::Raw(raw) = &waiting.values else {
            continue;
        };
        with_key!(column.spec.width(), K => keys.append::<K>(ids, raw, &column.spec)?);
    }
    Ok(())
}

/// A batch's values of a key column, without NULLs and rows that are filtered out.
pub(super) fn column_values(column: &KeyColumn, batch: &RecordBatch) -> Result<WaitingColumn> {
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
    let mut waiting = collected(&values(&column.argument, &batch)?, None, column)?;
    waiting.rows = Some(match waiting.rows {
        None => rows,
        Some(inner) => inner.into_iter().map(|row| rows[row as usize]).collect(),
    });
    Ok(waiting)
}

/// The values that are not NULL, of the rows where `passed` is true (all if it is `None`).
fn collected(values: &ArrayRef, passed: Option<&BooleanArray>, column: &KeyColumn) -> Result<WaitingColumn> {
    let kept = key::kept(values.as_ref(), passed)?;
    let values = match (&column.bytes, &kept) {
        (Some(spec), kept) => {
            let kept = kept.as_ref().map(BooleanArray::values);
            WaitingValues::Bytes(WaitingBytes::of(spec, values.as_ref(), kept)?)
        }
        (None, None) => WaitingValues::Raw(column.spec.raw(values.as_ref())?),
        (None, Some(kept)) => WaitingValues::Raw(column.spec.raw(filter(values, kept)?.as_ref())?),
    };
    Ok(WaitingColumn {
        rows: kept.map(|kept| kept.values().set_indices_u32().collect()),
        values,
    })
}
