//! Sorts for memory pools with a limit: what they hold is reserved, and goes to disk where there is no room for it.
//!
//! ```text
//! SortExec: TopK(fetch=9000000), expr=[o@0]               LocalLimitExec: fetch=9000000
//!                                                  ->       SortExec: expr=[o@0]
//!
//! SortExec: expr=[o@0]                                    RestoredTypesExec
//!   rows with columns of views or dictionaries     ->       SortExec: expr=[o@0]
//!                                                             ProjectionExec: expr=[o@0, CAST(s@1 AS LargeUtf8)]
//!
//! SortExec: expr=[o@0]                                    ShortBatchesExec: rows=200
//!   long rows                                      ->       SortExec: expr=[o@0]
//! ```
//! A sort with a limit keeps its rows in a heap that cannot be written to disk. Sorted rows that come back from disk keep the bytes behind the
//! views of all batches that they were written in, and the dictionaries of all batches that they were merged from, and nobody reserves them.
//! A merge of files reserves four batches of each; where batches are large it merges few at a time, and writes all rows again to merge the rest.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{RestoredTypesExec, ShortBatchesExec, short_batch};

/// Bytes of a row in the heap of DataFusion's sort with a limit, besides its columns.
const HEAP_ROW_BYTES: usize = 100;

/// Bytes of a value of variable width, where none is known.
const VALUE_BYTES: usize = 32;

/// Values of a list or map, where their number is not known.
const LIST_VALUES: usize = 16;

/// Part of a memory limit, as a divisor, that the heaps of a sort with a limit may take.
const HEAPS_PART: usize = 2;

/// Whether a plan is a sort whose first rows are likely to need more memory than `limit` leaves to them.
pub(super) fn is_large(plan: &LogicalPlan, partitions: usize, limit: usize) -> bool {
    match plan {
        LogicalPlan::Sort(sort) => sort
            .fetch
            .is_some_and(|k| heaps(k, sort.input.schema().as_arrow(), partitions) > limit / HEAPS_PART),
        _ => false,
    }
}

/// Bytes of the heaps of `partitions` partitions for the first `k` rows.
fn heaps(k: usize, schema: &Schema, partitions: usize) -> usize {
    let widths = schema.fields().iter().map(|field| width(field.data_type()));
    k.saturating_mul(partitions)
        .saturating_mul(widths.fold(HEAP_ROW_BYTES, usize::saturating_add))
}

/// Bytes of a value of this type, as estimated.
fn width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => fields.iter().fold(0, |sum: usize, field| {
            sum.saturating_add(width(field.data_type()))
        }),
        DataType::FixedSizeList(item, length) => usize::try_from(*length)
            .unwrap_or(0)
            .saturating_mul(width(item.data_type())),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => LIST_VALUES.saturating_mul(width(item.data_type())),
        DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).unwrap_or(0),
        DataType::Dictionary(keys, _) => width(keys),
        DataType::Boolean | DataType::Null => 1,
        other => other.primitive_width().unwrap_or(VALUE_BYTES),
    }
}

/// The type without views, and without dictionaries of strings and binary values; `None` if it has none.
fn plain_type(data_type: &DataType) -> Option<DataType> {
    let of = |field: &FieldRef| {
        let plain = plain_type(field.data_type())?;
        Some(Arc::new(Field::clone(field).with_data_type(plain)))
    };
    match data_type {
        DataType::Utf8View => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::LargeBinary),
        DataType::Dictionary(_, values) => match values.as_ref() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::LargeUtf8),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(DataType::LargeBinary),
            _ => None,
        },
        DataType::List(item) => Some(DataType::List(of(item)?)),
        DataType::LargeList(item) => Some(DataType::LargeList(of(item)?)),
        DataType::FixedSizeList(item, length) => Some(DataType::FixedSizeList(of(item)?, *length)),
        DataType::Struct(fields) => {
            let plain: Vec<Option<FieldRef>> = fields.iter().map(of).collect();
            plain.iter().any(Option::is_some).then(|| {
                let fields = fields.iter().zip(plain);
                DataType::Struct(
                    fields
                        .map(|(field, plain)| plain.unwrap_or_else(|| Arc::clone(field)))
                        .collect(),
                )
            })
        }
        _ => None,
    }
}

