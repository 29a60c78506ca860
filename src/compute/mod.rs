//! Quantiles and sketches of arrays, without a session and without a runtime.

mod reading;
mod resources;
mod sketch;
mod values;

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::common::Result;

use crate::config::StrategyName;
use crate::functions::ordered_type;
use crate::kernel::Backend;
use crate::kernel::byte_strings::ByteStrings;
use crate::key::{ByteSpec, KeySpec, Order};
use crate::memory::{MemoryBudget, RoundMemory};
use crate::quantile::{Method, Quantile, QuantileSpec};
use crate::select::byte_strings::ByteStringSelection;
use crate::select::{LocalShards, solve};
use crate::threads::{ThreadPool, completed};

use self::reading::Reading;
use self::resources::resources;
pub use self::sketch::{GkSketch, RankBounds};
pub use self::values::{Chunks, Values};
pub use crate::threads::Stop;

/// Exact quantiles of `values`: one for each of `quantiles` (numbers in [0, 1]), in that order.
///
/// The answers are those of `exact_quantiles` in SQL: NULLs are skipped, all NaNs are one value above every other, and
/// without values each answer is NULL. Cost: the rounds that SQL runs, on as many threads as there are cores. Large arrays of
/// types of fixed width are read two or three times and not copied. The call blocks until it is done.
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
    let chunk = values.slice(0, values.len());
    let chunks = Chunks::try_new(values.data_type().clone(), vec![chunk])?;
    quantiles_of(&chunks, quantiles, method, &Stop::default())
}

/// Exact quantiles as [`quantiles`], of values in any number of pieces that can be read again. `stop` ends the call early.
///
/// ```
/// # use std::sync::{Arc, LazyLock};
/// # use datafusion::arrow::array::{AsArray, Int64Array};
/// # use datafusion::arrow::datatypes::{DataType, Int64Type};
/// # use datafusion_quantiles::compute::{Chunks, Stop, quantiles_of};
/// # use datafusion_quantiles::Method;
/// let chunks = vec![Arc::new(Int64Array::from(vec![30, 10])) as _, Arc::new(Int64Array::from(vec![20])) as _];
/// let chunks = Chunks::try_new(DataType::Int64, chunks)?;
/// let median = quantiles_of(&chunks, &[0.5], Method::Disc, &Stop::default())?;
/// assert_eq!(median.as_primitive::<Int64Type>().values(), &[20]);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
///
/// # Errors
/// Those of [`quantiles`] and of `values`; an execution error once [`Stop::stop`] was called, or if the values change meanwhile.
pub fn quantiles_of(values: &dyn Values, quantiles: &[f64], method: Method, stop: &Stop) -> Result<ArrayRef> {
    let list = quantiles.iter().map(|&quantile| Quantile::try_from_f64(quantile));
    let quantile_spec = QuantileSpec {
        quantiles: list.collect::<Result<_>>()?,
        method,
        descending: false,
    };
    let data_type = ordered_type(values.data_type());
    method.result_type(&data_type)?;
    let values = values::Ordered::new(values, &data_type, stop);
    match Order::try_new(&data_type)? {
        Order::Keys(_) => of_keys(&values, &method.key_spec(&data_type)?, &quantile_spec),
        Order::Bytes(spec) => of_bytes(&values, &spec, &quantile_spec),
    }
}

/// The quantiles of values that have keys of fixed width.
fn of_keys(values: &values::Ordered, spec: &KeySpec, quantile_spec: &QuantileSpec) -> Result<ArrayRef> {
    let (backend, memory, threads) = resources();
    if let Some(reading) = Reading::plan(values, spec, quantile_spec, threads)? {
        let solution = reading.solve(quantile_spec)?;
        return quantile_spec.answers(spec, solution.n, &|rank| solution.key_at(rank));
    }
    let mut shard = backend.open(spec, memory)?;
    values.each(|piece| shard.append(piece, None))?;
    let mut shards = LocalShards::blocking(spec.width(), vec![shard], threads, values.stop().clone());
    let solution = completed(solve(&mut shards, StrategyName::Auto, &[quantile_spec]))?;
    quantile_spec.answers(spec, solution.n, &|rank| solution.key_at(rank))
}

/// The quantiles of values that are ordered as byte strings.
fn of_bytes(values: &values::Ordered, spec: &ByteSpec, quantile_spec: &QuantileSpec) -> Result<ArrayRef> {
    let (backend, memory, threads) = resources();
    let mut bytes = ByteStrings::reserving(memory.new_empty());
    values.each(|piece| bytes.append(spec, piece, None).map(drop))?;
    let selection = ByteStringSelection {
        backend: Arc::new(backend),
        strategy: StrategyName::Auto,
        pool: ThreadPool::scoped(threads, values.stop().clone()),
        round_memory: RoundMemory::new(memory.new_empty()),
        memory,
        budget: MemoryBudget::UNLIMITED,
        disk: None,
    };
    completed(selection.solve(bytes, &[quantile_spec]))?.answers(quantile_spec, spec)
}
