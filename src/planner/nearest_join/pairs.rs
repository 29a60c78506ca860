//! The pairs of queries and rows that best rows are made of, and the operator that gives them.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{Partitioning, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
#[cfg(feature = "cuda")]
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

#[cfg(feature = "cuda")]
use super::join::redistributed;
use super::join::{Join, Unequal};
use crate::exec::{
    Answer, EqualPairs, NearestJoinExec, NearestJoinSpec, PairColumn, TopKSpec, distance_call,
};
#[cfg(feature = "cuda")]
use crate::exec::{PinnedScan, PinnedScanExec};
use crate::functions::{VectorDistance, is_vectors};
use crate::planner::sort_limit::is_faster;

/// The pairs that best rows are made of.
pub(super) struct Pairs<'a> {
    join: &'a Join<'a>,
    /// The call that gives the distance, over columns of the join.
    pub(super) call: Arc<dyn PhysicalExpr>,
    /// Its arguments.
    args: [usize; 2],
    /// Whether queries are the join's left input.
    queries_left: bool,
    ascending: bool,
    k: usize,
}

impl<'a> Pairs<'a> {
    /// The pairs of the best rows that a specification over a join asks for; `None` if they are not pairs of queries and rows by distance.
    pub(super) fn of(spec: &TopKSpec, join: &'a Join<'a>) -> Option<Self> {
        let k = match &spec.answer {
            // Rows that do not count must not stand in for those that do.
            Answer::Lists { filter: Some(_), .. } => return None,
            Answer::Lists { call, value, .. } => {
                let is_null = value.nullable(&join.schema).unwrap_or(true);
                (!call.skips_null_values() || !is_null).then(|| call.rows())?
            }
            Answer::Rows { k, .. } => *k,
        };
        if !is_faster(k) {
            return None;
        }
        let first = spec.order.first()?;
        let (call, is_negative) = distance_call(&first.expr)?;
        let function = ScalarFunctionExpr::try_downcast_func::<VectorDistance>(call.as_ref())?;
        let [a, b] = function.args() else { return None };
        let column = |arg: &Arc<dyn PhysicalExpr>| arg.downcast_ref::<Column>().map(Column::index);
        let args = [column(a)?, column(b)?];
        let width = join.width();
        let are_vectors = args
            .iter()
            .all(|arg| is_vectors(join.schema.field(*arg).data_type()));
        let grouped = spec.group.iter().flat_map(collect_columns);
        let of_left: Vec<bool> = grouped.map(|column| column.index() < width).collect();
        let queries_left = *of_left.first()?;
        let is_one_side = of_left.iter().all(|left| *left == queries_left);
        let is_across = (args[0] < width) != (args[1] < width);
        (are_vectors && is_one_side && is_across).then(|| Self {
            join,
            call: Arc::clone(call),
            args,
            queries_left,
            ascending: first.column.options.descending == is_negative,
            k,
        })
    }

    /// Whether an expression is the distance.
    pub(super) fn is_distance(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        expr.as_ref() == self.call.as_ref()
    }

