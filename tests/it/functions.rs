//! The SQL function: answers against a plain sort, where it may stand, and its options.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Int64Array, TimestampMillisecondArray,
};
use datafusion::arrow::datatypes::{DataType, TimeUnit};

use quantiles_testing::samples::{expect, table, values};
use quantiles_testing::*;

#[tokio::test]
async fn answers_are_those_of_a_sort_for_every_partition_count() {
    for (n, partitions) in [(1, 1), (2, 3), (99, 1), (1000, 1), (1000, 4), (5000, 7)] {
        let ctx = session(4);
        let kept = values(&table(&ctx, n, partitions));
        let sql =
            "SELECT exact_quantiles(x, [0.999, 0.5, 0.5, 0, 1, 0.013]), exact_quantiles(x, 0.25) FROM t";
        let list = [999, 500, 500, 0, 1000, 13].map(|q| expect(&kept, q)).join(", ");
        let list = if kept.is_empty() {
            "NULL".to_owned()
        } else {
            format!("[{list}]")
        };
        assert_eq!(
            row(&ctx, sql).await,
            format!("{list} | {}", expect(&kept, 250)),
            "n={n} partitions={partitions}"
        );
    }
}

#[tokio::test]
async fn every_strategy_gives_the_same_answer() {
    let ctx = session(3);
    let kept = values(&table(&ctx, 4000, 3));
    for strategy in ["auto", "sample_select", "distributed_bms", "dibms"] {
        query(&ctx, &format!("SET quantiles.strategy = '{strategy}'"))
            .await
            .unwrap();
        let answer = row(&ctx, "SELECT exact_quantiles(x, 0.7) FROM t").await;
        assert_eq!(answer, expect(&kept, 700), "{strategy}");
    }
}

#[tokio::test]
async fn methods_have_numpys_answers() {
    // numpy.quantile([1, 2, 4, 8], 0.3, method=...) and, for DESC, the same from the other end.
    let ctx = session(2);
    let x = Int64Array::from(vec![8, 1, 4, 2]);
    register(&ctx, "t", &batch(vec![("x", Arc::new(x))]), 2, 2);
    for (method, ascending, descending) in [
        ("disc", "2", "4"),
        ("inverted_cdf", "2", "4"),
        ("linear", "1.9", "4.4"),
        ("Cont", "1.9", "4.4"),
        ("lower", "1", "8"),
        ("higher", "2", "4"),
        ("NEAREST", "2", "4"),
        ("midpoint", "1.5", "6.0"),
        ("averaged_inverted_cdf", "2.0", "4.0"),
        ("closest_observation", "1", "8"),
        ("interpolated_inverted_cdf", "1.2", "7.2"),
        ("hazen", "1.7", "5.2"),
        ("weibull", "1.5", "6.0"),
        ("median_unbiased", "1.6333333333333333", "5.466666666666667"),
        ("normal_unbiased", "1.65", "5.4"),
    ] {
        let sql = format!(
            "SELECT exact_quantiles(x, 0.3, '{method}'), \
             exact_quantiles(0.3, '{method}') WITHIN GROUP (ORDER BY x DESC), \
             exact_quantiles(0.3, '{method}') WITHIN GROUP (ORDER BY x) FROM t"
        );
        assert_eq!(
            row(&ctx, &sql).await,
            format!("{ascending} | {descending} | {ascending}"),
            "{method}"
        );
        let grouped = format!("{sql} GROUP BY 1 = 1");
        assert_eq!(
            row(&ctx, &grouped).await,
            row(&ctx, &sql).await,
            "{method}, grouped"
        );
    }
}

