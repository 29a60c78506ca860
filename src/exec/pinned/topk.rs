//! The best rows of pinned columns: `topk_by`, `max_by` and `min_by` without groups, and `ORDER BY` with a `LIMIT`.
//!
//! The rows with the best keys are selected, and then the values of these rows are fetched. If more rows tie with the k-th than fit,
//! they become a bitmap, and the smallest values among them are selected in the same way.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt64Array, new_null_array};
use datafusion::arrow::compute::{concat, interleave, take};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;

use super::calls::{FilteredColumn, OnDevice, PinnedCalls, batch_of, distinct};
use super::table::PinnedTable;
use crate::exec::operator::comma_separated;
use crate::functions::topk::{Call, firsts, lists};
use crate::kernel::cuda::{DeviceColumn, Gather, RowMask, Top, TopSelection};
use crate::key::{KeyBits, KeySpec, OrderBy, RowOrder};

/// Bytes of host memory for each row that is selected, without its values.
pub(super) const ROW_BYTES: usize = 64;

/// A call of `topk_by`, `max_by` or `min_by` over pinned columns.
#[derive(Debug, Clone)]
pub(crate) struct PinnedTopKCall {
    pub(crate) call: Call,
    /// Index of the pinned column of values.
    pub(crate) value: usize,
    /// The column of keys with the filter of the call. With `max_by` and `min_by` the filter also leaves out rows without a value.
    pub(crate) key: FilteredColumn,
    /// The call as `EXPLAIN` shows it.
    pub(crate) shown: String,
}

/// Calls over pinned columns, one output column for each.
#[derive(Debug)]
pub(crate) struct PinnedTopK(pub(crate) Vec<PinnedTopKCall>);

/// The best rows of a call.
struct BestRows {
    /// Keys of all rows, also of those without a value.
    keys: Vec<KeyBits>,
    /// Numbers of the rows that have a value.
    rows: Vec<u64>,
    /// Number of rows without a value. They have the last key.
    without_value: usize,
}

impl PinnedTopKCall {
    fn answer(&self, on: &mut OnDevice<'_>) -> Result<ArrayRef> {
        let of_devices = on.on_each(|on| self.best_values(on))?;
        let (keys, values): (Vec<_>, Vec<_>) = of_devices.into_iter().unzip();
        let (keys, arrays) = (
            keys.concat(),
            values.iter().map(AsRef::as_ref).collect::<Vec<_>>(),
        );
        let values = self.ordered(&keys, concat(&arrays)?)?;
        let values = values.slice(0, values.len().min(self.call.rows()));
        match self.call.k {
            Some(_) => lists(&values, &[values.len()]),
            None => firsts(&values, &[values.len()]),
        }
    }

    /// The keys and the values of the best of the device's rows, in any order.
    fn best_values(&self, on: &mut OnDevice<'_>) -> Result<(Vec<KeyBits>, ArrayRef)> {
        let value = on.column(self.value);
        let best = self.best(on)?;
        let gather = Gather::try_new(value.device(), &best.rows, on.limit, on.timed, &mut on.report)?;
        let mut values = gather.values(value, &mut on.report)?;
        if best.without_value > 0 {
            let nulls = new_null_array(value.data_type(), best.without_value);
            values = concat(&[values.as_ref(), nulls.as_ref()])?;
        }
        Ok((best.keys, values))
    }

