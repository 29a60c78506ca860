//! Ranks of values: every answer against a comparison of all values with each constant.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Float64Type, UInt64Type};
use datafusion::common::ScalarValue;
use datafusion::prelude::*;
use datafusion_quantiles::expr_fn::{
    exact_cdf, exact_rank, hypothetical_cume_dist, hypothetical_dense_rank, hypothetical_percent_rank,
    hypothetical_rank,
};
use datafusion_quantiles::key::KeySpec;
use proptest::prelude::*;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

/// Rows of a group, as numbers of the order of their values; `None`: NULL.
type Rows = Vec<Option<u128>>;

/// The numbers of rows before a constant and beside it, of distinct ones before it, of all rows, and of values.
#[derive(Debug)]
struct Counts {
    before: usize,
    equal: usize,
    distinct: usize,
    rows: usize,
    values: usize,
}

/// Compares every row with `v` in an order.
fn counts(rows: &Rows, v: Option<u128>, descending: bool, nulls_first: bool) -> Counts {
    // NULL is the least of all, or the greatest; values are turned around where the greatest comes first.
    let place = |value: &Option<u128>| match value {
        None => (if nulls_first { 0 } else { 2 }, 0),
        Some(value) if descending => (1, u128::MAX - value),
        Some(value) => (1, *value),
    };
    let v = place(&v);
    let mut before: Vec<_> = rows.iter().map(place).filter(|row| *row < v).collect();
    let count = before.len();
    before.sort_unstable();
    before.dedup();
    Counts {
        before: count,
        equal: rows.iter().filter(|row| place(row) == v).count(),
        distinct: before.len(),
        rows: rows.len(),
        values: rows.iter().flatten().count(),
    }
}

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    pattern: Pattern,
    len: usize,
    groups: i64,
    partitions: usize,
    batch: usize,
    descending: bool,
    nulls_first: bool,
    constants: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(types()),
        proptest::sample::select(patterns::ALL.to_vec()),
        prop_oneof![Just(1_usize), 2..8_usize, Just(70_usize)],
    );
    let how = (
        prop_oneof![0..40_usize, 500..6000_usize],
        prop_oneof![1..4_i64, Just(700_i64)],
        1..5_usize,
        50..9000_usize,
    );
    (what, how, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |(
            (data_type, pattern, constants),
            (len, groups, partitions, batch),
            descending,
            nulls_first,
            seed,
        )| Case {
            data_type,
            pattern,
            len,
            groups,
            partitions,
            batch,
            descending,
            nulls_first,
            constants,
            seed,
        },
    )
}

/// What is asked of each group.
fn calls(list: &Expr, case: &Case) -> Vec<Expr> {
    let order = || col("x").sort(!case.descending, case.nulls_first);
    vec![
        exact_rank(col("x"), list.clone()),
        exact_cdf(col("x"), list.clone()),
        hypothetical_rank(list.clone(), order()),
        hypothetical_dense_rank(list.clone(), order()),
        hypothetical_percent_rank(list.clone(), order()),
        hypothetical_cume_dist(list.clone(), order()),
    ]
}

/// Checks the answers of one row of `found`, behind its first column, against those of a comparison.
fn check_row(found: &[ArrayRef], row: usize, rows: &Rows, constants: &[Option<u128>], case: &Case) {
    let whole = |column: usize| {
        found[column]
            .as_list::<i32>()
            .value(row)
            .as_primitive::<UInt64Type>()
            .clone()
    };
    let share = |column: usize| {
        found[column]
            .as_list::<i32>()
            .value(row)
            .as_primitive::<Float64Type>()
            .clone()
    };
    let skipped: Rows = rows.iter().filter(|row| row.is_some()).copied().collect();
    assert_eq!(found[1].is_null(row), skipped.is_empty(), "{case:?}");
    for (at, v) in constants.iter().enumerate() {
        if v.is_none() {
            assert!(whole(0).is_null(at), "{case:?}");
        } else {
            let own = counts(&skipped, *v, false, false);
            assert_eq!(
                whole(0).value(at),
                (own.before + own.equal) as u64,
                "{v:?} {case:?}"
            );
            if own.values > 0 {
                let expected = (own.before + own.equal) as f64 / own.values as f64;
                assert_eq!(share(1).value(at), expected, "{v:?} {case:?}");
            }
        }
        let own = counts(rows, *v, case.descending, case.nulls_first);
        let percent = if own.rows == 0 {
            0.0
        } else {
            own.before as f64 / own.rows as f64
        };
        assert_eq!(
            whole(2).value(at),
            own.before as u64 + 1,
            "rank {v:?} {own:?} {case:?}"
        );
        assert_eq!(
            whole(3).value(at),
            own.distinct as u64 + 1,
            "dense_rank {v:?} {own:?} {case:?}"
        );
        assert_eq!(share(4).value(at), percent, "percent_rank {v:?} {own:?} {case:?}");
        let cume_dist = (own.before + own.equal + 1) as f64 / (own.rows + 1) as f64;
        assert_eq!(share(5).value(at), cume_dist, "cume_dist {v:?} {own:?} {case:?}");
    }
}