#[tokio::test]
async fn result_types() {
    let ctx = session(2);
    let decimal = Decimal128Array::from(vec![100, 250])
        .with_precision_and_scale(10, 2)
        .unwrap();
    let time = TimestampMillisecondArray::from(vec![0, 1000]).with_timezone("+01:00");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(Int64Array::from(vec![1, 2]))),
        ("d", Arc::new(decimal)),
        ("t", Arc::new(time)),
        ("b", Arc::new(BooleanArray::from(vec![true, false]))),
    ];
    register(&ctx, "t", &batch(columns), 1, 2);
    let types = |sql: &'static str| {
        let ctx = ctx.clone();
        async move {
            let df = ctx.sql(sql).await.unwrap();
            let planned: Vec<_> = df
                .schema()
                .fields()
                .iter()
                .map(|f| f.data_type().clone())
                .collect();
            let batches = df.collect().await.unwrap();
            let schema = batches[0].schema();
            let ran: Vec<_> = schema.fields().iter().map(|f| f.data_type().clone()).collect();
            assert_eq!(planned, ran, "{sql}");
            ran
        }
    };
    let zoned = DataType::Timestamp(TimeUnit::Millisecond, Some("+01:00".into()));
    assert_eq!(
        types("SELECT exact_quantiles(i, 1), exact_quantiles(d, 1), exact_quantiles(t, 1), exact_quantiles(b, 1) FROM t").await,
        [DataType::Int64, DataType::Decimal128(10, 2), zoned.clone(), DataType::Boolean]
    );
    assert_eq!(
        types("SELECT exact_quantiles(i, 1, 'linear'), exact_quantiles(d, 1, 'linear'), exact_quantiles(t, 1, 'midpoint'), exact_quantiles(b, 1, 'linear') FROM t").await,
        [DataType::Float64, DataType::Decimal128(10, 2), zoned, DataType::Float64]
    );
    assert_eq!(
        types("SELECT exact_quantiles(i, [1]), exact_quantiles(i, arrow_cast([1], 'LargeList(Int64)'), 'linear'), exact_quantiles(i, arrow_cast([1], 'FixedSizeList(1, Int64)')) FROM t").await,
        [
            DataType::new_list(DataType::Int64, true),
            DataType::new_list(DataType::Float64, true),
            DataType::new_list(DataType::Int64, true)
        ]
    );
}

#[tokio::test]
async fn quantile_arguments_of_every_number_type() {
    let ctx = session(2);
    let kept = values(&table(&ctx, 777, 2));
    let q10 = expect(&kept, 100);
    for q in [
        "0.1",
        "0.05 * 2",
        "CAST('0.1' AS DOUBLE)",
        "arrow_cast(0.1, 'Float32')",
        "arrow_cast(0.1, 'Decimal128(4, 3)')",
        "1 / 10.0",
        "CAST(0.10 AS DECIMAL(5, 2))",
    ] {
        let sql = format!("SELECT exact_quantiles(x, {q}) FROM t");
        assert_eq!(row(&ctx, &sql).await, q10, "{q}");
    }
    for (q, per_mille) in [
        ("1", 1000),
        ("CAST(0 AS TINYINT)", 0),
        ("arrow_cast(0.5, 'Float16')", 500),
        ("arrow_cast(1, 'UInt64')", 1000),
    ] {
        assert_eq!(
            row(&ctx, &format!("SELECT exact_quantiles(x, {q}) FROM t")).await,
            expect(&kept, per_mille),
            "{q}"
        );
    }
    for list in ["[0.1, 0.9]", "make_array(0.1, 0.9)", "array_concat([0.1], [0.9])"] {
        assert_eq!(
            row(&ctx, &format!("SELECT exact_quantiles(x, {list}) FROM t")).await,
            format!("[{q10}, {}]", expect(&kept, 900)),
            "{list}"
        );
    }
    assert_eq!(row(&ctx, "SELECT exact_quantiles(x, []) FROM t").await, "[]");
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, []) FROM t GROUP BY s").await,
        "[]"
    );
}

#[tokio::test]
async fn groups_equal_the_query_of_each_group() {
    let ctx = session(4);
    table(&ctx, 3000, 4);
    for calls in [
        "exact_quantiles(x, [0.5, 0.9])",
        "exact_quantiles(x, 0.01, 'linear')",
        "exact_quantiles(DISTINCT x, 0.5), count(*)",
        "exact_quantiles(x, 0.5) FILTER (WHERE x > 100 AND g <> 3)",
        "exact_quantiles(f, 0.5) FILTER (WHERE f > 0), exact_quantiles(0.1) WITHIN GROUP (ORDER BY f DESC)",
    ] {
        let grouped = rows(&ctx, &format!("SELECT g, {calls} FROM t GROUP BY g ORDER BY g")).await;
        assert_eq!(grouped.len(), 5);
        for (g, group) in grouped.iter().enumerate() {
            let alone = row(&ctx, &format!("SELECT {g}, {calls} FROM t WHERE g = {g}")).await;
            assert_eq!(*group, alone, "{calls}");
        }
    }
}

