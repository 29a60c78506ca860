//! Parquet's statistics leave NaN out: no answer may depend on them.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StructArray};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use quantiles_testing::{batch, physical_plan, query, register, rows, session, write_parquet};

/// A table of these numbers, their place in the column and a structure that holds them.
fn table(values: &[Option<f64>]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..values.len() as i64));
    let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    let field = Arc::new(Field::new("f", DataType::Float64, true));
    let nested: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::clone(&values))]));
    batch(vec![("id", ids), ("v", values), ("s", nested)])
}

/// Registers `rows` as a Parquet file with row groups of two rows.
async fn parquet(ctx: &SessionContext, name: &str, rows: &RecordBatch, folder: &TempDir) {
    let path = folder.path().join(format!("{name}.parquet"));
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(2));
    write_parquet(&path, rows, groups.build());
    let create = format!(
        "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}'",
        path.display()
    );
    query(ctx, &create).await.unwrap();
}

/// `one`: a row group of NaN and one number. `many`: NaN among greater, equal and less numbers.
fn tables() -> [(&'static str, RecordBatch); 2] {
    let some = |values: &[f64]| values.iter().copied().map(Some).collect::<Vec<_>>();
    let mut many = some(&[
        f64::INFINITY,
        f64::NAN,
        1.0,
        2.0,
        1.5,
        f64::NAN,
        0.5,
        0.25,
        5.0,
        -0.0,
        -f64::NAN,
        -3.0,
        0.0,
        -0.0,
    ]);
    many.push(None);
    [("one", table(&some(&[f64::NAN, -0.985]))), ("many", table(&many))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_depends_on_statistics_without_nans() {
    let folder = TempDir::new().unwrap();
    for partitions in [1, 3] {
        let (files, memory) = (session(partitions), session(partitions));
        for (name, rows) in tables() {
            parquet(&files, name, &rows, &folder).await;
            register(&memory, name, &rows, 1, 8192);
        }
        for pushdown in [false, true] {
            let set = format!("SET datafusion.execution.parquet.pushdown_filters = {pushdown}");
            query(&files, &set).await.unwrap();
            for name in ["one", "many"] {
                for sql in [
                    "SELECT id, v FROM t ORDER BY id",
                    "SELECT id, s FROM t ORDER BY id",
                    "SELECT id, s['f'] AS f FROM t WHERE s['f'] > 2 ORDER BY id",
                    "SELECT exact_quantiles(v, [0, 0.5, 1]) FROM t",
                    "SELECT percentile_cont(v, 0), percentile_cont(v, 1), min(v), max(v) FROM t",
                    "SELECT min(v) FROM t",
                    "SELECT max(v) FROM t",
                    "SELECT id, v FROM t WHERE v > 2 ORDER BY id",
                    "SELECT id, v FROM t WHERE NOT v <= 2 ORDER BY id",
                    "SELECT id, v FROM t WHERE v <> -0.985 ORDER BY id",
                    "SELECT id, v FROM t WHERE v = 'NaN'::DOUBLE ORDER BY id",
                    "SELECT id, v FROM t WHERE v IN (0, 'NaN'::DOUBLE) ORDER BY id",
                    "SELECT id, v FROM t WHERE v BETWEEN -1 AND 'NaN'::DOUBLE AND id < 9 ORDER BY id",
                    "SELECT id, v FROM t WHERE v IS NOT NULL AND -v < -2 ORDER BY id",
                    "SELECT count(*) FROM (SELECT 1 FROM t WHERE v <= 1000 LIMIT 5)",
                    "SELECT count(*) FROM t WHERE v > 1e300",
                    "SELECT id FROM t ORDER BY v DESC NULLS FIRST, id LIMIT 1",
                    "SELECT id FROM t WHERE v IS NOT NULL ORDER BY v DESC NULLS FIRST, id LIMIT 2",
                    "SELECT id FROM t WHERE v IS NOT NULL ORDER BY v, id LIMIT 2",
                    "SELECT topk_by(id, v, 1) FROM t WHERE v IS NOT NULL AND id <> 10",
                    "SELECT a.id, b.id FROM t AS a JOIN t AS b ON a.v = b.v ORDER BY 1, 2",
                ] {
                    let sql = sql.replace("FROM t", &format!("FROM {name}"));
                    let sql = sql.replace("JOIN t", &format!("JOIN {name}"));
                    let expected = rows(&memory, &sql).await;
                    assert_eq!(rows(&files, &sql).await, expected, "pushdown={pushdown}: {sql}");
                }
            }
        }
    }
}

#[tokio::test]
async fn columns_without_floats_keep_their_statistics() {
    let folder = TempDir::new().unwrap();
    let ctx = session(1);
    let [_, (name, many)] = tables();
    parquet(&ctx, name, &many, &folder).await;
    let plan = physical_plan(&ctx, "SELECT max(id) FROM many").await;
    assert!(plan.contains("PlaceholderRowExec"), "{plan}");
    let sql = "SELECT id FROM many WHERE id > 3 AND v > 2";
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains("pruning_predicate=id_null_count"), "{plan}");
    assert!(plan.contains("id_max@") && !plan.contains("v_max@"), "{plan}");
    let plan = physical_plan(&ctx, "SELECT id FROM many WHERE v IS NULL").await;
    assert!(plan.contains("v_null_count@"), "{plan}");
    // Whoever trusts the statistics of floats has scans skip by them.
    query(&ctx, "SET quantiles.trust_float_statistics = true")
        .await
        .unwrap();
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains("id_max@") && plan.contains("v_max@"), "{plan}");
    assert_eq!(
        rows(&ctx, "SELECT count(*) FROM many WHERE id > 3 AND id < 5").await,
        ["1"]
    );
}