/// Constants of the column's type: some of its values, some of other seeds, and NULL at times.
fn constants(case: &Case) -> ArrayRef {
    let own = values(&case.data_type, case.pattern, case.len.max(1), case.seed, true);
    let other = values(
        &case.data_type,
        Pattern::Random,
        case.constants,
        case.seed ^ 1,
        false,
    );
    let items = (0..case.constants).map(|at| {
        let (array, row) = if at % 3 == 2 {
            (&other, at)
        } else {
            (&own, (at * 7919 + 3) % own.len())
        };
        ScalarValue::try_from_array(array, row).unwrap()
    });
    ScalarValue::iter_to_array(items).unwrap()
}

async fn check(case: &Case) {
    let x = values(&case.data_type, case.pattern, case.len, case.seed, true);
    let ctx = session(case.partitions);
    let groups = Int64Array::from_iter_values((0..case.len as i64).map(|i| i % case.groups));
    let rows = batch(vec![("g", Arc::new(groups) as ArrayRef), ("x", Arc::clone(&x))]);
    register(&ctx, "t", &rows, case.partitions, case.batch);
    let numbers = |array: &ArrayRef| -> Rows {
        let mut keys = KeySpec::try_new(&case.data_type)
            .unwrap()
            .keys(array)
            .unwrap()
            .into_iter();
        (0..array.len())
            .map(|row| array.is_valid(row).then(|| keys.next().unwrap()))
            .collect()
    };
    let constants = constants(case);
    let list = ScalarValue::List(ScalarValue::new_list(
        &(0..constants.len())
            .map(|row| ScalarValue::try_from_array(&constants, row).unwrap())
            .collect::<Vec<_>>(),
        &case.data_type,
        true,
    ));
    let (all, asked) = (numbers(&x), numbers(&constants));
    for grouped in [false, true] {
        let by = if grouped { vec![col("g")] } else { vec![] };
        let calls = calls(&lit(list.clone()), case).into_iter().zip(0..);
        let calls = calls.map(|(call, at)| call.alias(format!("c{at}")));
        let table = ctx
            .table("t")
            .await
            .unwrap()
            .aggregate(by, calls.collect())
            .unwrap();
        let schema = Arc::new(table.schema().as_arrow().clone());
        let found = concat_batches(&schema, &table.collect().await.unwrap()).unwrap();
        let expected = if grouped {
            case.len.min(case.groups as usize)
        } else {
            1
        };
        assert_eq!(found.num_rows(), expected, "{case:?}");
        for row in 0..found.num_rows() {
            let group = grouped.then(|| {
                found
                    .column(0)
                    .as_primitive::<datafusion::arrow::datatypes::Int64Type>()
                    .value(row)
            });
            let own = all.iter().enumerate();
            let own = own.filter(|(i, _)| group.is_none_or(|group| *i as i64 % case.groups == group));
            let own: Rows = own.map(|(_, value)| *value).collect();
            check_row(&found.columns()[usize::from(grouped)..], row, &own, &asked, case);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn ranks_are_those_of_a_comparison_with_every_value(case in case()) {
        tokio::runtime::Runtime::new().unwrap().block_on(check(&case));
    }
}

/// Constants of other types than the column's, each with the number of values at or below it and before it.
#[tokio::test]
async fn constants_of_other_types_are_compared_and_not_rounded() {
    let ctx = session(2);
    for (column, constant, through, before) in [
        ("BIGINT '1'", "1.0", 1, 0),
        ("BIGINT '1'", "1.5", 1, 1),
        ("BIGINT '1'", "0.5", 0, 0),
        ("BIGINT '9007199254740993'", "9007199254740992.0", 0, 0),
        (
            "BIGINT '9007199254740993'",
            "CAST('9007199254740993' AS DECIMAL(20, 2))",
            1,
            0,
        ),
        (
            "BIGINT '9223372036854775807'",
            "arrow_cast(18446744073709551615, 'UInt64')",
            1,
            1,
        ),
        ("BIGINT '-9223372036854775808'", "CAST('-1e40' AS DOUBLE)", 0, 0),
        ("arrow_cast(200, 'UInt8')", "-1", 0, 0),
        ("arrow_cast(200, 'UInt8')", "255.5", 1, 1),
        ("1.5::DOUBLE", "1", 0, 0),
        ("1.5::DOUBLE", "CAST('1.5' AS DECIMAL(3, 1))", 1, 0),
        ("0.1::DOUBLE", "CAST('0.1' AS DECIMAL(3, 1))", 1, 0),
        ("9007199254740992.0::DOUBLE", "9007199254740993", 1, 1),
        ("9007199254740994.0::DOUBLE", "9007199254740993", 0, 0),
        ("CAST(0.1 AS FLOAT)", "0.1", 0, 0),
        ("CAST(0.25 AS FLOAT)", "0.25", 1, 0),
        ("CAST(3e38 AS FLOAT)", "1e300", 1, 1),
        ("CAST('0.30' AS DECIMAL(10, 2))", "0.3", 1, 0),
        ("CAST('0.30' AS DECIMAL(10, 2))", "0.299", 0, 0),
        ("CAST('0.30' AS DECIMAL(10, 2))", "1", 1, 1),
        ("CAST('-0.30' AS DECIMAL(10, 2))", "-0.305", 0, 0),
        ("CAST('0.30' AS DECIMAL(50, 2))", "0.3", 1, 0),
        ("CAST('0.30' AS DECIMAL(50, 2))", "'inf'::DOUBLE", 1, 1),
        ("CAST('-0.30' AS DECIMAL(50, 2))", "'-inf'::DOUBLE", 0, 0),
        ("CAST('-0.30' AS DECIMAL(50, 2))", "-0.2999", 1, 1),
        ("DATE '2024-02-29'", "TIMESTAMP '2024-02-29 00:00:00'", 1, 0),
        ("DATE '2024-02-29'", "TIMESTAMP '2024-02-28 23:59:59'", 0, 0),
        ("TIMESTAMP '2024-02-29 12:00:00'", "DATE '2024-02-29'", 0, 0),
        (
            "arrow_cast('2024-02-29T12:00:00', 'Timestamp(Second, Some(\"+02:00\"))')",
            "'2024-02-29T10:00:00Z'",
            1,
            0,
        ),
        (
            "arrow_cast('2024-02-29T12:00:00', 'Timestamp(Second, Some(\"+02:00\"))')",
            "'2024-02-29T12:00:00.5'",
            1,
            1,
        ),
        (
            "arrow_cast('2024-02-29T12:00:00', 'Timestamp(Second, Some(\"+02:00\"))')",
            "TIMESTAMP '2024-02-29 11:59:59'",
            0,
            0,
        ),
        (
            "arrow_cast(1500, 'Duration(Millisecond)')",
            "INTERVAL '1.5 seconds'",
            1,
            0,
        ),
        (
            "arrow_cast(1500, 'Duration(Millisecond)')",
            "INTERVAL '1499999 microseconds'",
            0,
            0,
        ),
        ("TIME '10:00:00'", "'10:00:00'", 1, 0),
        ("arrow_cast('b', 'Dictionary(Int32, Utf8)')", "'b'", 1, 0),
        ("arrow_cast('b', 'LargeUtf8')", "'ba'", 1, 1),
        ("arrow_cast('b', 'Utf8View')", "'az'", 0, 0),
        ("arrow_cast('b', 'Binary')", "X'62'", 1, 0),
        ("true", "false", 0, 0),
    ] {
        let sql = format!(
            "SELECT exact_rank(x, {constant}), rank({constant}) WITHIN GROUP (ORDER BY x) - 1, \
             exact_rank({constant}) WITHIN GROUP (ORDER BY x DESC), \
             rank({constant}) WITHIN GROUP (ORDER BY x DESC) - 1 FROM (SELECT {column} AS x)"
        );
        let answer = row(&ctx, &sql).await;
        assert_eq!(
            answer,
            format!("{through} | {before} | {} | {}", 1 - before, 1 - through),
            "{column} and {constant}"
        );
    }
}

#[tokio::test]
async fn lists_and_structs_are_ranked_as_values() {
    let ctx = session(2);
    let table = "(SELECT [x, 1] AS l, named_struct('a', x) AS s FROM generate_series(1, 9) AS t(x))";
    let sql = format!(
        "SELECT exact_rank(l, [3, 0]), exact_rank(l, [[3, 1], [0, 0]]), exact_rank(s, named_struct('a', 4)) FROM {table}"
    );
    assert_eq!(row(&ctx, &sql).await, "2 | [3, 0] | 4");
}

#[tokio::test]
async fn what_is_not_compared_is_refused() {
    let ctx = session(2);
    for (column, constant, message) in [
        (
            "1",
            "'a'",
            "exact_rank: a of type Utf8 is not compared with values of type Int64",
        ),
        (
            "'a'",
            "1",
            "exact_rank: 1 of type Int64 is not compared with values of type Utf8",
        ),
        (
            "true",
            "1",
            "exact_rank: 1 of type Int64 is not compared with values of type Boolean",
        ),
        (
            "DATE '2024-01-01'",
            "5",
            "exact_rank: 5 of type Int64 is not compared with values of type Date32",
        ),
        (
            "TIMESTAMP '2024-01-01'",
            "arrow_cast(0, 'Timestamp(Second, Some(\"+01:00\"))')",
            "have no zone: cast one of them",
        ),
        (
            "arrow_cast(1, 'Duration(Second)')",
            "INTERVAL '1 day'",
            "days and months have no fixed length",
        ),
        ("INTERVAL '1 day'", "INTERVAL '1 day'", "are not supported"),
        (
            "1",
            "random()",
            "the ranked value must be a constant or a list of constants, got random()",
        ),
    ] {
        let sql = format!("SELECT exact_rank(x, {constant}) FROM (SELECT {column} AS x)");
        let error = query(&ctx, &sql).await.unwrap_err().strip_backtrace();
        assert!(error.contains(message), "{sql}: {error}");
    }
    let error = query(&ctx, "SELECT exact_rank(x) FROM (SELECT 1 AS x)")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("exact_rank takes 2 arguments, got 1"),
        "{error}"
    );
}

/// A correlated subquery without rows is planned by the answer over no rows.
#[tokio::test]
async fn subqueries_without_rows_have_the_answer_over_none() {
    let ctx = session(2);
    let sql = "SELECT o.k, (SELECT exact_rank(i.x, 5) FROM (VALUES (1, 3), (1, 9)) AS i(k, x) WHERE i.k = o.k), \
               (SELECT rank(5) WITHIN GROUP (ORDER BY i.x) FROM (VALUES (1, 3), (1, 9)) AS i(k, x) WHERE i.k = o.k) \
               FROM (VALUES (1), (2)) AS o(k) ORDER BY o.k";
    let rows = texts(&query(&ctx, sql).await.unwrap());
    assert_eq!(rows, ["1 | 1 | 2", "2 | 0 | 1"]);
}

/// Sessions without this crate's planner have the same answers, by the constants as arguments.
#[tokio::test]
async fn ordinary_sessions_have_the_same_answers() {
    let (ours, theirs) = (session(3), ordinary());
    for ctx in [&ours, &theirs] {
        let x = Int64Array::from_iter((0..1000).map(|i| (i % 7 > 0).then_some(i * 37 % 101)));
        let g = Int64Array::from_iter_values((0..1000).map(|i| i % 13));
        register(
            ctx,
            "t",
            &batch(vec![("g", Arc::new(g) as ArrayRef), ("x", Arc::new(x))]),
            3,
            100,
        );
    }
    for sql in [
        "SELECT exact_rank(x, [5, 50.5]), exact_cdf(DISTINCT x, 50), dense_rank(7) WITHIN GROUP (ORDER BY x) FROM t",
        "SELECT g, exact_rank(x, [5, 50.5]), exact_cdf(DISTINCT x, 50), cume_dist(7) WITHIN GROUP (ORDER BY x) FROM t \
         GROUP BY g ORDER BY g",
        "SELECT g, x, exact_rank(DISTINCT x, [5, 50]) OVER (PARTITION BY g ORDER BY x ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING), \
         exact_cdf(x, 20) OVER (PARTITION BY g ORDER BY x) FROM t ORDER BY g, x",
    ] {
        let rows = texts(&query(&ours, sql).await.unwrap());
        assert_eq!(rows, texts(&query(&theirs, sql).await.unwrap()), "{sql}");
        assert!(!rows.is_empty());
    }
}
