//! Approximate percentiles: every answer within its bound, by a sort; and sketches as values.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt64Array};
use datafusion::arrow::compute::{concat_batches, filter, is_not_null, take};
use datafusion::arrow::datatypes::{DataType, UInt64Type};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::quantile::Quantile;
use proptest::prelude::*;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

const QUANTILES: [f64; 6] = [0.5, 0.0, 1.0, 0.07, 0.99, 0.5];

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    pattern: Pattern,
    /// Reciprocal of the error fraction.
    accuracy: u64,
    len: usize,
    groups: i64,
    partitions: usize,
    batch: usize,
    descending: bool,
    nulls: bool,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(types()),
        proptest::sample::select(patterns::ALL.to_vec()),
        proptest::sample::select(vec![1_u64, 2, 3, 10, 40, 200, 10_000]),
    );
    let how = (
        prop_oneof![1..40_usize, 500..6000_usize, Just(30_000_usize)],
        1..4_i64,
        1..5_usize,
        50..9000_usize,
    );
    (what, how, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |((data_type, pattern, accuracy), (len, groups, partitions, batch), descending, nulls, seed)| Case {
            data_type,
            pattern,
            accuracy,
            len,
            groups,
            partitions,
            batch,
            descending,
            nulls,
            seed,
        },
    )
}

/// The keys of some rows, ascending.
fn sorted_keys(values: &ArrayRef, rows: impl Iterator<Item = usize>) -> Vec<KeyBits> {
    let rows = UInt64Array::from_iter_values(rows.map(|row| row as u64));
    let values = take(values, &rows, None).unwrap();
    let values = filter(&values, &is_not_null(&values).unwrap()).unwrap();
    let mut keys = KeySpec::try_new(values.data_type())
        .unwrap()
        .keys(&values)
        .unwrap();
    keys.sort_unstable();
    keys
}

/// Checks a list of answers, with bounds where there are any, against the sorted keys.
fn check_answers(case: &Case, sorted: &[KeyBits], answers: &ArrayRef, bounds: bool, what: &str) {
    let n = sorted.len() as u64;
    let (found, ranks) = match bounds {
        true => {
            let rows = answers.as_struct();
            let rank = |at: usize| rows.column(at).as_primitive::<UInt64Type>().values().to_vec();
            (rows.column(0).clone(), Some((rank(1), rank(2), rank(3))))
        }
        false => (Arc::clone(answers), None),
    };
    let keys = KeySpec::try_new(found.data_type()).unwrap().keys(&found).unwrap();
    assert_eq!(keys.len(), QUANTILES.len(), "{what} {case:?}");
    for (at, (q, key)) in QUANTILES.iter().zip(&keys).enumerate() {
        let rank = Quantile::try_from_f64(*q).unwrap().rank(n);
        let wanted = if case.descending { n + 1 - rank } else { rank };
        // Ranks of the value, counted from 1: those of its first and of its last copy.
        let first = sorted.partition_point(|own| own < key) as u64 + 1;
        let last = sorted.partition_point(|own| own <= key) as u64;
        assert!(
            first <= last,
            "{what}: quantile {q} is no value of the column, {case:?}"
        );
        let error = n / case.accuracy;
        assert!(
            first <= wanted + error && wanted <= last + error,
            "{what}: quantile {q} has ranks {first}..={last}, {wanted} was asked for, {case:?}"
        );
        if let Some((least, most, counts)) = &ranks {
            assert_eq!(counts[at], n, "{what} {case:?}");
            assert!(
                least[at] <= most[at] && first <= most[at] && least[at] <= last,
                "{what}: quantile {q} has ranks {first}..={last}, {}..={} were promised, {case:?}",
                least[at],
                most[at]
            );
            let within = |rank: u64| rank.abs_diff(wanted) <= error;
            assert!(
                within(least[at]) && within(most[at]),
                "{what}: quantile {q} {case:?}"
            );
        }
    }
}

