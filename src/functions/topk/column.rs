//! The question of a call about two columns, values and keys, and how the best rows become its answer.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, ListArray, UInt64Array, new_empty_array};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::{SortOptions, filter, take};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, plan_err, resources_err};

use super::TopKName;
use crate::functions::ordered_type;
use crate::kernel::cpu::top::{GroupLimit, Rows, Sieve, Ties};
use crate::key::{Key, Order, OrderBy, RowOrder, SortColumn, SortKeys, Width, kept, with_one_nan};

/// A call without its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// The name that users write in SQL.
    pub(crate) sql_name: TopKName,
    /// Whether the least keys are the best.
    pub(crate) ascending: bool,
    /// Greatest number of rows of a list; `None`: the answer is one value.
    pub(crate) k: Option<usize>,
}

impl Call {
    /// Number of rows of each group that are wanted.
    pub(crate) fn rows(&self) -> usize {
        self.k.unwrap_or(1)
    }

    /// Whether rows whose value is NULL are skipped.
    pub(crate) fn skips_null_values(&self) -> bool {
        self.sql_name != TopKName::Topk
    }

    /// The sort column of keys, which are not NULL.
    pub(crate) fn key_column(&self, data_type: &DataType) -> SortColumn {
        SortColumn {
            data_type: data_type.clone(),
            nullable: false,
            options: self.key_options(),
            total_order: false,
        }
    }

    /// The direction of keys, and the place of NULLs inside of keys.
    fn key_options(&self) -> SortOptions {
        // NULLs inside of keys, in lists and structs, are greater than all values.
        SortOptions {
            descending: !self.ascending,
            nulls_first: !self.ascending,
        }
    }
}

/// Checks the types of values and keys.
///
/// # Errors
/// A planning error that names the type of keys without an order, or of values that cannot break ties.
pub(super) fn check_types(sql_name: TopKName, value: &DataType, key: &DataType) -> Result<()> {
    let (value, key) = (ordered_type(value), ordered_type(key));
    if Order::try_new(&key).is_err() {
        return plan_err!(
            "{sql_name}: keys of type {key} have no order: allowed are integers, floating-point numbers, decimals, \
             Boolean, Date, Time, Timestamp, Duration, Interval(YearMonth), strings, binary, lists (List, LargeList, \
             FixedSizeList) and structs of these, and dictionaries of these"
        );
    }
    if !RowConverter::supports_fields(&[SortField::new(value.clone())]) {
        return plan_err!(
            "{sql_name}: values of type {value} are not supported, as they have no order among equal keys"
        );
    }
    Ok(())
}

/// A call over columns of known types.
#[derive(Debug)]
pub(super) struct TopKColumn {
    call: Call,
    value: DataType,
    key: DataType,
    is_distinct: bool,
    keys: SortKeys,
}

impl TopKColumn {
    /// A call over columns of these types.
    ///
    /// # Errors
    /// Those of [`check_types`].
    pub(super) fn try_new(call: Call, value: &DataType, key: &DataType, is_distinct: bool) -> Result<Self> {
        check_types(call.sql_name, value, key)?;
        Ok(Self {
            keys: SortKeys::try_new(&[call.key_column(key)])?,
            call,
            value: value.clone(),
            key: key.clone(),
            is_distinct,
        })
    }

    /// Width of the keys.
    pub(super) fn width(&self) -> Width {
        self.keys.width()
    }

    /// The call.
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// Whether equal rows count once.
    pub(super) fn is_distinct(&self) -> bool {
        self.is_distinct
    }

    /// An empty sieve for rows of two columns, value and key.
    pub(super) fn sieve<K: Key>(&self) -> Result<Sieve<K>> {
        let wanted = GroupLimit {
            k: self.call.rows(),
            ties: Ties::By(self.order()?),
            distinct: self.is_distinct,
        };
        Ok(Sieve::new(wanted, vec![self.value.clone(), self.key.clone()]))
    }

