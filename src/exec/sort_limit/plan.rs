//! What the operator computes: how many rows, and in what order.

use std::fmt;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};

use super::super::grouped_topk::in_words;
use super::super::quantiles::comma_separated;
use crate::key::{SortColumn, SortKeys};

/// The first `k` rows of an order.
#[derive(Debug)]
pub(super) struct TopPlan {
    pub(super) by: LexOrdering,
    columns: Vec<SortColumn>,
    pub(super) keys: SortKeys,
    pub(super) k: usize,
    pub(super) schema: SchemaRef,
}

impl TopPlan {
    /// `None` if 128 bits do not hold what rows are ordered by.
    ///
    /// # Errors
    /// Those of the types of expressions.
    pub(super) fn try_new(by: LexOrdering, k: usize, schema: SchemaRef) -> Result<Option<Self>> {
        let column = |by: &PhysicalSortExpr| {
            Ok(SortColumn {
                data_type: by.expr.data_type(&schema)?,
                nullable: by.expr.nullable(&schema)?,
                options: by.options,
                total_order: true,
            })
        };
        let columns = by.iter().map(column).collect::<Result<Vec<_>>>()?;
        if columns.iter().any(|column| column.data_type.is_null()) {
            return Ok(None);
        }
        Ok(SortKeys::try_packed(&columns).map(|keys| Self {
            by,
            columns,
            keys,
            k,
            schema,
        }))
    }
}

impl fmt::Display for TopPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter().zip(&self.columns);
        let by = by.map(|(by, column)| in_words(&by.expr, column));
        write!(f, "k={}, by=[{}]", self.k, comma_separated(by))
    }
}
