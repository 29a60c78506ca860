//! Spreads, means, histograms and the most frequent of ungrouped values, and quantiles of rows with weights, by a sample and a read of all rows: the
//! same answers, in memory that does not grow with the values.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::DataFusionError;
use tempfile::TempDir;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

use crate::while_reading::parquet;

/// The name of the operator that reads.
const READS: &str = "SampleThenReadExec";

fn columns(rows: usize) -> RecordBatch {
    let words = Pattern::Random.words(rows, 7);
    let i = Int64Array::from_iter(words.iter().map(|word| (word % 13 != 0).then_some(*word)));
    let f = Float64Array::from_iter_values(words.iter().map(|word| match word % 50 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        _ => (*word >> 20) as f64 / 3.0,
    }));
    let g = Int64Array::from_iter_values(words.iter().map(|word| word.rem_euclid(7)));
    batch(vec![
        ("i", Arc::new(i) as ArrayRef),
        ("f", Arc::new(f)),
        ("g", Arc::new(g)),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_values_that_are_held() {
    let statements = [
        "SELECT mad(i), trimmed_mean(i, 0.1), winsorized_mean(f, 0.05), mad(f), mad(g) FROM ",
        "SELECT mad(i) FILTER (WHERE g > 3) AS d, trimmed_mean(f, 0.2) FILTER (WHERE f > 0), count(*), sum(g) FROM ",
        "SELECT exact_quantiles(i, 0.5), mad(i + g), mode(g), trimmed_mean(i, 0.123456789) FROM ",
        "SELECT mad(i) + 1 AS m, trimmed_mean(f, 0) > 0, mad(DISTINCT g) FROM ",
        "SELECT trimmed_mean(i, 0.25), trimmed_mean(i, 0.25) FILTER (WHERE g < 0) FROM ",
        "SELECT histogram(i, 7), histogram(f, 100), histogram(g, 10, 'equi-width'), histogram(i, 3, 'equi-width') FROM ",
        "SELECT exact_quantiles(i, [0.01, 0.5, 0.99], 'linear', g) AS q, count(g) FROM ",
        "SELECT exact_quantiles(f, 0.5, 'disc', CASE WHEN g <> 2 THEN g END), iqr(i, 'linear', g) FROM ",
        "SELECT percentile(f, [0.1, 0.77], g) FILTER (WHERE i > 0), exact_quantiles(g, 0.3, 'hazen', g), mad(i) FROM ",
        "SELECT percentile(i, 0.5, 0), exact_quantiles(i, [0, 0.2, 1], 'disc', 3 * g) FROM ",
        "SELECT mode(i), mode(f), top_values(g, 3), top_values(f, 4) FILTER (WHERE g < 3), approx_top_k(i, 2) FROM ",
        "SELECT mode(CAST(i % 9 AS DECIMAL(30, 2))), top_values(i > 0, 5), top_values(CAST(g AS TINYINT), 4), mode(i * 0) FROM ",
    ];
    let ctx = session(3);
    let rows_of_table = columns(30_000);
    register(&ctx, "held", &rows_of_table, 3, 5000);
    let folder = TempDir::new().unwrap();
    parquet(&ctx, &rows_of_table, 10_000, folder.path()).await;
    for statement in statements {
        for table in [
            "held",
            "files",
            "files WHERE g <> 5",
            "(SELECT i, f, g FROM files WHERE i IS NULL)",
            "files WHERE g > 100",
        ] {
            let sql = format!("{statement}{table}");
            set(&ctx, "read_again", "never").await;
            let expected = rows(&ctx, &sql).await;
            assert!(!physical_plan(&ctx, &sql).await.contains(READS), "{sql}");
            set(&ctx, "read_again", "always").await;
            assert_eq!(rows(&ctx, &sql).await, expected, "{sql}");
            assert!(physical_plan(&ctx, &sql).await.contains(READS), "{sql}");
        }
    }
    // A weight that is none.
    let sql = "SELECT exact_quantiles(i, 0.5, 'disc', g - 3) FROM files";
    for option in ["never", "always"] {
        set(&ctx, "read_again", option).await;
        let error = query(&ctx, sql).await.unwrap_err().to_string();
        assert!(error.contains("a weight must not be negative, got -"), "{error}");
    }
    // Deeper in a statement, and twice.
    let nested = "SELECT g FROM held WHERE i > (SELECT mad(i) FROM held) UNION ALL SELECT CAST(trimmed_mean(i, 0.1) AS BIGINT) FROM files";
    let sql = format!("SELECT count(*), sum(g) FROM ({nested})");
    set(&ctx, "read_again", "never").await;
    let expected = rows(&ctx, &sql).await;
    set(&ctx, "read_again", "always").await;
    assert_eq!(rows(&ctx, &sql).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_again_is_held() {
    let ctx = session(2);
    register(&ctx, "held", &columns(5000), 2, 1000);
    for (sql, option, is_read) in [
        ("SELECT mad(i) FROM held", "always", true),
        ("SELECT mad(i) FROM held", "auto", false),
        ("SELECT mad(i) FROM held GROUP BY g", "always", false),
        ("SELECT mad(DISTINCT i) FROM held", "always", false),
        ("SELECT mad(i * random()) FROM held", "always", false),
        ("SELECT mad(i) FROM held WHERE random() < 0.5", "always", false),
        (
            "SELECT mad(i) FROM (SELECT i FROM held LIMIT 4000)",
            "always",
            false,
        ),
        ("SELECT mad(i) OVER () FROM held", "always", false),
        ("SELECT mode(i), top_values(g, 3) FROM held", "always", true),
        (
            "SELECT mode() WITHIN GROUP (ORDER BY i) FROM held",
            "always",
            true,
        ),
        ("SELECT mode(i) FROM held GROUP BY g", "always", false),
        ("SELECT mode(CAST(i AS VARCHAR)) FROM held", "always", false),
        ("SELECT top_values(i, 1000000) FROM held", "always", false),
        (
            "SELECT exact_quantiles(i, 0.5, 'disc', g) FROM held",
            "always",
            true,
        ),
        (
            "SELECT exact_quantiles(i, 0.5, 'disc', g) FROM held GROUP BY g",
            "always",
            false,
        ),
        (
            "SELECT exact_quantiles(i, 0.5, 'disc', CAST(g AS DECIMAL(9, 2))) FROM held",
            "always",
            true,
        ),
    ] {
        set(&ctx, "read_again", option).await;
        let plan = physical_plan(&ctx, sql).await;
        assert_eq!(plan.contains(READS), is_read, "{sql}\n{plan}");
        query(&ctx, sql).await.unwrap();
    }
}

/// Values that are brought together where they repeat: what was reserved for a batch of them is not reserved again for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_repeat_need_little_memory() {
    let table = columns(3_000_000);
    let (free, ctx) = (session(2), limited(16, 2));
    for ctx in [&free, &ctx] {
        register(ctx, "held", &table, 2, 8192);
        set(ctx, "read_again", "never").await;
    }
    for sql in [
        "SELECT mode(g), top_values(g, 3) FROM held",
        "SELECT mad(g), trimmed_mean(g, 0.2), histogram(g, 3) FROM held",
        "SELECT exact_quantiles(g, [0.1, 0.5], 'disc', g) FROM held",
        "SELECT topk_by(i, g, 5), gk_quantile(gk_sketch(i, 100), 0.5) > 0 FROM held WHERE i > 0",
    ] {
        assert_eq!(rows(&ctx, sql).await.len(), 1, "{sql}");
        if !sql.contains("gk_") {
            assert_eq!(rows(&ctx, sql).await, rows(&free, sql).await, "{sql}");
        }
    }
    all_is_given_back(&ctx).await;
}

/// The median by `linear` has two ranks, one behind the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interpolated_medians_are_selected_while_reading() {
    let ctx = limited(16, 2);
    register(&ctx, "held", &columns(2_000_000), 2, 8192);
    let plan = rows_joined(
        &ctx,
        "EXPLAIN ANALYZE SELECT exact_quantiles(g, 0.5, 'linear') FROM held",
    )
    .await;
    assert!(
        plan.contains("while_reading") && plan.contains("spill_count=0"),
        "{plan}"
    );
}

/// 24 MB of values in a pool of 16 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_read_need_no_memory() {
    let sql = "SELECT mad(i), trimmed_mean(i, 0.1), winsorized_mean(f, 0.1), histogram(i, 20), mode(f), top_values(g, 9), \
               mad(f), histogram(i, 1000, 'equi-width'), mode(i % 300000), \
               exact_quantiles(i, [0.1, 0.5], 'disc', g) FROM held";
    let table = columns(3_000_000);
    let free = session(2);
    register(&free, "held", &table, 2, 8192);
    set(&free, "read_again", "never").await;
    let expected = rows(&free, sql).await;
    let ctx = limited(16, 2);
    register(&ctx, "held", &table, 2, 8192);
    assert_eq!(rows(&ctx, sql).await, expected);
    set(&ctx, "read_again", "never").await;
    let error = query(&ctx, sql).await.unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    drop(error);
    all_is_given_back(&ctx).await;
}

/// Rows with weights of which few are held, in every order and with any repetition. A fair sample needs one read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quantiles_with_weights_read_few_times() {
    let sql = "SELECT exact_quantiles(i, [0, 0.001, 0.5, 0.9, 1], 'disc', w), percentile(i, [0.3, 0.77], w), \
               exact_quantiles(i, 0.5, 'hazen', w) FILTER (WHERE w > 3), exact_quantiles(w, [0.1, 0.6], 'disc', w) FROM held";
    let (free, ctx) = (session(3), limited(4, 3));
    set(&free, "read_again", "never").await;
    set(&ctx, "read_again", "always").await;
    for pattern in patterns::ALL {
        let weights = Pattern::Zipf.words(200_000, 5);
        let weights = Int64Array::from_iter_values(weights.iter().map(|word| word.rem_euclid(50)));
        let i = Int64Array::from_iter_values(pattern.words(200_000, 3));
        let table = batch(vec![("i", Arc::new(i) as ArrayRef), ("w", Arc::new(weights))]);
        for ctx in [&free, &ctx] {
            ctx.deregister_table("held").unwrap();
            register(ctx, "held", &table, 3, 8192);
        }
        assert_eq!(rows(&ctx, sql).await, rows(&free, sql).await, "{pattern:?}");
        if let Pattern::Random | Pattern::AllEqual | Pattern::FewDistinct = pattern {
            let sql = "EXPLAIN ANALYZE SELECT exact_quantiles(i, [0.5, 0.9], 'disc', w) FROM held";
            let plan = rows(&ctx, sql).await.join("\n");
            assert!(
                plan.contains("SampleThenReadExec") && plan.contains("input_reads=1"),
                "{plan}"
            );
        }
    }
    all_is_given_back(&ctx).await;
}

