//! The output of `EXPLAIN` and `EXPLAIN ANALYZE` for statements on a device, and the statements that run on the CPU.

use std::sync::Arc;

use datafusion::arrow::array::Int32Array;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::pinned::pin_table;
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{batch, physical_plan, register, row, rows, rows_joined, session, set, sorted};

use crate::matrix::{with_cents, with_id};
use crate::support::{columns, device, pinned, tests, with_nulls};

tests! {
    asynchronous quantiles,
    asynchronous groups,
    asynchronous best_rows,
    asynchronous best_rows_of_groups,
    asynchronous strategies,
    asynchronous conditions,
    asynchronous filters_that_calls_share,
    asynchronous sorts,
    asynchronous groups_that_do_not_fit,
    asynchronous best_rows_that_do_not_fit,
}

async fn quantiles() {
    let device = device();
    let ctx = session(2);
    let rows = batch(columns(Pattern::Random, 100_003, 1));
    pinned(&ctx, &rows, 2).await;
    let sql = "SELECT exact_quantiles(f32, [0.5, 0.9]), exact_quantiles(f32, 0.1), exact_quantiles(i64, 0.5) FROM t";
    let first = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[f32, i64], \
         calls=[exact_quantiles(f32@0, [0.5, 0.9], disc), exact_quantiles(f32@0, 0.1, disc), \
         exact_quantiles(i64@1, 0.5, disc)]",
        device.name()
    );
    let plan = physical_plan(&ctx, sql).await;
    assert_eq!(plan, format!("{first}, fallback=cpu"));
    set(&ctx, "device", "cuda").await;
    assert_eq!(physical_plan(&ctx, sql).await, first);
    set(&ctx, "strategy", "dibms").await;
    let in_rounds = first.replace("calls=", "strategy=dibms, calls=");
    assert_eq!(physical_plan(&ctx, sql).await, in_rounds);
    set(&ctx, "strategy", "auto").await;
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    for expected in [
        "kernels=20",
        "bytes_read=1.20 M",
        "bytes_to_device=32",
        "device_time=",
        "ss_count_time=",
        "ss_deepen_time=",
        "deepened=0",
        "output_rows=1",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
}

