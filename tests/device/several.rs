//! Tables and columns on several devices: the devices select together, and rounds find the ranks that stay open.
//!
//! On a machine with one device, two devices are two streams on it. What is sent and merged is the same.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, Float32Array, Int64Array, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::filter as arrow_filter;
use datafusion::arrow::datatypes::DataType;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Predicate, Report, RowMask, SpreadSelection};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::pinned::{pin_table, unpin_table, use_devices};
use quantiles_testing::numbers::{mixed, percentiles, uniform};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::rounds::ranks_of;
use quantiles_testing::*;

use crate::selection::selection;
use crate::support::{On, columns, devices, named, same, sorted_keys, tests, two_devices, with_nulls};

tests! {
    plain every_type_first_patterns,
    plain every_type_second_patterns,
    plain every_type_last_patterns,
    plain three_devices_and_many_ranks,
    plain long_lists,
    plain masks,
    asynchronous ranks_that_are_left_open,
    asynchronous queries_at_the_same_time,
    asynchronous spread_tables,
    asynchronous best_rows_of_spread_tables,
    asynchronous bytes_between_devices,
}

/// Divides rows among devices, one after the other.
pub(crate) fn spread(
    values: &ArrayRef,
    shares: &[Range<usize>],
    devices: &[Arc<Device>],
) -> Vec<DeviceColumn> {
    let shares = shares.iter().zip(devices);
    let upload = |(rows, device): (&Range<usize>, &Arc<Device>)| {
        let own = values.slice(rows.start, rows.len());
        DeviceColumn::upload(device, values.data_type(), &[own]).unwrap()
    };
    shares.map(upload).collect()
}

fn select(columns: &[DeviceColumn], ranks: &[u64]) -> (Option<Vec<KeyBits>>, Report) {
    let shares = columns.iter().map(|column| selection(column, None)).collect();
    let mut report = Report::default();
    let found = SpreadSelection { shares }.keys(ranks, &mut report).unwrap();
    (found, report)
}

/// `count` ranks and those at both ends, or a single rank.
fn wanted(n: u64, count: u64) -> Vec<u64> {
    match count {
        1 => vec![n.div_ceil(3)],
        _ => ranks_of(n, count),
    }
}

/// The keys of all ranks, which the devices find together.
fn check(values: &ArrayRef, shares: &[Range<usize>], devices: &[Arc<Device>], counts: &[u64], what: &str) {
    let (_, sorted) = sorted_keys(values);
    let columns = spread(values, shares, devices);
    for count in counts {
        let ranks = wanted(sorted.len() as u64, *count);
        let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
        let (found, _) = select(&columns, &ranks);
        assert!(
            found.as_ref() == Some(&expected),
            "{what}, {shares:?}, {count} ranks: found {}",
            found.is_some()
        );
    }
}

/// Shares of the rows: all on one device, most on one, equal ones, and devices without rows.
fn all_shares(len: usize) -> Vec<Vec<Range<usize>>> {
    let (half, most) = (len / 2, len - len.min(7));
    vec![
        vec![0..half, half..len],
        vec![0..most, most..len],
        vec![0..len.min(1), len.min(1)..len],
        vec![0..0, 0..len],
        vec![0..len, len..len],
    ]
}

fn every_type(patterns: &[Pattern]) {
    let devices = two_devices();
    for pattern in patterns {
        for (len, nulls) in [(1, false), (40, true), (9001, false), (150_011, true)] {
            let all = columns(*pattern, len, 5);
            for (name, values) in if nulls { with_nulls(all) } else { all } {
                let (n, what) = (values.len() - values.null_count(), format!("{name}, {pattern:?}"));
                if n == 0 {
                    continue;
                }
                for shares in all_shares(len) {
                    check(&values, &shares, &devices, &[1, 12, 101], &what);
                }
            }
        }
    }
}

fn every_type_first_patterns() {
    every_type(&patterns::ALL[..4]);
}

fn every_type_second_patterns() {
    every_type(&patterns::ALL[4..8]);
}

fn every_type_last_patterns() {
    every_type(&patterns::ALL[8..]);
}

/// More than two devices, and more ranks than one sequence of launches has room for.
fn three_devices_and_many_ranks() {
    let devices = devices(3);
    for pattern in [Pattern::Random, Pattern::Sorted, Pattern::Zipf] {
        for (name, values) in columns(pattern, 400_021, 7) {
            if ["f32", "i64", "u8", "dec"].contains(&name) {
                let shares = [0..100_003, 100_003..100_010, 100_010..400_021];
                check(
                    &values,
                    &shares,
                    &devices,
                    &[5, 2500],
                    &format!("{name}, {pattern:?}"),
                );
            }
        }
    }
}

