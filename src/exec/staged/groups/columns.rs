//! Group columns and key columns of the input of stages with groups, and the calls over them.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, new_empty_array};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::super::columns::KeyColumns;
use super::super::rows::schema;
use crate::exec::group_engine::{GroupColumns, GroupIds};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;

/// Most groups that get brackets: as many as 16 bits number.
pub(in crate::exec::staged) const MOST_GROUPS: usize = u16::MAX as usize;

/// Most ranks of all groups together that get brackets. With more, brackets take as many bytes as keys.
pub(in crate::exec::staged) const MOST_RANKS: usize = 200_000;

/// Group columns, key columns and calls of stages with groups.
#[derive(Debug)]
pub(crate) struct GroupedColumns {
    /// The group columns, which come first in the input. All are nullable, so that all stages number groups in the same way.
    pub(in crate::exec::staged) fields: Vec<FieldRef>,
    packed: GroupColumns,
    /// The key columns, which follow the group columns.
    pub(in crate::exec::staged) columns: KeyColumns,
    /// Schema of the rows between stages.
    pub(super) rows: SchemaRef,
    /// Schema of the answers.
    pub(in crate::exec::staged) answers: SchemaRef,
    /// Whether the cost model chose two reads, not the user.
    pub(in crate::exec::staged) auto: bool,
}

impl GroupedColumns {
    /// Columns of an input that begins with these group columns. `answers` has a column for each group column and for each call.
    ///
    /// # Errors
    /// An internal error if `answers` has other columns.
    pub(crate) fn try_new(
        groups: &[FieldRef],
        columns: KeyColumns,
        answers: SchemaRef,
        auto: bool,
    ) -> Result<Self> {
        if groups.is_empty() || answers.fields().len() != groups.len() + columns.calls.len() {
            return internal_err!(
                "{} columns of answers for {} group columns and {} calls",
                answers.fields().len(),
                groups.len(),
                columns.calls.len()
            );
        }
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        let fields: Vec<FieldRef> = groups.iter().map(nullable).collect();
        Ok(Self {
            packed: GroupColumns::new(fields.clone()),
            rows: schema(&fields),
            fields,
            columns,
            answers,
            auto,
        })
    }

    /// Width of a group packed into an integer.
    pub(super) fn width(&self) -> Width {
        self.packed.width()
    }

    /// An empty numbering of groups.
    pub(super) fn grouping<W: GroupKey>(&self) -> Result<GroupIds<W>> {
        self.packed.ids()
    }

    /// The group columns without a group.
    pub(super) fn no_groups(&self) -> Vec<ArrayRef> {
        let empty = |field: &FieldRef| new_empty_array(field.data_type());
        self.fields.iter().map(empty).collect()
    }

    /// The group columns of all groups of a numbering, in the order of their numbers.
    pub(super) fn values_of<W: GroupKey>(&self, grouping: &mut GroupIds<W>) -> Result<Vec<ArrayRef>> {
        match grouping.len() {
            0 => Ok(self.no_groups()),
            _ => grouping.values(),
        }
    }

    /// The group columns and the key columns of a batch of the input.
    pub(super) fn split<'a>(&self, batch: &'a RecordBatch) -> Result<(&'a [ArrayRef], &'a [ArrayRef])> {
        let groups = self.fields.len();
        if batch.num_columns() == groups + self.columns.len() {
            Ok(batch.columns().split_at(groups))
        } else {
            internal_err!("{} columns for {groups} of groups", batch.num_columns())
        }
    }

    /// Number of ranks that are asked of a key column: one for each quantile of its calls.
    pub(super) fn ranks(&self, column: usize) -> usize {
        let specs = self.columns.quantile_specs(column);
        specs.iter().map(|spec| spec.quantiles.len()).sum()
    }

    /// Number of ranks that are asked of all key columns of one group.
    pub(super) fn all_ranks(&self) -> usize {
        (0..self.columns.len()).map(|column| self.ranks(column)).sum()
    }
}
