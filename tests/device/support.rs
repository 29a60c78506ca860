//! Common parts of the tests: their list, devices, columns, and the comparison of answers with those of the CPU.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, Float16Array, Float32Array, Float64Array, PrimitiveArray, RecordBatch,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMillisecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::Device;
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::pinned::pin_table;
use half::f16;
use libtest_mimic::{Failed, Trial};
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{physical_plan, pseudo_random, query, register, set};

/// Declares the tests of a module by their names: `plain` functions and `asynchronous` ones.
macro_rules! tests {
    ($($kind:ident $name:ident),* $(,)?) => {
        /// The tests of this module.
        pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::support::$kind(concat!(module_path!(), "::", stringify!($name)), $name)),*]
        }
    };
}
pub(crate) use tests;

/// A test that is a function.
pub(crate) fn plain(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name.trim_start_matches("device::"), move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// A test that is an async function; it runs on threads of its own.
pub(crate) fn asynchronous<F: Future<Output = ()>>(
    name: &str,
    test: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    plain(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.unwrap().block_on(test());
    })
}

/// Whether these tests must not be ignored.
pub(crate) fn is_device_required() -> bool {
    std::env::var("QUANTILES_REQUIRE_CUDA").is_ok_and(|value| value == "1")
}

/// Device 0.
pub(crate) fn device() -> Arc<Device> {
    Device::get(0).unwrap_or_else(|error| panic!("there is no device: {error}"))
}

/// `count` devices for this crate: those of the machine, one after the other, each opened several times if there are fewer.
pub(crate) fn devices(count: usize) -> Vec<Arc<Device>> {
    let there = Device::count().unwrap();
    let open = |number| Arc::new(Device::open(number % there, None).unwrap());
    (0..count).map(open).collect()
}

/// Two devices.
pub(crate) fn two_devices() -> Vec<Arc<Device>> {
    devices(2)
}

/// Name of the device in plans.
pub(crate) fn named(device: &Device) -> String {
    format!("cuda:{}", device.ordinal())
}

fn primitive<T: ArrowPrimitiveType>(words: &[i64], of: impl Fn(i64) -> T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(
        words.iter().map(|word| of(*word)),
    ))
}

/// Columns with their names.
pub(crate) type Columns = Vec<(&'static str, ArrayRef)>;

/// One column for each format of values on a device, and of some more types, all made of the same numbers.
pub(crate) fn columns(pattern: Pattern, len: usize, seed: u64) -> Columns {
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
        ("i64", primitive::<Int64Type>(&words, |word| word)),
        ("u64", primitive::<UInt64Type>(&words, |word| word as u64)),
        ("f64", Arc::new(Float64Array::from(floats))),
        (
            "ts",
            primitive::<TimestampMillisecondType>(&words, |word| word >> 8),
        ),
        ("dec", Arc::new(decimals.with_precision_and_scale(38, 3).unwrap())),
    ]
}

/// The columns with about a third of their values NULL, in other rows for each.
pub(crate) fn with_nulls(columns: Columns) -> Columns {
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

/// Registers `t` and pins all of its columns.
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

/// Asserts that two arrays have the same bits: a NaN equals itself, and 0.0 is not -0.0.
pub(crate) fn same_bits(on_device: &RecordBatch, on_cpu: &RecordBatch, what: &str) {
    for (number, (device, cpu)) in on_device.columns().iter().zip(on_cpu.columns()).enumerate() {
        assert!(
            device.to_data() == cpu.to_data(),
            "{what}, call {number}: {device:?} on the device, {cpu:?} on the CPU"
        );
    }
}

/// The key specification of the values, and their keys, ascending.
pub(crate) fn sorted_keys(values: &ArrayRef) -> (KeySpec, Vec<KeyBits>) {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(values).unwrap();
    sorted.sort_unstable();
    (spec, sorted)
}

/// Runs an ignored test in a process of its own, because failpoints belong to a process.
pub(crate) fn passes_in_a_process(test: &str) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let output =
        String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

/// Why there is no device. Opens none: a test in a process of its own watches how the first one is opened.
pub(crate) fn missing_device() -> Option<String> {
    match Device::count() {
        Ok(0) => Some("this machine has no device".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.strip_backtrace()),
    }
}

/// The rows of a statement about pinned tables, or of any other.
pub(crate) async fn run(ctx: &SessionContext, sql: &str) -> Vec<RecordBatch> {
    let frame = datafusion_quantiles::statement::sql(ctx, sql).await;
    let frame = frame.unwrap_or_else(|error| panic!("{sql}: {error}"));
    frame.collect().await.unwrap()
}

/// The error of a statement about pinned tables.
pub(crate) async fn refusal(ctx: &SessionContext, sql: &str) -> String {
    datafusion_quantiles::statement::sql(ctx, sql)
        .await
        .unwrap_err()
        .strip_backtrace()
}

/// Where a statement runs: the operator that its plan shows there, and the value of `quantiles.device` for the comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct On<'a> {
    pub(crate) device: &'a str,
    pub(crate) shown: &'a str,
    pub(crate) otherwise: &'a str,
}

impl<'a> On<'a> {
    /// On device 0, compared with the CPU.
    pub(crate) fn device(shown: &'a str) -> Self {
        Self {
            device: "cuda",
            shown,
            otherwise: "cpu",
        }
    }
}

/// Asserts that the answers of the device and of the CPU have the same bits.
pub(crate) async fn same(ctx: &SessionContext, sql: &str, on: On<'_>, what: &str) {
    let answer = async |device| {
        set(ctx, "device", device).await;
        let plan = physical_plan(ctx, sql).await;
        let is_there = device == on.device;
        assert_eq!(plan.contains(on.shown), is_there, "{what}: {plan}");
        assert!(is_there || !plan.contains("Pinned"), "{what}: {plan}");
        let answer = query(ctx, sql).await;
        answer.unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let (on_device, on_cpu): (Vec<RecordBatch>, Vec<RecordBatch>) =
        (answer(on.device).await, answer(on.otherwise).await);
    set(ctx, "device", "auto").await;
    let count = |rows: &[RecordBatch]| rows.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(count(&on_device), count(&on_cpu), "{what}");
    if count(&on_device) > 0 {
        let one = |batches: &[RecordBatch]| concat_batches(&batches[0].schema(), batches).unwrap();
        same_bits(&one(&on_device), &one(&on_cpu), what);
    }
}