/// Lists of thousands of keys, which stay on their devices: of distinct values, of values that each are 0.1% of all, and of some
/// that are frequent; and tails far from all else.
fn long_lists() {
    let devices = two_devices();
    let n = 12_000_000;
    let of = |value: &dyn Fn(u64) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values((0..n as u64).map(value)))
    };
    let floats = Float32Array::from_iter_values((0..n as u64).map(|row| uniform(row) as f32));
    for (name, values) in [
        ("distinct", of(&|row| mixed(row) as u32)),
        ("a thousand", of(&|row| mixed(mixed(row) % 1000) as u32)),
        (
            "frequent",
            of(&|row| {
                let word = mixed(row);
                // One in ten is one of three.
                match word % 30 {
                    value @ 0..3 => 1000 * value as u32,
                    _ => (word >> 40) as u32,
                }
            }),
        ),
        ("floats from 0 to 1", Arc::new(floats)),
    ] {
        // For a thousand ranks of a thousand values all of them go to lists.
        let counts: &[u64] = if name == "a thousand" {
            &[1, 3, 101]
        } else {
            &[1, 3, 101, 1024]
        };
        for shares in [[0..n / 2, n / 2..n], [0..n / 10, n / 10..n]] {
            check(&values, &shares, &devices, counts, name);
        }
    }
}

fn masks() {
    let devices = two_devices();
    let n = 300_000;
    for (name, values) in with_nulls(columns(Pattern::Random, n, 8)) {
        if !["f64", "i16", "u32"].contains(&name) {
            continue;
        }
        let filter: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n as i64).map(|row| row % 7)));
        let shares = [0..100_000, 100_000..n];
        let (columns, filters) = (
            spread(&values, &shares, &devices),
            spread(&filter, &shares, &devices),
        );
        let spec = KeySpec::for_order_by(&DataType::Int64).unwrap();
        let bound: ArrayRef = Arc::new(Int64Array::from(vec![2]));
        let predicate = Predicate::Within {
            column: 0,
            first: 0,
            last: spec.keys(&bound).unwrap()[0],
            outside: false,
        };
        let mut report = Report::default();
        let masks = columns.iter().zip(&filters).map(|(column, filter)| {
            let mask = RowMask::evaluate(&predicate, &[filter], None, &mut report).unwrap();
            let kept = mask.count(column, None, &mut report).unwrap();
            (mask, kept)
        });
        let masks: Vec<_> = masks.collect();
        let shares = columns.iter().zip(&masks);
        let shares: Vec<_> = shares
            .map(|(column, mask)| selection(column, Some(mask)))
            .collect();
        let passed = BooleanArray::from_iter((0..n).map(|row| Some(row % 7 <= 2)));
        let (_, sorted) = sorted_keys(&arrow_filter(values.as_ref(), &passed).unwrap());
        let selection = SpreadSelection { shares };
        assert_eq!(selection.population(), sorted.len() as u64, "{name}");
        let ranks = ranks_of(sorted.len() as u64, 101);
        let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
        assert_eq!(
            selection.keys(&ranks, &mut report).unwrap(),
            Some(expected),
            "{name}"
        );
    }
}

/// Half of the keys are distinct and in one cell, as the others are many scales away: more than a block selects among.
fn crowded(n: u64) -> ArrayRef {
    let value = |row: u64| match row % 2 {
        0 => (1 << 40) + mixed(row) % (1 << 24),
        _ => mixed(row) >> (mixed(row + 1) % 60),
    };
    Arc::new(UInt64Array::from_iter_values((0..n).map(value)))
}

/// Rounds find the ranks that the devices leave open: in a cell too full for a block, and in lists without room.
async fn ranks_that_are_left_open() {
    let devices = two_devices();
    let n = 8_000_000;
    let thousands = (0..n as u64).map(|row| mixed(mixed(row) % 1000) as u32);
    let thousands: ArrayRef = Arc::new(UInt32Array::from_iter_values(thousands));
    let thousandths: Vec<_> = (0..1000)
        .map(|rank| format!("{}", f64::from(rank) / 1000.0))
        .collect();
    for (values, list) in [
        (crowded(n as u64), percentiles()),
        (thousands, format!("[{}]", thousandths.join(", "))),
    ] {
        let columns = spread(&values, &[0..n / 2, n / 2..n], &devices);
        let (found, report) = select(&columns, &ranks_of(n as u64, 1000));
        assert!(found.is_none() && report.kernels > 20, "{report:?}");
        let (analyzed, sql) = analyzed_on(&devices, &values, &list).await;
        assert!(
            analyzed.contains("strategy_sample_select__counts=1") && !analyzed.contains("on_the_devices"),
            "{sql}: {analyzed}"
        );
    }
    // The same device twice, with one workspace.
    let columns = spread(
        &crowded(1000),
        &[0..10, 10..1000],
        &[Arc::clone(&devices[0]), Arc::clone(&devices[0])],
    );
    assert!(select(&columns, &[7]).0.is_none());
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(100_000, 3)));
    let twice = [Arc::clone(&devices[0]), Arc::clone(&devices[0])];
    let (analyzed, sql) = analyzed_on(&twice, &values, &percentiles()).await;
    assert!(
        analyzed.contains("strategy_sample_select__counts=1"),
        "{sql}: {analyzed}"
    );
}

