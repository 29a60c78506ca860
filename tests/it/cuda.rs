//! Pinned tables: on a device against the CPU, bit by bit.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, Float16Array, Float32Array, Float64Array, PrimitiveArray, RecordBatch,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Int8Type, Int16Type, Int32Type, TimestampMillisecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, Selection};
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::pinned::{self, pin_table, unpin_table};
use half::f16;

use crate::patterns::{self, Pattern};
use crate::support::*;

/// Device 0; `None`: there is none, and the test said so.
pub(crate) fn device() -> Option<Arc<Device>> {
    match Device::get(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var("QUANTILES_REQUIRE_CUDA").is_ok_and(|value| value == "1") => {
            panic!("QUANTILES_REQUIRE_CUDA=1, and there is no device: {error}")
        }
        Err(error) => {
            skipped(&error.strip_backtrace());
            None
        }
    }
}

fn primitive<T: ArrowPrimitiveType>(words: &[i64], of: impl Fn(i64) -> T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(
        words.iter().map(|word| of(*word)),
    ))
}

/// One column for each kind of words on a device, and some more types, from the same words.
pub(crate) fn columns(pattern: Pattern, len: usize, seed: u64) -> Vec<(&'static str, ArrayRef)> {
    let words = pattern.words(len, seed);
    let floats = pattern.floats(len, seed);
    let fold = |word: i64| word ^ (word >> 32);
    let f16s: Vec<f16> = floats.iter().map(|x| f16::from_f64(*x)).collect();
    let f32s: Vec<f32> = floats.iter().map(|x| *x as f32).collect();
    let decimals =
        PrimitiveArray::<Decimal128Type>::from_iter_values(words.iter().map(|word| i128::from(*word) << 50));
    vec![
        (
            "b",
            Arc::new(BooleanArray::from_iter(
                words.iter().map(|word| Some(fold(*word) & 4 != 0)),
            )),
        ),
        ("i8", primitive::<Int8Type>(&words, |word| fold(word) as i8)),
        ("u8", primitive::<UInt8Type>(&words, |word| fold(word) as u8)),
        ("i16", primitive::<Int16Type>(&words, |word| fold(word) as i16)),
        ("u16", primitive::<UInt16Type>(&words, |word| fold(word) as u16)),
        ("f16", Arc::new(Float16Array::from(f16s))),
        ("i32", primitive::<Int32Type>(&words, |word| fold(word) as i32)),
        ("u32", primitive::<UInt32Type>(&words, |word| fold(word) as u32)),
        ("f32", Arc::new(Float32Array::from(f32s))),
        (
            "date",
            primitive::<Date32Type>(&words, |word| (fold(word) % 100_000) as i32),
        ),
        (
            "i64",
            primitive::<datafusion::arrow::datatypes::Int64Type>(&words, |word| word),
        ),
        ("u64", primitive::<UInt64Type>(&words, |word| word as u64)),
        ("f64", Arc::new(Float64Array::from(floats))),
        (
            "ts",
            primitive::<TimestampMillisecondType>(&words, |word| word >> 8),
        ),
        ("dec", Arc::new(decimals.with_precision_and_scale(38, 3).unwrap())),
    ]
}