    /// The order of rows with equal keys. Their first column is the value, their second one the key.
    pub(super) fn order(&self) -> Result<RowOrder> {
        let value = OrderBy::values(0, self.value.clone());
        if self.keys.is_exact() {
            RowOrder::try_new(vec![value])
        } else {
            let key = OrderBy::rows(1, self.key.clone(), self.call.key_options());
            RowOrder::try_new(vec![key, value])
        }
    }

    /// The rows that count, of those that passed a filter; `None`: all rows.
    pub(super) fn kept(
        &self,
        columns: &[ArrayRef],
        passed: Option<&BooleanArray>,
    ) -> Result<Option<BooleanArray>> {
        let with_key = kept(columns[1].as_ref(), passed)?;
        if !self.call.skips_null_values() {
            return Ok(with_key);
        }
        // `kept` gives `None` where it drops no row beyond those that are dropped already.
        let both = kept(columns[0].as_ref(), with_key.as_ref())?;
        Ok(both.or(with_key))
    }

    /// Value and key of the rows that count. With `DISTINCT`, all NaNs among the values get the same bits.
    pub(super) fn dense(&self, columns: &[ArrayRef], kept: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let columns = columns.iter().take(2);
        let mut dense: Vec<ArrayRef> = match kept {
            None => columns.cloned().collect(),
            Some(kept) => columns
                .map(|column| Ok(filter(column, kept)?))
                .collect::<Result<_>>()?,
        };
        if self.is_distinct {
            dense[0] = with_one_nan(&dense[0]);
        }
        Ok(dense)
    }

    /// The keys of rows, none of which is NULL.
    pub(super) fn keys<K: Key>(&self, columns: &[ArrayRef]) -> Result<Vec<K>> {
        self.keys.keys(&columns[1..2])
    }

    /// Adds rows that count, as columns of value and key, to a sieve of `groups` groups. `ids`: the group of each row.
    pub(super) fn push<K: Key>(
        &self,
        sieve: &mut Sieve<K>,
        groups: usize,
        ids: &[u32],
        dense: &[ArrayRef],
    ) -> Result<()> {
        let keys = self.keys(dense)?;
        sieve.push(
            groups,
            Rows {
                groups: ids,
                keys: &keys,
                payload: dense,
            },
        )
    }

    /// Empty columns of value and key.
    pub(super) fn no_rows(&self) -> Vec<ArrayRef> {
        vec![new_empty_array(&self.value), new_empty_array(&self.key)]
    }

    /// The answers of groups: group `group` has the next `lengths[group]` of `values`.
    pub(super) fn answers(&self, values: &ArrayRef, lengths: &[usize]) -> Result<ArrayRef> {
        match self.call.k {
            Some(_) => lists(values, lengths),
            None => firsts(values, lengths),
        }
    }
}

/// The first value of each group, NULL for a group without values. Group `group` has the next `lengths[group]` of `values`.
///
/// # Errors
/// Arrow's, for an array that becomes too large.
pub(crate) fn firsts(values: &ArrayRef, lengths: &[usize]) -> Result<ArrayRef> {
    let mut next = 0;
    let rows = lengths.iter().map(|length| {
        next += *length as u64;
        (*length > 0).then(|| next - *length as u64)
    });
    Ok(take(values.as_ref(), &UInt64Array::from_iter(rows), None)?)
}

/// A list of values for each group, NULL where it would be empty. Group `group` has the next `lengths[group]` of `values`.
///
/// # Errors
/// `ResourcesExhausted` where an array of lists cannot hold as many values.
pub(crate) fn lists(values: &ArrayRef, lengths: &[usize]) -> Result<ArrayRef> {
    if i32::try_from(values.len()).is_err() {
        return resources_err!(
            "lists of {} values in all: an array holds {} at most",
            values.len(),
            i32::MAX
        );
    }
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    let nulls = NullBuffer::from_iter(lengths.iter().map(|length| *length > 0));
    Ok(Arc::new(ListArray::try_new(
        item,
        offsets,
        Arc::clone(values),
        Some(nulls),
    )?))
}
