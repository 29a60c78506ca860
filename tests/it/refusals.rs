//! What the SQL function refuses, and what it says of it.

use quantiles_testing::samples::table;
use quantiles_testing::{error, session};

#[tokio::test]
async fn refusals_name_the_value_under_explain_and_without_rows() {
    let ctx = session(2);
    table(&ctx, 10, 1);
    let constant = "exact_quantiles: quantiles must be a constant number or list of numbers from 0 to 1, got";
    let method = "one of disc, linear, lower, higher, nearest, midpoint, averaged_inverted_cdf, closest_observation, interpolated_inverted_cdf, \
                  hazen, weibull, median_unbiased, normal_unbiased, got";
    let count = "the values, a constant quantile or list of quantiles from 0 to 1, and optionally the name of a method, and behind it a weight";
    for (call, message) in [
        ("exact_quantiles(x, 2)", "exact_quantiles: quantile 2 is out of range: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, [0.5, -0.1])", "exact_quantiles: quantile -0.1 is out of range: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, 0.5 + 0.6)", "exact_quantiles: quantile 1.1 is out of range: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, 'NaN'::DOUBLE)", "exact_quantiles: quantile NaN is out of range: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, NULL)", "exact_quantiles: a quantile must not be NULL: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, [NULL])", "exact_quantiles: a quantile must not be NULL: allowed is a number from 0 to 1".to_owned()),
        ("exact_quantiles(x, 'half')", "exact_quantiles: a quantile must be a number from 0 to 1, got half of type Utf8".to_owned()),
        ("exact_quantiles(x, true)", "exact_quantiles: a quantile must be a number from 0 to 1, got true of type Boolean".to_owned()),
        ("exact_quantiles(x, f)", format!("{constant} t.f")),
        ("exact_quantiles(x, [0.5, f])", format!("{constant} make_array(Float64(0.5), t.f)")),
        ("exact_quantiles(x, random())", format!("{constant} random()")),
        ("exact_quantiles(x, (SELECT 0.5))", format!("{constant} (<subquery>)")),
        ("exact_quantiles(x)", format!("exact_quantiles takes 2 to 4 arguments, got 1: {count}")),
        ("exact_quantiles(x, 0.5, 'disc', 1, 2)", format!("exact_quantiles takes 2 to 4 arguments, got 5: {count}")),
        (
            "exact_quantiles(x, 0.5, 'best')",
            "unknown quantile method 'best': allowed are disc, linear, lower, higher, nearest, midpoint, averaged_inverted_cdf, closest_observation, interpolated_inverted_cdf, \
             hazen, weibull, median_unbiased, normal_unbiased (inverted_cdf is another name of disc, cont of linear)".to_owned(),
        ),
        ("exact_quantiles(x, 0.5, 5)", format!("exact_quantiles: the method must be a string, {method} 5 of type Int64")),
        ("exact_quantiles(x, 0.5, NULL)", format!("exact_quantiles: the method must be a string, {method} NULL of type Null")),
        ("exact_quantiles(x, 0.5, s)", format!("exact_quantiles: the method must be a constant string, {method} t.s")),
        (
            "percentile_cont(s, [0.5])",
            "percentile_cont takes integers, floating-point numbers and decimals, got values of type Utf8: exact_quantiles takes any type \
             that has an order".to_owned(),
        ),
        ("exact_quantiles(x, 0.5) RESPECT NULLS", "exact_quantiles skips NULLs: RESPECT NULLS is not allowed".to_owned()),
        (
            "exact_quantiles(x, 0.5) WITHIN GROUP (ORDER BY f)",
            "exact_quantiles with WITHIN GROUP (ORDER BY t.f) takes its values from there: remove the argument t.x".to_owned(),
        ),
    ] {
        for sql in [
            format!("SELECT {call} FROM t"),
            format!("EXPLAIN SELECT {call} FROM t"),
            format!("SELECT {call} FROM t WHERE false"),
            format!("SELECT {call} FROM t GROUP BY g LIMIT 0"),
            format!("SELECT n FROM (SELECT {call} AS q, count(*) AS n FROM t)"),
        ] {
            assert_eq!(error(&ctx, &sql).await, format!("Error during planning: {message}"), "{sql}");
        }
        if !call.contains("WITHIN GROUP") {
            let sql = format!("SELECT {call} OVER (PARTITION BY g) FROM t");
            assert_eq!(error(&ctx, &sql).await, format!("Error during planning: {message}"), "{sql}");
        }
    }
}

#[tokio::test]
async fn refused_types_say_what_is_allowed() {
    let ctx = session(2);
    table(&ctx, 10, 1);
    for call in [
        "exact_quantiles(INTERVAL '1 day', 0.5)",
        "exact_quantiles([INTERVAL '1 day'], [0.5], 'linear')",
        "exact_quantiles(MAP {s: x}, 0.5)",
        "exact_quantiles(s, [0.5], 'linear')",
        "exact_quantiles([x], 0.5, 'midpoint')",
    ] {
        for sql in [
            format!("SELECT {call} FROM t"),
            format!("EXPLAIN SELECT {call} FROM t WHERE false GROUP BY g"),
        ] {
            let message = error(&ctx, &sql).await;
            let discrete = |name: &str| {
                message.contains(&format!(
                    "and type {name} has none: allowed are disc, lower, higher, nearest, closest_observation"
                ))
            };
            let refused = ["Interval(", "List(Interval(", "Map("].iter().any(|name| {
                message.contains(&format!("quantiles of type {name}"))
                    && message.contains("allowed are integers")
            });
            assert!(
                refused || discrete("Utf8") || discrete("List(Int64)"),
                "{sql}: {message}"
            );
            assert!(!message.contains("exact_quantiles_"), "no hidden name: {message}");
        }
    }
}
