//! Gives each table of a statement a name of its own.
//!
//! ```text
//! SELECT (SELECT max(value) FROM range(10)), (SELECT max(value) FROM range(20))
//!
//! TableScan: range()      of the ten numbers
//! SubqueryAlias: range()  of the twenty
//!   TableScan: range() #2
//! ```
//! DataFusion 55 compares scans by the names of their tables, not by the tables. Calls of one table function, and tables that a program reads
//! without a name, are different tables of one name. It would take the two subqueries for one and answer 9 twice.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, TableReference};
use datafusion::datasource::DefaultTableSource;
use datafusion::logical_expr::logical_plan::{SubqueryAlias, TableScanBuilder};
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan, TableSource};
use datafusion::optimizer::AnalyzerRule;

/// Renames scans whose name another table of the statement has, below an alias of the old name.
#[derive(Debug, Default)]
pub(super) struct TableNamesRule;

impl AnalyzerRule for TableNamesRule {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut tables: HashMap<TableReference, Vec<*const ()>> = HashMap::new();
        let renamed = plan.transform_down_with_subqueries(|part| {
            let LogicalPlan::TableScan(scan) = part else {
                return Ok(Transformed::no(part));
            };
            let (known, table) = (
                tables.entry(scan.table_name.clone()).or_default(),
                table(&scan.source),
            );
            let number = known.iter().position(|known| *known == table);
            let number = number.unwrap_or_else(|| {
                known.push(table);
                known.len() - 1
            });
            Ok(match number {
                0 => Transformed::no(LogicalPlan::TableScan(scan)),
                _ => Transformed::new(renamed(scan, number + 1)?, true, TreeNodeRecursion::Jump),
            })
        })?;
        Ok(renamed.data)
    }

    fn name(&self) -> &str {
        "table_names"
    }
}

/// The address of a table.
fn table(source: &Arc<dyn TableSource>) -> *const () {
    match source.downcast_ref::<DefaultTableSource>() {
        Some(table) => Arc::as_ptr(&table.table_provider).cast(),
        None => Arc::as_ptr(source).cast(),
    }
}

/// The scan of the table of that number among those of its name.
///
/// # Errors
/// DataFusion's, for a schema that it refuses.
fn renamed(scan: TableScan, number: usize) -> Result<LogicalPlan> {
    let name = scan.table_name.clone();
    let own = format!("{} #{number}", name.table());
    let own = match (name.catalog(), name.schema()) {
        (Some(catalog), Some(schema)) => TableReference::full(catalog, schema, own),
        (_, Some(schema)) => TableReference::partial(schema, own),
        _ => TableReference::bare(own),
    };
    let of_own = |expr: Expr| match expr {
        Expr::Column(mut column) if column.relation.as_ref() == Some(&name) => {
            column.relation = Some(own.clone());
            Ok(Transformed::yes(Expr::Column(column)))
        }
        other => Ok(Transformed::no(other)),
    };
    let filters = scan.filters.into_iter();
    let filters = filters.map(|filter| Ok(filter.transform(of_own)?.data));
    let renamed = TableScanBuilder::new(own.clone(), scan.source)
        .with_projection(scan.projection)
        .with_filters(filters.collect::<Result<_>>()?)
        .with_fetch(scan.fetch)
        .with_statistics_requests(scan.statistics_requests)
        .build()?;
    let alias = SubqueryAlias::try_new(Arc::new(LogicalPlan::TableScan(renamed)), name)?;
    Ok(LogicalPlan::SubqueryAlias(alias))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, RecordBatch};
    use datafusion::datasource::{MemTable, provider_as_source};
    use datafusion::logical_expr::{LogicalPlanBuilder, col, lit};

    use super::*;

    fn table_of(value: i64) -> Arc<dyn TableSource> {
        let values = Arc::new(Int64Array::from(vec![value]));
        let batch = RecordBatch::try_from_iter([("x", values as _)]).unwrap();
        provider_as_source(Arc::new(
            MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap(),
        ))
    }

    fn scan(name: &str, source: Arc<dyn TableSource>) -> LogicalPlanBuilder {
        let filters = vec![col(format!("{name}.x")).gt(lit(0_i64))];
        LogicalPlanBuilder::scan_with_filters(name, source, None, filters).unwrap()
    }

    fn analyzed(first: LogicalPlanBuilder, second: LogicalPlanBuilder) -> [LogicalPlan; 2] {
        let both = first.union(second.build().unwrap()).unwrap().build().unwrap();
        let schema = Arc::clone(both.schema());
        let both = TableNamesRule.analyze(both, &ConfigOptions::default()).unwrap();
        assert_eq!(both.schema(), &schema);
        let again = TableNamesRule
            .analyze(both.clone(), &ConfigOptions::default())
            .unwrap();
        assert_eq!(both, again, "the names are settled");
        [both.inputs()[0].clone(), both.inputs()[1].clone()]
    }

    #[test]
    fn two_tables_of_a_name_are_not_taken_for_one() {
        let [first, second] = [scan("s.t", table_of(1)), scan("s.t", table_of(2))];
        assert_eq!(
            first.clone().build().unwrap(),
            second.clone().build().unwrap(),
            "DataFusion's mistake"
        );
        let [first, second] = analyzed(first, second);
        assert_ne!(first, second);
        assert_eq!(first.schema(), second.schema());
        assert_eq!(
            second.to_string(),
            "SubqueryAlias: s.t\n  TableScan: s.t #2, unsupported_filters=[s.t #2.x > Int64(0)]"
        );
    }

    #[test]
    fn a_table_that_is_read_twice_keeps_its_name() {
        let source = table_of(1);
        let [first, second] = analyzed(scan("t", Arc::clone(&source)), scan("t", source));
        assert_eq!(first, second);
        assert!(matches!(second, LogicalPlan::TableScan(_)));
    }
}
