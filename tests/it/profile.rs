//! Summaries of tables: each figure is that of a statement of its own.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array,
    Int64Array, ListArray, RecordBatch, StringViewArray, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Field, Fields, Int32Type};
use datafusion::common::ScalarValue;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{SessionContext, ident};
use datafusion_quantiles::profile::{
    ColumnProfile, Distinct, MOST_DISTINCT, TableProfile, profile as profile_of, profile_by, text,
};
use datafusion_quantiles::statement::sql;
use quantiles_testing::*;

/// More rows than distinct values are counted exactly.
const ROWS: usize = 250_000;

/// A table of columns of many types: with few, many and only distinct values, with NULLs, and with values far from the others.
fn table(rows: usize) -> RecordBatch {
    let words: Vec<u64> = pseudo_random(rows, 7).collect();
    let some = |row: usize, every: usize| row % every != 3;
    let skewed = |word: u64| (word % 1000) as f64 / ((word >> 32) % 997 + 1) as f64;
    let floats = words.iter().enumerate().map(|(row, word)| match row % 1000 {
        0 => Some(f64::NAN),
        1 => Some(-0.0),
        _ => some(row, 11).then(|| skewed(*word)),
    });
    let text = |word: u64| match word % 8 {
        0..=2 => "usual".to_owned(),
        3 => format!("name {}", word % 1000 / 8),
        _ => format!("rare {word}"),
    };
    let number: ArrayRef = Arc::new(Int64Array::from_iter(
        words
            .iter()
            .enumerate()
            .map(|(row, word)| some(row, 5).then_some((word % 50) as i64)),
    ));
    let inner: Fields = vec![Field::new("n", DataType::Int64, true)].into();
    let present = (0..rows).map(|row| some(row, 13)).collect();
    let lists = words
        .iter()
        .map(|word| (word % 7 != 0).then(|| (0..word % 5).map(|item| Some(item as i32)).collect::<Vec<_>>()));
    let texts: Vec<_> = words.iter().map(|word| text(*word)).collect();
    let few: DictionaryArray<Int32Type> = words
        .iter()
        .map(|word| ["a", "b", "c"][(word % 3) as usize])
        .collect();
    let decimals = words.iter().map(|word| (word % 1_000_003) as i128 - 500_000);
    batch(vec![
        (
            "id",
            Arc::new(UInt64Array::from_iter_values((0..rows as u64).map(|row| row * 7))),
        ),
        ("number", Arc::clone(&number)),
        ("float", Arc::new(Float64Array::from_iter(floats))),
        (
            "decimal",
            Arc::new(
                Decimal128Array::from_iter_values(decimals)
                    .with_precision_and_scale(12, 3)
                    .unwrap(),
            ),
        ),
        (
            "day",
            Arc::new(Date32Array::from_iter(
                words.iter().map(|word| Some((word % 9000) as i32)),
            )),
        ),
        (
            "time",
            Arc::new(TimestampMicrosecondArray::from_iter(
                words.iter().map(|word| Some((word >> 20) as i64)),
            )),
        ),
        ("text", Arc::new(StringViewArray::from_iter_values(&texts))),
        (
            "bytes",
            Arc::new(BinaryArray::from_iter_values(texts.iter().map(|text| &text[..3]))),
        ),
        ("few", Arc::new(few)),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(
                words.iter().map(|word| (word % 9 != 0).then_some(word % 2 == 0)),
            )),
        ),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)),
        ),
        (
            "part",
            Arc::new(StructArray::try_new(inner, vec![number], Some(present)).unwrap()),
        ),
        ("nothing", Arc::new(Int64Array::new_null(rows))),
    ])
}

/// A value of `scalar` as text, `NULL` for none.
fn shown(scalar: Option<&ScalarValue>) -> String {
    scalar
        .and_then(|scalar| text(scalar).unwrap())
        .unwrap_or_else(|| "NULL".to_owned())
}

/// The rows of a query, each cell as text.
async fn cells(ctx: &SessionContext, query: &str) -> Vec<Vec<String>> {
    let batches = sql(ctx, query).await.unwrap().collect().await.unwrap();
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cell = |column: &ArrayRef| shown(Some(&ScalarValue::try_from_array(column, row).unwrap()));
            rows.push(batch.columns().iter().map(cell).collect());
        }
    }
    rows
}