/// Has sorts of plans with a memory limit reserve what they hold.
#[derive(Debug)]
pub(super) struct SpillingSortsRule {
    /// The memory limit, in bytes.
    pub(super) limit: usize,
    /// Of the session.
    pub(super) runtime: Arc<RuntimeEnv>,
}

impl PhysicalOptimizerRule for SpillingSortsRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            if plan.boundedness().is_unbounded() {
                return Ok(Transformed::no(plan));
            }
            let changed = match (
                plan.downcast_ref::<SortExec>(),
                plan.downcast_ref::<SortPreservingMergeExec>(),
            ) {
                (Some(sort), _) => self.spilling(sort, config)?,
                (_, Some(merge)) => merged_plain(merge)?,
                _ => None,
            };
            Ok(changed.map_or_else(|| Transformed::no(plan), Transformed::yes))
        })
        .data()
    }

    fn name(&self) -> &str {
        "spilling_sorts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl SpillingSortsRule {
    /// The sort that reserves what it holds; `None` if it is this one.
    fn spilling(&self, sort: &SortExec, config: &ConfigOptions) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let partitions = sort.properties().output_partitioning().partition_count();
        let Some(k) = sort.fetch() else {
            return self.without_limit(sort, config);
        };
        if heaps(k, &sort.schema(), partitions) <= self.limit / HEAPS_PART {
            return Ok(None);
        }
        let all = sort.with_fetch(None);
        let all = self.without_limit(&all, config)?.unwrap_or_else(|| Arc::new(all));
        Ok(Some(Arc::new(LocalLimitExec::new(all, k))))
    }

    /// A sort of all rows, of plain types and in batches that are small beside its memory; `None` if it is this one.
    fn without_limit(
        &self,
        sort: &SortExec,
        config: &ConfigOptions,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let plain = sorted_plain(sort)?;
        let rows = short_batch(sort, config, &self.runtime);
        if plain.is_none() && rows.is_none() {
            return Ok(None);
        }
        let is_plain = plain.is_some();
        let mut sorted: Arc<dyn ExecutionPlan> = Arc::new(plain.unwrap_or_else(|| sort.clone()));
        if let Some(rows) = rows {
            sorted = Arc::new(ShortBatchesExec::try_new(sorted, rows)?);
        }
        if is_plain {
            sorted = Arc::new(RestoredTypesExec::try_new(sorted, sort)?);
        }
        Ok(Some(sorted))
    }
}

/// A sort, with its columns of views and dictionaries sorted as strings and binary values with offsets; `None` if it has no such columns, or is in the order of
/// what is computed from them.
fn sorted_plain(sort: &SortExec) -> Result<Option<SortExec>> {
    let schema = sort.schema();
    let changes = |column: &Column| plain_type(schema.field(column.index()).data_type()).is_some();
    let keeps_type =
        |by: &PhysicalSortExpr| by.expr.is::<Column>() || !collect_columns(&by.expr).iter().any(changes);
    let plain: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| plain_type(field.data_type()))
        .collect();
    if !sort.expr().iter().all(keeps_type) || plain.iter().all(Option::is_none) {
        return Ok(None);
    }
    let columns = schema
        .fields()
        .iter()
        .zip(plain)
        .enumerate()
        .map(|(index, (field, plain))| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), index));
            let expr = match plain {
                Some(plain) => Arc::new(CastExpr::new(column, plain, None)),
                None => column,
            };
            (expr, field.name().clone())
        });
    let columns: Vec<(Arc<dyn PhysicalExpr>, String)> = columns.collect();
    let input = ProjectionExec::try_new(columns, Arc::clone(sort.input()))?;
    let plain = SortExec::new(sort.expr().clone(), Arc::new(input))
        .with_preserve_partitioning(sort.preserve_partitioning());
    Ok(Some(plain))
}

/// A merge of partitions that were sorted in other types than those of their rows, which they then get behind it; `None` for other merges.
fn merged_plain(merge: &SortPreservingMergeExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(restored) = merge.input().downcast_ref::<RestoredTypesExec>() else {
        return Ok(None);
    };
    let plain = SortPreservingMergeExec::new(merge.expr().clone(), Arc::clone(restored.input()))
        .with_fetch(merge.fetch());
    Ok(Some(Arc::new(RestoredTypesExec::try_new(
        Arc::new(plain),
        merge,
    )?)))
}
