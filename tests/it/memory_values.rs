//! Memory limits over types without a fixed-width key: every answer is exact or `ResourcesExhausted`, and nothing stays
//! behind.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, Decimal256Array, Int64Array, ListArray, StringArray, StructArray, UInt32Array,
};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, i256};
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool};
use tempfile::TempDir;

use quantiles_testing::kinds::sorted;
use quantiles_testing::*;

/// From this limit on a table here must be answered, whatever its type and number of partitions.
const ENOUGH: usize = 2 << 20;

const QUANTILES: [f64; 7] = [0.0, 0.001, 0.25, 0.5, 0.75, 0.9, 1.0];

/// A column of a name, and its values of some ranks by a sort.
struct Case {
    name: &'static str,
    values: ArrayRef,
    expected: ArrayRef,
}

impl Case {
    fn new(name: &'static str, values: ArrayRef) -> Self {
        let rows = sorted(&values, (0..values.len() as u32).collect());
        let rank = |q: &f64| ((q * rows.len() as f64).ceil() as usize).max(1);
        let picked: UInt32Array = QUANTILES.iter().map(|q| Some(rows[rank(q) - 1])).collect();
        let expected = take(&values, &picked, None).unwrap();
        Self {
            name,
            values,
            expected,
        }
    }

    fn texts(name: &'static str, rows: usize, of: impl Fn(u64) -> String) -> Self {
        let texts = pseudo_random(rows, 3).map(|r| (r % 13 > 0).then(|| of(r >> 4)));
        Self::new(name, Arc::new(texts.collect::<StringArray>()))
    }
}

