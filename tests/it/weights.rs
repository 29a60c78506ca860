//! Weights: every answer against that over rows which stand in the table as often as their weights say.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt32Array,
};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::prelude::*;
use datafusion_quantiles::Method;
use datafusion_quantiles::expr_fn::{exact_quantiles_weighted, iqr, percentile};

use quantiles_testing::fixed_width::{self, types};
use quantiles_testing::kinds::{self, KINDS, Kind, TEXTS};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

/// Weights from 0 to 5; every seventh is NULL.
fn weights(len: usize, seed: u64) -> ArrayRef {
    let numbers =
        pseudo_random(len, seed).map(|number| (number % 7 != 0).then_some((number >> 8) as i64 % 6));
    Arc::new(Int64Array::from_iter(numbers))
}

/// A table with the column `x`, groups `g`, an order `k` of few numbers, a condition `c`, and weights `w`.
fn table(x: ArrayRef, seed: u64) -> RecordBatch {
    let len = x.len() as i64;
    let numbers = |modulus: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(
            (0..len).map(|i| i * 7919 % 10_007 % modulus),
        ))
    };
    let w = weights(x.len(), seed);
    batch(vec![
        ("x", x),
        ("g", numbers(5)),
        ("k", numbers(23)),
        ("c", numbers(3)),
        ("w", w),
    ])
}

/// Each row as often as its weight says.
fn repeated(rows: &RecordBatch) -> RecordBatch {
    let weights = rows.column_by_name("w").unwrap().as_primitive::<Int64Type>();
    let times = |row: u32| match weights.is_valid(row as usize) {
        true => weights.value(row as usize) as usize,
        false => 0,
    };
    let rows_of = |row| std::iter::repeat_n(row, times(row));
    let indices: UInt32Array = (0..rows.num_rows() as u32).flat_map(rows_of).collect();
    let columns = rows
        .columns()
        .iter()
        .map(|column| take(column, &indices, None).unwrap());
    RecordBatch::try_new(rows.schema(), columns.collect()).unwrap()
}

/// Statements over the table `t`, of which `#` is the weight behind the other arguments.
fn statements(data_type: &DataType) -> Vec<String> {
    let between = Method::Linear.result_type(data_type).is_ok();
    let methods = Method::ALL
        .into_iter()
        .filter(|method| between || !method.interpolates());
    let calls: Vec<String> = methods
        .map(|method| {
            format!(
                "exact_quantiles(x, 0.37, '{method}'#), exact_quantiles(x, [1, 0.5, 0, 0.93], '{method}'#) FILTER (WHERE c < 2), \
                 exact_quantiles([0.1, 0.61], '{method}'#) WITHIN GROUP (ORDER BY x DESC)"
            )
        })
        .collect();
    let all = calls.join(", ");
    let framed = "exact_quantiles(x, [0.5, 0.9], 'lower'#) OVER (ORDER BY k RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING), \
                  quantile_disc(x, 0.25#) FILTER (WHERE c > 0) OVER (PARTITION BY g ORDER BY k), \
                  exact_quantiles(x, 1, 'disc'#) OVER (PARTITION BY g)";
    vec![
        format!("SELECT {all} FROM t"),
        format!("SELECT g, {all} FROM t GROUP BY g"),
        format!("SELECT k, percentile_disc(0.5#) WITHIN GROUP (ORDER BY x) FROM t WHERE c <> 1 GROUP BY k"),
        format!("SELECT g, k, w, {framed} FROM t"),
    ]
}

