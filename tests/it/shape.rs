//! Functions of all values in order: every answer against one that is made of a sort of the group's values.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Int64Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::execution::session_state::SessionState;
use datafusion::prelude::*;
use datafusion_quantiles::expr_fn::{
    count_distinct_exact, greatest_values, histogram_equi_depth, histogram_equi_width, least_values, mad,
    mode, top_values, trimmed_mean, winsorized_mean,
};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use proptest::prelude::*;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) data_type: DataType,
    pub(crate) pattern: Pattern,
    pub(crate) len: usize,
    pub(crate) groups: i64,
    pub(crate) partitions: usize,
    pub(crate) batch: usize,
    pub(crate) seed: u64,
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(types()),
        proptest::sample::select(patterns::ALL.to_vec()),
    );
    let how = (
        prop_oneof![0..40_usize, 500..2500_usize],
        prop_oneof![1..4_i64, Just(700_i64)],
        1..5_usize,
        50..9000_usize,
    );
    (what, how, any::<u64>()).prop_map(|((data_type, pattern), (len, groups, partitions, batch), seed)| {
        Case {
            data_type,
            pattern,
            len,
            groups,
            partitions,
            batch,
            seed,
        }
    })
}

/// Distinct values of sorted ones, with their numbers.
pub(crate) fn runs<T: PartialEq + Copy>(sorted: &[T]) -> Vec<(T, usize)> {
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len())).collect()
}

/// The most frequent values, and how often they are there.
pub(crate) fn frequent(sorted: &[usize]) -> Vec<(usize, usize)> {
    let mut runs = runs(sorted);
    runs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    runs
}

/// The bins of about as many values each.
pub(crate) fn bins(sorted: &[usize], bins: usize) -> Vec<(usize, usize, usize)> {
    let n = sorted.len();
    let mut edges: Vec<usize> = (1..=bins)
        .map(|bin| sorted[(bin * n).div_ceil(bins) - 1])
        .collect();
    edges.dedup();
    let at_or_below = |edge: usize| sorted.iter().filter(|value| **value <= edge).count();
    let lows = [sorted[0]].into_iter().chain(edges.iter().copied());
    let mut before = 0;
    lows.zip(&edges)
        .map(|(low, high)| {
            let through = at_or_below(*high);
            let bin = (low, *high, through - before);
            before = through;
            bin
        })
        .collect()
}

/// The answers of [`ANY`] over values that are told by their place in an order; `shown` prints one.
fn expected_of_any(sorted: &[usize], shown: &dyn Fn(usize) -> String) -> Vec<String> {
    let list = |items: Vec<String>| match items.is_empty() {
        true => "NULL".to_owned(),
        false => format!("[{}]", items.join(", ")),
    };
    if sorted.is_empty() {
        let mut none = vec!["NULL".to_owned(); ANY.len() - 1];
        none.push("0".to_owned());
        return none;
    }
    let mut distinct = sorted.to_vec();
    distinct.dedup();
    let frequent = frequent(sorted);
    let counted = |(value, count): &(usize, usize)| format!("{{value: {}, count: {count}}}", shown(*value));
    let bin = |(low, high, count): (usize, usize, usize)| {
        format!("{{low: {}, high: {}, count: {count}}}", shown(low), shown(high))
    };
    vec![
        shown(frequent[0].0),
        list(frequent.iter().take(3).map(counted).collect()),
        list(frequent.iter().take(2).map(|(value, _)| shown(*value)).collect()),
        list(sorted.iter().rev().take(4).map(|value| shown(*value)).collect()),
        list(sorted.iter().take(2).map(|value| shown(*value)).collect()),
        list(distinct.iter().rev().take(2).map(|value| shown(*value)).collect()),
        list(bins(sorted, 5).into_iter().map(bin).collect()),
        list(bins(&distinct, 3).into_iter().map(bin).collect()),
        list(
            bins(sorted, 65536.min(sorted.len() * 3))
                .into_iter()
                .map(bin)
                .collect(),
        ),
        distinct.len().to_string(),
    ]
}

/// What is asked of values of any type with an order.
const ANY: [&str; 10] = [
    "mode(x)",
    "top_values(x, 3)",
    "approx_top_k(x, 2)",
    "max(x, 4)",
    "min(x, 2)",
    "max(DISTINCT x, 2)",
    "histogram(x, 5)",
    "histogram(DISTINCT x, 3, 'equi-depth')",
    "histogram(x, 65536)",
    "count_distinct_exact(x)",
];

/// The rows of each group in a table of `len` rows; all rows where there are no groups.
pub(crate) fn members(len: usize, groups: Option<i64>) -> Vec<Vec<usize>> {
    let count = groups.map_or(1, |groups| (groups as usize).min(len));
    let rows = |group: usize| (0..len).filter(move |row| groups.is_none() || row % count == group);
    (0..count).map(|group| rows(group).collect()).collect()
}

