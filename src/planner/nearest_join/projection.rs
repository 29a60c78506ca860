//! A projection above best rows, which needs few of their columns.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::projection::ProjectionExpr;

use super::join::with_columns;
use super::pairs::{DISTANCE, Pairs, distance_field};
use crate::exec::{Answer, OutputColumn, TopKSpec};

/// The expressions of a projection above best rows.
pub(super) struct Projection(pub(super) Vec<ProjectionExpr>);

impl Projection {
    /// Lets the best rows of `spec`, over a join, give their distances and the columns that are needed besides. Returns the schema of that;
    /// `None` if the projection computes no distance of theirs.
    ///
    /// # Errors
    /// None but internal ones.
    pub(super) fn narrow(
        &mut self,
        spec: &mut TopKSpec,
        schema: &SchemaRef,
        pairs: &Pairs<'_>,
    ) -> Result<Option<SchemaRef>> {
        let Answer::Rows { output, .. } = &mut spec.answer else {
            return Ok(None);
        };
        let needed = self.with_distances(output, pairs)?;
        if !needed.contains(&output.len()) {
            return Ok(None);
        }
        let needed: Vec<usize> = needed.into_iter().collect();
        for projected in &mut self.0 {
            let place = |index| needed.partition_point(|other| *other < index);
            projected.expr = with_columns(&projected.expr, place)?;
        }
        let field = |column: &usize| match schema.fields().get(*column) {
            Some(field) => Arc::clone(field),
            None => distance_field(),
        };
        let fields: Vec<_> = needed.iter().map(field).collect();
        let given = needed.iter().map(|column| match output.get(*column) {
            Some(column) => column.clone(),
            None => OutputColumn::Row(Arc::clone(&pairs.call)),
        });
        *output = given.collect();
        let metadata = schema.metadata().clone();
        Ok(Some(Arc::new(Schema::new_with_metadata(fields, metadata))))
    }

    /// Reads distances from a column behind those of `output`, the columns of best rows, in the place of computing them. Returns the columns
    /// that are read.
    fn with_distances(&mut self, output: &[OutputColumn], pairs: &Pairs<'_>) -> Result<BTreeSet<usize>> {
        let mut needed = BTreeSet::new();
        for projected in &mut self.0 {
            let expr = Arc::clone(&projected.expr).transform_down(|part| {
                if is_distance(&part, output, pairs)? {
                    needed.insert(output.len());
                    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(DISTANCE, output.len()));
                    return Ok(Transformed::new(column, true, TreeNodeRecursion::Jump));
                }
                needed.extend(part.downcast_ref::<Column>().map(Column::index));
                Ok(Transformed::no(part))
            })?;
            projected.expr = expr.data;
        }
        Ok(needed)
    }
}

/// Whether an expression over the columns of best rows is the distance that they are ordered by.
fn is_distance(part: &Arc<dyn PhysicalExpr>, output: &[OutputColumn], pairs: &Pairs<'_>) -> Result<bool> {
    let in_join = |column: &Column| match &output[column.index()] {
        OutputColumn::Row(expr) => Some(Arc::clone(expr)),
        OutputColumn::Group(_) | OutputColumn::Number => None,
    };
    let of_rows = |column: Column| in_join(&column).is_some();
    if !part.is::<ScalarFunctionExpr>() || !collect_columns(part).into_iter().all(of_rows) {
        return Ok(false);
    }
    let over_join = Arc::clone(part).transform_up(|part| {
        let column = part.downcast_ref::<Column>().and_then(in_join);
        Ok(column.map_or_else(|| Transformed::no(part), Transformed::yes))
    })?;
    Ok(pairs.is_distance(&over_join.data))
}
