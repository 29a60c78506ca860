//! The first rows of a table in the order of their distance from a query vector.

use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};

use super::calls::{OnDevice, PinnedCalls, batch_of, distinct};
use super::table::PinnedTable;
use super::topk::{ROW_BYTES, most_rows, value_bytes};
use crate::kernel::cpu::distance::Measure;
use crate::kernel::cuda::{NearRows, Order, Predicate};

/// The first rows of a table in an order that begins with the distance of a vector from a query.
///
/// The device finds the rows that may be among the first; their exact distances, and all other expressions, are computed on the host.
#[derive(Debug)]
pub(crate) struct PinnedNearest {
    pub(crate) measure: Measure,
    pub(crate) query: Vec<f64>,
    /// Index of the pinned column of vectors.
    pub(crate) vectors: usize,
    /// The order that the distances give.
    pub(crate) order: Order,
    /// The condition for a row to count. `None`: all rows count.
    pub(crate) filter: Option<Predicate>,
    /// Most rows of the answer.
    pub(crate) k: usize,
    /// Indices of the pinned columns that are fetched.
    pub(crate) fetched: Vec<usize>,
    /// Their names and types.
    pub(crate) fetched_schema: SchemaRef,
    /// The columns of the answer, over those that are fetched.
    pub(crate) output: Vec<Arc<dyn PhysicalExpr>>,
    /// The order of the answer, over its columns.
    pub(crate) by: LexOrdering,
}

impl PinnedNearest {
    /// The rows that may be among the first.
    fn rows(&self, on: &mut OnDevice<'_>) -> Result<Vec<u64>> {
        let columns: Vec<_> = on.share().columns.iter().map(Arc::as_ref).collect();
        let near = NearRows {
            columns: &columns,
            vectors: self.vectors,
            order: self.order,
            filter: self.filter.as_ref(),
            limit: on.limit,
            timed: on.timed,
            memory: &on.memory,
        };
        near.rows(self.measure, &self.query, self.k as u64, &mut on.report)
    }

    /// The first of a device's rows, in order.
    fn of_device(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<RecordBatch> {
        let rows = self.rows(on)?;
        on.memory
            .try_resize(self.bytes_of(rows.len(), on.table).max(on.memory.size()))?;
        let fetched = on.fetch(&rows, &self.fetched, &self.fetched_schema)?;
        let columns = self.output.iter().map(|expr| {
            let value = expr.evaluate(&fetched)?;
            value.into_array(rows.len())
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        self.first(&batch_of(schema, columns, rows.len())?)
    }

    /// The first rows of an answer, in order. DataFusion's sort of a batch compares the columns of two rows through pointers, which took most of
    /// the time of a query for 1000 rows.
    fn first(&self, answer: &RecordBatch) -> Result<RecordBatch> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for by in self.by.iter() {
            let column = by.evaluate_to_sort_column(answer)?.values;
            fields.push(SortField::new_with_options(
                column.data_type().clone(),
                by.options,
            ));
            columns.push(column);
        }
        let keys = RowConverter::new(fields)?.convert_columns(&columns)?;
        let mut order: Vec<u32> = (0..answer.num_rows() as u32).collect();
        // Rows that tie stay in the order of the table.
        order.sort_by(|a, b| keys.row(*a as usize).cmp(&keys.row(*b as usize)));
        order.truncate(self.k);
        Ok(take_record_batch(answer, &UInt32Array::from(order))?)
    }

    /// Bytes of host memory for some rows.
    fn bytes_of(&self, rows: usize, table: &PinnedTable) -> usize {
        let values = self.fetched.iter().map(|index| value_bytes(table.column(*index)));
        rows * (ROW_BYTES + values.sum::<usize>())
    }
}

impl PinnedCalls for PinnedNearest {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let of_devices = on.on_each(|on| self.of_device(on, schema))?;
        Ok(vec![match of_devices.as_slice() {
            [only] => only.clone(),
            all => self.first(&concat_batches(schema, all)?)?,
        }])
    }

    fn columns(&self) -> Vec<usize> {
        distinct(std::iter::once(self.vectors).chain(self.fetched.iter().copied()))
    }

    fn shown(&self, _table: &PinnedTable) -> String {
        format!("nearest={}, order_by=[{}]", self.k, self.by)
    }

    fn host_bytes(&self, table: &PinnedTable) -> usize {
        let rows = most_rows(table, self.k);
        self.bytes_of(rows, table) + table.shares().len() * NearRows::host_bytes(self.k)
    }
}