#[tokio::test]
async fn many_groups_and_early_emission() {
    let ctx = session(2);
    // More groups than a batch and than a chunk of answers; groups 10 i without values.
    query(
        &ctx,
        "CREATE TABLE many AS SELECT value / 3 AS g, CASE WHEN value / 3 % 10 = 0 THEN NULL ELSE value END AS x \
         FROM generate_series(0, 60000) ORDER BY value",
    )
    .await
    .unwrap();
    let wrong = "SELECT count(*) FROM (SELECT g, exact_quantiles(x, 0.5) AS m, count(x) AS n FROM many GROUP BY g) \
                 WHERE (n > 0 AND m <> g * 3 + (n - 1) / 2) OR (n = 0) <> (m IS NULL)";
    assert_eq!(row(&ctx, wrong).await, "0");
    let lists = "SELECT count(*), count(m), min(array_length(m)) FROM \
                 (SELECT g, exact_quantiles(x, [0, 1]) AS m FROM many GROUP BY g)";
    assert_eq!(row(&ctx, lists).await, "20001 | 18000 | 2");
    // Sorted input: groups leave before the end of the input.
    let sorted = wrong.replace("FROM many", "FROM (SELECT * FROM many ORDER BY g LIMIT 49998)");
    assert_eq!(row(&ctx, &sorted).await, "0");
}

#[tokio::test]
async fn partial_aggregation_that_gives_up_still_counts_every_value() {
    let ctx = session(4);
    for (key, value) in [
        ("skip_partial_aggregation_probe_rows_threshold", "10"),
        ("skip_partial_aggregation_probe_ratio_threshold", "0.0"),
        ("batch_size", "32"),
    ] {
        query(&ctx, &format!("SET datafusion.execution.{key} = {value}"))
            .await
            .unwrap();
    }
    table(&ctx, 4000, 4);
    for calls in [
        "exact_quantiles(x, 0.5), exact_quantiles(f, [0.1]) FILTER (WHERE x > 0)",
        "exact_cdf(x, [-100, 0, 3, NULL, 70]), exact_cdf(f, 0.5) FILTER (WHERE x > 0), exact_rank(s, 'c')",
        "rank(5) WITHIN GROUP (ORDER BY x), percent_rank(0) WITHIN GROUP (ORDER BY x DESC NULLS LAST) FILTER (WHERE f > 0)",
        "dense_rank(5) WITHIN GROUP (ORDER BY x), exact_cdf(DISTINCT x, [0, 5]), topk_by(x, f, 3), mode(x), mad(x)",
    ] {
        let sql = format!("SELECT g, {calls} FROM t GROUP BY g, s ORDER BY g");
        let mut parts = 0;
        for (g, group) in rows(&ctx, &sql).await.iter().enumerate() {
            let alone = sql
                .replace("SELECT g", &format!("SELECT {g}"))
                .replace("GROUP BY g, s ORDER BY g", &format!("WHERE g = {g}"));
            assert_eq!(*group, row(&ctx, &alone).await, "{calls}");
            parts += 1;
        }
        assert!(parts > 3, "{parts}");
    }
}

#[tokio::test]
async fn windows() {
    let ctx = session(3);
    let x = Int64Array::from(vec![Some(5), Some(1), None, Some(3), Some(9), Some(7)]);
    let k = Int64Array::from(vec![1, 2, 3, 4, 5, 6]);
    let g = Int64Array::from(vec![0, 0, 0, 1, 1, 1]);
    let columns: Vec<(&str, ArrayRef)> = vec![("k", Arc::new(k)), ("g", Arc::new(g)), ("x", Arc::new(x))];
    register(&ctx, "w", &batch(columns), 2, 2);
    let column = |call: &'static str| {
        let ctx = ctx.clone();
        async move {
            rows(&ctx, &format!("SELECT {call} FROM w ORDER BY k"))
                .await
                .join(" ")
        }
    };
    assert_eq!(
        column("exact_quantiles(x, 0.5) OVER (PARTITION BY g)").await,
        "1 1 1 7 7 7"
    );
    assert_eq!(column("exact_quantiles(x, 0.5) OVER ()").await, "5 5 5 5 5 5");
    assert_eq!(
        column("exact_quantiles(x, 1) OVER (ORDER BY k)").await,
        "5 5 5 5 9 9"
    );
    assert_eq!(
        column(
            "exact_quantiles(x, 0.5, 'linear') OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)"
        )
        .await,
        "3.0 3.0 2.0 6.0 7.0 8.0"
    );
    assert_eq!(
        column("exact_quantiles(x, [0, 1]) OVER (ORDER BY k ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING)").await,
        "[3, 3] [3, 9] [7, 9] [7, 7] NULL NULL"
    );
    assert_eq!(
        column(
            "exact_quantiles(DISTINCT x % 3, 0.5) OVER (ORDER BY k ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
        )
        .await,
        "2 1 1 0 0 0"
    );
    assert_eq!(
        column("exact_quantiles(x, 0.5) FILTER (WHERE x > 4) OVER (PARTITION BY g)").await,
        "5 5 5 7 7 7"
    );
}