/// The same with about a third of the rows NULL, each column in its own rows.
pub(crate) fn with_nulls(columns: Vec<(&'static str, ArrayRef)>) -> Vec<(&'static str, ArrayRef)> {
    columns
        .into_iter()
        .enumerate()
        .map(|(number, (name, array))| {
            let random = pseudo_random(array.len(), number as u64 + 1);
            let valid = NullBuffer::from_iter(random.map(|word| word % 3 != 0));
            let data = array.to_data().into_builder().nulls(Some(valid)).build().unwrap();
            (name, datafusion::arrow::array::make_array(data))
        })
        .collect()
}

/// Of 101 quantiles, a list.
pub(crate) fn percentiles() -> String {
    let list: Vec<_> = (0..=100)
        .map(|percent| (f64::from(percent) / 100.0).to_string())
        .collect();
    format!("[{}]", list.join(", "))
}

pub(crate) async fn set(ctx: &SessionContext, option: &str, value: &str) {
    query(ctx, &format!("SET quantiles.{option} = '{value}'"))
        .await
        .unwrap();
}

async fn same_on_both(ctx: &SessionContext, sql: &str, what: &str) {
    same_by(ctx, sql, what, "PinnedExec").await;
}

/// The answer of the `operator` on the device and the one on the CPU, which must be one: every bit.
pub(crate) async fn same_by(ctx: &SessionContext, sql: &str, what: &str, operator: &str) {
    set(ctx, "device", "cuda").await;
    let plan = physical_plan(ctx, sql).await;
    assert!(
        plan.contains(&format!("{operator}: device=cuda:0")),
        "{what}: {plan}"
    );
    let on_device = query(ctx, sql)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    set(ctx, "device", "cpu").await;
    let plan = physical_plan(ctx, sql).await;
    assert!(!plan.contains("Pinned"), "{what}: {plan}");
    let on_cpu = query(ctx, sql).await.unwrap();
    set(ctx, "device", "auto").await;
    let count = |rows: &[RecordBatch]| rows.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(count(&on_device), count(&on_cpu), "{what}");
    if count(&on_device) == 0 {
        return;
    }
    let (on_device, on_cpu) = (one(&on_device), one(&on_cpu));
    same_bits(&on_device, &on_cpu, what);
}

/// Data compare by their bytes: NaN is NaN, and 0.0 is not -0.0.
pub(crate) fn same_bits(on_device: &RecordBatch, on_cpu: &RecordBatch, what: &str) {
    for (number, (device, cpu)) in on_device.columns().iter().zip(on_cpu.columns()).enumerate() {
        assert!(
            device.to_data() == cpu.to_data(),
            "{what}, call {number}: {device:?} on the device, {cpu:?} on the CPU"
        );
    }
}

fn one(batches: &[RecordBatch]) -> RecordBatch {
    concat_batches(&batches[0].schema(), batches).unwrap()
}

pub(crate) async fn pinned(ctx: &SessionContext, rows: &RecordBatch, partitions: usize) {
    register(ctx, "t", rows, partitions, 4000);
    let names: Vec<_> = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    pin_table(ctx, "t", &names).await.unwrap();
}

/// Many ranks at once, from both ends.
fn calls(rows: &RecordBatch) -> String {
    let all = percentiles();
    let names = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.name().clone());
    let calls = names.map(|x| {
        format!("exact_quantiles({x}, {all}), exact_quantiles([0.3, 0.001]) WITHIN GROUP (ORDER BY {x} DESC)")
    });
    format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "))
}

/// Every method that the type has.
fn methods(rows: &RecordBatch) -> String {
    let names = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.name().clone());
    let calls = names.flat_map(|x| {
        ["lower", "higher", "nearest", "linear", "midpoint"]
            .map(|method| format!("exact_quantiles({x}, [0.07, 0.999, 0.5], '{method}')"))
    });
    format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "))
}

