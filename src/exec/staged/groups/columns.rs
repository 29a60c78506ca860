//! What stages of groups compute: group columns of the input, key columns, and calls over them.

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

/// Most groups with brackets: what 16 bits tell apart.
pub(in crate::exec::staged) const MOST_GROUPS: usize = u16::MAX as usize;

/// Ranks of all groups, past which their brackets are as much as their keys.
pub(in crate::exec::staged) const MOST_RANKS: usize = 200_000;

/// What stages of groups compute.
#[derive(Debug)]
pub(crate) struct GroupedColumns {
    /// The group columns, which come first in the input; all nullable, so that all stages tell groups apart alike.
    pub(in crate::exec::staged) fields: Vec<FieldRef>,
    packed: GroupColumns,
    /// The key columns, which come next.
    pub(in crate::exec::staged) columns: KeyColumns,
    /// Of rows between stages.
    pub(super) rows: SchemaRef,
    /// Of the output.
    pub(in crate::exec::staged) answers: SchemaRef,
    /// Whether the cost model took this, not the user.
    pub(in crate::exec::staged) auto: bool,
}

impl GroupedColumns {
    /// For an input of these group columns first; a column of `answers` for each of them and for each call.
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

    /// Width of the words of groups.
    pub(super) fn width(&self) -> Width {
        self.packed.width()
    }

    pub(super) fn grouping<W: GroupKey>(&self) -> Result<GroupIds<W>> {
        self.packed.ids()
    }

    /// The group columns of no group.
    pub(super) fn no_groups(&self) -> Vec<ArrayRef> {
        let empty = |field: &FieldRef| new_empty_array(field.data_type());
        self.fields.iter().map(empty).collect()
    }

    /// The group columns and the key columns of the input.
    pub(super) fn split<'a>(&self, batch: &'a RecordBatch) -> Result<(&'a [ArrayRef], &'a [ArrayRef])> {
        let groups = self.fields.len();
        match batch.num_columns() == groups + self.columns.len() {
            true => Ok(batch.columns().split_at(groups)),
            false => internal_err!("{} columns for {groups} of groups", batch.num_columns()),
        }
    }

    /// Ranks of a column, as many as its calls have quantiles.
    pub(super) fn ranks(&self, column: usize) -> usize {
        let quantile_specs = self.columns.quantile_specs(column);
        quantile_specs
            .iter()
            .map(|quantile_spec| quantile_spec.quantiles.len())
            .sum()
    }

    pub(super) fn all_ranks(&self) -> usize {
        (0..self.columns.len()).map(|column| self.ranks(column)).sum()
    }
}