/// The rows of an answer that rows of some weight have, each once.
async fn rows_of(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let framed = sql.contains("OVER");
    let sql = match framed {
        true => format!("SELECT * FROM ({sql}) WHERE w > 0"),
        false => sql.to_owned(),
    };
    let answer = query(ctx, &sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut rows = sorted(texts(&answer));
    if framed {
        rows.dedup();
    }
    rows
}

/// Asks over weights and over repeated rows.
async fn check(x: ArrayRef, seed: u64, contexts: &[SessionContext]) {
    let rows = table(x, seed);
    let data_type = rows.column(0).data_type().clone();
    let (repeated, naive) = (repeated(&rows), session(2));
    register(&naive, "t", &repeated, 2, 100);
    for (at, ctx) in contexts.iter().enumerate() {
        register(ctx, "t", &rows, 1 + at, 37 + 100 * at);
        for statement in statements(&data_type) {
            let found = rows_of(ctx, &statement.replace('#', ", w")).await;
            let expected = rows_of(&naive, &statement.replace('#', "")).await;
            // A group whose rows have no weight is a group without values here, and none there.
            let missing = |row: &&String| row.contains("NULL") && !expected.contains(row);
            let found: Vec<String> = found.iter().filter(|row| !missing(row)).cloned().collect();
            assert_same(&found, &expected, &format!("{data_type} {at} {statement}"));
        }
        ctx.deregister_table("t").unwrap();
    }
}

fn contexts() -> Vec<SessionContext> {
    vec![session(3), ordinary(), staged_session(2)]
}

#[tokio::test]
async fn a_row_counts_as_often_as_its_weight_says() {
    let contexts = contexts();
    for (seed, data_type) in types().iter().enumerate() {
        let pattern = patterns::ALL[seed % patterns::ALL.len()];
        let x = fixed_width::values(data_type, pattern, 400, seed as u64, true);
        check(x, seed as u64, &contexts).await;
    }
}

#[tokio::test]
async fn texts_and_other_types_of_any_width_count_too() {
    let contexts = contexts();
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let text = TEXTS[seed % TEXTS.len()];
        let pattern = [Pattern::Random, Pattern::FewDistinct][seed % 2];
        let words = pattern.words(200, seed as u64);
        check(kinds::values(kind, text, &words), seed as u64, &contexts).await;
    }
}

#[tokio::test]
async fn long_columns_and_few_rows_have_the_answers_of_repeated_rows() {
    let contexts = contexts();
    for (len, pattern) in [
        (0, Pattern::Random),
        (1, Pattern::Random),
        (2, Pattern::Random),
        (150_000, Pattern::FewDistinct),
    ] {
        let x = fixed_width::values(&DataType::Int32, pattern, len, 3, false);
        let rows = table(x, 3);
        let naive = session(2);
        register(&naive, "t", &repeated(&rows), 2, 8192);
        for ctx in &contexts {
            register(ctx, "t", &rows, 2, 8192);
            for sql in [
                "SELECT exact_quantiles(x, [0, 0.2, 0.5, 0.999, 1], 'linear'#), iqr(x, 'linear'#), percentile(x, 0.3#) FROM t",
                "SELECT g, exact_quantiles(x, [0, 0.2, 0.5, 0.999, 1]#) FROM t GROUP BY g",
                "SELECT k, c, quantile_cont(x, 0.75#) FROM t GROUP BY k, c",
            ] {
                let weighted = sql.replace("1]#", "1], 'disc', w").replace('#', ", w");
                let found = sorted(texts(&query(ctx, &weighted).await.unwrap()));
                let expected = sorted(texts(&query(&naive, &sql.replace('#', "")).await.unwrap()));
                let missing = |row: &&String| row.contains("NULL") && !expected.contains(row);
                let found: Vec<String> = found.iter().filter(|row| !missing(row)).cloned().collect();
                assert_same(&found, &expected, &weighted);
            }
            ctx.deregister_table("t").unwrap();
        }
    }
}

/// Spark's steps over sorted values, which stand there as often as they occur.
fn spark(values: &[f64], p: f64) -> f64 {
    let position = (values.len() - 1) as f64 * p;
    let (below, above) = (position.floor(), position.ceil());
    let (low, high) = (values[below as usize], values[above as usize]);
    if below == above || low == high {
        return low;
    }
    (above - position) * low + (position - below) * high
}