    /// The rows of the answer, in any order.
    fn best(&self, on: &mut OnDevice<'_>) -> Result<BestRows> {
        let column = on.column(self.key.column);
        let format = column.format(&KeySpec::try_new(column.data_type())?);
        let mask = on.mask(self.key.filter.as_ref(), column)?;
        let among = on.among(column, format, mask.as_ref());
        let selection = TopSelection {
            among,
            least: self.call.ascending,
        };
        let count = (self.call.rows() as u64).min(among.population());
        let Top {
            mut keys,
            mut rows,
            more_ties,
        } = match count {
            0 => Top::default(),
            k => selection.rows(k, &mut on.report)?,
        };
        let last = if self.call.ascending {
            keys.iter().max().copied()
        } else {
            keys.iter().min().copied()
        };
        let (Some(last), true) = (last, more_ties) else {
            return Ok(BestRows {
                keys,
                rows,
                without_value: 0,
            });
        };
        // Of the rows with the last key come those with the smallest values, and then those without a value.
        let mut kept = keys.iter().map(|key| *key != last);
        rows.retain(|_| kept.next().unwrap_or(false));
        keys.retain(|key| *key != last);
        let room = count - rows.len() as u64;
        let among = mask.as_ref().map(|(mask, _)| mask.bits());
        let ties = RowMask::of_key(column, format, last, among, on.limit, &mut on.report)?;
        rows.extend(self.smallest(ties, room, on)?);
        let without_value = count as usize - rows.len();
        keys.resize(count as usize, last);
        Ok(BestRows {
            keys,
            rows,
            without_value,
        })
    }

    /// The rows of `ties` with the smallest values, at most `room` of them.
    fn smallest(&self, ties: RowMask, room: u64, on: &mut OnDevice<'_>) -> Result<Vec<u64>> {
        let value = on.column(self.value);
        let format = value.format(&KeySpec::try_new(value.data_type())?).turned();
        let kept = ties.count(value, on.limit, &mut on.report)?;
        if kept == 0 {
            return Ok(Vec::new());
        }
        let ties = (ties, kept);
        let selection = TopSelection {
            among: on.among(value, format, Some(&ties)),
            least: true,
        };
        // Values that still tie have the same bits.
        Ok(selection.rows(room.min(kept), &mut on.report)?.rows)
    }

    /// The values of rows with these keys, in order: the best keys first, and smaller values first where keys tie.
    fn ordered(&self, keys: &[KeyBits], values: ArrayRef) -> Result<ArrayRef> {
        let by_key = |a: &u64, b: &u64| {
            let ascending = keys[*a as usize].cmp(&keys[*b as usize]);
            if self.call.ascending {
                ascending
            } else {
                ascending.reverse()
            }
        };
        let mut places: Vec<u64> = (0..values.len() as u64).collect();
        places.sort_unstable_by(by_key);
        if places.windows(2).any(|pair| by_key(&pair[0], &pair[1]).is_eq()) {
            let order = RowOrder::try_new(vec![OrderBy::values(0, values.data_type().clone())])?;
            let rows = order.rows(std::slice::from_ref(&values))?;
            let by_value = |a: &u64, b: &u64| rows.row(*a as usize).cmp(&rows.row(*b as usize));
            places.sort_unstable_by(|a, b| by_key(a, b).then_with(|| by_value(a, b)));
        }
        Ok(take(values.as_ref(), &UInt64Array::from(places), None)?)
    }
}

impl PinnedCalls for PinnedTopK {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let columns = self.0.iter().map(|call| call.answer(on));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(vec![RecordBatch::try_new(Arc::clone(schema), columns)?])
    }

    fn columns(&self) -> Vec<usize> {
        let columns = self.0.iter().flat_map(|call| [call.value, call.key.column]);
        distinct(columns)
    }

    fn shown(&self, _table: &PinnedTable) -> String {
        format!(
            "calls=[{}]",
            comma_separated(self.0.iter().map(|call| &call.shown))
        )
    }

    fn host_bytes(&self, table: &PinnedTable) -> usize {
        let bytes = |call: &PinnedTopKCall| {
            let rows = most_rows(table, call.call.rows());
            rows * (ROW_BYTES + value_bytes(table.column(call.value)))
        };
        self.0.iter().map(bytes).sum()
    }
}

/// Most rows that all devices of a table find together, each at most `k`.
pub(super) fn most_rows(table: &PinnedTable, k: usize) -> usize {
    let of_shares = table.shares().iter().map(|share| k.min(share.rows as usize));
    of_shares.sum()
}

