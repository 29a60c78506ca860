//! Arguments and inputs at the edge of what functions and operators take.

use std::any::Any;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion_quantiles::planner::SortLimitRule;
use tempfile::TempDir;

use quantiles_testing::{batch, error, query, register, row, session, texts};

#[tokio::test]
async fn distinct_rows_have_the_best_row_of_all() {
    let ctx = session(2);
    for (call, expected) in [
        ("max_by(DISTINCT value, value)", "4"),
        ("min_by(DISTINCT value, value)", "0"),
        ("max_by(DISTINCT value, value::BIGINT)", "4"),
        ("max_by(DISTINCT value, -value)", "0"),
        ("exact_quantiles(DISTINCT 0.5, 0.5)", "0.5"),
        ("approx_percentile_gk(DISTINCT 0.5, 0.5)", "0.5"),
        ("topk_by(DISTINCT value % 2, value % 2, 3)", "[1, 0]"),
    ] {
        let sql = format!("SELECT {call} FROM range(0, 5)");
        assert_eq!(row(&ctx, &sql).await, expected, "{sql}");
        let sql = format!("SELECT {call} AS a, {call} AS b FROM range(0, 5) GROUP BY value < 9");
        assert_eq!(row(&ctx, &sql).await, format!("{expected} | {expected}"), "{sql}");
    }
}

#[tokio::test]
async fn ranks_of_what_a_type_cannot_hold_are_none_or_all() {
    let ctx = session(2);
    let number = "'NaN'::DOUBLE";
    for (values, value, rank) in [
        ("value", "1e30", 10),
        ("value", "-1e30", 0),
        ("value", "'inf'::DOUBLE", 10),
        ("value", "'-inf'::DOUBLE", 0),
        ("value", number, 10),
        (
            "value",
            "CAST('100000000000000000000000000000' AS DECIMAL(38, 0))",
            10,
        ),
        (
            "value",
            "CAST('-100000000000000000000000000000' AS DECIMAL(38, 0))",
            0,
        ),
        ("value", "4.5", 5),
        ("value", "-0.5", 0),
        ("arrow_cast(value, 'UInt8')", "-1", 0),
        ("arrow_cast(value, 'UInt8')", "256", 10),
        ("arrow_cast(value, 'UInt8')", "4", 5),
        ("arrow_cast(value, 'Decimal128(3, 1)')", "1000", 10),
        ("arrow_cast(value, 'Decimal128(3, 1)')", "-1e20", 0),
        ("arrow_cast(value, 'Decimal128(3, 1)')", number, 10),
        ("arrow_cast(value, 'Decimal128(3, 1)')", "4.25", 5),
        ("arrow_cast(value, 'Float32')", "1e300", 10),
        ("arrow_cast(value, 'Float64')", number, 10),
        (
            "value * 0 + 18446744073709551616.0",
            "arrow_cast(18446744073709551615, 'UInt64')",
            0,
        ),
        ("value * 0 + 9223372036854775808.0", "9223372036854775807", 0),
        (
            "arrow_cast(arrow_cast(value, 'Int32'), 'Date32')",
            "arrow_cast(10000000000, 'Timestamp(Second, None)')",
            10,
        ),
        (
            "arrow_cast(arrow_cast(value, 'Int32'), 'Date32')",
            "arrow_cast(-10000000000, 'Timestamp(Second, None)')",
            0,
        ),
        (
            "arrow_cast(value, 'Timestamp(Nanosecond, None)')",
            "arrow_cast(10000000000000, 'Timestamp(Second, None)')",
            10,
        ),
        (
            "arrow_cast(value, 'Timestamp(Nanosecond, None)')",
            "arrow_cast(-10000000000000, 'Timestamp(Second, None)')",
            0,
        ),
    ] {
        let sql = format!("SELECT gk_rank(gk_sketch({values}), {value}) FROM range(0, 10)");
        let expected = format!("{{rank_min: {rank}, rank_max: {rank}, n: 10}}");
        assert_eq!(row(&ctx, &sql).await, expected, "{sql}");
    }
    let said = error(&ctx, "SELECT gk_rank(gk_sketch(value), 'many') FROM range(0, 10)").await;
    assert!(said.contains("many"), "{said}");
}