#[tokio::test]
async fn percentile_has_the_bits_of_spark() {
    let ps = [0.0, 1e-9, 0.01, 0.25, 1.0 / 3.0, 0.5, 0.7, 0.9, 0.999, 1.0];
    let list = ps.map(|p| format!("{p:?}")).join(", ");
    let floats = |len: usize, seed| pseudo_random(len, seed).map(|n| (n as i64 >> 20) as f64 / 1e5);
    let columns: Vec<(ArrayRef, Vec<f64>)> = vec![
        {
            let values: Vec<f64> = floats(777, 1).collect();
            (Arc::new(Float64Array::from(values.clone())) as ArrayRef, values)
        },
        {
            let values = Float64Array::from_iter_values(floats(500, 2));
            let narrow = cast(&values, &DataType::Float32).unwrap();
            let wide = cast(&narrow, &DataType::Float64).unwrap();
            (narrow, wide.as_primitive::<Float64Type>().values().to_vec())
        },
        {
            let values: Vec<i64> = pseudo_random(600, 3).map(|n| n as i64).collect();
            let wide = values.iter().map(|v| *v as f64).collect();
            (Arc::new(Int64Array::from(values)) as ArrayRef, wide)
        },
        {
            let digits: Vec<i128> = pseudo_random(600, 4)
                .map(|n| i128::from(n as i64) * 1_000_003)
                .collect();
            let wide = digits
                .iter()
                .map(|v| format!("{v}e-10").parse().unwrap())
                .collect();
            let array = Decimal128Array::from(digits)
                .with_precision_and_scale(38, 10)
                .unwrap();
            (Arc::new(array) as ArrayRef, wide)
        },
    ];
    for (at, (x, wide)) in columns.into_iter().enumerate() {
        let ctx = session(3);
        let rows = table(x, at as u64);
        register(&ctx, "t", &rows, 3, 100);
        for (frequency, weight) in [("", None), (", w", Some(rows.column_by_name("w").unwrap()))] {
            let times = |row: usize| match weight.map(|weight| weight.as_primitive::<Int64Type>()) {
                None => 1,
                Some(weight) if weight.is_null(row) => 0,
                Some(weight) => weight.value(row) as usize,
            };
            let rows = wide.iter().enumerate();
            let mut values: Vec<f64> = rows.flat_map(|(row, value)| vec![*value; times(row)]).collect();
            values.sort_by(f64::total_cmp);
            let sql =
                format!("SELECT percentile(x, [{list}]{frequency}), percentile(x, 0.7{frequency}) FROM t");
            let answer = query(&ctx, &sql).await.unwrap();
            let found = answer[0].column(0).as_list::<i32>().value(0);
            let found: Vec<u64> = found
                .as_primitive::<Float64Type>()
                .values()
                .iter()
                .map(|v| v.to_bits())
                .collect();
            let expected: Vec<u64> = ps.iter().map(|p| spark(&values, *p).to_bits()).collect();
            assert_eq!(found, expected, "{sql} {at}");
            let one = answer[0].column(1).as_primitive::<Float64Type>().value(0);
            assert_eq!(one.to_bits(), spark(&values, 0.7).to_bits(), "{sql} {at}");
        }
    }
}

#[tokio::test]
async fn the_greatest_sum_of_weights_is_that_of_64_bits() {
    let ctx = session(2);
    let most = i64::MAX;
    let table = format!("(VALUES ('a', {most}), ('b', {most}), ('c', 1)) AS t(x, w)");
    let sql = format!("SELECT exact_quantiles(x, [0, 0.4999, 0.5, 0.9999999999, 1], 'disc', w) FROM {table}");
    assert_eq!(row(&ctx, &sql).await, "[a, a, b, b, c]");
    let methods = Method::ALL.map(|method| format!("exact_quantiles(i, [0, 0.5, 1], '{method}', w)"));
    for order in ["", " DESC"] {
        let calls = methods
            .join(", ")
            .replace("(i, ", "(")
            .replace(", w)", &format!(", w) WITHIN GROUP (ORDER BY i{order})"));
        let sql = format!("SELECT {calls} FROM (VALUES (7, {most}), (7, {most}), (7, 1)) AS t(i, w)");
        let answer = row(&ctx, &sql).await;
        for one in answer.split(" | ") {
            assert!(one == "[7, 7, 7]" || one == "[7.0, 7.0, 7.0]", "{answer}");
        }
    }
    let table = table.replace("('c', 1)", "('c', 2)");
    for sql in [
        format!("SELECT exact_quantiles(x, 0.5, 'disc', w) FROM {table}"),
        format!(
            "SELECT g, exact_quantiles(x, 0.5, 'disc', w) FROM (SELECT 1 AS g, x, w FROM {table}) GROUP BY g"
        ),
        format!("SELECT exact_quantiles(x, 0.5, 'disc', w) OVER (ORDER BY x) FROM {table}"),
        format!("SELECT percentile(w, 0.5, w) FROM {table}"),
    ] {
        let message = error(&ctx, &sql).await;
        assert!(
            message.contains("add up to more than 18446744073709551615"),
            "{sql}: {message}"
        );
    }
}

