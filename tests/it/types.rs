//! Types without a fixed-width key against a naive sort: patterns, shapes of queries, partitions.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, UInt32Array, make_comparator,
};
use datafusion::arrow::compute::{SortOptions, filter, take};
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::Method;
use datafusion_quantiles::compute::quantiles;
use proptest::prelude::*;

use quantiles_testing::kinds::{KINDS, Kind, TEXTS, Text, plain, sorted, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::{all_is_given_back, cases, list_at, query, register, row, session};

const PER_MILLE: [usize; 7] = [500, 0, 1000, 250, 10, 990, 333];

fn sql_list() -> String {
    let list = PER_MILLE.map(|q| (q as f64 / 1000.0).to_string());
    format!("[{}]", list.join(", "))
}

/// What `disc` answers over sorted rows; `None` without any.
fn expected(values: &ArrayRef, sorted: &[u32], descending: bool) -> Option<ArrayRef> {
    let n = sorted.len();
    let at = PER_MILLE.map(|q| (q * n).div_ceil(1000).max(1));
    let at = at.map(|rank| {
        if descending {
            n.checked_sub(rank)
        } else {
            Some(rank - 1)
        }
    });
    let rows: Vec<u32> = at
        .iter()
        .map(|at| sorted.get((*at)?).copied())
        .collect::<Option<_>>()?;
    Some(take(values, &UInt32Array::from(rows), None).unwrap())
}

#[derive(Debug, Clone)]
struct Case {
    kind: Kind,
    text: Text,
    pattern: Pattern,
    descending: bool,
    len: usize,
    partitions: usize,
    batch: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(KINDS.to_vec()),
        proptest::sample::select(TEXTS.to_vec()),
        proptest::sample::select(patterns::ALL.to_vec()),
    );
    let how = (
        prop_oneof![1..40_usize, 300..2000_usize, Just(20_000_usize)],
        1..5_usize,
        20..9000_usize,
    );
    (what, how, any::<bool>(), any::<u64>()).prop_map(
        |((kind, text, pattern), (len, partitions, batch), descending, seed)| Case {
            kind,
            text,
            pattern,
            descending,
            len,
            partitions,
            batch,
            seed,
        },
    )
}

async fn check(case: &Case) {
    let words = case.pattern.words(case.len, case.seed);
    let values = values(case.kind, case.text, &words);
    let plain = plain(case.kind, &values);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..case.len as i64));
    let ctx = session(case.partitions);
    let columns = [("x", values.clone(), true), ("id", ids, true)];
    let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    register(&ctx, "t", &rows, case.partitions, case.batch);
    let direction = if case.descending { "DESC" } else { "ASC" };
    let call = |distinct: &str| {
        format!(
            "exact_quantiles({distinct}{}) WITHIN GROUP (ORDER BY x {direction})",
            sql_list()
        )
    };
    let all: Vec<u32> = (0..case.len as u32).collect();
    let thirds = |third: u32| {
        all.iter()
            .copied()
            .filter(|row| row % 3 == third)
            .collect::<Vec<_>>()
    };
    let expect = |rows: Vec<u32>| expected(&plain, &sorted(&plain, rows), case.descending);

    let session = &ctx;
    let one = |sql: String| async move {
        let batches = query(session, &sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error} {case:?}"));
        list_at(&batches, 0)
    };
    let whole = one(format!("SELECT {} FROM t", call(""))).await;
    same(&whole, &expect(all.clone()), "ungrouped", case);
    let filtered = one(format!("SELECT {} FILTER (WHERE id % 3 = 1) FROM t", call(""))).await;
    same(&filtered, &expect(thirds(1)), "filtered", case);

    let mut distinct = sorted(&plain, all.clone());
    let compare = make_comparator(&plain, &plain, SortOptions::default()).unwrap();
    distinct.dedup_by(|a, b| compare(*a as usize, *b as usize).is_eq());
    let found = one(format!("SELECT {} FROM t", call("DISTINCT "))).await;
    same(
        &found,
        &expected(&plain, &distinct, case.descending),
        "distinct",
        case,
    );

    // With and without a call that has keys beside it.
    let beside = ["", "exact_quantiles(id, 0.5), "][case.partitions % 2];
    let sql = format!(
        "SELECT id % 3 AS g, {beside}{} FROM t GROUP BY g ORDER BY g",
        call("")
    );
    let grouped = query(&ctx, &sql).await.unwrap();
    let groups: usize = grouped.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(groups, case.len.min(3));
    for group in 0..groups {
        same(
            &list_at(&grouped, group),
            &expect(thirds(group as u32)),
            "grouped",
            case,
        );
    }
    if !case.descending {
        window(&ctx, case, &expect).await;
        let list = PER_MILLE.map(|q| q as f64 / 1000.0);
        let alone = quantiles(&values, &list, Method::Disc).unwrap();
        same(
            &Some(alone).filter(|found| found.null_count() == 0),
            &whole,
            "without a session",
            case,
        );
    }
}

