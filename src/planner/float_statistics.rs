//! Takes the statistics of floating-point columns out of scans, since they leave NaN out.
//!
//! Parquet's minimum and maximum of a column chunk leave NaN out: a row group of NaN and 1 has the bounds 1 and 1. DataFusion takes such a
//! column for the constant 1, skips the row group for `v > 2` (NaN is greater), and loses rows with NaN to the dynamic filters of sorts,
//! aggregates and joins.

#[cfg(feature = "parquet")]
use std::any::Any;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::QuantilesOptions;
use crate::exec::with_file_scans;

/// Takes the bounds of floating-point columns, and of nested columns with floating point in them, out of the statistics of file scans, and
/// keeps Parquet scans from skipping by them. Other columns keep their bounds.
///
/// It stands twice among a session's physical optimizer rules, where [`register_all`](crate::register_all) puts it: first, before
/// rules that answer from statistics, and last, when all predicates have reached the scans.
/// `SET quantiles.trust_float_statistics = true` leaves plans as they are.
#[derive(Debug, Default)]
pub struct FloatStatisticsRule;

impl PhysicalOptimizerRule for FloatStatisticsRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if QuantilesOptions::of(config).trust_float_statistics {
            return Ok(plan);
        }
        with_file_scans(plan, without_float_statistics)
    }

    fn name(&self) -> &str {
        "float_statistics"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The scan without bounds of floating-point columns; `None` if it has none already.
fn without_float_statistics(config: &FileScanConfig) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = config.file_source.table_schema().table_schema();
    let fields = schema.fields().iter().enumerate();
    let floats: Vec<usize> = fields
        .filter(|(_, field)| holds_floats(field.data_type()))
        .map(|(column, _)| column)
        .collect();
    let source = unskipping(config.file_source.as_ref(), schema)?;
    let is_bounded = knows_bounds(config, &floats);
    if source.is_none() && !is_bounded {
        return Ok(None);
    }
    let mut builder = FileScanConfigBuilder::from(config.clone());
    if let Some(source) = source {
        builder = builder.with_source(source);
    }
    if is_bounded {
        let groups = config
            .file_groups
            .iter()
            .map(|group| unbound_group(group, &floats));
        builder = builder
            .with_file_groups(groups.collect())
            .with_statistics(unbound(&config.statistics(), &floats));
    }
    Ok(Some(DataSourceExec::from_data_source(builder.build())))
}

/// Whether values of this type are floating-point numbers or contain some.
fn holds_floats(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        List(item)
        | LargeList(item)
        | ListView(item)
        | LargeListView(item)
        | FixedSizeList(item, _)
        | Map(item, _)
        | RunEndEncoded(_, item) => holds_floats(item.data_type()),
        Struct(fields) => fields.iter().any(|field| holds_floats(field.data_type())),
        Union(fields, _) => fields.iter().any(|(_, field)| holds_floats(field.data_type())),
        Dictionary(_, values) => holds_floats(values),
        flat => flat.is_floating(),
    }
}

/// Whether statistics have bounds of one of these columns.
fn bounds_any(statistics: &Statistics, columns: &[usize]) -> bool {
    columns
        .iter()
        .filter_map(|column| statistics.column_statistics.get(*column))
        .any(|column| {
            [&column.min_value, &column.max_value, &column.sum_value]
                .iter()
                .any(|value| **value != Precision::Absent)
        })
}

/// The statistics without bounds of these columns.
fn unbound(statistics: &Statistics, columns: &[usize]) -> Statistics {
    let mut statistics = statistics.clone();
    for column in columns {
        if let Some(column) = statistics.column_statistics.get_mut(*column) {
            column.min_value = Precision::Absent;
            column.max_value = Precision::Absent;
            column.sum_value = Precision::Absent;
        }
    }
    statistics
}

/// Whether the statistics of a scan, of its file groups or of a file have bounds of one of these columns.
fn knows_bounds(config: &FileScanConfig, columns: &[usize]) -> bool {
    let of_group = |group: &FileGroup| {
        group
            .file_statistics(None)
            .is_some_and(|all| bounds_any(all, columns))
    };
    let mut files = config.file_groups.iter().flat_map(FileGroup::iter);
    !columns.is_empty()
        && (bounds_any(&config.statistics(), columns)
            || config.file_groups.iter().any(of_group)
            || files.any(|file| {
                file.statistics
                    .as_ref()
                    .is_some_and(|all| bounds_any(all, columns))
            }))
}