/// A deviation needs one read where the sample is fair, and bins of one width where the file tells the ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spreads_and_bins_read_few_times() {
    let (free, ctx) = (session(3), limited(16, 3));
    set(&free, "read_again", "never").await;
    set(&ctx, "read_again", "always").await;
    let sql = "SELECT mad(i), mad(h), histogram(i, 9, 'equi-width'), histogram(h, 100, 'equi-width'), mad(i) FILTER (WHERE h > 7) FROM held";
    for pattern in patterns::ALL {
        let i = Int64Array::from_iter_values(pattern.words(200_000, 3));
        let words = pattern.words(200_000, 4);
        let is_zero = words.iter().all(|word| *word == 0);
        let h = Float64Array::from_iter_values(words.iter().map(|word| *word as f64 / 7.0));
        let table = batch(vec![("i", Arc::new(i) as ArrayRef), ("h", Arc::new(h))]);
        for ctx in [&free, &ctx] {
            ctx.deregister_table("held").unwrap();
            register(ctx, "held", &table, 3, 8192);
        }
        assert_eq!(rows(&ctx, sql).await, rows(&free, sql).await, "{pattern:?}");
        let folder = TempDir::new().unwrap();
        ctx.deregister_table("files").unwrap();
        parquet(&ctx, &table, 50_000, folder.path()).await;
        let mut reads = vec![
            // Of zeros alone, the file tells -0.0 and 0.0.
            (
                "histogram(h, 20, 'equi-width') FROM files",
                if is_zero { 2 } else { 1 },
            ),
            ("histogram(i, 20, 'equi-width') FROM files", 1),
            ("histogram(i, 20, 'equi-width') FROM held", 2),
        ];
        if let Pattern::Random | Pattern::AllEqual | Pattern::FewDistinct = pattern {
            reads.extend([("mad(i) FROM held", 1), ("mad(h) FROM files", 1)]);
        }
        for (call, count) in reads {
            let plan = rows(&ctx, &format!("EXPLAIN ANALYZE SELECT {call}"))
                .await
                .join("\n");
            assert!(
                plan.contains(&format!("input_reads={count}")),
                "{call} of {pattern:?}: {plan}"
            );
        }
    }
    all_is_given_back(&ctx).await;
}