    /// The join's columns that a specification and the join's filter need besides the distance.
    pub(super) fn columns(&self, spec: &TopKSpec) -> Vec<usize> {
        let mut columns = Vec::new();
        let filter = self.join.filter.as_ref().map(|(filter, _)| filter);
        for expr in spec.expressions().into_iter().chain(filter) {
            let _ = expr.apply(|part| {
                if self.is_distance(part) {
                    return Ok(TreeNodeRecursion::Jump);
                }
                columns.extend(part.downcast_ref::<Column>().map(Column::index));
                Ok(TreeNodeRecursion::Continue)
            });
        }
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// An expression over the join's columns, as one over `columns` of them and the distance behind these.
    pub(super) fn over(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        columns: &[usize],
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let over = Arc::clone(expr).transform_down(|part| {
            let (name, index) = if self.is_distance(&part) {
                (DISTANCE, columns.len())
            } else if let Some(column) = part.downcast_ref::<Column>() {
                let index = columns.partition_point(|other| *other < column.index());
                (column.name(), index)
            } else {
                return Ok(Transformed::no(part));
            };
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, index));
            Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
        })?;
        Ok(over.data)
    }

    /// The schema of `columns` of the join, with the distance behind them.
    pub(super) fn schema(&self, columns: &[usize]) -> SchemaRef {
        let schema = &self.join.schema;
        let fields = columns.iter().map(|column| Arc::clone(&schema.fields()[*column]));
        let fields: Vec<_> = fields.chain([distance_field()]).collect();
        Arc::new(Schema::new(fields))
    }

    /// The operator that gives `columns` and the distance of pairs.
    pub(super) fn join(&self, columns: &[usize], config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let width = self.join.width();
        let inner = |column: usize| if column < width { column } else { column - width };
        let is_query = |column: usize| (column < width) == self.queries_left;
        let output = columns.iter().map(|column| {
            if is_query(*column) {
                PairColumn::Query(inner(*column))
            } else {
                PairColumn::Row(inner(*column))
            }
        });
        let query_first = is_query(self.args[0]);
        let [query, vector] = if query_first {
            self.args
        } else {
            [self.args[1], self.args[0]]
        };
        let function = ScalarFunctionExpr::try_downcast_func::<VectorDistance>(self.call.as_ref());
        let function = function.map(|call| Arc::new(call.fun().clone()));
        let Some(function) = function else {
            return internal_err!("{} is no distance", self.call);
        };
        let (queries, table) = match self.queries_left {
            true => (self.join.left, self.join.right),
            false => (self.join.right, self.join.left),
        };
        let output: Vec<_> = output.chain([PairColumn::Distance]).collect();
        let without = self.join.filter.as_ref().map(|(_, unequal)| self.equal(unequal));
        #[cfg(feature = "cuda")]
        let pinned = pinned_below(table).filter(|pinned| {
            let of_rows = output.iter().filter_map(|column| column.of_row());
            let compared = without
                .iter()
                .flat_map(|equal: &EqualPairs| equal.rows.iter().copied());
            pinned.has(of_rows.chain(compared)) && pinned.can_rank(inner(vector), self.k)
        });
        let spec = NearestJoinSpec {
            function,
            query: inner(query),
            vector: inner(vector),
            query_first,
            ascending: self.ascending,
            k: self.k,
            without,
            output,
            #[cfg(feature = "cuda")]
            pinned,
        };
        let (queries, table) = (gathered(queries), spread(table, config)?);
        let joined = NearestJoinExec::try_new(queries, table, spec, self.schema(columns))?;
        Ok(match &self.join.filter {
            Some((filter, _)) => {
                let filter = self.over(filter, columns)?;
                Arc::new(FilterExec::try_new(filter, Arc::new(joined))?)
            }
            None => Arc::new(joined),
        })
    }

    /// The pairs that a filter drops.
    pub(super) fn equal(&self, unequal: &Unequal) -> EqualPairs {
        let width = self.join.width();
        let sides = unequal.columns.iter().map(|[a, b]| {
            let (left, right) = if a < b { (*a, *b - width) } else { (*b, *a - width) };
            if self.queries_left {
                (left, right)
            } else {
                (right, left)
            }
        });
        let (queries, rows) = sides.unzip();
        EqualPairs {
            queries,
            rows,
            null_is_value: unequal.null_is_value,
        }
    }
}

/// The pinned table whose rows a plan gives, with a column for each of its own; `None` if it gives other rows.
#[cfg(feature = "cuda")]
fn pinned_below(plan: &Arc<dyn ExecutionPlan>) -> Option<PinnedScan> {
    if let Some(scan) = plan.downcast_ref::<PinnedScanExec>() {
        return Some(scan.scan().clone());
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let scan = pinned_below(projection.input())?;
        let column = |projected: &ProjectionExpr| {
            let column = projected.expr.downcast_ref::<Column>()?;
            scan.columns[column.index()]
        };
        return Some(PinnedScan {
            columns: projection.expr().iter().map(column).collect(),
            ..scan
        });
    }
    redistributed(plan).and_then(pinned_below)
}

/// The name of the column of distances.
pub(super) const DISTANCE: &str = "distance";

/// The column of distances.
pub(super) fn distance_field() -> FieldRef {
    Arc::new(Field::new(DISTANCE, DataType::Float64, true))
}

/// The rows of a plan in one partition.
fn gathered(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if plan.output_partitioning().partition_count() == 1 {
        return Arc::clone(plan);
    }
    Arc::new(CoalescePartitionsExec::new(Arc::clone(plan)))
}

/// The rows of a plan in as many partitions as a session has threads.
fn spread(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
    let mut plan = plan;
    while let Some(gathered) = plan.downcast_ref::<CoalescePartitionsExec>()
        && gathered.fetch().is_none()
    {
        plan = gathered.input();
    }
    let partitions = config.execution.target_partitions;
    let is_dealt = config.optimizer.enable_round_robin_repartition;
    if is_dealt && plan.output_partitioning().partition_count() < partitions {
        let dealt = RepartitionExec::try_new(Arc::clone(plan), Partitioning::RoundRobinBatch(partitions))?;
        return Ok(Arc::new(dealt));
    }
    Ok(Arc::clone(plan))
}
