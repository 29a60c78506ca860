//! Quantiles that are selected while their input is read: same answers as from kept keys, and how often the input is read.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, TimestampMillisecondArray};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

/// Rows of the tables here: more than a sample has.
const ROWS: usize = 120_000;

/// Columns of one pattern: `i` without NULL, `f` with a NULL in every seventh row, `g` the row's number modulo 10.
fn columns(pattern: Pattern) -> RecordBatch {
    let integers: ArrayRef = Arc::new(Int64Array::from(pattern.words(ROWS, 1)));
    let floats = pattern.floats(ROWS, 2).into_iter().enumerate();
    let floats: ArrayRef = Arc::new(Float64Array::from_iter(
        floats.map(|(row, value)| (row % 7 != 0).then_some(value)),
    ));
    let groups: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 10)));
    batch(vec![("i", integers), ("f", floats), ("g", groups)])
}

/// Writes `rows` as Parquet files of at most `rows_each` rows, in pages of about 1000 rows, and registers them as the table `files`.
pub(crate) async fn parquet(ctx: &SessionContext, rows: &RecordBatch, rows_each: usize, folder: &Path) {
    for start in (0..rows.num_rows()).step_by(rows_each) {
        let path = folder.join(format!("{start:06}.parquet"));
        let slice = rows.slice(start, rows_each.min(rows.num_rows() - start));
        let pages = WriterProperties::builder().set_data_page_row_count_limit(1000);
        write_parquet(&path, &slice, pages.build());
    }
    let create = format!(
        "CREATE EXTERNAL TABLE files STORED AS PARQUET LOCATION '{}/'",
        folder.display()
    );
    query(ctx, &create).await.unwrap();
}