async fn groups() {
    let device = device();
    let ctx = session(2);
    pinned(&ctx, &batch(columns(Pattern::Random, 100_003, 1)), 2).await;
    let sql = "SELECT i8, b, exact_quantiles(f32, [0.5, 0.9]), exact_quantiles(f32, 0.1) FROM t WHERE i16 > 3 GROUP BY b, i8";
    let plan = physical_plan(&ctx, sql).await;
    let first = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[b, i8, f32], gby=[b, i8], \
         calls=[exact_quantiles(f32@",
        device.name()
    );
    let last = "[0.5, 0.9], disc), exact_quantiles(f32@";
    let filter = ", 0.1, disc)], where=[t.i16 > Int16(3)], fallback=cpu";
    for expected in [first.as_str(), last, filter] {
        assert!(plan.contains(expected), "{expected} in {plan}");
    }
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    for expected in [
        "kernels=",
        "device_time=",
        "gr_codes_time=",
        "gr_records_64_time=",
        "so_scatter_time=",
        "sg_ranks_time=",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    // These read the table itself: groups by floating point or by an expression, other aggregates, distinct values.
    for sql in [
        "SELECT f32, exact_quantiles(i8, 0.5) FROM t GROUP BY f32",
        "SELECT i8 + 1, exact_quantiles(i8, 0.5) FROM t GROUP BY i8 + 1",
        "SELECT i8, exact_quantiles(f32, 0.5), sum(i16) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), min(f64) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), count(DISTINCT i16) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), count(i16 + 1) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(DISTINCT f32, 0.5) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5) FROM t GROUP BY CUBE (i8)",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
}

async fn best_rows() {
    let device = device();
    let ctx = session(2);
    pinned(
        &ctx,
        &batch(with_id(
            columns(Pattern::Random, 100_003, 1),
            100_003,
            &["f32", "i8"],
        )),
        2,
    )
    .await;
    let sql = "SELECT min_by(id, f32, 3), max_by(f32, id), topk_by(i8, f32, 5) FILTER (WHERE i8 > 0) FROM t \
               WHERE f32 < CAST(7 AS REAL)";
    let first = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[id, f32, i8], \
         calls=[min_by(id, f32, 3), max_by(f32, id), topk_by(i8, f32, 5) FILTER (t.i8 > Int8(0))], \
         where=[t.f32 < Float32(7)]",
        device.name()
    );
    let plan = physical_plan(&ctx, sql).await;
    assert_eq!(plan, format!("{first}, fallback=cpu"));
    set(&ctx, "device", "cuda").await;
    assert_eq!(physical_plan(&ctx, sql).await, first);
    let plan = physical_plan(&ctx, "SELECT topk_by(id, f32, 3, 'asc') FROM t").await;
    assert!(plan.contains("calls=[topk_by(id, f32, 3, asc)]"), "{plan}");
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    for expected in [
        "kernels=",
        "bytes_read=",
        "device_time=",
        "tk_filter_time=",
        "tk_emit_time=",
        "ga_values_time=",
        "second_reads=0",
        "output_rows=1",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    set(&ctx, "device", "auto").await;
    let plan = physical_plan(&ctx, "SELECT id, i8 FROM t ORDER BY id DESC LIMIT 4").await;
    assert_eq!(
        plan,
        format!(
            "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[id, i8], fetch=4, order_by=[id DESC], \
             fallback=cpu",
            device.name()
        )
    );
    // These read the table itself: other aggregates, values of an expression, distinct pairs.
    for sql in [
        "SELECT topk_by(id, f32, 3), count(*) FROM t",
        "SELECT topk_by(id, f32 + 1, 3) FROM t",
        "SELECT topk_by(DISTINCT id, f32, 3) FROM t",
        "SELECT topk_by(id, f32, 2000000) FROM t",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
    // No device memory for a workspace.
    device.release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    let sql = "SELECT max_by(id, f32) FROM t";
    let expected = row(&ctx, sql).await;
    set(&ctx, "cuda_memory_limit", "none").await;
    assert_eq!(row(&ctx, sql).await, expected);
}

async fn best_rows_of_groups() {
    let device = device();
    let ctx = session(2);
    pinned(&ctx, &batch(with_cents(Pattern::Random, 3_000_003, 1, false)), 2).await;
    let sql = "SELECT b, min_by(id, f32, 3), topk_by(i8, f64, 5) FILTER (WHERE i8 > 0) FROM t WHERE i16 > 3 GROUP BY b";
    let expected = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[b, id, f32, i8, f64], gby=[b], \
         calls=[min_by(id, f32, 3), topk_by(i8, f64, 5) FILTER (t.i8 > Int8(0))], where=[t.i16 > Int16(3)], fallback=cpu",
        device.name()
    );
    assert_eq!(physical_plan(&ctx, sql).await, expected);
    let plan = physical_plan(&ctx, "SELECT u16, topk_by(id, f32, 2000000) FROM t GROUP BY u16").await;
    assert!(plan.contains("PinnedExec"), "{plan}");
    // Two long groups, short ones, and keys with values that take more than 128 bits together.
    for (sql, expected) in [
        (
            "SELECT b, topk_by(id, f64, 10) FROM t GROUP BY b",
            &[
                "gt_records_time=",
                "so_search_time=",
                "gt_select_32_time=",
                "gt_answer_time=",
            ][..],
        ),
        (
            "SELECT b, topk_by(id, f64, 1000) FROM t GROUP BY b",
            &["gt_select_1024_time="],
        ),
        (
            "SELECT i16, topk_by(id, f64, 10) FROM t GROUP BY i16",
            &["so_scatter_time=", "gt_answer_time="],
        ),
        (
            "SELECT i16, topk_by(i64, f64, 10) FROM t GROUP BY i16",
            &["gt_order_time=", "gt_answer_time="],
        ),
    ] {
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        for expected in expected {
            assert!(analyzed.contains(expected), "{expected} in {analyzed}");
        }
        assert!(!analyzed.contains("cuda_fallback"), "{analyzed}");
        assert_eq!(
            analyzed.contains("gt_select"),
            sql.starts_with("SELECT b"),
            "{sql}: {analyzed}"
        );
    }
    // These read the table itself: groups by floating point or by an expression, other aggregates, distinct pairs.
    for sql in [
        "SELECT f32, topk_by(id, f32, 3) FROM t GROUP BY f32",
        "SELECT i8 + 1, topk_by(id, f32, 3) FROM t GROUP BY i8 + 1",
        "SELECT i8, topk_by(id, f32, 3), count(*) FROM t GROUP BY i8",
        "SELECT i8, topk_by(DISTINCT id, f32, 3) FROM t GROUP BY i8",
        "SELECT i8, topk_by(id, f32, 3) FROM t GROUP BY CUBE (i8)",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
    first_rows_of_groups(&ctx).await;
}

/// Rows by their number in a group: where they run, and which of those that tie come first.
async fn first_rows_of_groups(ctx: &SessionContext) {
    let numbered = |function: &str, order: &str| {
        format!(
            "SELECT id, n FROM (SELECT id, {function}() OVER (PARTITION BY b ORDER BY {order}) AS n FROM t WHERE i8 > 3) WHERE n <= 3"
        )
    };
    let plan = physical_plan(ctx, &numbered("row_number", "i8 DESC")).await;
    for expected in [
        "PinnedExec: device=cuda:0",
        "gby=[b], row_number <= 3, order_by=[i8 DESC], where=[",
        "fallback=cpu",
    ] {
        assert!(plan.contains(expected), "{plan}");
    }
    let plan = physical_plan(ctx, "SELECT DISTINCT ON (u16) id FROM t ORDER BY u16, f64").await;
    assert!(
        plan.contains("gby=[u16], row_number <= 1, order_by=[f64 ASC]"),
        "{plan}"
    );
    // Of those that tie the first: a pinned table has one partition after the other, to which batches of 4000 rows were dealt.
    let all = rows_joined(ctx, &format!("{} ORDER BY id", numbered("row_number", "i8 DESC"))).await;
    let sql = "SELECT id, n FROM (SELECT id, row_number() OVER (PARTITION BY b ORDER BY i8 DESC, (id / 4000) % 2, id) AS n FROM t WHERE i8 > 3) \
               WHERE n <= 3 ORDER BY id";
    assert_eq!(all, rows_joined(ctx, sql).await);
    // These read the table itself: other numberings, several columns, expressions.
    for sql in [
        numbered("rank", "i8"),
        numbered("row_number", "i8, id"),
        numbered("row_number", "i8 + 1"),
    ] {
        let plan = physical_plan(ctx, &sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
}

async fn strategies() {
    let ctx = session(3);
    register(&ctx, "t", &batch(columns(Pattern::Random, 200_000, 4)), 4, 8192);
    set(&ctx, "device", "cuda").await;
    let sql = "EXPLAIN ANALYZE SELECT exact_quantiles(f64, [0.1, 0.5, 0.9]) FROM t";
    for (strategy, metrics) in [
        (
            "dibms",
            vec![
                "strategy_dibms=1",
                "rounds=",
                "candidates_after_round_2=",
                "sample_time=",
            ],
        ),
        (
            "gk_select",
            vec!["strategy_gk_select=1", "rounds=2", "sketch_time="],
        ),
        (
            "distributed_bms",
            vec!["strategy_distributed_bms=1", "rounds=3", "extract_time="],
        ),
    ] {
        set(&ctx, "strategy", strategy).await;
        let analyzed = rows_joined(&ctx, sql).await;
        let shown = format!("QuantilesExec: strategy={strategy}, device=cuda:0, on_device=[f64@");
        for expected in
            metrics
                .into_iter()
                .chain([shown.as_str(), "kernels=", "bytes_to_device=1.6", "device_time="])
        {
            assert!(analyzed.contains(expected), "{expected} in {analyzed}");
        }
    }
    pin_table(&ctx, "t", &["f64"]).await.unwrap();
    let analyzed = rows_joined(&ctx, sql).await;
    for expected in [
        "PinnedExec: device=cuda:0",
        "strategy=distributed_bms, calls=",
        "strategy_distributed_bms=1",
        "rounds=3",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
}

/// Codes of groups with more than 64 bits, and records with more than 128 bits, are planned for the CPU.
async fn groups_that_do_not_fit() {
    let ctx = session(2);
    pinned(&ctx, &batch(with_nulls(columns(Pattern::Extremes, 5000, 2))), 2).await;
    for sql in [
        "SELECT i64, exact_quantiles(f32, 0.5) FROM t GROUP BY i64",
        "SELECT i32, u64, exact_quantiles(f32, 0.5) FROM t GROUP BY i32, u64",
        "SELECT i32, u16, exact_quantiles(dec, 0.5) FROM t GROUP BY i32, u16",
    ] {
        set(&ctx, "device", "cpu").await;
        let expected = sorted(rows(&ctx, sql).await);
        for device in ["cuda", "auto"] {
            set(&ctx, "device", device).await;
            assert_eq!(sorted(rows(&ctx, sql).await), expected, "{device}, {sql}");
            let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
            assert!(
                analyzed.contains("GroupedQuantilesExec: ") && !analyzed.contains("Pinned"),
                "{device}, {sql}: {analyzed}"
            );
        }
    }
}

/// Codes, keys and values with more than 128 bits together, and more than ten group columns, are planned for the CPU.
async fn best_rows_that_do_not_fit() {
    let ctx = session(2);
    let mut all = with_cents(Pattern::Random, 5000, 2, true);
    let names: Vec<_> = (0..11).map(|number| format!("g{number}")).collect();
    for name in &names {
        let group = Int32Array::from_iter_values((0..5000).map(|n| n % 3));
        all.push((name, Arc::new(group)));
    }
    pinned(&ctx, &batch(all), 2).await;
    let groups = names.join(", ");
    for sql in [
        "SELECT i64, topk_by(f32, f64, 3) FROM t GROUP BY i64 ORDER BY i64",
        "SELECT i8, topk_by(f64, dec, 3) FROM t GROUP BY i8 ORDER BY i8",
        &format!("SELECT {groups}, topk_by(f32, i16, 3) FROM t GROUP BY {groups} ORDER BY {groups}"),
    ] {
        set(&ctx, "device", "cpu").await;
        let expected = rows(&ctx, sql).await;
        for device in ["cuda", "auto"] {
            set(&ctx, "device", device).await;
            assert_eq!(rows(&ctx, sql).await, expected, "{device}, {sql}");
            let plan = physical_plan(&ctx, sql).await;
            assert!(
                plan.contains("GroupedTopKExec: ") && !plan.contains("Pinned"),
                "{device}, {sql}: {plan}"
            );
        }
    }
}

/// Filters that the device cannot compute run over the table.
async fn conditions() {
    let ctx = session(2);
    pinned(&ctx, &batch(columns(Pattern::Random, 1000, 1)), 2).await;
    for condition in [
        "i64 > i32",
        "i64 % 2 = 0",
        "f64 IN (1, 2, 3, 4, 5)",
        "random() < 0.5",
    ] {
        let plan = physical_plan(
            &ctx,
            &format!("SELECT exact_quantiles(i64, 0.5) FROM t WHERE {condition}"),
        )
        .await;
        assert!(plan.starts_with("QuantilesExec"), "{plan}");
    }
    let plan = physical_plan(
        &ctx,
        "SELECT exact_quantiles(i64, 0.5) FROM t WHERE i32 > 5 AND b",
    )
    .await;
    assert!(plan.contains("columns=[i64], "), "{plan}");
    assert!(plan.contains("where=[t.i32 > Int32(5) AND t.b]"), "{plan}");
}

async fn filters_that_calls_share() {
    let ctx = session(2);
    pinned(&ctx, &batch(columns(Pattern::Random, 1000, 1000)), 2).await;
    let shown = physical_plan(
        &ctx,
        "SELECT topk_by(i8, u64, 2) FILTER (WHERE i16 >= 7), min_by(u16, i64) FILTER (WHERE i16 >= 7) FROM t",
    )
    .await;
    let calls =
        "calls=[topk_by(i8, u64, 2) FILTER (t.i16 >= Int16(7)), min_by(u16, i64) FILTER (t.i16 >= Int16(7))]";
    assert!(shown.contains(calls), "{shown}");
}

/// Sorts that do not run on the device: two keys, a key that is an expression or may be NULL, no limit, other columns.
async fn sorts() {
    let ctx = session(3);
    let names = ["i8", "f32", "f64", "dec"];
    pinned(
        &ctx,
        &batch(with_id(columns(Pattern::Random, 5, 3), 5, &names)),
        3,
    )
    .await;
    for sql in [
        "SELECT id FROM t ORDER BY i8, id LIMIT 5",
        "SELECT id FROM t ORDER BY id + 1 LIMIT 5",
        "SELECT id FROM t ORDER BY id",
        "SELECT id, i8 + 1 FROM t ORDER BY id LIMIT 5",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(
            !plan.contains("Pinned") || sql.contains("i8 + 1"),
            "{sql}: {plan}"
        );
    }
    let ctx = session(3);
    let rows = with_id(with_nulls(columns(Pattern::Random, 100, 3)), 100, &["f64"]);
    pinned(&ctx, &batch(rows), 3).await;
    let plan = physical_plan(&ctx, "SELECT f64 FROM t ORDER BY f64 LIMIT 3").await;
    assert!(!plan.contains("Pinned"), "{plan}");
}