/// Columns of 10 to 30 MB.
fn cases() -> Vec<Case> {
    let x = |n: usize| "x".repeat(n);
    let lists = pseudo_random(200_000, 4).map(|r| {
        let items = (0..r % 4).map(move |i| (i != 2).then_some((r >> (20 + 13 * i)) as i64));
        (r % 11 > 0).then_some(items)
    });
    let numbers: Int64Array = pseudo_random(200_000, 5)
        .map(|r| (r % 7 > 0).then_some((r % 5) as i64))
        .collect();
    let texts: StringArray = pseudo_random(200_000, 6)
        .map(|r| Some(format!("{} and {r}", r % 3)))
        .collect();
    let fields = vec![
        Field::new("n", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
    ];
    let pairs = StructArray::new(fields.into(), vec![Arc::new(numbers), Arc::new(texts)], None);
    let wide = |r: u64| i256::from_i128(i128::from(r) - (1 << 63)) * i256::from_i128(10_i128.pow(30));
    let wide: Decimal256Array = pseudo_random(300_000, 7).map(|r| Some(wide(r))).collect();
    vec![
        Case::texts("random texts", 400_000, |r| format!("{r}{r}")),
        Case::texts("a long common prefix", 200_000, |r| {
            format!("{}{}", x(80), r % 100_000)
        }),
        Case::texts("few texts", 300_000, |r| {
            format!("{} of very few texts that go on and on", r % 5)
        }),
        Case::texts("clusters", 100_000, |r| format!("{}{}{r}", r % 4, x(200))),
        Case::texts("texts of any length", 20_000, |r| x((r % 2000) as usize)),
        Case::texts("few long texts", 200, |r| format!("{}{}", x(100_000), r)),
        Case::texts("short texts", 2_000_000, |r| (r % 1000).to_string()),
        Case::new(
            "lists",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
        ),
        Case::new("structs", Arc::new(pairs)),
        Case::new(
            "decimals of 256 bits",
            Arc::new(wide.with_precision_and_scale(76, 30).unwrap()),
        ),
    ]
}

fn pool(partitions: usize, limit: usize) -> Arc<dyn MemoryPool> {
    match partitions {
        2 => Arc::new(FairSpillPool::new(limit)),
        _ => Arc::new(GreedyMemoryPool::new(limit)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_gives_the_exact_answer_or_says_that_it_is_too_small() {
    let folder = TempDir::new().unwrap();
    let sql = format!("SELECT exact_quantiles(x, {QUANTILES:?}) FROM t");
    let (mut is_tried, mut exact_below_enough) = (tried(4), 0);
    for case in cases() {
        let strategies = [
            (1, "auto"),
            (2, "dibms"),
            (3, "sample_select"),
            (5, "distributed_bms"),
        ];
        for ((partitions, strategy), limit) in strategies
            .into_iter()
            .flat_map(|how| (18..27).map(move |s| (how, 1 << s)))
        {
            if !is_tried() {
                continue;
            }
            let what = format!(
                "{}, {partitions} partitions, {limit} bytes, {strategy}",
                case.name
            );
            let ctx = session_on(runtime(pool(partitions, limit), folder.path()), partitions);
            register(
                &ctx,
                "t",
                &batch(vec![("x", Arc::clone(&case.values))]),
                partitions,
                8192,
            );
            query(&ctx, &format!("SET quantiles.strategy = '{strategy}'"))
                .await
                .unwrap();
            match query(&ctx, &sql).await {
                Ok(found) => {
                    assert_eq!(
                        list_at(&found, 0).unwrap().to_data(),
                        case.expected.to_data(),
                        "{what}"
                    );
                    exact_below_enough += usize::from(limit < ENOUGH);
                }
                Err(error) => {
                    let is_exhausted = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                    assert!(is_exhausted && limit < ENOUGH, "{what}: {error}");
                    assert!(
                        error.to_string().contains("memory limit is too small"),
                        "{what}: {error}"
                    );
                }
            }
            // Partitions that another one's error ends are a moment behind it.
            all_is_given_back(&ctx).await;
            assert_nothing_left(&ctx, folder.path(), &what);
        }
    }
    // Most small limits do as well, or this would test little.
    println!("{exact_below_enough} exact below {ENOUGH} bytes");
    assert!(exact_below_enough >= 8, "{exact_below_enough}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_any_width_share_one_limit() {
    let folder = TempDir::new().unwrap();
    let ctx = session_on(runtime(pool(1, 8 << 20), folder.path()), 3);
    let texts: StringArray = pseudo_random(300_000, 3)
        .map(|r| Some(format!("a prefix {} and {:020}", r % 3, r >> 8)))
        .collect();
    let numbers: Int64Array = pseudo_random(300_000, 4).map(|r| Some(r as i64)).collect();
    let (mut by_text, mut by_number): (Vec<&str>, Vec<i64>) =
        (texts.iter().flatten().collect(), numbers.values().to_vec());
    by_text.sort_unstable();
    by_number.sort_unstable();
    let expected = format!(
        "{} | {} | {} | 300000",
        by_text[149_999], by_number[149_999], by_text[269_999]
    );
    let columns: Vec<(&str, ArrayRef)> = vec![("s", Arc::new(texts.clone())), ("x", Arc::new(numbers))];
    register(&ctx, "t", &batch(columns), 3, 8192);
    let sql = "SELECT exact_quantiles(s, 0.5), exact_quantiles(x, 0.5), \
               exact_quantiles(concat(s, ''), 0.9), count(*) FROM t";
    assert_eq!(row(&ctx, sql).await, expected);
    assert_nothing_left(&ctx, folder.path(), sql);
}

#[tokio::test]
async fn explain_analyze_says_what_was_spilled() {
    let folder = TempDir::new().unwrap();
    let case = Case::texts("random texts", 200_000, |r| format!("{r}{r}"));
    for (limit, spills) in [(4 << 20, true), (1 << 30, false)] {
        let ctx = session_on(runtime(pool(1, limit), folder.path()), 2);
        register(&ctx, "t", &batch(vec![("x", Arc::clone(&case.values))]), 2, 8192);
        let sql = "EXPLAIN ANALYZE SELECT exact_quantiles(x, 0.5) FROM t";
        let plan = rows(&ctx, sql).await.join("\n");
        assert_eq!(plan.contains("spill_count=0,"), !spills, "{plan}");
        assert_eq!(plan.contains("spilled_bytes=0.0 B,"), !spills, "{plan}");
    }
}

#[tokio::test]
async fn without_a_disk_the_error_says_so() {
    let ctx = session_without_disk();
    let case = Case::texts("random texts", 100_000, |r| format!("{r}{r}"));
    register(&ctx, "t", &batch(vec![("x", case.values)]), 2, 8192);
    let error = query(&ctx, "SELECT exact_quantiles(x, 0.5) FROM t")
        .await
        .unwrap_err();
    let is_exhausted = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
    let message = error.to_string();
    assert!(
        is_exhausted && message.contains("spilling is off") && message.contains("bytes wanted"),
        "{message}"
    );
    // Partitions that another one's error ends are a moment behind it.
    all_is_given_back(&ctx).await;
}