fn table(case: &Case, x: &ArrayRef) -> datafusion::arrow::array::RecordBatch {
    let groups = Int64Array::from_iter_values((0..case.len as i64).map(|i| i % case.groups));
    batch(vec![("g", Arc::new(groups) as ArrayRef), ("x", Arc::clone(x))])
}

/// The sessions in which every answer must be the same.
pub(crate) fn sessions(case: &Case, x: &ArrayRef) -> Vec<(&'static str, SessionContext)> {
    let twice = session(case.partitions);
    let set = |state: &mut SessionState| {
        state
            .config_mut()
            .options_mut()
            .set("quantiles.read_again", "always")
    };
    set(&mut twice.state_ref().write()).unwrap();
    let sessions = vec![
        ("operators", session(case.partitions)),
        ("two reads", twice),
        ("one partition", session(1)),
        ("aggregates", ordinary()),
        ("stages", staged_session(case.partitions)),
    ];
    for (_, ctx) in &sessions {
        register(ctx, "t", &table(case, x), case.partitions, case.batch);
    }
    sessions
}

async fn check_any(case: &Case) {
    let x = values(&case.data_type, case.pattern, case.len, case.seed, true);
    let spec = KeySpec::try_new(&case.data_type).unwrap();
    let mut keys = spec.keys(&x).unwrap().into_iter();
    let of_rows: Vec<Option<KeyBits>> = (0..x.len())
        .map(|row| x.is_valid(row).then(|| keys.next().unwrap()))
        .collect();
    let mut all: Vec<KeyBits> = of_rows.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let shown = spec.to_array(&all).unwrap();
    let shown = |place: usize| array_value_to_string(&shown, place).unwrap();
    let ctxs = sessions(case, &x);
    for groups in [None, Some(case.groups)] {
        let expected: Vec<String> = members(case.len, groups)
            .iter()
            .map(|rows| {
                let keys = rows.iter().filter_map(|row| of_rows[*row]);
                let mut places: Vec<usize> = keys.map(|key| all.binary_search(&key).unwrap()).collect();
                places.sort_unstable();
                expected_of_any(&places, &shown).join(" | ")
            })
            .collect();
        let by = if groups.is_some() {
            "GROUP BY g ORDER BY g"
        } else {
            ""
        };
        let sql = format!("SELECT {} FROM t {by}", ANY.join(", "));
        for (name, ctx) in &ctxs {
            assert_same(&rows(ctx, &sql).await, &expected, &format!("{name} {case:?}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn frequencies_ends_and_bins_are_those_of_a_sort(case in case()) {
        tokio::runtime::Runtime::new().unwrap().block_on(check_any(&case));
    }
}

/// Types without keys: order and display are Arrow's.
#[tokio::test]
async fn values_of_any_width_are_counted_too() {
    for (at, kind) in kinds::KINDS.into_iter().enumerate() {
        let case = Case {
            data_type: DataType::Utf8,
            pattern: [Pattern::Zipf, Pattern::FewDistinct, Pattern::Random][at % 3],
            len: 900,
            groups: 7,
            partitions: 3,
            batch: 100,
            seed: at as u64,
        };
        let x = kinds::values(
            kind,
            kinds::TEXTS[at % 3],
            &case.pattern.words(case.len, case.seed),
        );
        let plain = kinds::plain(kind, &x);
        let sorted = kinds::sorted(&plain, (0..case.len as u32).collect());
        let ordered = take(
            &plain,
            &datafusion::arrow::array::UInt32Array::from(sorted.clone()),
            None,
        )
        .unwrap();
        let texts: Vec<String> = (0..ordered.len())
            .map(|place| array_value_to_string(&ordered, place).unwrap())
            .collect();
        // Equal texts are equal values in these columns. The place of a value is that of the first one like it.
        let mut place_of = vec![None; case.len];
        let mut first = 0;
        for (place, row) in sorted.iter().enumerate() {
            if texts[place] != texts[first] {
                first = place;
            }
            place_of[*row as usize] = Some(first);
        }
        for (name, ctx) in sessions(&case, &x) {
            for groups in [None, Some(case.groups)] {
                let expected: Vec<String> = members(case.len, groups)
                    .iter()
                    .map(|rows| {
                        let mut places: Vec<usize> = rows.iter().filter_map(|row| place_of[*row]).collect();
                        places.sort_unstable();
                        expected_of_any(&places, &|place| texts[place].clone()).join(" | ")
                    })
                    .collect();
                let by = if groups.is_some() {
                    "GROUP BY g ORDER BY g"
                } else {
                    ""
                };
                let sql = format!("SELECT {} FROM t {by}", ANY.join(", "));
                assert_same(&rows(&ctx, &sql).await, &expected, &format!("{name} {kind:?}"));
            }
        }
    }
}

/// Bins of one width: edges at even distances, and the values between them.
#[tokio::test]
async fn bins_of_one_width_count_what_lies_between_their_edges() {
    for (at, data_type) in types().into_iter().enumerate() {
        if matches!(data_type, DataType::Boolean) {
            continue;
        }
        let case = Case {
            data_type: data_type.clone(),
            pattern: [Pattern::Zipf, Pattern::Clusters, Pattern::Random][at % 3],
            len: 1000,
            groups: 11,
            partitions: 2,
            batch: 90,
            seed: at as u64,
        };
        let x = values(&data_type, case.pattern, case.len, case.seed, true);
        let mut lists: Vec<String> = Vec::new();
        for (name, ctx) in sessions(&case, &x) {
            let sql = "SELECT arrow_cast(unnest(h)['low'], 'Float64') AS low, arrow_cast(unnest(h)['high'], 'Float64') AS high, \
                       unnest(h)['count'] AS n FROM (SELECT histogram(x, 7, 'equi-width') AS h FROM t \
                       WHERE arrow_cast(x, 'Float64') - arrow_cast(x, 'Float64') = 0)";
            let times = "SELECT h FROM (SELECT histogram(x, 7, 'equi-width') AS h FROM t)";
            let is_number = data_type.is_numeric();
            let found = rows(&ctx, if is_number { sql } else { times }).await;
            assert!(!found.is_empty(), "{name} {data_type}");
            lists.push(found.join("; "));
            if !is_number {
                continue;
            }
            let counts = "SELECT count(*) FROM t WHERE arrow_cast(x, 'Float64') - arrow_cast(x, 'Float64') = 0 AND arrow_cast(x, 'Float64')";
            for (bin, line) in found.iter().enumerate() {
                let parts: Vec<f64> = line.split(" | ").map(|part| part.parse().unwrap()).collect();
                let above = if bin == 0 { ">=" } else { ">" };
                let below = format!(
                    "{counts} {above} {:e} AND arrow_cast(x, 'Float64') <= {:e}",
                    parts[0], parts[1]
                );
                // Float64 holds the values and edges of narrow types exactly.
                if !matches!(data_type.primitive_width(), Some(8 | 16)) || data_type == DataType::Float64 {
                    assert_eq!(
                        row(&ctx, &below).await,
                        format!("{}", parts[2]),
                        "{name} {data_type} {line}"
                    );
                }
            }
            let total: f64 = found
                .iter()
                .map(|line| line.rsplit(" | ").next().unwrap().parse::<f64>().unwrap())
                .sum();
            let finite =
                "SELECT count(*) FROM t WHERE arrow_cast(x, 'Float64') - arrow_cast(x, 'Float64') = 0";
            assert_eq!(row(&ctx, finite).await, format!("{total}"), "{name} {data_type}");
        }
        assert!(
            lists.windows(2).all(|pair| pair[0] == pair[1]),
            "{data_type}: {lists:?}"
        );
    }
}

/// Functions of programs are those of SQL.
#[tokio::test]
async fn calls_of_programs_are_those_of_statements() {
    let ctx = session(2);
    let sql = "SELECT mode(x), top_values(x, 2), mad(x), trimmed_mean(x, 0.25), winsorized_mean(x, 0.25), histogram(x, 3), \
               histogram(x, 3, 'equi-width'), max(x, 2), min(x, 2), count_distinct_exact(x) FROM (VALUES (1), (2), (2), (9)) AS t(x)";
    let calls = vec![
        mode(col("x")),
        top_values(col("x"), 2),
        mad(col("x")),
        trimmed_mean(col("x"), 0.25),
        winsorized_mean(col("x"), 0.25),
        histogram_equi_depth(col("x"), 3),
        histogram_equi_width(col("x"), 3),
        greatest_values(col("x"), 2),
        least_values(col("x"), 2),
        count_distinct_exact(col("x")),
    ];
    let calls = calls.into_iter().enumerate();
    let calls = calls.map(|(at, call)| call.alias(format!("c{at}"))).collect();
    let table = ctx
        .sql("SELECT * FROM (VALUES (1), (2), (2), (9)) AS t(x)")
        .await
        .unwrap();
    let found = table.aggregate(vec![], calls).unwrap().collect().await.unwrap();
    assert_eq!(texts(&found), [row(&ctx, sql).await]);
    assert_eq!(
        row(&ctx, sql).await,
        "2 | [{value: 2, count: 2}, {value: 1, count: 1}] | 0.5 | 2.0 | 2.0 | \
         [{low: 1, high: 2, count: 3}, {low: 2, high: 9, count: 1}] | \
         [{low: 1.0, high: 3.6666666666666665, count: 3}, {low: 3.6666666666666665, high: 6.333333333333333, count: 0}, \
         {low: 6.333333333333333, high: 9.0, count: 1}] | [9, 2] | [1, 2] | 3"
    );
}

/// Rows of groups go to disk; without groups, an error names the bytes; nothing stays behind.
#[tokio::test]
async fn memory_is_reserved() {
    let n = 1_000_000_i64;
    let sum = "SELECT sum(m), sum(d), sum(t), sum(h) FROM (SELECT mode(x) AS m, mad(x) AS d, trimmed_mean(x, 0.25) AS t, \
               array_length(histogram(x, 4)) AS h FROM t GROUP BY g)";
    let all = "SELECT mad(x) FROM t";
    let few = "SELECT sum(m) FROM (SELECT mad(x) AS m FROM t GROUP BY g % 10)";
    let (mut answers, mut few_answers) = (Vec::new(), Vec::new());
    for (ctx, megabytes) in [
        (session(2), None),
        (limited(16, 2), Some(16)),
        (limited(4, 2), Some(4)),
    ] {
        let x = Int64Array::from_iter_values((0..n).map(|i| i * 7919 % 1_000_003));
        let g = Int64Array::from_iter_values((0..n).map(|i| i * 31 % 100_000));
        register(
            &ctx,
            "t",
            &batch(vec![("g", Arc::new(g) as ArrayRef), ("x", Arc::new(x))]),
            2,
            8192,
        );
        if megabytes != Some(4) {
            answers.push(row(&ctx, sum).await);
        }
        for sql in [few, all] {
            match query(&ctx, sql).await {
                Ok(batches) if sql == few => few_answers.push(texts(&batches)),
                Ok(_) => assert!(megabytes != Some(4), "{sql}"),
                Err(error) => {
                    assert!(megabytes.is_some(), "{sql}: {error}");
                    let root = error.find_root();
                    assert!(
                        matches!(root, datafusion::common::DataFusionError::ResourcesExhausted(_)),
                        "{sql}: {root}"
                    );
                }
            }
        }
        // Distinct values go to disk, where there are no groups.
        assert_eq!(
            row(&ctx, "SELECT count_distinct_exact(x) FROM t").await,
            "1000000"
        );
        // Values that repeat need no memory of their own.
        assert_eq!(row(&ctx, "SELECT mode(x % 1000 = 0) FROM t").await, "false");
        all_is_given_back(&ctx).await;
    }
    assert_eq!(answers[0], answers[1]);
    assert!(
        few_answers.iter().all(|answer| *answer == few_answers[0]),
        "{few_answers:?}"
    );
}

#[tokio::test]
async fn grouped_calls_run_where_rows_are_brought_together() {
    let ctx = session(2);
    let sql = "SELECT x % 2, mode(x), top_values(x, 3) FROM (VALUES (1), (2)) AS t(x) GROUP BY 1";
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains("GroupedQuantilesExec"), "{plan}");
    let sql =
        "SELECT count_distinct_exact(x), exact_quantiles(DISTINCT x, 0.5) FROM (VALUES (1), (2)) AS t(x)";
    let plan = physical_plan(&ctx, sql).await;
    let calls = "calls=[count_distinct_exact(x@0), exact_quantiles(DISTINCT x@0";
    assert!(plan.contains(calls), "{plan}");
    let error = error(
        &ctx,
        "SELECT top_values(x, 3) WITHIN GROUP (ORDER BY x) FROM (VALUES (1)) AS t(x)",
    )
    .await;
    assert!(error.contains("WITHIN GROUP"), "{error}");
}

/// A statement that is prepared is optimized twice. What each time is found to be common, casts of values and weights here, has a name of its own.
#[tokio::test]
async fn prepared_statements_do_not_take_weights_for_values() {
    let ctx = session(2);
    let table = "CREATE TABLE coded AS SELECT 2 AS k, arrow_cast(y, 'Dictionary(Int32, Int64)') AS y FROM (VALUES (7), (-9)) AS t(y)";
    query(&ctx, table).await.unwrap();
    for call in [
        "iqr(y, 'linear', k + 2)",
        "exact_quantiles(y, 0.75, 'linear', k + 2) - exact_quantiles(y, 0.25, 'linear', k + 2)",
    ] {
        let sql = format!("SELECT {call} FROM coded");
        query(&ctx, &format!("PREPARE p AS {sql}")).await.unwrap();
        for sql in [sql.as_str(), "EXECUTE p"] {
            assert_eq!(texts(&query(&ctx, sql).await.unwrap()), ["16.0"], "{call}: {sql}");
        }
        query(&ctx, "DEALLOCATE p").await.unwrap();
    }
}