/// Compares a column's profile with what single statements say of `x`, an expression over `t`. Up to `fewest` distinct values are counted.
async fn check(ctx: &SessionContext, column: &ColumnProfile, x: &str, fewest: usize) {
    let name = &column.name;
    let one = async |what: &str| {
        cells(ctx, &format!("SELECT {what} FROM (SELECT {x} AS x FROM t)"))
            .await
            .remove(0)
            .remove(0)
    };
    assert_eq!(column.values.to_string(), one("count(x)").await, "{name}");
    assert_eq!(
        column.nulls.to_string(),
        one("count(*) - count(x)").await,
        "{name}"
    );
    if let Some(distinct) = column.distinct {
        let all: u64 = one("count(DISTINCT x)").await.parse().unwrap();
        match distinct {
            Distinct::Exact(number) => assert_eq!(number, all, "{name}"),
            Distinct::Estimated(number) => {
                assert!(all > fewest as u64, "{name}: {all}");
                assert!(
                    (number as f64 / all as f64 - 1.0).abs() < 0.04,
                    "{name}: {number} for {all}"
                );
            }
        }
        let top = cells(
            ctx,
            &format!(
                "SELECT x, count(*) FROM (SELECT {x} AS x FROM t) WHERE x IS NOT NULL GROUP BY x ORDER BY 2 DESC, x LIMIT 10"
            ),
        )
        .await;
        let found: Vec<_> = column
            .top
            .iter()
            .map(|(value, count)| vec![shown(Some(value)), count.to_string()])
            .collect();
        assert_eq!(found, top[..found.len()], "{name}");
        assert!(
            found.len() == top.len() || matches!(distinct, Distinct::Estimated(_)),
            "{name}: {found:?}"
        );
    }
    if let Some(fences) = &column.fences {
        for percent in [0, 1, 5, 10, 25, 45, 50, 75, 95, 99, 100] {
            let quantile = one(&format!("exact_quantiles(x, {})", f64::from(percent) / 100.0)).await;
            assert_eq!(
                shown(column.percentile(percent)),
                quantile,
                "{name} at {percent}%"
            );
        }
        let (below, above) = fences.beyond.unwrap();
        let value =
            |scalar: &ScalarValue| format!("arrow_cast('{}', '{}')", shown(Some(scalar)), scalar.data_type());
        assert_eq!(
            below.to_string(),
            one(&format!("count(*) FILTER (WHERE x < {})", value(&fences.low))).await,
            "{name}"
        );
        assert_eq!(
            above.to_string(),
            one(&format!("count(*) FILTER (WHERE x > {})", value(&fences.high))).await,
            "{name}"
        );
        let bins = cells(
            ctx,
            &format!("SELECT unnest(histogram(x, 20, 'equi-depth')) FROM (SELECT {x} AS x FROM t)"),
        )
        .await;
        let found = column.histogram.as_ref().unwrap().iter();
        let found: Vec<_> = found
            .map(|bin| {
                vec![format!(
                    "{{low: {}, high: {}, count: {}}}",
                    shown(Some(&bin.low)),
                    shown(Some(&bin.high)),
                    bin.count
                )]
            })
            .collect();
        assert_eq!(found, bins, "{name}");
    }
    for (found, what) in [
        (column.mean, "avg(x::DOUBLE)"),
        (column.deviation, "stddev(x::DOUBLE)"),
    ] {
        if let Some(found) = found {
            let expected: f64 = one(what).await.parse().unwrap();
            assert!(
                found.is_nan() && expected.is_nan() || (found / expected - 1.0).abs() < 1e-12,
                "{name}: {found} {expected}"
            );
        }
    }
}

/// The most frequent values, the bins and the number of distinct values of each column.
fn summaries(profile: &TableProfile) -> Vec<String> {
    let columns = profile.columns.iter().map(|column| {
        let top: Vec<_> = column
            .top
            .iter()
            .map(|(value, count)| (shown(Some(value)), count))
            .collect();
        format!("{:?}", (&column.name, top, &column.histogram, &column.distinct))
    });
    columns.collect()
}

