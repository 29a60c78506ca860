//! The best rows of groups of pinned rows: on a device against the CPU, bit by bit.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Int32Array, Int64Array, RecordBatch,
};
use datafusion::arrow::datatypes::{DataType, Decimal128Type};
use datafusion_quantiles::kernel::cuda::{
    Device, DeviceColumn, GroupTop, GroupTopSelection, Groups, Report, Selection, TopMethod,
};
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::pinned::unpin_table;

use crate::cuda::{columns, device, pinned, rows_joined, same_by, set, with_nulls};
use crate::cuda_groups::{LENS, by_every_type, same_over, these};
use crate::patterns::{self, Pattern};
use crate::support::*;

const OPERATOR: &str = "PinnedExec";

/// All columns, decimals of few digits, and the number of each row.
fn table(pattern: Pattern, len: usize, seed: u64, nulls: bool) -> Vec<(&'static str, ArrayRef)> {
    let mut all = columns(pattern, len, seed);
    let wide = all.iter().find(|(name, _)| *name == "dec").unwrap().1.clone();
    let wide = wide.as_primitive::<Decimal128Type>().values().iter();
    let cents = Decimal128Array::from_iter_values(wide.map(|value| (value >> 50) % 100_000));
    let cents = cents.with_precision_and_scale(20, 2).unwrap();
    all.push(("cents", Arc::new(cents)));
    let mut all = if nulls { with_nulls(all) } else { all };
    all.push(("id", Arc::new(Int64Array::from_iter_values(0..len as i64))));
    all
}

/// Calls whose groups, keys and values, or places, have room in a record beside groups of up to 32 bits.
const CALLS: &str = "topk_by(id, f32, 10), topk_by(f64, i8, 7, 'asc'), max_by(i64, f64), min_by(f32, i16, 3), \
                     topk_by(cents, cents, 5), topk_by(i8, i8, 100000), topk_by(b, f16, 33), topk_by(f16, b, 40, 'asc'), \
                     min_by(u64, date, 4), max_by(ts, u16, 1000), topk_by(f32, f64, 20)";

/// The same beside groups of 64 bits.
const NARROW: &str =
    "topk_by(f64, f32, 10), max_by(i64, i8), min_by(cents, i16, 3), topk_by(f16, date, 4, 'asc')";

async fn every_group_type(patterns: &[Pattern]) {
    let statement = |group| {
        let calls = if ["i64", "u64"].contains(&group) {
            NARROW
        } else {
            CALLS
        };
        format!("SELECT {group}, {calls} FROM t GROUP BY {group} ORDER BY {group}")
    };
    same_over(patterns, &LENS, OPERATOR, rows_of, |pattern, nulls| {
        by_every_type(pattern, nulls, statement)
    })
    .await;
}