/// The file group with statistics that have no bounds of these columns.
fn unbound_group(group: &FileGroup, columns: &[usize]) -> FileGroup {
    let files = group.iter().cloned().map(|mut file| {
        file.statistics = file.statistics.map(|all| Arc::new(unbound(&all, columns)));
        file
    });
    let unbounded = FileGroup::new(files.collect());
    match group.file_statistics(None) {
        Some(all) => unbounded.with_statistics(Arc::new(unbound(all, columns))),
        None => unbounded,
    }
}

/// A Parquet source whose predicate keeps the same rows but cannot skip by the statistics of floating-point columns;
/// `None` if the predicate of `source` cannot either.
#[cfg(feature = "parquet")]
fn unskipping(source: &dyn FileSource, schema: &SchemaRef) -> Result<Option<Arc<dyn FileSource>>> {
    use datafusion::datasource::physical_plan::ParquetSource;

    let source: &dyn Any = source;
    let Some((parquet, predicate)) = source
        .downcast_ref::<ParquetSource>()
        .and_then(|parquet| Some((parquet, parquet.filter()?)))
    else {
        return Ok(None);
    };
    let hidden = hidden::hide_floats(predicate, schema)?;
    Ok(hidden
        .transformed
        .then(|| Arc::new(parquet.with_predicate(hidden.data)) as _))
}

#[cfg(not(feature = "parquet"))]
fn unskipping(_source: &dyn FileSource, _schema: &SchemaRef) -> Result<Option<Arc<dyn FileSource>>> {
    Ok(None)
}

/// Hides the floating-point columns of predicates from pruning.
#[cfg(feature = "parquet")]
mod hidden {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::{DataType, Field, SchemaRef};
    use datafusion::common::Result;
    use datafusion::common::config::ConfigOptions;
    use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
    use datafusion::functions::core::greatest;
    use datafusion::physical_expr::expressions::{Column, IsNotNullExpr, IsNullExpr};
    use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

    /// Replaces each floating-point column `v` by `greatest(v)`, which equals `v`. Pruning looks at bare columns
    /// only. Dynamic filters keep the replacement in every condition that they take on later. `v IS NULL` stays,
    /// because statistics count NULLs right.
    ///
    /// `greatest` is DataFusion's own function, which every executor of a cluster knows.
    pub(super) fn hide_floats(
        predicate: Arc<dyn PhysicalExpr>,
        schema: &SchemaRef,
    ) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
        predicate.transform_down(|expr| {
            if is_settled(&expr) {
                return Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump));
            }
            let field = expr
                .downcast_ref::<Column>()
                .and_then(|column| schema.fields().get(column.index()));
            let Some(field) = field.filter(|field| is_float(field.data_type())) else {
                return Ok(Transformed::no(expr));
            };
            let returned = Arc::new(Field::new("greatest", field.data_type().clone(), true));
            let options = Arc::new(ConfigOptions::default());
            let hidden = ScalarFunctionExpr::new("greatest", greatest(), vec![expr], returned, options);
            Ok(Transformed::new(
                Arc::new(hidden) as _,
                true,
                TreeNodeRecursion::Jump,
            ))
        })
    }

    /// Whether an expression is `v IS NULL`, `v IS NOT NULL` or `greatest(v)` of a column `v`, which does not depend on its bounds.
    fn is_settled(expr: &Arc<dyn PhysicalExpr>) -> bool {
        let is_column = |arg: &Arc<dyn PhysicalExpr>| arg.is::<Column>();
        let null = expr.downcast_ref::<IsNullExpr>().map(IsNullExpr::arg);
        let not_null = expr.downcast_ref::<IsNotNullExpr>().map(IsNotNullExpr::arg);
        let greatest = expr
            .downcast_ref::<ScalarFunctionExpr>()
            .filter(|call| call.name() == "greatest" && call.args().len() == 1)
            .map(|call| &call.args()[0]);
        null.or(not_null).or(greatest).is_some_and(is_column)
    }

    fn is_float(data_type: &DataType) -> bool {
        match data_type {
            DataType::Dictionary(_, values) => is_float(values),
            DataType::RunEndEncoded(_, values) => is_float(values.data_type()),
            flat => flat.is_floating(),
        }
    }
}