fn by_name(profile: &TableProfile) -> HashMap<&str, &ColumnProfile> {
    profile
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_figure_is_that_of_a_statement_of_its_own() {
    let rows = table(ROWS);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.parquet");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(60_000))
        .build();
    write_parquet(&file, &rows, properties);
    let files = session(3);
    query(
        &files,
        &format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
            file.display()
        ),
    )
    .await
    .unwrap();
    let memory = session(2);
    register(&memory, "t", &rows, 2, 5000);
    let mut shown = Vec::new();
    for ctx in [&files, &memory] {
        let profile = profile_of(ctx.table("t").await.unwrap()).await.unwrap();
        assert_eq!(profile.rows, ROWS as u64);
        let columns = by_name(&profile);
        assert_eq!(profile.columns.len(), rows.num_columns());
        for (name, x) in [
            ("id", "id"),
            ("number", "number"),
            ("float", "float"),
            ("decimal", "decimal"),
            ("day", "day"),
            ("time", "time"),
            ("text", "text"),
            ("bytes", "bytes"),
            ("few", "arrow_cast(few, 'Utf8')"),
            ("flag", "flag"),
            ("part.n", "CASE WHEN part IS NOT NULL THEN part['n'] END"),
            ("nothing", "nothing"),
        ] {
            check(ctx, columns[name], x, MOST_DISTINCT).await;
        }
        assert_eq!(columns["float"].nans, Some(ROWS.div_ceil(1000) as u64));
        assert!(
            matches!(columns["id"].distinct, Some(Distinct::Estimated(_))) && columns["id"].top.is_empty()
        );
        // A third of the values are one, among more than a hundred thousand that occur once.
        assert!(matches!(columns["text"].distinct, Some(Distinct::Estimated(_))));
        assert_eq!(text(&columns["text"].top[0].0).unwrap().as_deref(), Some("usual"));
        let lengths = columns["text"].lengths.unwrap();
        assert_eq!(
            (lengths.shortest, columns["list"].lengths.unwrap().longest),
            (5, 4)
        );
        let figures = summaries(&profile);
        shown.push(figures);
    }
    assert_same(&shown[0], &shown[1], "partitions and batches make no difference");
}

#[tokio::test]
async fn tables_without_rows_or_columns_and_queries_that_may_differ() {
    let ctx = session(2);
    let profile = profile_of(ctx.sql("SELECT 1 AS a, 'x' AS b WHERE false").await.unwrap())
        .await
        .unwrap();
    let column = &profile.columns[0];
    assert_eq!(
        (profile.rows, column.values, column.distinct),
        (0, 0, Some(Distinct::Exact(0)))
    );
    assert!(
        column.range.is_none()
            && column.percentile(50).is_none()
            && column.fences.is_none()
            && column.top.is_empty()
    );
    assert_eq!(
        (&column.histogram, column.mean, column.deviation),
        (&Some(Vec::new()), None, None)
    );
    assert!(profile.columns[1].lengths.is_none());
    // Such a query is read once, which is enough for numbers.
    let query = format!(
        "SELECT value FROM range(0, 1000000) LIMIT {}",
        2 * MOST_DISTINCT + 1
    );
    let profile = profile_of(ctx.sql(&query).await.unwrap()).await.unwrap();
    let column = &profile.columns[0];
    assert_eq!(profile.rows, 2 * MOST_DISTINCT as u64 + 1);
    let bins = column.histogram.as_ref().unwrap();
    assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), profile.rows);
    assert_eq!(column.fences.as_ref().unwrap().beyond, Some((0, 0)));
    assert!(column.percentile(50).is_some());
}

#[tokio::test]
async fn wide_tables_and_a_memory_limit() {
    let rows = 60_000;
    let words: Vec<u64> = pseudo_random(rows, 3).collect();
    let names: Vec<_> = (0..70_u64).map(|place| format!("c{place}")).collect();
    let columns = names.iter().enumerate().map(|(place, name)| {
        let values = words.iter().map(|word| word.rotate_left(place as u32) >> 8);
        (
            name.as_str(),
            Arc::new(UInt64Array::from_iter_values(values)) as ArrayRef,
        )
    });
    let mut columns: Vec<_> = columns.collect();
    // Values that are frequent, late and all over the table, among others that occur once.
    let frequent = words.iter().enumerate().map(|(row, word)| match (row, word % 4) {
        (50_000.., 0) => 3,
        (_, 1) => 100 + word / 4 % 20,
        _ => 1000 + word / 4,
    });
    columns.push(("frequent", Arc::new(UInt64Array::from_iter_values(frequent))));
    let rows = batch(columns);
    let ctx = within(Arc::new(FairSpillPool::new(48 << 20)), 2);
    register(&ctx, "t", &rows, 2, 8192);
    let profile = profile_of(ctx.table("t").await.unwrap()).await.unwrap();
    assert_eq!(profile.columns.len(), 71);
    let plain = session(2);
    register(&plain, "t", &rows, 2, 8192);
    for place in [0, 31, 32, 69] {
        let column = &profile.columns[place];
        assert!(
            matches!(column.distinct, Some(Distinct::Estimated(number)) if number.abs_diff(60_000) < 2400),
            "{:?}",
            column.distinct
        );
        let found = [shown(column.percentile(1)), shown(column.percentile(99))];
        let sql = format!(
            "SELECT exact_quantiles({0}, 0.01), exact_quantiles({0}, 0.99) FROM t",
            column.name
        );
        assert_eq!(found[..], cells(&plain, &sql).await[0]);
        assert_eq!(
            column
                .histogram
                .as_ref()
                .unwrap()
                .iter()
                .map(|bin| bin.count)
                .sum::<u64>(),
            60_000
        );
    }
    let frequent = &profile.columns[70];
    check(&plain, frequent, "frequent", 1024).await;
    assert_eq!(frequent.top.len(), 10, "{:?}", frequent.top);
    assert_eq!(frequent.top[0].0, ScalarValue::from(3_u64));
    all_is_given_back(&ctx).await;
}