fn rows_of(pattern: Pattern, len: usize, nulls: bool) -> RecordBatch {
    batch(table(pattern, len, len as u64, nulls))
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_every_type_first_patterns() {
    every_group_type(&[Pattern::Random, Pattern::AllEqual, Pattern::FewDistinct]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_every_type_last_patterns() {
    every_group_type(&[Pattern::Zipf, Pattern::Extremes, Pattern::Sorted]).await;
}

/// Few groups that are long, whose rows warps select, one with most of the rows, and as many groups as rows.
#[tokio::test(flavor = "multi_thread")]
async fn long_columns() {
    if device().is_none() {
        return;
    }
    for pattern in patterns::ALL {
        let len = 1_000_037;
        let wanted = ["i16", "f32", "f64", "i64"];
        let all = with_nulls(columns(pattern, len, 5)).into_iter();
        let mut all: Vec<_> = all.filter(|(name, _)| wanted.contains(name)).collect();
        let number = |seed, of: &dyn Fn(u64) -> i32| -> ArrayRef {
            Arc::new(Int32Array::from_iter_values(pseudo_random(len, seed).map(of)))
        };
        all.push(("few", number(3, &|word| (word % 7) as i32 - 3)));
        all.push((
            "giant",
            number(4, &|word| if word % 10 == 0 { (word >> 8) as i32 } else { 7 }),
        ));
        let own = Int64Array::from_iter_values((0..len as i64).rev());
        all.push(("own", Arc::new(own)));
        let ctx = session(2);
        pinned(&ctx, &batch(all), 4).await;
        for (group, ks) in [
            ("few", [1, 10, 128]),
            ("few", [200, 1000, 1024]),
            ("few", [33, 5000, 100_000]),
            ("giant", [1, 20, 100]),
            ("own", [1, 2, 3]),
        ] {
            if group == "own" && ![Pattern::Random, Pattern::FewDistinct].contains(&pattern) {
                continue;
            }
            let [first, second, third] = ks;
            let sql = format!(
                "SELECT {group}, topk_by(i64, f32, {first}), topk_by(f32, f64, {second}, 'asc'), max_by(f64, i16, {third}) \
                 FROM t GROUP BY {group} ORDER BY {group}"
            );
            same_by(&ctx, &sql, &format!("{group}, {ks:?}, {pattern:?}"), OPERATOR).await;
        }
        unpin_table(&ctx, "t").unwrap();
    }
}

/// Several group columns, rows that a filter leaves, groups of which a call sees no row.
#[tokio::test(flavor = "multi_thread")]
async fn several_columns_and_filters() {
    let patterns = [Pattern::Random, Pattern::FewDistinct, Pattern::Extremes];
    let statements = these(&[
        "SELECT b, i8, topk_by(id, f64, 3), max_by(i16, i16) FROM t GROUP BY b, i8 ORDER BY b, i8",
        "SELECT i8, topk_by(id, f64, 3) FROM t WHERE i64 > 0 AND NOT b GROUP BY i8 ORDER BY i8",
        "SELECT i8 AS g, topk_by(f32, i64, 3) FILTER (WHERE f64 > 0), min_by(f32, i64) FROM t GROUP BY i8 ORDER BY i8",
        "SELECT u8, min_by(cents, f32, 2) FILTER (WHERE i32 < 0) FROM t WHERE i16 <> 3 GROUP BY u8 ORDER BY u8",
        "SELECT topk_by(x, y, 2) AS best FROM (SELECT u16 AS g, i16 AS x, f32 AS y FROM t) GROUP BY g ORDER BY g",
        "SELECT b, max_by(i64, f32) FROM t WHERE i64 < 0 AND i64 > 0 GROUP BY b ORDER BY b",
        "SELECT i8 FROM t GROUP BY i8 HAVING max_by(i16, f32) > 0 ORDER BY i8",
    ]);
    same_over(&patterns, &[33, 50_021], OPERATOR, rows_of, statements).await;
}

/// Numbers, keys and values beyond 128 bits, or more than ten group columns: planned for the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit() {
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    let mut all = table(Pattern::Random, 5000, 2, true);
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

/// No memory to work in: an error that says so, or the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn memory_to_work_in() {
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    pinned(&ctx, &batch(table(Pattern::Random, 5000, 2, true)), 2).await;
    let sql = "SELECT i8, topk_by(f32, f64, 3) FROM t GROUP BY i8 ORDER BY i8";
    Device::get(0).unwrap().release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    set(&ctx, "device", "cuda").await;
    let refused = error(&ctx, sql).await;
    assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
    set(&ctx, "device", "cpu").await;
    let expected = rows(&ctx, sql).await;
    set(&ctx, "device", "auto").await;
    assert_eq!(rows(&ctx, sql).await, expected, "{sql}");
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(analyzed.contains("cuda_fallback=1"), "{sql}: {analyzed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_ran() {
    let Some(device) = device() else { return };
    let ctx = session(2);
    pinned(&ctx, &batch(table(Pattern::Random, 3_000_003, 1, false)), 2).await;
    let sql = "SELECT b, min_by(id, f32, 3), topk_by(i8, f64, 5) FILTER (WHERE i8 > 0) FROM t WHERE i16 > 3 GROUP BY b";
    let expected = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[b, id, f32, i8, f64], gby=[b], \
         calls=[min_by(id, f32, 3), topk_by(i8, f64, 5) FILTER (t.i8 > Int8(0))], where=[t.i16 > Int16(3)], fallback=cpu",
        device.name()
    );
    assert_eq!(physical_plan(&ctx, sql).await, expected);
    let plan = physical_plan(&ctx, "SELECT u16, topk_by(id, f32, 2000000) FROM t GROUP BY u16").await;
    assert!(plan.contains(OPERATOR), "{plan}");
    // Two long groups, short ones, and keys with values that take more than 128 bits together.
    for (sql, expected) in [
        (
            "SELECT b, topk_by(id, f64, 10) FROM t GROUP BY b",
            &[
                "gt_records_time=",
                "so_heads_time=",
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
    // By floating point, by what is computed, beside other aggregates, over distinct pairs: the table itself.
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
}

/// Either way to find them, whatever would be chosen.
#[test]
fn warps_and_sorting_find_the_same_rows() {
    let Some(device) = device() else { return };
    for pattern in [
        Pattern::Random,
        Pattern::AllEqual,
        Pattern::FewDistinct,
        Pattern::Sorted,
        Pattern::Reversed,
    ] {
        for len in [1, 100, 5000, 400_009] {
            for nulls in [false, true] {
                let all = table(pattern, len, 3, nulls);
                let column = |name: &str| {
                    let array = &all.iter().find(|(other, _)| *other == name).unwrap().1;
                    DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(array)).unwrap()
                };
                let groups =
                    Int32Array::from_iter_values(pseudo_random(len, 7).map(|word| (word % 11) as i32));
                let groups: ArrayRef = Arc::new(groups);
                let few = DeviceColumn::upload(&device, &DataType::Int32, &[groups]).unwrap();
                // Records of 64 bits, of 128, and with places.
                for (group, key, value) in [
                    (&few, "i16", "u16"),
                    (&few, "f32", "id"),
                    (&few, "f64", "i64"),
                    (&column("b"), "i8", "b"),
                ] {
                    let (key, value) = (column(key), column(value));
                    for k in [1, 2, 32, 33, 128, 129, 256, 1000, 1024] {
                        for least in [false, true] {
                            let ask = |method| best(group, &key, &value, k, least, method).0;
                            let (sorted, warps) = (ask(TopMethod::Sort), ask(TopMethod::Warps));
                            let what =
                                format!("{pattern:?}, {len} rows, nulls: {nulls}, k = {k}, least: {least}");
                            assert_eq!(sorted.codes, warps.codes, "{what}");
                            assert_eq!(sorted.lengths, warps.lengths, "{what}");
                            assert!(sorted.values.to_data() == warps.values.to_data(), "{what}");
                            assert_eq!(
                                sorted.values.len(),
                                sorted.lengths.iter().sum::<usize>(),
                                "{what}"
                            );
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn best(
    group: &DeviceColumn,
    key: &DeviceColumn,
    value: &DeviceColumn,
    k: u64,
    least: bool,
    method: TopMethod,
) -> (GroupTop, Report) {
    let mut report = Report::default();
    let groups = Groups::try_new(&[group], None, true, &mut report).unwrap();
    let keys = Selection {
        column: key,
        words: key.words(&KeySpec::try_new(key.data_type()).unwrap()),
        mask: None,
        limit: None,
        timed: true,
    };
    let selection = GroupTopSelection {
        groups: &groups,
        keys,
        values: value,
        least,
        k,
        forced: Some(method),
    };
    let top = selection.rows(&mut report, |_, _| Ok(())).unwrap();
    let ran = |kernel: &str| {
        let mut names = report.kernel_times.iter().map(|(name, _)| *name);
        names.any(|name| name.starts_with(kernel))
    };
    let are_ranked = key.valid() > 0;
    match method {
        TopMethod::Sort => assert!(!ran("gt_select") && !ran("ws_")),
        TopMethod::Warps => assert_eq!(ran("gt_select") && !ran("ws_"), are_ranked),
        TopMethod::Runs | TopMethod::RunsByBlocks | TopMethod::RunsByWarps => {}
    }
    (top, report)
}

fn in_runs(report: &Report) -> Vec<&'static str> {
    let names = report.kernel_times.iter().map(|(name, _)| *name);
    names.filter(|name| name.starts_with("ws_")).collect()
}

/// Runs of rows of one group: as long as blocks take, longer, short ones, some that start inside of a vector, several of one group.
fn runs_of(len: usize, least: usize) -> ArrayRef {
    let mut groups = Vec::with_capacity(len);
    let mut lengths = pseudo_random(len, 17);
    while groups.len() < len {
        let length = least + (lengths.next().unwrap() % (3 * least as u64)) as usize;
        let group = (groups.len() / 7 % 23) as i32 - 5;
        groups.extend(std::iter::repeat_n(group, length.min(len - groups.len())));
    }
    Arc::new(Int32Array::from(groups))
}

/// How many rows, and whether those with the least keys.
const ASKED: [(u64, bool); 9] = [
    (1, false),
    (10, true),
    (32, false),
    (33, true),
    (128, false),
    (200, true),
    (600, false),
    (1024, true),
    (1500, false),
];

/// Rows of groups that lie together, found run by run, are those that a sort finds: by blocks and by warps, with NULLs and ties.
/// The kernels that ran.
fn rows_of_runs(device: &Arc<Device>, patterns: &[Pattern], keys: &[(&str, &str)]) -> BTreeSet<&'static str> {
    let mut kernels = BTreeSet::new();
    for (pattern, (len, least)) in patterns.iter().copied().flat_map(|pattern| {
        [(70_001, 900), (600_011, 20_000), (600_011, 300_000)].map(|size| (pattern, size))
    }) {
        for nulls in [false, true] {
            let all = table(pattern, len, 9, nulls);
            let column = |name: &str| {
                let array = &all.iter().find(|(other, _)| *other == name).unwrap().1;
                DeviceColumn::upload(device, array.data_type(), std::slice::from_ref(array)).unwrap()
            };
            let groups = DeviceColumn::upload(device, &DataType::Int32, &[runs_of(len, least)]).unwrap();
            for (name, value) in keys {
                let (key, value) = (column(name), column(value));
                for (k, least) in ASKED {
                    let ask = |method| best(&groups, &key, &value, k, least, method);
                    let (sorted, _) = ask(TopMethod::Sort);
                    for method in [TopMethod::Runs, TopMethod::RunsByBlocks, TopMethod::RunsByWarps] {
                        let (found, report) = ask(method);
                        let what = format!(
                            "{pattern:?}, {len} rows, {name}, nulls: {nulls}, k = {k}, least: {least}, {method:?}"
                        );
                        assert_eq!(sorted.codes, found.codes, "{what}");
                        assert_eq!(sorted.lengths, found.lengths, "{what}");
                        assert!(sorted.values.to_data() == found.values.to_data(), "{what}");
                        let ran = in_runs(&report);
                        if pattern == Pattern::Random && k <= 33 && !nulls && len > 100_000 {
                            assert_eq!(ran.is_empty(), *name == "i16", "{what}");
                            assert_eq!(report.second_reads, 0, "{what}");
                        }
                        kernels.extend(ran);
                    }
                }
            }
        }
    }
    kernels
}

const OF_RUNS: [&str; 5] = [
    "ws_block_runs",
    "ws_runs_1024",
    "ws_runs_128",
    "ws_runs_256",
    "ws_runs_32",
];

#[test]
fn rows_of_runs_by_keys_of_32_bits() {
    let Some(device) = device() else { return };
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("f32", "id"), ("i32", "u16")]);
    assert!(kernels.iter().eq(&OF_RUNS), "{kernels:?}");
}

#[test]
fn rows_of_runs_by_keys_of_64_bits() {
    let Some(device) = device() else { return };
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("f64", "f32"), ("u64", "b")]);
    assert!(kernels.iter().eq(&OF_RUNS), "{kernels:?}");
}

#[test]
fn rows_of_runs_by_wide_and_narrow_keys() {
    let Some(device) = device() else { return };
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("cents", "id"), ("i16", "id")]);
    assert!(kernels.iter().eq(&OF_RUNS[..1]), "{kernels:?}");
}

#[test]
fn rows_of_runs_in_little_shared_memory() {
    if device().is_none() {
        return;
    }
    for shared in [64 << 10, 99 << 10] {
        let device = Arc::new(Device::open(0, Some(shared)).unwrap());
        let kernels = rows_of_runs(
            &device,
            &[Pattern::Random, Pattern::Zipf],
            &[("f32", "id"), ("f64", "id")],
        );
        assert!(kernels.iter().eq(&OF_RUNS), "{kernels:?}");
    }
}

/// From SQL: a table in the order of a day and of a sensor, filters, NULLs, several group columns.
#[tokio::test(flavor = "multi_thread")]
async fn tables_in_the_order_of_groups() {
    if device().is_none() {
        return;
    }
    let len = 800_019;
    for pattern in [Pattern::Random, Pattern::Zipf, Pattern::Extremes] {
        let wanted = ["i16", "f32", "f64", "i64", "b"];
        let all = with_nulls(columns(pattern, len, 5)).into_iter();
        let mut all: Vec<_> = all.filter(|(name, _)| wanted.contains(name)).collect();
        all.push(("day", runs_of(len, 100_000)));
        all.push(("sensor", runs_of(len, 20_000)));
        all.push(("id", Arc::new(Int64Array::from_iter_values(0..len as i64))));
        let ctx = session(2);
        pinned(&ctx, &batch(all), 4).await;
        for sql in [
            "SELECT day, topk_by(id, f32, 10), min_by(f64, f32, 100) FROM t GROUP BY day ORDER BY day",
            "SELECT sensor, topk_by(f32, f64, 7, 'asc'), max_by(i64, f64) FROM t GROUP BY sensor ORDER BY sensor",
            "SELECT day, sensor, topk_by(id, i64, 5) FROM t GROUP BY day, sensor ORDER BY day, sensor",
            "SELECT day, topk_by(id, f32, 10) FROM t WHERE i64 > 0 AND b GROUP BY day ORDER BY day",
            "SELECT day, topk_by(id, f64, 3) FILTER (WHERE i16 > 5) FROM t WHERE i64 < 77 GROUP BY day ORDER BY day",
            "SELECT day, topk_by(f32, f64, 1200) FROM t GROUP BY day ORDER BY day",
            "SELECT day, topk_by(i16, i16, 40) FROM t GROUP BY day ORDER BY day",
        ] {
            same_by(&ctx, sql, &format!("{pattern:?}"), OPERATOR).await;
        }
        if pattern == Pattern::Random {
            set(&ctx, "device", "cuda").await;
            for (sql, kernel) in [
                (
                    "SELECT sensor, topk_by(id, f32, 10) FROM t GROUP BY sensor",
                    "ws_runs_32_time=",
                ),
                (
                    "SELECT day, topk_by(id, f64, 10) FROM t GROUP BY day",
                    "ws_block_runs_time=",
                ),
                (
                    "SELECT sensor, day, topk_by(id, f32, 500) FROM t GROUP BY sensor, day",
                    "ws_block_runs_time=",
                ),
            ] {
                let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
                assert!(analyzed.contains(kernel), "{kernel} in {analyzed}");
            }
        }
        unpin_table(&ctx, "t").unwrap();
    }
}