/// The metric of `EXPLAIN ANALYZE` of this name.
async fn metric(ctx: &SessionContext, sql: &str, name: &str) -> Option<usize> {
    let plan = rows_joined(ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    let at = plan.find(&format!("{name}="))? + name.len() + 1;
    // Such as 12, or 119.00 K.
    let end = plan[at..].find([',', ']'])? + at;
    let (number, unit) = plan[at..end].split_once(' ').unwrap_or((&plan[at..end], ""));
    let scale = match unit {
        "K" => 1e3,
        "M" => 1e6,
        _ => 1.0,
    };
    Some((number.parse::<f64>().ok()? * scale) as usize)
}

/// How many columns were selected while they were read.
async fn while_reading(ctx: &SessionContext, sql: &str) -> Option<usize> {
    metric(ctx, sql, "strategy_sample_select__while_reading").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_kept_keys() {
    let statements = [
        "SELECT exact_quantiles(i, 0.5) FROM ",
        "SELECT exact_quantiles(i, [0, 1]), exact_quantiles(f, [0.001, 0.999]), count(*), sum(g) FROM ",
        "SELECT exact_quantiles(i, [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 0.9, 0.99]) FROM ",
        "SELECT exact_quantiles(f, [0.25, 0.5], 'linear') FILTER (WHERE g > 3), exact_quantiles(DISTINCT g, 0.5) FROM ",
        "SELECT exact_quantiles(i + g, 0.7), exact_quantiles(i, 0.5) FILTER (WHERE g > 20) FROM ",
    ];
    for pattern in patterns::ALL {
        let ctx = session(3);
        let rows_of_table = columns(pattern);
        register(&ctx, "rows", &rows_of_table, 3, 5000);
        let folder = TempDir::new().unwrap();
        parquet(&ctx, &rows_of_table, 30_000, folder.path()).await;
        for statement in statements {
            for table in ["rows", "files", "files WHERE g <> 5"] {
                let sql = format!("{statement}{table}");
                set(&ctx, "read_again", "never").await;
                let expected = rows(&ctx, &sql).await;
                assert_eq!(while_reading(&ctx, &sql).await, None, "{sql}");
                set(&ctx, "read_again", "always").await;
                assert_eq!(rows(&ctx, &sql).await, expected, "{pattern:?}: {sql}");
                assert!(while_reading(&ctx, &sql).await.is_some(), "{pattern:?}: {sql}");
            }
        }
        let expected = by_sort(&pattern.words(ROWS, 1), 500).unwrap();
        let found = row(&ctx, "SELECT exact_quantiles(i, 0.5) FROM files").await;
        assert_eq!(found, expected.to_string(), "{pattern:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_ranks_take_one_read_and_a_misleading_sample_one_more() {
    let median = "SELECT exact_quantiles(i, 0.5) FROM rows";
    for (pattern, most) in [
        (Pattern::Random, 1),
        (Pattern::AllEqual, 1),
        (Pattern::FewDistinct, 1),
        (Pattern::Zipf, 1),
        (Pattern::HalfEqual, 1),
        (Pattern::Sorted, 2),
        (Pattern::Reversed, 2),
        (Pattern::Runs, 2),
        (Pattern::Clusters, 2),
        (Pattern::Sawtooth, 2),
    ] {
        let ctx = session(2);
        register(&ctx, "rows", &columns(pattern), 2, 8192);
        set(&ctx, "read_again", "always").await;
        let reads = metric(&ctx, median, "input_reads").await.unwrap();
        assert!(reads <= most, "{pattern:?}: {reads} reads");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_cannot_be_read_again_are_kept() {
    let ctx = session(2);
    register(&ctx, "rows", &columns(Pattern::Random), 2, 8192);
    set(&ctx, "read_again", "always").await;
    for (input, expected) in [
        ("rows", Some(1)),
        ("(SELECT i FROM rows WHERE g = 1)", Some(1)),
        ("(SELECT -i AS i FROM rows)", Some(1)),
        ("(SELECT i FROM rows WHERE random() < 0.5)", None),
        ("(SELECT i FROM rows LIMIT 50000)", None),
        ("(SELECT i FROM rows UNION ALL SELECT g FROM rows)", None),
        ("(SELECT DISTINCT i FROM rows)", None),
        ("(SELECT a.i FROM rows a JOIN rows b ON a.i = b.i)", None),
    ] {
        let sql = format!("SELECT exact_quantiles(i, 0.5) FROM {input}");
        assert_eq!(while_reading(&ctx, &sql).await, expected, "{input}");
    }
    for strategy in ["sample_select", "dibms", "gk_select", "distributed_bms"] {
        set(&ctx, "strategy", strategy).await;
        let sql = "SELECT exact_quantiles(i, 0.5) FROM rows";
        assert_eq!(while_reading(&ctx, sql).await, None, "{strategy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_inputs_are_kept_and_empty_ones_answered() {
    for option in ["auto", "always"] {
        let ctx = session(2);
        set(&ctx, "read_again", option).await;
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(1), Some(2)]));
        let table = batch(vec![("x", numbers)]);
        register(&ctx, "four", &table, 2, 1);
        register(&ctx, "none", &table.slice(0, 0), 2, 1);
        let median = |table: &str| format!("SELECT exact_quantiles(x, 0.5) FROM {table}");
        assert_eq!(row(&ctx, &median("four")).await, "2");
        assert_eq!(row(&ctx, &median("none")).await, "NULL");
        assert_eq!(row(&ctx, &median("four WHERE x IS NULL")).await, "NULL");
        let expected = (option == "always").then_some(1);
        assert_eq!(while_reading(&ctx, &median("four")).await, expected);
        assert_eq!(while_reading(&ctx, &median("none")).await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_spills_where_the_input_can_be_read_again() {
    // 16 MB of keys in a pool of 16 MB, two thirds of which may hold keys.
    let words: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(2_000_000, 3)));
    let percentiles: Vec<String> = (1..100).map(|p| format!("{}", f64::from(p) / 100.0)).collect();
    let sql = format!(
        "SELECT exact_quantiles(i, [{}]) FROM rows",
        percentiles.join(", ")
    );
    let ctx = limited(16, 2);
    register(&ctx, "rows", &batch(vec![("i", words)]), 2, 8192);
    let (mut answers, mut files) = (Vec::new(), Vec::new());
    for option in ["never", "auto"] {
        set(&ctx, "read_again", option).await;
        answers.push(rows(&ctx, &sql).await);
        files.push(metric(&ctx, &sql, "spill_count").await.unwrap());
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(while_reading(&ctx, &sql).await, Some(1));
    assert!(files[0] > 0 && files[1] == 0, "{files:?} files");
    all_is_given_back(&ctx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_whose_statistics_answer_for_them_are_not_read() {
    let sorted: Vec<Option<i64>> = (0..ROWS as i64)
        .map(|row| (row % 11 > 0).then_some(row / 3))
        .collect();
    let times = TimestampMillisecondArray::from(sorted.clone());
    let floats = Float64Array::from_iter(sorted.iter().map(|value| value.map(|value| value as f64)));
    let groups = Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 10));
    let rows_of_table = batch(vec![
        ("i", Arc::new(Int64Array::from(sorted)) as ArrayRef),
        ("at", Arc::new(times)),
        ("f", Arc::new(floats)),
        ("g", Arc::new(groups)),
    ]);
    let ctx = session(2);
    let folder = TempDir::new().unwrap();
    parquet(&ctx, &rows_of_table, 50_000, folder.path()).await;
    let many = "[0.01, 0.25, 0.5, 0.75, 0.99]";
    for (calls, clause, most_read) in [
        ("exact_quantiles(i, 0.5)".to_owned(), "", ROWS / 20),
        ("exact_quantiles(at, 0.5)".to_owned(), "", ROWS / 20),
        (
            "exact_quantiles(i, [0, 1]), exact_quantiles(i, 0.3, 'linear')".to_owned(),
            "",
            ROWS / 8,
        ),
        (format!("exact_quantiles(i, {many})"), "", ROWS / 8),
        // Statistics of floating-point numbers leave NaN out; other aggregates and filters need all rows.
        ("exact_quantiles(f, 0.5)".to_owned(), "", ROWS),
        ("exact_quantiles(i, 0.5), count(*), sum(g)".to_owned(), "", ROWS),
        (
            "exact_quantiles(i, 0.5) FILTER (WHERE g > 3)".to_owned(),
            "",
            ROWS,
        ),
        ("exact_quantiles(i, 0.5)".to_owned(), "WHERE g <> 4", ROWS),
        ("exact_quantiles(i + 1, 0.5)".to_owned(), "", ROWS),
        (
            "exact_quantiles(i, 0.5), exact_quantiles(g, 0.5)".to_owned(),
            "",
            ROWS,
        ),
    ] {
        let sql = format!("SELECT {calls} FROM files {clause}");
        set(&ctx, "read_again", "never").await;
        let expected = rows(&ctx, &sql).await;
        set(&ctx, "read_again", "always").await;
        assert_eq!(rows(&ctx, &sql).await, expected, "{sql}");
        assert!(while_reading(&ctx, &sql).await.is_some(), "{sql}");
        let left_out = metric(&ctx, &sql, "rows_left_out").await.unwrap_or(0);
        if most_read < ROWS {
            assert_eq!(metric(&ctx, &sql, "input_reads").await, Some(1), "{sql}");
        }
        match most_read {
            ROWS => assert_eq!(left_out, 0, "{sql}"),
            most => assert!(
                left_out >= ROWS - most && left_out < ROWS,
                "{sql}: {left_out} rows left out"
            ),
        }
    }
}