#[tokio::test]
async fn decimals_are_exact_weights_of_methods_that_know_shares_only() {
    let ctx = session(2);
    let table = "(SELECT x, CAST(w AS DECIMAL(10, 2)) AS w, CAST(CAST(w AS DECIMAL(10, 2)) * 10 AS BIGINT) AS n FROM \
                 (VALUES (1, '0.1'), (2, '0.2'), (3, '0.3'), (4, '0.4'), (5, '0'), (6, NULL)) AS t(x, w))";
    let quantiles = "[0, 0.1, 0.2, 0.3, 0.30000001, 0.6, 0.7, 1]";
    for method in ["disc", "averaged_inverted_cdf"] {
        let sql = format!(
            "SELECT exact_quantiles(x, {quantiles}, '{method}', w), exact_quantiles(x, {quantiles}, '{method}', n) FROM {table}"
        );
        let answer = row(&ctx, &sql).await;
        let (decimals, integers) = answer.split_once(" | ").unwrap();
        assert_eq!(decimals, integers, "{method}");
    }
    let sql = format!("SELECT exact_quantiles(x, 0.5, 'linear', w) FROM {table}");
    let message = error(&ctx, &sql).await;
    assert!(
        message.contains(
            "exact_quantiles: method 'linear' counts rows, so weights must be whole: allowed are integers and decimals without a \
             fraction, got Decimal128(10, 2) (other decimals are allowed for disc, averaged_inverted_cdf)"
        ),
        "{message}"
    );
    let sql = format!("SELECT exact_quantiles(x, 0.5, 'linear', CAST(n AS DECIMAL(20, 0))) FROM {table}");
    assert_eq!(row(&ctx, &sql).await, "3.0");
}

#[tokio::test]
async fn what_is_no_weight_is_refused() {
    let ctx = session(2);
    register(
        &ctx,
        "t",
        &table(
            fixed_width::values(&DataType::Int64, Pattern::Random, 100, 1, true),
            1,
        ),
        2,
        50,
    );
    let shares =
        "the sum of floating-point numbers depends on the order of the rows, and with it the answer would";
    for (call, message) in [
        ("exact_quantiles(x, 0.5, 'disc', w * 0.5::DOUBLE)", format!("exact_quantiles: weights must be integers or decimals, got Float64: {shares}")),
        ("percentile(x, 0.5, w * 0.5::FLOAT)", format!("percentile: weights must be integers or decimals, got Float32: {shares}")),
        ("quantile_disc(x, 0.5, 'many')", "quantile_disc: weights must be integers or decimals, got Utf8".to_owned()),
        ("percentile_disc(0.5, c > 1) WITHIN GROUP (ORDER BY x)", "percentile_disc: weights must be integers or decimals, got Boolean".to_owned()),
        ("exact_quantiles(x, 0.5, 'disc', CAST(c AS VARCHAR))", "exact_quantiles: the last argument is text, which is no weight".to_owned()),
        ("exact_quantiles(DISTINCT x, 0.5, 'disc', w)", "exact_quantiles takes DISTINCT or a weight, not both".to_owned()),
        ("iqr(DISTINCT x, 'linear', w)", "iqr takes DISTINCT or a weight, not both".to_owned()),
        ("percentile(x, 0.5, w, 1)", "percentile takes 2 or 3 arguments, got 4".to_owned()),
        ("percentile(x, 1.5, w)", "percentile: quantile 1.5 is out of range".to_owned()),
        ("percentile(x, c, w)", "percentile: quantiles must be a constant number or list of numbers from 0 to 1, got t.c".to_owned()),
        ("percentile('text', 0.5)", "percentile takes integers, floating-point numbers and decimals of up to 38 digits, got values of type Utf8".to_owned()),
        ("percentile(x, 0.5, CAST(w AS DECIMAL(10, 1)))", "percentile: method 'percentile' counts rows, so weights must be whole".to_owned()),
        ("exact_quantiles(x, 0.5, 'disc', c - 1)", "a weight must not be negative, got -1".to_owned()),
    ] {
        for sql in [format!("SELECT {call} FROM t"), format!("SELECT g, {call} FROM t GROUP BY g")] {
            let found = error(&ctx, &sql).await;
            assert!(found.contains(&message), "{sql}: {found}");
        }
    }
    // Of rows that do not count, no weight is looked at.
    let sql = "SELECT count(*), percentile(x, 0.5, c - 1) FILTER (WHERE c > 0) >= 0, \
               exact_quantiles(NULLIF(x, x), 0.5, 'disc', c - 5) FROM t WHERE x > 0";
    assert!(row(&ctx, sql).await.ends_with(" | true | NULL"));
}