#[tokio::test]
async fn what_is_asked_of_sketches_may_be_null() {
    let ctx = session(1);
    for call in [
        "gk_rank(gk_sketch(value), NULL)",
        "gk_quantile(gk_sketch(value), NULL)",
    ] {
        let sql = format!("SELECT {call} IS NULL FROM range(0, 10)");
        assert_eq!(row(&ctx, &sql).await, "true", "{sql}");
    }
}

/// The bytes of a stored sketch as far as its tag, with the checksum that they should have.
fn crafted(tag: &[u8]) -> Vec<u8> {
    let mut bytes = b"GKS\x02".to_vec();
    for mut number in [64, tag.len() as u64] {
        while number >= 128 {
            bytes.push(number as u8 | 128);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    bytes.extend(tag);
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    bytes.extend((((hash >> 32) ^ hash) as u32).to_le_bytes());
    bytes
}

#[tokio::test]
async fn a_crafted_sketch_is_an_error() {
    let ctx = session(1);
    for nested in ["List(", "Struct(", "Dictionary(Int8, "] {
        let tag = nested.repeat(1_000_000);
        let metadata = [("quantiles.values".to_owned(), tag.clone())].into();
        let field = Field::new("s", DataType::Binary, true).with_metadata(metadata);
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![crafted(tag.as_bytes()).as_slice()]));
        let schema = Arc::new(Schema::new(vec![field]));
        ctx.deregister_table("t").unwrap();
        register(
            &ctx,
            "t",
            &RecordBatch::try_new(schema, vec![bytes]).unwrap(),
            1,
            1,
        );
        for call in ["gk_quantile(s, 0.5)", "gk_rank(s, 1)"] {
            let said = error(&ctx, &format!("SELECT {call} FROM t")).await;
            assert!(
                said.contains("which is unknown") && said.len() < 1000,
                "{} bytes",
                said.len()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_scanned_twice_has_its_rows_twice() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
    let words = (0..100_000).map(|row| format!("row number {row} of a table"));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values(words));
    let (folder, ctx) = (TempDir::new().unwrap(), session(1));
    register(
        &ctx,
        "memory",
        &batch(vec![("id", ids), ("text", words)]),
        1,
        8192,
    );
    let path = folder.path().join("t.parquet");
    let path = path.display();
    query(&ctx, &format!("COPY memory TO '{path}' STORED AS PARQUET"))
        .await
        .unwrap();
    let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'");
    query(&ctx, &create).await.unwrap();
    let scan = ctx
        .table("t")
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    let source: &dyn Any = scan
        .downcast_ref::<DataSourceExec>()
        .unwrap()
        .data_source()
        .as_ref();
    let config = source.downcast_ref::<FileScanConfig>().unwrap();
    let file = config.file_groups[0].files()[0].clone();
    for (files, is_late, expected) in [
        (vec![file.clone()], true, [99_999, 99_998]),
        (vec![file.clone(), file], false, [99_999, 99_999]),
    ] {
        let builder =
            FileScanConfigBuilder::from(config.clone()).with_file_groups(vec![FileGroup::new(files)]);
        let scan = DataSourceExec::from_data_source(builder.build());
        let options = SortOptions {
            descending: true,
            nulls_first: false,
        };
        let by = PhysicalSortExpr::new(Arc::new(Column::new("id", 0)), options);
        let sort = SortExec::new([by].into(), scan).with_fetch(Some(2));
        let rule = SortLimitRule;
        let plan = rule
            .optimize(Arc::new(sort), ctx.state().config_options())
            .unwrap();
        assert_eq!(plan.name() == "LateFetchExec", is_late, "{}", plan.name());
        let batches = collect(plan, ctx.task_ctx()).await.unwrap();
        let expected = expected.map(|row| format!("{row} | row number {row} of a table"));
        assert_eq!(texts(&batches), expected);
    }
}