/// The output of `EXPLAIN ANALYZE` for quantiles of values on these devices. The quantiles are checked to be those of the CPU.
async fn analyzed_on(devices: &[Arc<Device>], values: &ArrayRef, list: &str) -> (String, String) {
    let ctx = session(4);
    use_devices(&ctx, devices.to_vec());
    set(&ctx, "device", "cuda:all").await;
    register(&ctx, "t", &batch(vec![("x", Arc::clone(values))]), 4, 50_000);
    pin_table(&ctx, "t", &["x"]).await.unwrap();
    let sql = format!("SELECT exact_quantiles(x, {list}) FROM t");
    let on = On {
        device: "cuda:all",
        ..On::device("PinnedExec: ")
    };
    same(&ctx, &sql, on, "analyzed").await;
    set(&ctx, "device", "cuda:all").await;
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    (analyzed, sql)
}

/// Sessions with the same devices in another order do not wait for each other forever.
async fn queries_at_the_same_time() {
    let mut devices = two_devices();
    let mut tasks = Vec::new();
    for turn in 0..4 {
        devices.reverse();
        let ctx = session(4);
        use_devices(&ctx, devices.clone());
        set(&ctx, "device", "cuda:all").await;
        let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(200_000, turn)));
        register(&ctx, "t", &batch(vec![("x", values)]), 4, 9000);
        let sql = "SELECT exact_quantiles(x, [0.1, 0.5, 0.99]) FROM t";
        let expected = {
            set(&ctx, "device", "cpu").await;
            row(&ctx, sql).await
        };
        set(&ctx, "device", "cuda:all").await;
        pin_table(&ctx, "t", &["x"]).await.unwrap();
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                assert_eq!(row(&ctx, sql).await, expected);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Plans over a table on two devices, and queries that do not run there.
async fn spread_tables() {
    let devices = two_devices();
    let ctx = session(4);
    use_devices(&ctx, devices.clone());
    register(&ctx, "t", &batch(columns(Pattern::Random, 100_000, 4)), 4, 5000);
    set(&ctx, "device", "cuda:all").await;
    datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (f64, i32)")
        .await
        .unwrap();
    let held: Vec<u64> = devices.iter().map(|device| device.held_bytes()).collect();
    assert!(held.iter().all(|held| *held >= 50_000 * 12), "{held:?}");
    let shown = datafusion_quantiles::statement::sql(&ctx, "SHOW PINNED")
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let shown = texts(&shown).join("");
    let second = named(&devices[1]);
    let expected = format!("f64, i32 | 100000 | 1200000 | cuda:0+{second} | ");
    assert!(shown.contains(&expected), "{shown}");
    let analyzed = rows_joined(
        &ctx,
        "EXPLAIN ANALYZE SELECT exact_quantiles(f64, [0.1, 0.5]) FROM t",
    )
    .await;
    let both = format!("+{second} (");
    for expected in [
        both.as_str(),
        "calls=[exact_quantiles",
        "strategy_sample_select_on_the_devices=1",
        "rounds=0",
        "bytes_from_device=",
        "ss_count_time=",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    let grouped = "SELECT i32, exact_quantiles(f64, 0.5) FROM t GROUP BY i32";
    assert!(physical_plan(&ctx, grouped).await.contains(&both));
    // Group, key and value span 160 bits: one device would put values in order, several do not.
    let wide = "SELECT i32, topk_by(f64, f64, 3) FROM t GROUP BY i32";
    assert!(!physical_plan(&ctx, wide).await.contains("Pinned"));
    // Only one of the two devices.
    set(&ctx, "device", "cuda:1").await;
    datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (f64, i32)")
        .await
        .unwrap();
    let plan = physical_plan(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    let expected = format!("PinnedExec: device={second} (");
    assert!(plan.starts_with(&expected), "{plan}");
    set(&ctx, "device", "cuda:0").await;
    let plan = physical_plan(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    assert!(!plan.contains("Pinned"), "{plan}");
    set(&ctx, "device", "cuda:2").await;
    let refused = datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (f64)")
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no such device"), "{refused}");
    unpin_table(&ctx, "t").unwrap();
    assert!(devices.iter().all(|device| device.held_bytes() == 0));
}

/// Each device finds its best rows, and the host the best of these: ties, NULLs, conditions, and more rows than a device has.
async fn best_rows_of_spread_tables() {
    const ROWS: i64 = 100_003;
    let ctx = session(4);
    use_devices(&ctx, devices(3));
    let create = format!(
        "CREATE TABLE t AS SELECT value AS id, value * 7919 % {ROWS} AS x, CAST(value % 17 AS INT) AS tie, \
         CASE WHEN value % 3 > 0 THEN value * 31 % 1000 END AS maybe, CAST(sin(CAST(value AS DOUBLE)) AS REAL) AS f, \
         arrow_cast(make_array(sin(CAST(value AS DOUBLE)), cos(CAST(value * 3 AS DOUBLE)), value % 5), 'FixedSizeList(3, Float32)') AS v \
         FROM generate_series(1, {ROWS})"
    );
    for sql in [
        create.as_str(),
        "SET quantiles.device = 'cuda:all'",
        "PIN TABLE t (id, x, tie, maybe, f, v)",
    ] {
        let ran = datafusion_quantiles::statement::sql(&ctx, sql).await.unwrap();
        ran.collect().await.unwrap();
    }
    for sql in [
        "SELECT id, x, maybe FROM t ORDER BY x LIMIT 10",
        "SELECT id, x, f FROM t ORDER BY x DESC LIMIT 70000",
        "SELECT x, id FROM t WHERE tie = 3 AND maybe > 300 ORDER BY x LIMIT 1000",
        "SELECT x FROM t WHERE id < 5 ORDER BY x LIMIT 10",
        "SELECT tie FROM t ORDER BY tie DESC LIMIT 9000",
        "SELECT x FROM t WHERE id < 0 ORDER BY x LIMIT 10",
        "SELECT topk_by(id, x, 10), max_by(id, x), min_by(maybe, x) FROM t",
        "SELECT topk_by(maybe, tie, 6000), topk_by(id, tie, 7, 'asc') FROM t WHERE x < 60000",
        "SELECT topk_by(maybe, maybe, 100000, 'asc'), topk_by(id, f, 60000) FILTER (WHERE tie <> 4) FROM t",
        "SELECT topk_by(id, x, 3) FROM t WHERE id < 0",
        "SELECT tie, topk_by(id, x, 7), max_by(maybe, x), min_by(x, maybe, 3) FROM t GROUP BY tie ORDER BY tie",
        "SELECT tie, maybe, topk_by(id, f, 2) FILTER (WHERE x > 50) FROM t GROUP BY tie, maybe ORDER BY tie, maybe",
        "SELECT maybe, exact_quantiles(f, [0.1, 0.5]), exact_quantiles(x, 0.5), count(maybe) FROM t WHERE id > 9 GROUP BY maybe ORDER BY maybe",
        "SELECT id, tie FROM t QUALIFY row_number() OVER (PARTITION BY tie ORDER BY x) <= 3 ORDER BY id",
        "SELECT DISTINCT ON (maybe) maybe, x FROM t WHERE tie > 2 ORDER BY maybe, x DESC",
        "SELECT id, array_distance(v, [0.1, 0.2, 3]) AS d FROM t ORDER BY d, id LIMIT 20",
        "SELECT id, x FROM t WHERE tie > 8 ORDER BY cosine_distance(v, [1, 0.5, 0.25]) DESC, id LIMIT 3000",
    ] {
        set(&ctx, "device", "cpu").await;
        let expected = rows(&ctx, sql).await;
        set(&ctx, "device", "cuda:all").await;
        let plan = physical_plan(&ctx, sql).await;
        assert!(
            plan.contains("PinnedExec: device=") && plan.contains(")+cuda:"),
            "{sql}: {plan}"
        );
        assert_eq!(rows(&ctx, sql).await, expected, "{sql}");
    }
    unpin_table(&ctx, "t").unwrap();
}

/// The number of bytes copied from the devices depends on the number of ranks, not on the number of values.
async fn bytes_between_devices() {
    let devices = two_devices();
    let ctx = session(4);
    use_devices(&ctx, devices);
    set(&ctx, "device", "cuda:all").await;
    let mut sent = Vec::new();
    for rows in [1_000_000, 4_000_000] {
        let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(rows, 3)));
        ctx.deregister_table("t").unwrap();
        register(&ctx, "t", &batch(vec![("x", values)]), 4, 100_000);
        pin_table(&ctx, "t", &["x"]).await.unwrap();
        let sql = "SELECT exact_quantiles(x, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) FROM t";
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx())
            .await
            .unwrap();
        let metrics = plan.metrics().unwrap();
        sent.push(metrics.sum_by_name("bytes_from_device").unwrap().as_usize());
    }
    assert!(sent[1] < 2 * sent[0] && sent[1] < 2_000_000, "{sent:?}");
}