async fn window(ctx: &SessionContext, case: &Case, expect: &impl Fn(Vec<u32>) -> Option<ArrayRef>) {
    let sql = format!(
        "SELECT exact_quantiles(x, {}) OVER (PARTITION BY id % 3) AS q, id FROM t ORDER BY id LIMIT 3",
        sql_list()
    );
    let found = query(ctx, &format!("SELECT id, q FROM ({sql}) ORDER BY id"))
        .await
        .unwrap();
    for third in 0..case.len.min(3) {
        let rows = (0..case.len as u32)
            .filter(|row| row % 3 == third as u32)
            .collect();
        same(&list_at(&found, third), &expect(rows), "window", case);
    }
    let sql = format!(
        "SELECT exact_quantiles(x, {}) OVER (ORDER BY id) AS q, id FROM t WHERE id < 50",
        sql_list()
    );
    let found = query(ctx, &format!("SELECT id, q FROM ({sql}) ORDER BY id"))
        .await
        .unwrap();
    for last in [0, 1, 7, 49].into_iter().filter(|last| *last < case.len) {
        same(
            &list_at(&found, last),
            &expect((0..=last as u32).collect()),
            "growing window",
            case,
        );
    }
}

fn same(found: &Option<ArrayRef>, expected: &Option<ArrayRef>, shape: &str, case: &Case) {
    assert_eq!(
        found.as_ref().map(|array| array.to_data()),
        expected.as_ref().map(|array| array.to_data()),
        "{shape} {case:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn values_of_any_width_agree_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check(&case));
    }
}

#[tokio::test]
async fn every_kind_once() {
    for kind in KINDS {
        check(&Case {
            kind,
            text: Text::Prefixed,
            pattern: Pattern::Runs,
            descending: false,
            len: 700,
            partitions: 2,
            batch: 128,
            seed: 7,
        })
        .await;
    }
}

#[tokio::test]
async fn decimals_of_256_bits_are_interpolated_as_those_of_128() {
    let ctx = session(2);
    let words = Pattern::Random.words(1000, 3);
    let narrow = Int64Array::from_iter_values(words.iter().map(|word| word >> 4));
    let rows = RecordBatch::try_from_iter([("x", Arc::new(narrow) as ArrayRef)]).unwrap();
    register(&ctx, "t", &rows, 2, 100);
    for method in ["linear", "midpoint"] {
        let answers = |bits: u32, precision: u32| {
            format!(
                "exact_quantiles(arrow_cast(arrow_cast(x, 'Decimal128(38, 3)'), 'Decimal{bits}({precision}, 3)'), {}, \
                 '{method}')",
                sql_list()
            )
        };
        let (wide, narrow) = (answers(256, 70), answers(128, 38));
        for group in ["", " GROUP BY x IS NOT DISTINCT FROM x"] {
            let wide = row(&ctx, &format!("SELECT {wide} FROM t{group}")).await;
            assert_eq!(wide, row(&ctx, &format!("SELECT {narrow} FROM t{group}")).await);
        }
    }
}

#[tokio::test]
async fn explain_analyze_says_what_levels_did() {
    let ctx = session(2);
    let texts = (0..50_000).map(|i| format!("a prefix and {} and more text {i}", i % 3));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    register(
        &ctx,
        "t",
        &RecordBatch::try_from_iter([("x", texts)]).unwrap(),
        2,
        8192,
    );
    let plan = query(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(x, 0.5) FROM t")
        .await
        .unwrap();
    let plan = datafusion::arrow::util::pretty::pretty_format_batches(&plan)
        .unwrap()
        .to_string();
    assert!(
        plan.contains("levels=2") && plan.contains("refined_values=1"),
        "{plan}"
    );
    assert!(
        plan.contains("values_kept=50.00 K") && plan.contains("strategy_"),
        "{plan}"
    );
}

#[tokio::test]
async fn any_memory_limit_is_exact_or_exhausted() {
    let texts = |i: u32| format!("common prefix {:08}", i.wrapping_mul(2_654_435_761) % 100_000_000);
    let array: ArrayRef = Arc::new(StringArray::from_iter_values((0..200_000).map(texts)));
    let rows = RecordBatch::try_from_iter([("x", array)]).unwrap();
    let mut sorted: Vec<String> = (0..200_000).map(texts).collect();
    sorted.sort_unstable();
    let mut answered = Vec::new();
    for limit in [1, 2, 4, 8, 16, 32, 64].map(|mib| mib << 20) {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_limit(limit, 1.0)
            .build_arc()
            .unwrap();
        let config = SessionConfig::new().with_target_partitions(2);
        let ctx = SessionContext::new_with_config_rt(config, runtime);
        datafusion_quantiles::register_all(&ctx).unwrap();
        register(&ctx, "t", &rows, 2, 8192);
        match query(&ctx, "SELECT exact_quantiles(x, [0.5]) FROM t").await {
            Ok(found) => {
                let median: ArrayRef = Arc::new(StringArray::from(vec![sorted[99_999].as_str()]));
                assert_eq!(&list_at(&found, 0).unwrap(), &median);
                answered.push(limit);
            }
            Err(error) => {
                let is_exhausted = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                assert!(is_exhausted && answered.is_empty(), "{limit}: {error}");
            }
        }
        all_is_given_back(&ctx).await;
    }
    assert!(answered.contains(&(2 << 20)), "{answered:?}");
}

#[tokio::test]
async fn filters_keep_masked_rows_away() {
    let ctx = session(1);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let keep: ArrayRef = Arc::new(datafusion::arrow::array::BooleanArray::from(vec![
        Some(true),
        None,
        Some(false),
    ]));
    let kept = filter(&texts, keep.as_boolean()).unwrap();
    assert_eq!(kept.len(), 1);
    let rows = RecordBatch::try_from_iter_with_nullable([("x", texts, true), ("k", keep, true)]).unwrap();
    register(&ctx, "t", &rows, 1, 10);
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FILTER (WHERE k) FROM t").await,
        "[a, a]"
    );
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(x || 'z', 0) FILTER (WHERE NOT k) FROM t"
        )
        .await,
        "cz"
    );
}