#[tokio::test]
async fn rows_without_weight_are_no_rows() {
    let ctx = session(2);
    let sql = "SELECT exact_quantiles(x, 0.5, 'linear', w), exact_quantiles(x, [0.5], 'disc', w), percentile(x, 0.5, w), \
               exact_quantiles(x, 0.5, 'disc', NULL), exact_quantiles(x, 0.5, 'disc', 0), exact_quantiles(x, [], 'disc', 2) \
               FROM (VALUES (1, 0), (2, NULL), (NULL, 3)) AS t(x, w)";
    assert_eq!(row(&ctx, sql).await, "NULL | NULL | NULL | NULL | NULL | []");
    let sql = "SELECT percentile(x, 0.5, 1) FROM (SELECT 1 AS x WHERE false)";
    assert_eq!(row(&ctx, sql).await, "NULL");
}

#[tokio::test]
async fn statements_may_be_prepared_and_ask_much_at_once() {
    let ctx = session(3);
    let rows = table(
        fixed_width::values(&DataType::Int32, Pattern::Random, 1000, 1, true),
        1,
    );
    register(&ctx, "t", &rows, 3, 100);
    query(&ctx, "PREPARE p(DOUBLE, BIGINT) AS SELECT exact_quantiles(x, $1, 'lower', w), percentile(x, 0.5, w + $2) FROM t").await.unwrap();
    let expected = row(
        &ctx,
        "SELECT exact_quantiles(x, 0.3, 'lower', w), percentile(x, 0.5, w + 2) FROM t",
    )
    .await;
    assert_eq!(row(&ctx, "EXECUTE p(0.3, 2)").await, expected);
    let calls = [
        "exact_quantiles(x, 0.5)",
        "exact_quantiles(x, 0.5, 'disc', w)",
        "percentile(x, [0.1, 0.9], w)",
        "exact_quantiles(x, [0.5], 'hazen', w) FILTER (WHERE c = 1)",
        "iqr(x, 'weibull', w)",
        "sum(w)",
        "exact_rank(x, 0)",
        "approx_percentile_gk(x, 0.5)",
    ];
    for by in ["", "g"] {
        let one_by_one = answers_of(&ctx, &calls, by).await;
        let (columns, group) = match by {
            "" => (calls.join(", "), String::new()),
            by => (format!("{}, {by}", calls.join(", ")), format!(" GROUP BY {by}")),
        };
        let all = sorted(texts(
            &query(&ctx, &format!("SELECT {columns} FROM t{group}"))
                .await
                .unwrap(),
        ));
        for (at, rows) in one_by_one.iter().enumerate() {
            let column: Vec<String> = all
                .iter()
                .map(|row| row.split(" | ").nth(at).unwrap().to_owned())
                .collect();
            assert_same(&sorted(column), rows, calls[at]);
        }
    }
}

/// The answers of each call on its own, in the order of their texts.
async fn answers_of(ctx: &SessionContext, calls: &[&str], by: &str) -> Vec<Vec<String>> {
    let mut answers = Vec::new();
    for call in calls {
        let group = if by.is_empty() {
            String::new()
        } else {
            format!(" GROUP BY {by}")
        };
        let sql = format!("SELECT {call} FROM t{group}");
        answers.push(sorted(texts(&query(ctx, &sql).await.unwrap())));
    }
    answers
}

