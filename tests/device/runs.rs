//! The best rows of groups by every method, also by those that would not be chosen: by sorting, by warps, and run by run where the rows
//! of a group lie together.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Int32Array};
use datafusion::arrow::datatypes::DataType;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, TopMethod};
use datafusion_quantiles::pinned::unpin_table;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::{batch, pseudo_random, rows_joined, session, set};

use crate::matrix::{in_order_of_groups, with_cents};
use crate::selection::best;
use crate::support::{device, pinned, tests};

tests! {
    plain warps_and_sorting_find_the_same_rows,
    plain rows_of_runs_by_keys_of_32_bits,
    plain rows_of_runs_by_keys_of_64_bits,
    plain rows_of_runs_by_wide_and_narrow_keys,
    plain rows_of_runs_in_little_shared_memory,
    asynchronous kernels_of_tables_in_the_order_of_groups,
}

/// Both methods find the same rows, also where the other one would be chosen.
fn warps_and_sorting_find_the_same_rows() {
    let device = device();
    for pattern in [
        Pattern::Random,
        Pattern::AllEqual,
        Pattern::FewDistinct,
        Pattern::Sorted,
        Pattern::Reversed,
    ] {
        for len in [1, 100, 5000, 400_009] {
            for nulls in [false, true] {
                let all = with_cents(pattern, len, 3, nulls);
                let column = |name: &str| {
                    let array = &all.iter().find(|(other, _)| *other == name).unwrap().1;
                    DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(array)).unwrap()
                };
                let groups =
                    Int32Array::from_iter_values(pseudo_random(len, 7).map(|word| (word % 11) as i32));
                let groups: ArrayRef = Arc::new(groups);
                let few = DeviceColumn::upload(&device, &DataType::Int32, &[groups]).unwrap();
                // Records of 64 bits, of 128 bits, and with places in place of values.
                for (group, key, value) in [
                    (&few, "i16", "u16"),
                    (&few, "f32", "id"),
                    (&few, "f64", "i64"),
                    (&column("b"), "i8", "b"),
                ] {
                    let (key, value) = (column(key), column(value));
                    for k in [1, 2, 32, 33, 128, 129, 256, 1000, 1024] {
                        for least in [false, true] {
                            let answer = |method| best(group, &key, &value, k, least, method).0;
                            let (sorted, warps) = (answer(TopMethod::Sort), answer(TopMethod::Warps));
                            let what =
                                format!("{pattern:?}, {len} rows, nulls: {nulls}, k = {k}, least: {least}");
                            assert_eq!(sorted.codes, warps.codes, "{what}");
                            assert_eq!(sorted.offsets, warps.offsets, "{what}");
                            assert!(sorted.values.to_data() == warps.values.to_data(), "{what}");
                            assert_eq!(sorted.values.len(), *sorted.offsets.last().unwrap(), "{what}");
                        }
                    }
                }
            }
        }
    }
}

fn in_runs(report: &Report) -> Vec<&'static str> {
    let names = report.kernel_times.iter().map(|(name, _)| *name);
    names.filter(|name| name.starts_with("ws_")).collect()
}

/// Runs of rows of one group: as long as a block reads at most, longer, short, some that start inside of a vector, several of one group.
pub(crate) fn runs_of(len: usize, least: usize) -> ArrayRef {
    let mut groups = Vec::with_capacity(len);
    let mut lengths = pseudo_random(len, 17);
    while groups.len() < len {
        let length = least + (lengths.next().unwrap() % (3 * least as u64)) as usize;
        let group = (groups.len() / 7 % 23) as i32 - 5;
        groups.extend(std::iter::repeat_n(group, length.min(len - groups.len())));
    }
    Arc::new(Int32Array::from(groups))
}

/// Numbers of rows, and whether the rows with the least keys are asked for.
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

/// If rows of groups lie together, blocks and warps find the same rows run by run as a sort does, with NULLs and ties.
/// The kernels that ran.
fn rows_of_runs(device: &Arc<Device>, patterns: &[Pattern], keys: &[(&str, &str)]) -> BTreeSet<&'static str> {
    let mut kernels = BTreeSet::new();
    for (pattern, (len, least)) in patterns.iter().copied().flat_map(|pattern| {
        [(70_001, 900), (600_011, 20_000), (600_011, 300_000)].map(|size| (pattern, size))
    }) {
        for nulls in [false, true] {
            let all = with_cents(pattern, len, 9, nulls);
            let column = |name: &str| {
                let array = &all.iter().find(|(other, _)| *other == name).unwrap().1;
                DeviceColumn::upload(device, array.data_type(), std::slice::from_ref(array)).unwrap()
            };
            let groups = DeviceColumn::upload(device, &DataType::Int32, &[runs_of(len, least)]).unwrap();
            for (name, value) in keys {
                let (key, value) = (column(name), column(value));
                for (k, least) in ASKED {
                    let answer = |method| best(&groups, &key, &value, k, least, method);
                    let (sorted, _) = answer(TopMethod::Sort);
                    for method in [TopMethod::Runs, TopMethod::RunsByBlocks, TopMethod::RunsByWarps] {
                        let (found, report) = answer(method);
                        let what = format!(
                            "{pattern:?}, {len} rows, {name}, nulls: {nulls}, k = {k}, least: {least}, {method:?}"
                        );
                        assert_eq!(sorted.codes, found.codes, "{what}");
                        assert_eq!(sorted.offsets, found.offsets, "{what}");
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

fn rows_of_runs_by_keys_of_32_bits() {
    let device = device();
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("f32", "id"), ("i32", "u16")]);
    assert!(kernels.iter().eq(&OF_RUNS), "{kernels:?}");
}

fn rows_of_runs_by_keys_of_64_bits() {
    let device = device();
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("f64", "f32"), ("u64", "b")]);
    assert!(kernels.iter().eq(&OF_RUNS), "{kernels:?}");
}

fn rows_of_runs_by_wide_and_narrow_keys() {
    let device = device();
    let kernels = rows_of_runs(&device, &patterns::ALL, &[("cents", "id"), ("i16", "id")]);
    assert!(kernels.iter().eq(&OF_RUNS[..1]), "{kernels:?}");
}

fn rows_of_runs_in_little_shared_memory() {
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

/// The kernels that run for SQL statements.
async fn kernels_of_tables_in_the_order_of_groups() {
    let ctx = session(2);
    let rows = in_order_of_groups(Pattern::Random, 800_019, true);
    pinned(&ctx, &batch(rows), 4).await;
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
    unpin_table(&ctx, "t").unwrap();
}
