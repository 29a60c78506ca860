//! What the operator computes: how many rows, and in what order.

use std::fmt;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};

use super::super::grouped_topk::in_words;
use super::super::operator::comma_separated;
use super::nearest::LeadDistance;
use crate::key::{SortColumn, SortKeys};

/// The first `k` rows of an order.
#[derive(Debug)]
pub(super) struct SortLimitPlan {
    pub(super) by: LexOrdering,
    columns: Vec<SortColumn>,
    pub(super) keys: SortKeys,
    /// The distance that the order begins with, if it does.
    pub(super) distance: Option<LeadDistance>,
    pub(super) k: usize,
    pub(super) schema: SchemaRef,
}

impl SortLimitPlan {
    /// A plan over an input of this schema. `None` if the values that rows are ordered by do not fit in 128 bits.
    ///
    /// # Errors
    /// DataFusion's, if an expression is not valid over the schema.
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
        let distance = LeadDistance::of(by.first());
        Ok(SortKeys::try_packed(&columns).map(|keys| Self {
            distance,
            by,
            columns,
            keys,
            k,
            schema,
        }))
    }
}

impl fmt::Display for SortLimitPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter().zip(&self.columns);
        let by = by.map(|(by, column)| in_words(&by.expr, column));
        write!(f, "k={}, by=[{}]", self.k, comma_separated(by))?;
        if self.distance.is_some() {
            write!(f, ", estimates=true")?;
        }
        Ok(())
    }
}