#[tokio::test]
async fn expressions_mean_what_calls_mean() {
    let ctx = session(2);
    let rows = table(
        fixed_width::values(&DataType::Float64, Pattern::Random, 500, 1, true),
        1,
    );
    register(&ctx, "t", &rows, 2, 100);
    let calls = vec![
        exact_quantiles_weighted(col("x"), lit(0.3), col("w"), Method::Hazen, true).alias("a"),
        percentile(col("x"), lit(0.3), Some(col("w"))).alias("b"),
        percentile(col("x"), lit(0.3), None).alias("c"),
        iqr(col("x"), Method::Linear).alias("d"),
    ];
    let found = ctx.table("t").await.unwrap().aggregate(vec![], calls).unwrap();
    let sql = "SELECT exact_quantiles(0.3, 'hazen', w) WITHIN GROUP (ORDER BY x DESC), percentile(x, 0.3, w), percentile(x, 0.3), \
               iqr(x) FROM t";
    assert_eq!(texts(&found.collect().await.unwrap()), [row(&ctx, sql).await]);
    let mut distinct = exact_quantiles_weighted(col("x"), lit(0.3), col("w"), Method::Disc, false);
    if let Expr::AggregateFunction(call) = &mut distinct {
        call.params.distinct = true;
    }
    let refused = ctx
        .table("t")
        .await
        .unwrap()
        .aggregate(vec![], vec![distinct])
        .unwrap()
        .collect()
        .await;
    let message = refused.unwrap_err().strip_backtrace();
    assert!(
        message.contains("takes DISTINCT or a weight, not both"),
        "{message}"
    );
}

#[tokio::test]
async fn rows_of_many_groups_are_spilled_past_the_memory_limit() {
    let len = 300_000;
    let x: ArrayRef = Arc::new(Int64Array::from_iter(
        pseudo_random(len, 7).map(|n| (n % 11 > 0).then_some(n as i64)),
    ));
    let s = kinds::values(
        Kind::Utf8,
        TEXTS[1],
        &pseudo_random(len, 8).map(|n| n as i64 % 1000).collect::<Vec<_>>(),
    );
    let g: ArrayRef = Arc::new(Int64Array::from_iter_values(
        pseudo_random(len, 9).map(|n| (n % 20_000) as i64),
    ));
    let rows = batch(vec![("x", x), ("s", s), ("g", g), ("w", weights(len, 1))]);
    let sql = "SELECT g, percentile(x, [0.1, 0.5], w), exact_quantiles(s, 0.5, 'disc', w), exact_quantiles(x, 0.5) FROM t GROUP BY g";
    let free = session(2);
    register(&free, "t", &rows, 2, 8192);
    let expected = sorted(texts(&query(&free, sql).await.unwrap()));
    assert_eq!(expected.len(), 20_000);
    for megabytes in [3, 8, 20] {
        let ctx = limited(megabytes, 2);
        register(&ctx, "t", &rows, 2, 8192);
        match query(&ctx, sql).await {
            Ok(answer) => assert_same(&sorted(texts(&answer)), &expected, sql),
            Err(error) => {
                let message = error.strip_backtrace();
                assert!(
                    message.contains("Resources exhausted") && megabytes < 20,
                    "{megabytes} MB: {message}"
                );
            }
        }
    }
}

#[tokio::test]
async fn equal_values_take_the_memory_of_one() {
    let len = 600_000;
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values((0..len).map(|i| i * 7919 % 1000)));
    let s = kinds::values(
        Kind::Utf8,
        TEXTS[1],
        &(0..len).map(|i| i % 997).collect::<Vec<_>>(),
    );
    let w = weights(len as usize, 1);
    let rows = batch(vec![("x", x), ("s", s), ("w", w)]);
    let sql = "SELECT exact_quantiles(x, [0.1, 0.5], 'linear', w), exact_quantiles(s, [0.1, 0.5], 'disc', w) FROM t";
    let by = "SELECT x % 3 AS g, exact_quantiles(x, 0.5, 'disc', w), quantile_disc(s, 0.5, w) FROM t GROUP BY x % 3 ORDER BY g";
    let free = session(2);
    register(&free, "t", &rows, 2, 8192);
    let ctx = limited(24, 2);
    register(&ctx, "t", &rows, 2, 8192);
    for sql in [sql, by] {
        let expected = texts(&query(&free, sql).await.unwrap());
        assert_eq!(texts(&query(&ctx, sql).await.unwrap()), expected, "{sql}");
    }
    // Values that differ are all held.
    let tight = limited(1, 2);
    register(&tight, "t", &rows, 2, 8192);
    let sql = "SELECT exact_quantiles(x * 600000 + w * 100000 + length(s), 0.5, 'disc', w), count(*) FROM (SELECT row_number() OVER () AS x, s, w FROM t)";
    let message = error(&tight, sql).await;
    assert!(message.contains("Resources exhausted"), "{message}");
}