#[tokio::test]
async fn statements() {
    let ctx = session(2);
    query(
        &ctx,
        "CREATE TABLE \"My t\" AS SELECT value AS v FROM range(1, 101)",
    )
    .await
    .unwrap();
    for statement in [
        "SUMMARIZE \"My t\"",
        "summarize select v from \"My t\";",
        "SUMMARIZE (SELECT * FROM \"My t\")",
        "SUMMARIZE WITH w AS (SELECT v FROM \"My t\") SELECT * FROM w",
        "SUMMARIZE datafusion.public.\"My t\"",
    ] {
        let rows = cells(&ctx, statement).await;
        assert_eq!(rows.len(), 1, "{statement}");
        assert_eq!(
            rows[0][..10],
            [
                "v", "Int64", "100", "0", "NULL", "100", "true", "1", "100", "50.5"
            ],
            "{statement}"
        );
    }
    for (statement, message) in [
        ("SUMMARIZE", "Expected: identifier, found: EOF"),
        (
            "SUMMARIZE \"My t\" v",
            "Expected: the end of the statement, found: v",
        ),
        ("SUMMARIZE nowhere", "No table named 'nowhere'"),
        ("SUMMARIZE SELECT w FROM \"My t\"", "No field named w"),
        ("SUMMARIZE SELECT", "Expected"),
    ] {
        let error = match sql(&ctx, statement).await {
            Ok(_) => panic!("{statement} must fail"),
            Err(error) => error.strip_backtrace(),
        };
        assert!(error.contains(message), "{statement}: {error}");
    }
}

/// A profile as text, without what depends on how many distinct values can be held.
fn figures(profile: &TableProfile) -> Vec<String> {
    let figures = profile.columns.iter().map(|column| {
        let means = [column.mean, column.deviation].map(|mean| mean.map(|mean| format!("{mean:.6e}")));
        let values = (
            &column.name,
            column.values,
            column.nulls,
            column.nans,
            &column.range,
            means,
        );
        format!(
            "{values:?} {:?} {:?} {:?}",
            column.percentile(5),
            column.fences,
            column.histogram
        )
    });
    figures.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_profile_of_a_group_is_that_of_its_rows() {
    let rows = table(60_000);
    let ctx = session(2);
    register(&ctx, "t", &rows, 2, 5000);
    // With a limit, few distinct values of a group are counted, and the others take a second read.
    let limited = within(Arc::new(FairSpillPool::new(96 << 20)), 2);
    register(&limited, "t", &rows, 3, 8192);
    for (session, by, conditions) in [
        (&ctx, vec!["few"], vec!["few = 'a'", "few = 'b'", "few = 'c'"]),
        (
            &limited,
            vec!["flag"],
            vec!["flag = false", "flag = true", "flag IS NULL"],
        ),
        (
            &limited,
            vec!["flag", "few"],
            // The flag is NULL in some rows of `a` alone.
            vec![
                "flag = false AND few = 'a'",
                "flag = false AND few = 'b'",
                "flag = false AND few = 'c'",
                "flag = true AND few = 'a'",
                "flag = true AND few = 'b'",
                "flag = true AND few = 'c'",
                "flag IS NULL",
            ],
        ),
    ] {
        let all = session.table("t").await.unwrap();
        let groups = profile_by(all, by.iter().map(|name| ident(*name)).collect())
            .await
            .unwrap();
        assert_eq!(groups.len(), conditions.len(), "{by:?}");
        for (group, condition) in groups.iter().zip(conditions) {
            let rows = ctx
                .sql(&format!("SELECT * FROM t WHERE {condition}"))
                .await
                .unwrap();
            let alone = profile_of(rows).await.unwrap();
            assert_eq!(
                (group.group.len(), group.profile.rows),
                (by.len(), alone.rows),
                "{condition}"
            );
            assert_same(&figures(&group.profile), &figures(&alone), condition);
            for (column, alone) in group.profile.columns.iter().zip(&alone.columns) {
                assert_eq!(
                    column.top[..],
                    alone.top[..column.top.len()],
                    "{condition}: {}",
                    column.name
                );
            }
        }
    }
    let many = profile_by(ctx.table("t").await.unwrap(), vec![ident("day")]).await;
    assert!(many.unwrap_err().to_string().contains("more than 100 groups"));
    assert!(
        profile_by(ctx.table("t").await.unwrap(), Vec::new())
            .await
            .is_err()
    );
    all_is_given_back(&limited).await;
}