#[tokio::test]
async fn places_where_a_call_may_stand() {
    let ctx = session(4);
    let kept = values(&table(&ctx, 2000, 3));
    let median = by_sort(&kept, 500).unwrap();
    let above: Vec<i64> = kept.iter().copied().filter(|x| *x > median).collect();
    let m = median.to_string();
    for (sql, expected) in [
        (
            "SELECT exact_quantiles(x, 0.5) + 1 FROM t",
            (median + 1).to_string(),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t HAVING exact_quantiles(x, 0.5) > 1000000",
            String::new(),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t HAVING count(*) = 2000",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t ORDER BY exact_quantiles(x, 0.5) LIMIT 1",
            m.clone(),
        ),
        (
            "WITH c AS (SELECT x AS y FROM t) SELECT exact_quantiles(y, 0.5) FROM c",
            m.clone(),
        ),
        ("SELECT (SELECT exact_quantiles(x, 0.5) FROM t)", m.clone()),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t WHERE x > (SELECT exact_quantiles(x, 0.5) FROM t)",
            expect(&above, 500),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t WHERE x IN (SELECT x FROM t WHERE x > (SELECT exact_quantiles(x, 0.5) FROM t))",
            expect(&above, 500),
        ),
        (
            "SELECT a.m - b.m FROM (SELECT exact_quantiles(x, 0.5) AS m FROM t) a CROSS JOIN (SELECT exact_quantiles(x, 0.5) AS m FROM t) b",
            "0".to_owned(),
        ),
        (
            "SELECT exact_quantiles(t.x, 0.5) FROM t JOIN (SELECT DISTINCT g FROM t) u ON t.g = u.g",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM (SELECT * FROM t ORDER BY x LIMIT 5000)",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(-x, 0) FROM t",
            (-kept.iter().max().unwrap()).to_string(),
        ),
        ("SELECT exact_quantiles(x + (SELECT 0), 0.5) FROM t", m.clone()),
        (
            "SELECT array_length(exact_quantiles(x, [0.1, 0.2])) FROM t",
            "2".to_owned(),
        ),
        ("SELECT exact_quantiles(x, 0.5) IGNORE NULLS FROM t", m.clone()),
        (
            "SELECT exact_quantiles(0.5) WITHIN GROUP (ORDER BY x NULLS FIRST) FROM t",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(x => x, quantiles => 0.5, method => 'disc') FROM t",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(arrow_cast(x, 'Dictionary(Int8, Int64)'), 0.5) FROM t",
            m.clone(),
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t UNION ALL SELECT exact_quantiles(x, 0.5) FROM t",
            format!("{m},{m}"),
        ),
        (
            "SELECT max(m) FROM (SELECT exact_quantiles(x, 0.5) AS m FROM t GROUP BY s)",
            m.clone(),
        ),
    ] {
        assert_eq!(rows(&ctx, sql).await.join(","), expected, "{sql}");
    }
    query(
        &ctx,
        "CREATE VIEW v AS SELECT g, exact_quantiles(x, 0.5) AS m FROM t GROUP BY g",
    )
    .await
    .unwrap();
    query(
        &ctx,
        "CREATE VIEW w AS SELECT exact_quantiles(x, 0.5) AS m FROM t",
    )
    .await
    .unwrap();
    assert_eq!(row(&ctx, "SELECT m FROM w").await, m);
    assert_eq!(row(&ctx, "SELECT count(m) FROM v").await, "5");
    let correlated = "SELECT DISTINCT u.g, (SELECT exact_quantiles(x, 0.5) FROM t WHERE t.g = u.g) AS m FROM t u ORDER BY 1";
    assert_eq!(
        rows(&ctx, correlated).await,
        rows(&ctx, "SELECT * FROM v ORDER BY g").await
    );
}

