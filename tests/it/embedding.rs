//! The function without SQL: from data frames, and over arrays without a session.

use datafusion::arrow::array::{Array, AsArray, Int64Array, IntervalDayTimeArray, StringArray};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::prelude::*;
use datafusion_quantiles::compute;
use datafusion_quantiles::functions::expr_fn::exact_quantiles;
use datafusion_quantiles::{DataFrameQuantilesExt, Method};

use quantiles_testing::samples::{expect, sample_rows, table, values};
use quantiles_testing::*;

#[tokio::test]
async fn dataframe_api() {
    let ctx = session(3);
    let kept = values(&table(&ctx, 1500, 3));
    let df = ctx.table("t").await.unwrap();
    let batches = df
        .clone()
        .quantiles(&["x", "f"], &[0.9, 0.1], Method::Disc)
        .unwrap()
        .collect()
        .await
        .unwrap();
    let expected = |q| {
        format!(
            "{} | {}",
            expect(&kept, q),
            by_sort(&kept, q).unwrap() as f64 / 4.0
        )
    };
    ctx.register_batch("answers", batches[0].clone()).unwrap();
    assert_eq!(names(&ctx, "SELECT * FROM answers").await, ["quantile", "x", "f"]);
    let shown = rows(&ctx, "SELECT quantile, x, CAST(f AS VARCHAR) FROM answers").await;
    assert_eq!(
        shown[0].split(" | ").take(2).collect::<Vec<_>>(),
        ["0.9", &expect(&kept, 900)]
    );
    assert_eq!(shown.len(), 2);
    assert!(expected(100).starts_with(shown[1].split(" | ").nth(1).unwrap()));

    let none = df.clone().filter(col("x").gt(lit(9999))).unwrap();
    let none = none
        .quantiles(&["x"], &[0.5, 1.0], Method::Linear)
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!((none[0].num_rows(), none[0].column(1).null_count()), (2, 2));

    let message = df
        .clone()
        .quantiles(&[], &[0.5], Method::Disc)
        .unwrap_err()
        .strip_backtrace();
    assert_eq!(
        message,
        "Error during planning: quantiles of a DataFrame need at least one column"
    );
    let bad = df
        .clone()
        .quantiles(&["x"], &[1.5], Method::Disc)
        .unwrap()
        .collect()
        .await
        .unwrap_err();
    assert_eq!(
        bad.find_root().strip_backtrace(),
        "Error during planning: exact_quantiles: quantile 1.5 is out of range: allowed is a number from 0 to 1"
    );

    let grouped = df
        .aggregate(
            vec![col("g")],
            vec![
                exact_quantiles(col("x"), lit(0.5), Method::Lower, true).alias("q"),
                count(col("x")).alias("n"),
            ],
        )
        .unwrap()
        .sort_by(vec![col("g")])
        .unwrap();
    ctx.register_table("grouped", grouped.into_view()).unwrap();
    let sql = "SELECT g, exact_quantiles(0.5, 'lower') WITHIN GROUP (ORDER BY x DESC), count(x) FROM t GROUP BY g ORDER BY g";
    assert_eq!(
        rows(&ctx, "SELECT * FROM grouped ORDER BY g").await,
        rows(&ctx, sql).await
    );
}

#[test]
fn arrays_without_a_session() {
    let data = sample_rows(2000);
    let array: Int64Array = data.iter().map(|(x, _)| *x).collect();
    let answers = compute::quantiles(&array, &[0.5, 0.0, 0.25], Method::Disc).unwrap();
    let kept = values(&data);
    let expected: Vec<_> = [500, 0, 250].map(|q| by_sort(&kept, q).unwrap()).into();
    assert_eq!(answers.as_primitive::<Int64Type>().values().to_vec(), expected);

    let none = compute::quantiles(&Int64Array::from(vec![None, None]), &[0.5, 1.0], Method::Linear).unwrap();
    assert_eq!(
        (none.data_type(), none.len(), none.null_count()),
        (&DataType::Float64, 2, 2)
    );
    let message = compute::quantiles(&array, &[1.5], Method::Disc)
        .unwrap_err()
        .strip_backtrace();
    assert_eq!(
        message,
        "Error during planning: quantile 1.5 is out of range: allowed is a number from 0 to 1"
    );
    let days = IntervalDayTimeArray::from(vec![None]);
    let message = compute::quantiles(&days, &[0.5], Method::Disc)
        .unwrap_err()
        .strip_backtrace();
    assert!(
        message.contains("Interval(DayTime)") && message.contains("allowed are"),
        "{message}"
    );
}

#[test]
fn quantiles_of_an_array_of_strings() {
    let texts = StringArray::from(vec![Some("b"), None, Some("a"), Some("")]);
    let answers = compute::quantiles(&texts, &[1.0, 0.0], Method::Disc).unwrap();
    assert_eq!(answers.as_ref(), &StringArray::from(vec!["b", ""]) as &dyn Array);
    let none = compute::quantiles(&StringArray::new_null(2), &[0.5], Method::Disc).unwrap();
    assert_eq!(none.as_ref(), &StringArray::new_null(1) as &dyn Array);
    let message = compute::quantiles(&texts, &[0.5], Method::Linear)
        .unwrap_err()
        .strip_backtrace();
    assert!(message.contains("type Utf8 has none"), "{message}");
}
