//! Answers, errors and plans of statements, and the answer of a sort.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Fields};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::Result;
use datafusion::prelude::SessionContext;

/// The result of a query.
pub async fn query(ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    ctx.sql(sql).await?.collect().await
}

/// The rows of a query, values as text, columns joined by ` | `.
pub async fn rows(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let batches = query(ctx, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    texts(&batches)
}

/// Rows as text, columns joined by ` | `.
pub fn texts(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| match column.is_null(row) {
                true => "NULL".to_owned(),
                false => array_value_to_string(column, row).unwrap(),
            });
            rows.push(values.collect::<Vec<_>>().join(" | "));
        }
    }
    rows
}

/// The one row of a query.
pub async fn row(ctx: &SessionContext, sql: &str) -> String {
    let mut rows = rows(ctx, sql).await;
    assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
    rows.remove(0)
}

/// Names of the result columns.
pub async fn names(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let df = ctx.sql(sql).await.unwrap();
    df.schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect()
}

/// The message of the error that a query must end with, without the contexts around it.
pub async fn error(ctx: &SessionContext, sql: &str) -> String {
    match query(ctx, sql).await {
        Ok(batches) => panic!("{sql} must fail, gave {batches:?}"),
        Err(error) => error.find_root().strip_backtrace(),
    }
}

/// The physical plan of a query, as `EXPLAIN` shows it.
pub async fn physical_plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let plan = datafusion::physical_plan::displayable(plan.as_ref())
        .indent(false)
        .to_string();
    plan.trim_end().to_owned()
}

/// The rows of a query as lines.
pub async fn rows_joined(ctx: &SessionContext, sql: &str) -> String {
    rows(ctx, sql).await.join("\n")
}

/// The rows of a query in the order of their texts.
pub async fn sorted_rows(ctx: &SessionContext, sql: &str) -> Vec<String> {
    sorted(rows(ctx, sql).await)
}

/// Rows in the order of their texts.
pub fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort_unstable();
    rows
}

/// Fails where rows differ, and names the first that do.
pub fn assert_same(found: &[String], expected: &[String], what: &str) {
    if found != expected {
        let wrong: Vec<_> = found
            .iter()
            .filter(|row| !expected.contains(row))
            .take(3)
            .collect();
        let missing: Vec<_> = expected
            .iter()
            .filter(|row| !found.contains(row))
            .take(3)
            .collect();
        let (found, expected) = (found.len(), expected.len());
        panic!("{what}: {found} rows for {expected}; wrong {wrong:?}, missing {missing:?}");
    }
}

/// The one list in row `row` of the last column.
pub fn list_at(batches: &[RecordBatch], row: usize) -> Option<ArrayRef> {
    let batch = &datafusion::arrow::compute::concat_batches(&batches[0].schema(), batches).unwrap();
    let list: &ListArray = batch.columns().last().unwrap().as_list();
    list.is_valid(row).then(|| list.value(row))
}

/// The value of rank `max(1, ceil(q n))` by a full sort. `q` is a fraction of 1000, so that the rank is exact.
pub fn by_sort<T: PartialOrd + Copy>(values: &[T], per_mille: usize) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    let rank = (per_mille * sorted.len()).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

/// Types of fields.
pub fn types(fields: &Fields) -> Vec<DataType> {
    fields.iter().map(|field| field.data_type().clone()).collect()
}

/// Cases of each property: those that `PROPTEST_CASES` says, or 256.
pub fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(256)
}