async fn every_type(patterns: &[Pattern]) {
    if device().is_none() {
        return;
    }
    for pattern in patterns {
        for len in [0, 1, 2, 3, 31, 1000, 4097, 16_385, 100_003] {
            for nulls in [false, true] {
                let what = format!("{pattern:?}, {len} rows, nulls: {nulls}");
                let ctx = session(3);
                let columns = columns(*pattern, len, len as u64);
                let rows = batch(if nulls { with_nulls(columns) } else { columns });
                pinned(&ctx, &rows, 3).await;
                same_on_both(&ctx, &calls(&rows), &what).await;
                if len == 1000 {
                    same_on_both(&ctx, &methods(&rows), &what).await;
                }
                unpin_table(&ctx, "t").unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_first_patterns() {
    every_type(&patterns::ALL[..3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_second_patterns() {
    every_type(&patterns::ALL[3..6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_third_patterns() {
    every_type(&patterns::ALL[6..9]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_last_patterns() {
    every_type(&patterns::ALL[9..]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_mislead_samples() {
    if device().is_none() {
        return;
    }
    for pattern in patterns::ALL {
        let rows = 3_333_333;
        let wanted = ["f32", "f64", "i64", "u32", "i16", "dec"];
        let columns = columns(pattern, rows, 5)
            .into_iter()
            .filter(|(name, _)| wanted.contains(name));
        let rows = batch(with_nulls(columns.collect()));
        let ctx = session(2);
        pinned(&ctx, &rows, 4).await;
        same_on_both(&ctx, &calls(&rows), &format!("{pattern:?}")).await;
    }
}

/// One rank a sequence of kernels, which is found by two comparisons.
#[tokio::test(flavor = "multi_thread")]
async fn single_ranks_of_data_that_mislead_samples() {
    if device().is_none() {
        return;
    }
    for pattern in patterns::ALL {
        let wanted = ["f32", "f64", "i64", "i16"];
        let columns = columns(pattern, 3_000_001, 5)
            .into_iter()
            .filter(|(name, _)| wanted.contains(name));
        let rows = batch(with_nulls(columns.collect()));
        let ctx = session(2);
        pinned(&ctx, &rows, 4).await;
        for q in ["0.0001", "0.05", "0.5", "0.95", "0.9999"] {
            let calls = wanted.map(|x| format!("exact_quantiles({x}, {q})")).join(", ");
            same_on_both(
                &ctx,
                &format!("SELECT {calls} FROM t"),
                &format!("{pattern:?}, {q}"),
            )
            .await;
        }
    }
}

/// `WHERE` and `FILTER`, decided on the device.
#[tokio::test(flavor = "multi_thread")]
async fn filters() {
    if device().is_none() {
        return;
    }
    let conditions = [
        "i64 > 0",
        "0 >= i64",
        "f64 >= -0.0 AND f64 < 100.5",
        "f64 > 0.0",
        "f64 = CAST('NaN' AS DOUBLE)",
        "f64 <> 0.0",
        "f64 < 0.0 OR f64 = -0.0",
        "f32 <= CAST(-0.0 AS REAL) AND NOT (f32 >= CAST(0 AS REAL))",
        "f32 < CAST(3 AS REAL) OR f32 > CAST(100 AS REAL)",
        "NOT (i32 BETWEEN -100 AND 1000000)",
        "i32 NOT IN (1, 2, 3, 42)",
        "i8 IN (1, 2, 3, -4, 100) OR b",
        "NOT b AND u8 <> 7",
        "i64 IS NULL",
        "(i64 IS NOT NULL AND u16 > 100) OR NOT (b OR i16 IS NULL)",
        "(i64 > 0 OR i32 > 0) AND (u32 > 1000 OR NOT b) AND (f64 > 0 OR (i8 > 0 AND i16 > 0))",
        "dec >= 5.125",
        "dec < 0 OR dec IS NULL",
        "date < DATE '2000-01-01'",
        "ts <> TIMESTAMP '1970-01-01T00:00:00'",
        "i64 > 9223372036854775806",
    ];
    for pattern in [
        Pattern::Random,
        Pattern::FewDistinct,
        Pattern::Extremes,
        Pattern::AllEqual,
    ] {
        for len in [1, 33, 1000, 70_001] {
            for nulls in [false, true] {
                let ctx = session(3);
                let columns = columns(pattern, len, 77);
                pinned(&ctx, &batch(if nulls { with_nulls(columns) } else { columns }), 3).await;
                for condition in conditions {
                    let what = format!("{condition}, {pattern:?}, {len} rows, nulls: {nulls}");
                    let sql = format!(
                        "SELECT exact_quantiles(f64, [0, 0.3, 1]), exact_quantiles(i64, 0.5, 'linear'), \
                         exact_quantiles(i8, 0.9), exact_quantiles(dec, 0.2) FROM t WHERE {condition}"
                    );
                    same_on_both(&ctx, &sql, &what).await;
                    let sql = format!(
                        "SELECT exact_quantiles(f32, [0, 0.3, 1]) FILTER (WHERE {condition}), exact_quantiles(f32, 0.5), \
                         exact_quantiles(u64, 0.5) FILTER (WHERE i32 > 5) FROM t AS a WHERE a.i16 < 1000"
                    );
                    same_on_both(&ctx, &sql, &what).await;
                }
                unpin_table(&ctx, "t").unwrap();
            }
        }
    }
    // What the device cannot decide runs over the table.
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

/// More than one launch has room for, and the order of `ORDER BY`, in which NaNs differ.
#[tokio::test(flavor = "multi_thread")]
async fn many_ranks_and_built_in_functions() {
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    let rows = batch(columns(Pattern::Random, 200_001, 9));
    pinned(&ctx, &rows, 2).await;
    let many: Vec<_> = (0..2500).map(|i| format!("{}", f64::from(i) / 2499.0)).collect();
    let sql = format!(
        "SELECT exact_quantiles(f64, [{0}]), exact_quantiles(u8, [{0}]) FROM t",
        many.join(", ")
    );
    same_on_both(&ctx, &sql, "2500 ranks").await;
    set(&ctx, "replace_builtins", "true").await;
    same_on_both(&ctx, "SELECT median(dec) FROM t", "median of decimals").await;
    for x in ["f16", "f32", "f64"] {
        let sql = format!("SELECT median({x}), percentile_cont(0.9) WITHIN GROUP (ORDER BY {x}) FROM t");
        same_on_both(&ctx, &sql, x).await;
    }
}

/// Devices with less shared memory, and workspaces that are far too small.
#[test]
fn small_devices() {
    if device().is_none() {
        return;
    }
    for shared in [64 << 10, 99 << 10, 163 << 10, usize::MAX] {
        let device = Arc::new(Device::open(0, Some(shared)).unwrap());
        for pattern in [
            Pattern::Random,
            Pattern::Clusters,
            Pattern::HalfEqual,
            Pattern::Sorted,
            Pattern::Zipf,
        ] {
            for (name, array) in columns(pattern, 300_007, 3) {
                if !["f32", "f64", "i64", "i8", "f16", "dec"].contains(&name) {
                    continue;
                }
                let what = format!("{shared} bytes, {pattern:?}, {name}");
                let spec = KeySpec::try_new(array.data_type()).unwrap();
                let column =
                    DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(&array)).unwrap();
                let mut keys = spec.keys(&array).unwrap();
                keys.sort_unstable();
                let ranks: Vec<u64> = (0..150).map(|i| 1 + i * (keys.len() as u64 - 1) / 149).collect();
                let expected: Vec<_> = ranks.iter().map(|rank| keys[*rank as usize - 1]).collect();
                for room in [None, Some(3 << 20)] {
                    device.release_workspace();
                    let selection = Selection {
                        column: &column,
                        words: column.words(&spec),
                        mask: None,
                        limit: room.map(|room| device.held_bytes() + room),
                        timed: false,
                    };
                    let mut report = Report::default();
                    let found = selection
                        .keys(&ranks, &mut report)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(found == expected, "{what}, room {room:?}: {report:?}");
                }
                device.release_workspace();
                drop(column);
                assert_eq!(device.held_bytes(), 0, "{what}");
            }
        }
    }
}

/// What a statement gives, of this crate or of DataFusion.
async fn run(ctx: &SessionContext, sql: &str) -> Vec<RecordBatch> {
    let frame = pinned::sql(ctx, sql).await;
    let frame = frame.unwrap_or_else(|error| panic!("{sql}: {error}"));
    frame.collect().await.unwrap()
}

/// What a statement about pinned tables is refused with.
async fn refusal(ctx: &SessionContext, sql: &str) -> String {
    pinned::sql(ctx, sql).await.unwrap_err().strip_backtrace()
}

/// Runs a test that is ignored otherwise in a process of its own: failpoints belong to the whole process.
pub(crate) fn passes_in_a_process(test: &str) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let output =
        String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

/// A table of columns made of `value`, which runs through `range`.
async fn make(ctx: &SessionContext, table: &str, columns: &str, range: &str) {
    run(
        ctx,
        &format!("CREATE TABLE {table} AS SELECT {columns} FROM generate_series({range})"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_tables_are_snapshots() {
    let Some(device) = device() else { return };
    let ctx = session(2);
    let ask = "SELECT exact_quantiles(x, [0, 1]) FROM s";
    make(&ctx, "s", "value AS x, -value AS y", "1, 1000").await;
    run(&ctx, "PIN TABLE s (x)").await;
    let shown = run(&ctx, "SHOW PINNED").await;
    let expected = format!(
        "datafusion.public.s | x | 1000 | 8000 | cuda:0 | {}",
        device.name()
    );
    assert_eq!(texts(&shown), [expected]);
    assert_eq!(row(&ctx, ask).await, "[1, 1000]");
    run(&ctx, "INSERT INTO s VALUES (0, 0), (5000, 0)").await;
    assert_eq!(row(&ctx, ask).await, "[1, 1000]");
    // Not on the device: other columns, groups, other aggregates, parts of the rows.
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM s").await,
        "[-1000, 0]"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, 1), count(*) FROM s").await,
        "5000 | 1002"
    );
    assert_eq!(row(&ctx, "SELECT exact_quantiles(x + 1, 1) FROM s").await, "5001");
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(x, 1) FROM (SELECT x FROM s LIMIT 5000)"
        )
        .await,
        "5000"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(DISTINCT x, 1) FROM s").await,
        "5000"
    );
    // Under other names, and through a view, it is the same column.
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(b, 1) FROM (SELECT x AS b FROM s) AS q"
        )
        .await,
        "1000"
    );
    run(&ctx, "CREATE VIEW v AS SELECT y AS x, x AS y FROM s").await;
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, 1), exact_quantiles(y, 0) FROM v").await,
        "0 | 0"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM v").await,
        "[1, 1000]"
    );
    set(&ctx, "device", "cpu").await;
    assert_eq!(row(&ctx, ask).await, "[0, 5000]");
    // A device that is not there, and that the table itself would be sent to.
    set(&ctx, "device", "cuda:7").await;
    assert!(error(&ctx, ask).await.contains("there is no device cuda:7"));
    set(&ctx, "device", "auto").await;
    // No table of the name; another one of the same schema; of another schema.
    run(&ctx, "DROP TABLE s").await;
    assert!(
        error(&ctx, ask)
            .await
            .contains("table 'datafusion.public.s' not found")
    );
    make(&ctx, "s", "value AS x, value AS y", "7, 8").await;
    assert_eq!(row(&ctx, ask).await, "[7, 8]");
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM v").await,
        "[1, 1000]",
        "a view keeps the table that it was made of"
    );
    // Another session, with tables of its own.
    let other = SessionContext::new_with_config(ctx.copied_config());
    datafusion_quantiles::register_all(&other).unwrap();
    make(&other, "s", "value AS x, -value AS y", "5000, 6000").await;
    assert_eq!(row(&other, ask).await, "[5000, 6000]");
    assert!(refusal(&other, "UNPIN TABLE s").await.contains("is not pinned"));
    run(&ctx, "DROP TABLE s").await;
    make(&ctx, "s", "CAST(value AS INT) AS x, value AS y", "7, 8").await;
    assert_eq!(row(&ctx, ask).await, "[7, 8]");
    // A name that means another table by now.
    run(&ctx, "DROP TABLE s").await;
    make(&ctx, "s", "value AS x, value AS y", "20, 30").await;
    run(&ctx, "CREATE SCHEMA other").await;
    make(&ctx, "other.s", "value AS x, value AS y", "40, 50").await;
    run(&ctx, "CREATE VIEW w AS SELECT x FROM s").await;
    run(&ctx, "PIN TABLE other.s (x)").await;
    run(&ctx, "SET datafusion.catalog.default_schema = 'other'").await;
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FROM s").await,
        "[40, 50]"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FROM public.w").await,
        "[20, 30]"
    );
    run(&ctx, "SET datafusion.catalog.default_schema = 'public'").await;
    // Pinned again: what is there now.
    run(&ctx, "PIN TABLE s (y, x)").await;
    assert_eq!(row(&ctx, ask).await, "[20, 30]");
    run(&ctx, "UNPIN TABLE s").await;
    run(&ctx, "UNPIN TABLE other.s").await;
    assert!(texts(&run(&ctx, "SHOW PINNED").await).is_empty());
    assert!(physical_plan(&ctx, ask).await.starts_with("QuantilesExec"));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_ran() {
    let Some(device) = device() else { return };
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

pub(crate) async fn rows_joined(ctx: &SessionContext, sql: &str) -> String {
    rows(ctx, sql).await.join("\n")
}

#[tokio::test]
async fn tables_that_no_query_would_find_cannot_be_pinned() {
    let here = session(2);
    make(&here, "s", "value AS x, value AS y", "1, 10").await;
    run(&here, "CREATE VIEW w AS SELECT x FROM s").await;
    let refused = refusal(&here, "PIN TABLE w (x)").await;
    assert!(refused.contains("datafusion.public.w is a view"), "{refused}");
    let cluster = crate::staged::staged_session(2);
    make(&cluster, "s", "value AS x, value AS y", "1, 10").await;
    let refused = refusal(&cluster, "PIN TABLE s (x)").await;
    assert!(refused.contains("run on a cluster"), "{refused}");
    let bare = SessionContext::new();
    make(&bare, "s", "value AS x, value AS y", "1, 10").await;
    let refused = refusal(&bare, "PIN TABLE s (x)").await;
    assert!(refused.contains("register_all"), "{refused}");
}