/// Bytes of host memory for a value of a column while an answer is put together: it exists as bytes, as an array, and in order.
pub(super) fn value_bytes(column: &DeviceColumn) -> usize {
    4 * column.value_bytes()
}

/// The values of rows in these pinned columns. A row is the share that has it and its number there.
pub(super) fn fetched(
    rows: &[(usize, u64)],
    columns: &[usize],
    on: &mut OnDevice<'_>,
) -> Result<Vec<ArrayRef>> {
    let of_shares = on.on_each(|on| {
        let own = rows.iter().filter(|(share, _)| *share == on.share);
        let own: Vec<u64> = own.map(|(_, row)| *row).collect();
        let how = (on.limit, on.timed);
        on.share().fetch(&own, columns, how, &mut on.report)
    })?;
    if let [only] = of_shares.as_slice() {
        return Ok(only.clone());
    }
    let mut next = vec![0; of_shares.len()];
    let places = rows.iter().map(|(share, _)| {
        next[*share] += 1;
        (*share, next[*share] - 1)
    });
    let places: Vec<_> = places.collect();
    let columns = (0..columns.len()).map(|column| {
        let values: Vec<_> = of_shares.iter().map(|fetched| fetched[column].as_ref()).collect();
        Ok(interleave(&values, &places)?)
    });
    columns.collect()
}

/// The first rows of a table in the order of a column that has no NULLs.
#[derive(Debug)]
pub(crate) struct PinnedRows {
    pub(crate) key: FilteredColumn,
    pub(crate) descending: bool,
    /// Most rows of the answer.
    pub(crate) k: usize,
    /// Index of the pinned column of each output column.
    pub(crate) columns: Vec<usize>,
}

impl PinnedRows {
    /// Keys and numbers of the first of the device's rows, in any order.
    fn first(&self, on: &mut OnDevice<'_>) -> Result<Vec<(KeyBits, u64)>> {
        let column = on.column(self.key.column);
        let mask = on.mask(self.key.filter.as_ref(), column)?;
        let format = column.format(&KeySpec::for_order_by(column.data_type())?);
        let among = on.among(column, format, mask.as_ref());
        let selection = TopSelection {
            among,
            least: !self.descending,
        };
        let top = match (self.k as u64).min(among.population()) {
            0 => Top::default(),
            k => selection.rows(k, &mut on.report)?,
        };
        Ok(top.keys.into_iter().zip(top.rows).collect())
    }

    /// The share of each of the first rows of all devices and its number there, in order.
    fn ordered(&self, of_devices: Vec<Vec<(KeyBits, u64)>>) -> Vec<(usize, u64)> {
        let shares = of_devices.into_iter().enumerate();
        let mut all: Vec<(KeyBits, (usize, u64))> = shares
            .flat_map(|(share, rows)| rows.into_iter().map(move |(key, row)| (key, (share, row))))
            .collect();
        all.sort_unstable_by(|a, b| {
            if self.descending {
                b.0.cmp(&a.0)
            } else {
                a.0.cmp(&b.0)
            }
        });
        all.truncate(self.k);
        all.into_iter().map(|(_, row)| row).collect()
    }
}

impl PinnedCalls for PinnedRows {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let of_devices = on.on_each(|on| self.first(on))?;
        let ordered = self.ordered(of_devices);
        let columns = fetched(&ordered, &self.columns, on)?;
        Ok(vec![batch_of(schema, columns, ordered.len())?])
    }

    fn columns(&self) -> Vec<usize> {
        distinct(std::iter::once(self.key.column).chain(self.columns.iter().copied()))
    }

    fn shown(&self, table: &PinnedTable) -> String {
        let direction = if self.descending { "DESC" } else { "ASC" };
        let name = table.name(self.key.column);
        format!("fetch={}, order_by=[{name} {direction}]", self.k)
    }

    fn host_bytes(&self, table: &PinnedTable) -> usize {
        let values = self.columns.iter().map(|index| value_bytes(table.column(*index)));
        most_rows(table, self.k) * (ROW_BYTES + values.sum::<usize>())
    }
}
