//! Quantiles of an array, without a session and without a runtime.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};

use crate::config::StrategyName;
use crate::functions::ordered_type;
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::{Backend, CpuBackend};
use crate::key::{ByteSpec, KeySpec, Order};
use crate::memory::MemoryBudget;
use crate::memory::RoundMemory;
use crate::quantile::{Method, Quantile, QuantileSpec};
use crate::select::byte_strings::ByteStringSelection;
use crate::select::{LocalShards, solve};
use crate::threads::Stop;
use crate::threads::{ThreadPool, completed};

/// Exact quantiles of `values`: one for each of `quantiles` (numbers in [0, 1]), in that order.
///
/// The same answers as `exact_quantiles` in SQL: NULLs are skipped, all NaNs are one value above every other, and
/// without values each answer is NULL. Cost: a copy of the values, and the rounds that SQL runs, on as many
/// threads as there are cores; the call returns when they are done.
///
/// ```
/// # use datafusion::arrow::array::{AsArray, Int64Array};
/// # use datafusion::arrow::datatypes::Int64Type;
/// # use datafusion_quantiles::compute::quantiles;
/// # use datafusion_quantiles::Method;
/// let values = Int64Array::from(vec![Some(30), None, Some(10), Some(20)]);
/// let answers = quantiles(&values, &[1.0, 0.5], Method::Disc)?;
/// assert_eq!(answers.as_primitive::<Int64Type>().values(), &[30, 20]);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
///
/// # Errors
/// A planning error that names a quantile outside [0, 1], a type that has no order, or one that `method` cannot
/// interpolate.
pub fn quantiles(values: &dyn Array, quantiles: &[f64], method: Method) -> Result<ArrayRef> {
    let list = quantiles.iter().map(|&quantile| Quantile::try_from_f64(quantile));
    let quantile_spec = QuantileSpec {
        quantiles: list.collect::<Result<_>>()?,
        method,
        descending: false,
    };
    let data_type = ordered_type(values.data_type());
    method.result_type(&data_type)?;
    let array = match data_type == *values.data_type() {
        true => values.slice(0, values.len()),
        false => cast(values, &data_type)?,
    };
    match Order::try_new(&data_type)? {
        Order::Keys(_) => of_keys(&array, &method.key_spec(&data_type)?, &quantile_spec),
        Order::Bytes(spec) => of_bytes(&array, &spec, &quantile_spec),
    }
}

/// Backend, memory and threads of a call.
fn resources() -> (CpuBackend, MemoryReservation, usize) {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = MemoryConsumer::new("quantiles").register(&pool);
    (CpuBackend::new(pool.as_ref()), memory, threads)
}

fn of_keys(array: &ArrayRef, spec: &KeySpec, quantile_spec: &QuantileSpec) -> Result<ArrayRef> {
    let (backend, memory, threads) = resources();
    let mut shard = backend.open(spec, memory)?;
    shard.append(array, None)?;
    let mut shards = LocalShards::blocking(spec.width(), vec![shard], threads, Stop::default());
    let solution = completed(solve(&mut shards, StrategyName::Auto, &[quantile_spec]))?;
    quantile_spec.answers(spec, solution.n, &|rank| solution.key_at(rank))
}

fn of_bytes(array: &ArrayRef, spec: &ByteSpec, quantile_spec: &QuantileSpec) -> Result<ArrayRef> {
    let (backend, memory, threads) = resources();
    let mut values = ByteStrings::reserving(memory.new_empty());
    values.append(spec, array, None)?;
    let selection = ByteStringSelection {
        backend: Arc::new(backend),
        strategy: StrategyName::Auto,
        pool: ThreadPool::scoped(threads, Stop::default()),
        round_memory: RoundMemory::new(memory.new_empty()),
        memory,
        budget: MemoryBudget::UNLIMITED,
        disk: None,
    };
    completed(selection.solve(values, &[quantile_spec]))?.answers(quantile_spec, spec)
}