#[tokio::test]
async fn beside_other_aggregates_with_filters_in_one_scan() {
    let ctx = session(4);
    let data = table(&ctx, 2500, 4);
    let kept = values(&data);
    let of = |keep: &dyn Fn(i64, i64) -> bool| -> Vec<i64> {
        data.iter()
            .filter_map(|(x, g)| x.filter(|x| keep(*x, *g)))
            .collect()
    };
    let sql = "SELECT exact_quantiles(x, 0.5), count(*), sum(x), avg(f), count(DISTINCT g), \
               exact_quantiles(x, 0.5) FILTER (WHERE g = 1), sum(x) FILTER (WHERE g = 1), \
               exact_quantiles(100 / x, 1) FILTER (WHERE x > 0 AND g = 2), \
               exact_quantiles(DISTINCT x, 0.5), min(s) FROM t";
    let mut distinct = kept.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let quotients: Vec<i64> = of(&|x, g| x > 0 && g == 2).iter().map(|x| 100 / x).collect();
    let ones = of(&|_, g| g == 1);
    let mean = kept.iter().map(|x| *x as f64 / 4.0).sum::<f64>() / kept.len() as f64;
    let expected = [
        expect(&kept, 500),
        "2500".to_owned(),
        kept.iter().sum::<i64>().to_string(),
        mean.to_string(),
        "5".to_owned(),
        expect(&ones, 500),
        ones.iter().sum::<i64>().to_string(),
        expect(&quotients, 1000),
        expect(&distinct, 500),
        "a".to_owned(),
    ];
    assert_eq!(row(&ctx, sql).await, expected.join(" | "));
    let plan = physical_plan(&ctx, sql).await;
    assert_eq!(plan.matches("DataSourceExec").count(), 1, "{plan}");
    assert!(!plan.contains("AggregateExec"), "{plan}");
}

#[tokio::test]
async fn no_values() {
    let ctx = session(3);
    table(&ctx, 100, 2);
    query(&ctx, "CREATE TABLE empty (x BIGINT, g BIGINT)")
        .await
        .unwrap();
    for from in [
        "empty",
        "t WHERE false",
        "t WHERE x > 100000",
        "(SELECT NULLIF(x, x) AS x, g FROM t)",
        "(SELECT NULL AS x, 1 AS g)",
    ] {
        let sql = format!(
            "SELECT exact_quantiles(x, 0.5), exact_quantiles(x, [0.5, 1]), exact_quantiles(x, 0, 'linear'), count(x) FROM {from}"
        );
        assert_eq!(row(&ctx, &sql).await, "NULL | NULL | NULL | 0", "{from}");
    }
    assert_eq!(
        rows(&ctx, "SELECT g, exact_quantiles(x, 0.5) FROM empty GROUP BY g")
            .await
            .len(),
        0
    );
    let nulls = "SELECT exact_quantiles(y, 0.5), exact_quantiles(y, [0.5]) FROM (SELECT NULLIF(x, x) AS y, g FROM t) GROUP BY g";
    assert_eq!(rows(&ctx, nulls).await, vec!["NULL | NULL"; 5]);
}

