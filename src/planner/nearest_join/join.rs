//! The joins that pairs of queries and rows come from.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::utils::ColumnIndex;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::repartition::RepartitionExec;

use crate::planner::grouped_topk::has_one_form;

/// A join of all rows of two inputs, but for those that a filter drops.
pub(super) struct Join<'a> {
    pub(super) left: &'a Arc<dyn ExecutionPlan>,
    pub(super) right: &'a Arc<dyn ExecutionPlan>,
    /// The columns of both inputs.
    pub(super) schema: SchemaRef,
    /// The filter, over these columns, and the pairs that it drops.
    pub(super) filter: Option<(Arc<dyn PhysicalExpr>, Unequal)>,
    /// The columns that the join gives; `None`: all.
    pub(super) projection: Option<&'a [usize]>,
}

/// A filter that is true for pairs which are not equal in some columns of a join.
pub(super) struct Unequal {
    pub(super) columns: Vec<[usize; 2]>,
    pub(super) null_is_value: bool,
}

impl Unequal {
    /// The columns that an expression compares, which is a `<>` of two columns, an `IS DISTINCT FROM`, or several of these with `OR`
    /// between them; `None` for other expressions.
    pub(super) fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let column = |expr: &Arc<dyn PhysicalExpr>| expr.downcast_ref::<Column>().map(Column::index);
        match binary.op() {
            Operator::NotEq | Operator::IsDistinctFrom => Some(Self {
                columns: vec![[column(binary.left())?, column(binary.right())?]],
                null_is_value: *binary.op() == Operator::IsDistinctFrom,
            }),
            Operator::Or => {
                let (mut left, right) = (Self::of(binary.left())?, Self::of(binary.right())?);
                left.columns.extend(right.columns);
                (left.null_is_value && right.null_is_value).then_some(left)
            }
            _ => None,
        }
    }
}

impl<'a> Join<'a> {
    /// The join that a plan is, if it is one of all rows, or of all that are not equal.
    pub(super) fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        if let Some(join) = plan.downcast_ref::<CrossJoinExec>() {
            return Ok(Some(Self {
                left: join.left(),
                right: join.right(),
                schema: join.schema(),
                filter: None,
                projection: None,
            }));
        }
        let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() else {
            return Ok(None);
        };
        let (left, right) = (join.left(), join.right());
        let fields = [left.schema(), right.schema()];
        let fields = fields.iter().flat_map(|schema| schema.fields().iter().cloned());
        let mut found = Self {
            left,
            right,
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            filter: None,
            projection: join.projection().as_deref(),
        };
        if let Some(filter) = join.filter() {
            let width = left.schema().fields().len();
            let column = |column: &ColumnIndex| match column.side {
                JoinSide::Left => Some(column.index),
                JoinSide::Right => Some(width + column.index),
                JoinSide::None => None,
            };
            let columns: Option<Vec<usize>> = filter.column_indices().iter().map(column).collect();
            let Some(columns) = columns else { return Ok(None) };
            let expr = with_columns(filter.expression(), |index| columns[index])?;
            let unequal = Unequal::of(&expr).filter(|unequal| found.are_comparable(unequal));
            let Some(unequal) = unequal else { return Ok(None) };
            found.filter = Some((expr, unequal));
        }
        Ok((*join.join_type() == JoinType::Inner).then_some(found))
    }

    /// Number of columns of the left input.
    pub(super) fn width(&self) -> usize {
        self.left.schema().fields().len()
    }

    /// Whether each comparison is between columns of both inputs that have one type, whose values are equal where their bits are.
    pub(super) fn are_comparable(&self, unequal: &Unequal) -> bool {
        let data_type = |column: usize| self.schema.field(column).data_type();
        unequal.columns.iter().all(|[a, b]| {
            let is_encoded = matches!(
                data_type(*a),
                DataType::Dictionary(..) | DataType::RunEndEncoded(..)
            );
            let is_plain = has_one_form(data_type(*a)) && !is_encoded;
            (*a < self.width()) != (*b < self.width()) && data_type(*a) == data_type(*b) && is_plain
        })
    }

    /// An expression over the join's output, as one over the columns of both inputs.
    pub(super) fn under(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        match self.projection {
            Some(projection) => with_columns(expr, |index| projection[index]),
            None => Ok(Arc::clone(expr)),
        }
    }
}

/// The plan whose rows another one only brings to other partitions, in any order.
pub(super) fn redistributed(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    if let Some(gathered) = plan.downcast_ref::<CoalescePartitionsExec>() {
        return gathered.fetch().is_none().then(|| gathered.input());
    }
    let dealt = plan.downcast_ref::<RepartitionExec>()?;
    matches!(dealt.partitioning(), Partitioning::RoundRobinBatch(_)).then(|| dealt.input())
}

/// The expression over other columns: `index_of` gives the index of the one that stands for a column.
pub(super) fn with_columns(
    expr: &Arc<dyn PhysicalExpr>,
    index_of: impl Fn(usize) -> usize,
) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expr).transform_up(|part| {
        Ok(match part.downcast_ref::<Column>() {
            Some(column) => {
                let moved = Column::new(column.name(), index_of(column.index()));
                Transformed::yes(Arc::new(moved) as Arc<dyn PhysicalExpr>)
            }
            None => Transformed::no(part),
        })
    })?;
    Ok(moved.data)
}