async fn check(case: &Case) {
    let values = values(&case.data_type, case.pattern, case.len, case.seed, case.nulls);
    let ctx = session(case.partitions);
    let groups = Int64Array::from_iter_values((0..case.len as i64).map(|i| i % case.groups));
    let rows = batch(vec![
        ("g", Arc::new(groups) as ArrayRef),
        ("x", Arc::clone(&values)),
    ]);
    register(&ctx, "t", &rows, case.partitions, case.batch);
    let desc = if case.descending { "DESC" } else { "ASC" };
    let (list, accuracy) = (format!("{QUANTILES:?}"), case.accuracy);
    let call = |name: &str| format!("{name}({list}, {accuracy}) WITHIN GROUP (ORDER BY x {desc})");
    let (plain, bounds) = (call("approx_percentile_gk"), call("approx_percentile_gk_bounds"));
    // Ungrouped; by the groups' accumulators (sets are no plain groups); by the operator.
    for (sql, grouped) in [
        (
            format!("SELECT -1 AS g, {plain} AS a, {bounds} AS b FROM t"),
            false,
        ),
        (
            format!("SELECT g, {plain} AS a, {bounds} AS b FROM t GROUP BY GROUPING SETS ((g))"),
            true,
        ),
        (
            format!("SELECT g, {plain} AS a, {bounds} AS b FROM t GROUP BY g"),
            true,
        ),
    ] {
        let found = query(&ctx, &sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        let found = concat_batches(&found[0].schema(), &found).unwrap();
        assert_eq!(
            found.num_rows(),
            if grouped {
                (case.groups as usize).min(case.len)
            } else {
                1
            }
        );
        for row in 0..found.num_rows() {
            let group = found
                .column(0)
                .as_primitive::<datafusion::arrow::datatypes::Int64Type>()
                .value(row);
            let own = (0..case.len).filter(|i| !grouped || *i as i64 % case.groups == group);
            let sorted = sorted_keys(&values, own);
            let (a, b) = (found.column(1).as_list::<i32>(), found.column(2).as_list::<i32>());
            assert_eq!(
                [a.is_null(row), b.is_null(row)],
                [sorted.is_empty(); 2],
                "{sql} {case:?}"
            );
            if !sorted.is_empty() {
                check_answers(case, &sorted, &a.value(row), false, &sql);
                check_answers(case, &sorted, &b.value(row), true, &sql);
            }
        }
    }
    if !case.descending {
        check_stored(&ctx, case, &values, &list).await;
    }
}

/// Sketches that are stored, merged, and read.
async fn check_stored(ctx: &datafusion::prelude::SessionContext, case: &Case, values: &ArrayRef, list: &str) {
    let sorted = sorted_keys(values, 0..case.len);
    let accuracy = case.accuracy;
    query(
        ctx,
        &format!("CREATE TABLE s AS SELECT g, gk_sketch(x, {accuracy}) AS s FROM t GROUP BY g"),
    )
    .await
    .unwrap();
    let sql = format!("SELECT gk_quantile(m, {list}) FROM (SELECT gk_merge(s) AS m FROM s)");
    let found = query(ctx, &sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error} {case:?}"));
    let found = found[0].column(0).as_list::<i32>().clone();
    assert_eq!(found.is_null(0), sorted.is_empty(), "{case:?}");
    if !sorted.is_empty() {
        assert_eq!(found.value(0).data_type(), &case.data_type, "{case:?}");
        check_answers(case, &sorted, &found.value(0), false, &sql);
    }
    // Bounds of ranks hold for every value.
    let sql = "SELECT r['rank_min'] AS least, r['rank_max'] AS most, r['n'] AS n, x FROM \
               (SELECT gk_rank(m, x) AS r, x FROM t CROSS JOIN (SELECT gk_merge(s) AS m FROM s) WHERE x IS NOT NULL LIMIT 50)";
    let found = query(ctx, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error} {case:?}"));
    for batch in found.iter().filter(|batch| batch.num_rows() > 0) {
        let column = |at: usize| batch.column(at).as_primitive::<UInt64Type>().values().to_vec();
        let (least, most, counts) = (column(0), column(1), column(2));
        let keys = KeySpec::try_new(&case.data_type)
            .unwrap()
            .keys(batch.column(3))
            .unwrap();
        for (row, key) in keys.iter().enumerate() {
            let own = sorted.partition_point(|other| other <= key) as u64;
            assert!(
                least[row] <= own && own <= most[row],
                "{}..={}, {own} {case:?}",
                least[row],
                most[row]
            );
            assert!(
                most[row] - least[row] <= 2 * sorted.len() as u64 / case.accuracy,
                "{case:?}"
            );
            assert_eq!(counts[row], sorted.len() as u64);
        }
    }
}

/// A sample's nearest splitters: values of the column, with the ranks that they are said to have; exact for few values.
async fn check_sample(case: &Case, buckets: u64) {
    let values = values(&case.data_type, case.pattern, case.len, case.seed, case.nulls);
    let ctx = session(case.partitions);
    register(
        &ctx,
        "t",
        &batch(vec![("x", Arc::clone(&values))]),
        case.partitions,
        case.batch,
    );
    let desc = if case.descending { "DESC" } else { "ASC" };
    let call = |name: &str| format!("{name}({QUANTILES:?}, {buckets}) WITHIN GROUP (ORDER BY x {desc})");
    let names = ["approx_percentile_sample", "approx_percentile_sample_bounds"];
    let sql = format!("SELECT {}, {} FROM t", call(names[0]), call(names[1]));
    let found = query(&ctx, &sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let (a, b) = (
        found[0].column(0).as_list::<i32>(),
        found[0].column(1).as_list::<i32>(),
    );
    let sorted = sorted_keys(&values, 0..case.len);
    assert_eq!(
        [a.is_null(0), b.is_null(0)],
        [sorted.is_empty(); 2],
        "{sql} {case:?}"
    );
    if sorted.is_empty() {
        return;
    }
    let (a, b) = (a.value(0), b.value(0));
    let bounds = b.as_struct();
    assert_eq!(&a, bounds.column(0), "{sql} {case:?}");
    let keys = KeySpec::try_new(a.data_type()).unwrap().keys(&a).unwrap();
    let ranks = |at: usize| bounds.column(at).as_primitive::<UInt64Type>();
    let n = sorted.len() as u64;
    for (at, (q, key)) in QUANTILES.iter().zip(keys).enumerate() {
        let rank = Quantile::try_from_f64(*q).unwrap().rank(n);
        let wanted = if case.descending { n + 1 - rank } else { rank };
        let (least, most) = (ranks(1).value(at), ranks(2).value(at));
        let what = format!("{sql}: quantile {q} has ranks {least}..={most}, {case:?}");
        assert!(least <= most && ranks(3).value(at) == n, "{what}");
        assert_eq!(
            [sorted[least as usize - 1], sorted[most as usize - 1]],
            [key; 2],
            "{what}"
        );
        if n <= 32 * buckets {
            assert_eq!(key, sorted[wanted as usize - 1], "{what}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn answers_are_within_their_bounds(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check(&case));
    }

    #[test]
    fn splitters_of_a_sample_have_the_ranks_that_they_say(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check_sample(&case, case.accuracy.max(2)));
    }
}

#[tokio::test]
async fn what_runs_is_what_the_plan_says() {
    let ctx = session(2);
    query(&ctx, "CREATE TABLE t AS SELECT value AS x, value % 7 AS g, CAST(value AS TEXT) AS s FROM generate_series(1, 5000)")
        .await
        .unwrap();
    for (sql, operator) in [
        (
            "SELECT approx_percentile_gk(x, 0.5) FROM t",
            "AggregateExec: mode=Final",
        ),
        (
            "SELECT approx_percentile_gk(x, 0.5), exact_quantiles(x, 0.5) FROM t",
            "QuantilesExec",
        ),
        (
            "SELECT g, approx_percentile_gk(x, 0.5) FROM t GROUP BY g",
            "GroupedQuantilesExec",
        ),
        (
            "SELECT approx_percentile_gk(DISTINCT x, 0.5) FROM t",
            "QuantilesExec",
        ),
        ("SELECT approx_percentile_gk(s, 0.5) FROM t", "QuantilesExec"),
        (
            "SELECT approx_percentile_sample(x, 0.5, 64), sum(x) FROM t",
            "QuantilesExec: strategy=auto, columns=[x@0], calls=[approx_percentile_sample(x@0, 0.5, 64 buckets)], \
             plain=[sum(t.x)]",
        ),
        (
            "SELECT approx_percentile_sample_bounds(x, 0.5) FILTER (WHERE g > 2) FROM t",
            "calls=[approx_percentile_sample_bounds(x@0, 0.5, 1024 buckets) FILTER",
        ),
        (
            "SELECT g, approx_percentile_sample(x, 0.5) FROM t GROUP BY g",
            "calls=[exact_quantiles(x@0, 0.5, disc)]",
        ),
        (
            "SELECT approx_percentile_sample(s, 0.5) FROM t",
            "calls=[exact_quantiles(s@0, 0.5, disc)]",
        ),
        (
            "SELECT g, approx_percentile_gk_bounds(x, 0.5) FROM t GROUP BY g",
            "AggregateExec: mode=Final",
        ),
        (
            "SELECT approx_percentile_gk(x, 0.5) OVER (ORDER BY x ROWS 3 PRECEDING) FROM t",
            "MovingQuantilesExec",
        ),
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(plan.contains(operator), "{sql}\n{plan}");
    }
    // Partial and final states are binary.
    let plan = physical_plan(&ctx, "SELECT approx_percentile_gk(x, 0.5) FROM t").await;
    assert!(
        plan.contains("approx_percentile_gk") && !plan.contains("exact"),
        "{plan}"
    );
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let ctx = session(2);
    query(
        &ctx,
        "CREATE TABLE t AS SELECT value AS x, CAST(value AS TEXT) AS s FROM generate_series(1, 50)",
    )
    .await
    .unwrap();
    for (call, expected) in [
        (
            "approx_percentile_gk(x, 0.5, 0)",
            "approx_percentile_gk: accuracy is 0: allowed is an error fraction in (0, 1)",
        ),
        (
            "approx_percentile_gk(x, 0.5, -3)",
            "approx_percentile_gk: accuracy is -3: allowed",
        ),
        (
            "approx_percentile_gk(x, 0.5, CAST('NaN' AS DOUBLE))",
            "approx_percentile_gk: accuracy is NaN: allowed",
        ),
        (
            "percentile_approx(x, 0.5, x)",
            "percentile_approx: accuracy must be a constant number",
        ),
        (
            "approx_percentile_gk(x, 0.5, 'high')",
            "accuracy must be a constant number",
        ),
        (
            "approx_percentile_gk(x, 0.5, NULL)",
            "accuracy must be a constant number",
        ),
        ("approx_percentile_gk(x, 1.5)", "quantile 1.5 is out of range"),
        (
            "approx_percentile_gk(x, x)",
            "approx_percentile_gk: quantiles must be a constant",
        ),
        (
            "approx_percentile_gk(x)",
            "approx_percentile_gk takes 2 or 3 arguments, got 1",
        ),
        (
            "approx_percentile_sample(x, 0.5, 1)",
            "approx_percentile_sample: the number of buckets is 1: allowed is a whole number from 2 to 16384",
        ),
        (
            "approx_percentile_sample(x, 0.5, 2.5)",
            "the number of buckets is 2.5: allowed is a whole number from 2 to 16384",
        ),
        (
            "approx_percentile_sample_bounds(x, 0.5, 16385)",
            "approx_percentile_sample_bounds: the number of buckets is 16385",
        ),
        (
            "approx_percentile_sample(x, 0.5, x)",
            "approx_percentile_sample: the number of buckets must be constant",
        ),
        (
            "approx_percentile_sample(x)",
            "approx_percentile_sample takes 2 or 3 arguments, got 1: the values, a constant quantile or list of quantiles \
             from 0 to 1, and optionally the number of buckets, a whole number from 2 to 16384",
        ),
        (
            "approx_percentile_sample_bounds(s, 0.5)",
            "approx_percentile_sample_bounds takes values of fixed width",
        ),
        (
            "approx_percentile_sample_bounds(DISTINCT x, 0.5)",
            "approx_percentile_sample_bounds takes no DISTINCT",
        ),
        (
            "x, approx_percentile_sample_bounds(x, 0.5) FROM t GROUP BY x --",
            "approx_percentile_sample_bounds works without GROUP BY and OVER only",
        ),
        (
            "approx_percentile_sample_bounds(x, 0.5) OVER ()",
            "approx_percentile_sample_bounds works without GROUP BY and OVER only",
        ),
        ("gk_sketch(x, 0)", "gk_sketch: accuracy is 0"),
        ("gk_sketch(s)", "gk_sketch takes values of fixed width"),
        (
            "approx_percentile_gk_bounds(s, 0.5)",
            "approx_percentile_gk_bounds takes values of fixed width",
        ),
        (
            "approx_percentile_gk_bounds(DISTINCT x, 0.5)",
            "approx_percentile_gk_bounds takes no DISTINCT",
        ),
        (
            "gk_merge(x)",
            "gk_merge takes sketches of gk_sketch, which are Binary, got Int64",
        ),
        ("gk_quantile(gk_sketch(x), 2)", "quantile 2 is out of range"),
        (
            "gk_quantile(gk_sketch(x))",
            "gk_quantile takes 2 arguments, got 1",
        ),
        (
            "gk_quantile(arrow_cast(s, 'Binary'), 0.5)",
            "not a quantile sketch: 1 bytes that do not begin with",
        ),
        ("gk_merge(arrow_cast(s, 'Binary'))", "not a quantile sketch"),
    ] {
        let message = error(&ctx, &format!("SELECT {call} FROM t")).await;
        assert!(message.contains(expected), "{call}: {message}");
    }
    for sql in [
        "EXPLAIN SELECT approx_percentile_gk(x, 0.5, 0) FROM t",
        "SELECT approx_percentile_gk(x, 0.5, 0) FROM t WHERE false",
    ] {
        let message = error(&ctx, sql).await;
        assert!(message.contains("accuracy is 0"), "{sql}: {message}");
    }
}

/// Sparks's documentation of `percentile_approx`, and the textbook case.
#[tokio::test]
async fn published_examples() {
    let ctx = session(2);
    for (sql, expected) in [
        (
            "SELECT percentile_approx(10.0, [0.5, 0.4, 0.1], 100)",
            "[10.0, 10.0, 10.0]",
        ),
        ("SELECT percentile_approx(10.0, 0.5, 100)", "10.0"),
        (
            "SELECT percentile_approx(c, 0.5, 100) FROM (VALUES (0), (6), (7), (9), (10)) AS tab(c)",
            "7",
        ),
        (
            "SELECT percentile_approx(c, 0.5, 100) FROM (VALUES (0), (1), (2), (10)) AS tab(c)",
            "1",
        ),
        (
            "SELECT percentile_approx(c, [0.5, 0.4, 0.1], 100) FROM (VALUES (0), (1), (2), (10)) AS tab(c)",
            "[1, 1, 0]",
        ),
    ] {
        assert_eq!(row(&ctx, sql).await, expected, "{sql}");
    }
    for accuracy in [1, 2, 3, 5, 17, 100, 999, 1000, 100_000] {
        for q in [0.0, 0.001, 0.25, 0.5, 0.77, 1.0] {
            let sql =
                format!("SELECT approx_percentile_gk(value, {q}, {accuracy}) FROM generate_series(1, 1000)");
            let found: i64 = row(&ctx, &sql).await.parse().unwrap();
            let eps = 1.0 / f64::from(accuracy);
            let (least, most) = (
                ((q - eps) * 1000.0).floor() as i64,
                ((q + eps) * 1000.0).ceil() as i64,
            );
            assert!(least <= found && found <= most.max(1), "{sql}: {found}");
        }
    }
}

#[tokio::test]
async fn sketches_are_values() {
    let ctx = session(3);
    query(
        &ctx,
        "CREATE TABLE t AS SELECT value AS x, value % 30 AS day FROM generate_series(1, 30000)",
    )
    .await
    .unwrap();
    query(
        &ctx,
        "CREATE TABLE daily AS SELECT day, gk_sketch(x, 1000) AS s FROM t GROUP BY day",
    )
    .await
    .unwrap();
    let median = "SELECT abs(gk_quantile(gk_merge(s), 0.5) - 15000) <= 30 FROM daily";
    assert_eq!(row(&ctx, median).await, "true");
    assert_eq!(
        row(
            &ctx,
            "SELECT gk_rank(gk_merge(s), 30000.5)['rank_min'] FROM daily"
        )
        .await,
        "30000"
    );
    assert_eq!(
        row(&ctx, "SELECT gk_rank(gk_merge(s), 0.5)['rank_max'] FROM daily").await,
        "0"
    );
    let types =
        "SELECT arrow_typeof(gk_quantile(s, 0.5)), arrow_typeof(gk_quantile(s, [0.5])) FROM daily LIMIT 1";
    assert_eq!(row(&ctx, types).await, "Int64 | List(Int64)");
    // Nothing and NULL.
    let none =
        "SELECT gk_sketch(x), gk_quantile(gk_sketch(x), 0.5), gk_rank(gk_sketch(x), 1) FROM t WHERE x < 0";
    assert_eq!(row(&ctx, none).await, "NULL | NULL | NULL");
    // A column that does not say what its sketches hold gives Float64, or says why not.
    let plain = "SELECT gk_quantile(arrow_cast(gk_sketch(x), 'LargeBinary'), 0.5) IS NOT NULL FROM t";
    assert_eq!(row(&ctx, plain).await, "true");
    let mixed = "SELECT gk_merge(s) FROM (SELECT s FROM daily UNION ALL SELECT gk_sketch(x / 2.0) FROM t)";
    let message = error(&ctx, mixed).await;
    assert!(
        message.contains("gk_merge of sketches of two types: "),
        "{message}"
    );
}

#[test]
fn every_type_is_named_in_its_sketches() {
    for data_type in types() {
        let name = data_type.to_string();
        assert_eq!(name.parse::<DataType>().unwrap(), data_type, "{name}");
    }
}