#[tokio::test]
async fn prepared_statements() {
    let ctx = session(2);
    let kept = values(&table(&ctx, 500, 2));
    for sql in [
        "PREPARE list(DOUBLE[]) AS SELECT exact_quantiles(x, $1) FROM t",
        "PREPARE one(DOUBLE, BIGINT) AS SELECT exact_quantiles(x, $1, 'lower') FROM t WHERE g < $2",
        "PREPARE over AS SELECT DISTINCT exact_quantiles(x, $1) OVER () FROM t",
    ] {
        query(&ctx, sql).await.unwrap();
    }
    let list = row(&ctx, "EXECUTE list([0.5, 0.25])").await;
    assert_eq!(list, format!("[{}, {}]", expect(&kept, 500), expect(&kept, 250)));
    assert_eq!(
        row(&ctx, "EXECUTE one(1, 100)").await,
        kept.iter().max().unwrap().to_string()
    );
    assert_eq!(row(&ctx, "EXECUTE over(0.5)").await, expect(&kept, 500));
    let out_of_range =
        "Error during planning: exact_quantiles: quantile 2 is out of range: allowed is a number from 0 to 1";
    for sql in ["EXECUTE list([2])", "EXECUTE one(2, 100)", "EXECUTE over(2)"] {
        assert_eq!(error(&ctx, sql).await, out_of_range, "{sql}");
    }
    assert_eq!(
        error(&ctx, "SELECT exact_quantiles(x, $1) FROM t").await,
        "Error during planning: exact_quantiles: quantiles must be a constant number or list of numbers from 0 to 1, got $1"
    );
}

#[tokio::test]
async fn columns_are_named_as_written_and_never_collide() {
    let ctx = session(2);
    table(&ctx, 10, 1);
    let sql = "SELECT exact_quantiles(x, 0.5), exact_quantiles(x, 0.5, 'disc'), exact_quantiles(x, 0.5, 'Linear'), \
               exact_quantiles(x, 0.5, 'lower'), exact_quantiles(0.5) WITHIN GROUP (ORDER BY x DESC), \
               exact_quantiles(0.5) WITHIN GROUP (ORDER BY x), exact_quantiles(DISTINCT x, 0.5), \
               exact_quantiles(x, 0.5) FILTER (WHERE g = 1) FROM t";
    let expected = [
        "exact_quantiles(t.x,Float64(0.5))",
        "exact_quantiles(t.x,Float64(0.5),Utf8(\"disc\"))",
        "exact_quantiles(t.x,Float64(0.5),Utf8(\"Linear\"))",
        "exact_quantiles(t.x,Float64(0.5),Utf8(\"lower\"))",
        "exact_quantiles(Float64(0.5)) WITHIN GROUP [t.x DESC NULLS FIRST]",
        "exact_quantiles(Float64(0.5)) WITHIN GROUP [t.x ASC NULLS LAST]",
        "exact_quantiles(DISTINCT t.x,Float64(0.5))",
        "exact_quantiles(t.x,Float64(0.5)) FILTER (WHERE t.g = Int64(1))",
    ];
    assert_eq!(names(&ctx, sql).await, expected);
    row(&ctx, sql).await;
    rows(&ctx, &format!("{sql} GROUP BY g")).await;
}

#[tokio::test]
async fn options() {
    use datafusion_quantiles::config::OPTIONS;
    let ctx = session(2);
    for option in OPTIONS {
        assert_eq!(
            row(&ctx, &format!("SHOW {}", option.name)).await,
            format!("{} | {}", option.name, option.default)
        );
        let setting = format!(
            "SELECT value, description FROM information_schema.df_settings WHERE name = '{}'",
            option.name
        );
        assert_eq!(
            row(&ctx, &setting).await,
            format!("{} | {}", option.default, option.doc)
        );
    }
    let listed = "SELECT count(*) FROM information_schema.df_settings WHERE name LIKE 'quantiles.%'";
    assert_eq!(row(&ctx, listed).await, OPTIONS.len().to_string());

    query(&ctx, "SET quantiles.strategy = 'dibms'").await.unwrap();
    assert_eq!(
        row(&ctx, "SHOW quantiles.strategy").await,
        "quantiles.strategy | dibms"
    );
    let message = error(&ctx, "SET quantiles.strategy = 'fast'").await;
    for part in ["'fast'", "auto", "sample_select", "distributed_bms", "dibms"] {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    assert_eq!(
        row(&ctx, "SHOW quantiles.strategy").await,
        "quantiles.strategy | dibms"
    );
    assert_eq!(
        error(&ctx, "SET quantiles.speed = 'fast'").await,
        "Invalid or Unsupported Configuration: there is no option 'quantiles.speed': allowed are \
         quantiles.cuda_memory_limit, quantiles.device, quantiles.read_again, quantiles.replace_builtins, quantiles.strategy, \
         quantiles.topk, quantiles.trust_float_statistics"
    );
}
