//! The compilation of kernels before queries need them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use datafusion::arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::config::SessionConfig;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::config::DeviceChoice;
use crate::kernel::cuda::{Device, Devices, likely_programs};
use crate::threads::locked;

/// A type for each way in which values lie in device memory, but for vectors.
const TYPES: [DataType; 14] = [
    DataType::Float64,
    DataType::Float32,
    DataType::Int64,
    DataType::Int32,
    DataType::Timestamp(TimeUnit::Microsecond, None),
    DataType::Date32,
    DataType::Decimal128(38, 10),
    DataType::Int16,
    DataType::Int8,
    DataType::Boolean,
    DataType::UInt64,
    DataType::UInt32,
    DataType::UInt16,
    DataType::Float16,
];

/// Compiles the kernels that queries over columns of these types are likely to need, while the columns are uploaded and afterwards. The
/// first query waits only for those of its own that are not there yet.
pub(super) fn compile_ahead(devices: &[Arc<Device>], types: &[DataType]) {
    // The upload has the other cores. What fails is the error of the query that needs it.
    drop(compilers(devices, types, cores().div_ceil(2)).1);
}

/// Compiles the kernels that queries over columns of any type are likely to need on these devices, where `auto` means the first one, and
/// returns their number. They are kept on disk, so that no query of a later process waits for the compiler.
///
/// # Errors
/// A planning error for `cpu`; an execution error if a device cannot be used, if there is no compiler, or if one of the two refuses a kernel.
pub async fn compile_kernels(devices: DeviceChoice) -> Result<usize> {
    if devices == DeviceChoice::Cpu {
        return plan_err!(
            "kernels are those of a device, not of the CPU: allowed are auto, cuda, cuda:N, cuda:all"
        );
    }
    let devices = Devices::of(devices, &SessionConfig::new());
    let devices = blocking(move || devices.open()).await?;
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let types = [&TYPES[..], &[DataType::FixedSizeList(item, 1)]].concat();
    let (programs, compilers) = compilers(&devices, &types, cores());
    for compiler in compilers {
        compiler
            .await
            .map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??;
    }
    Ok(programs)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
}

/// Starts `together` tasks that compile the programs of all devices, each until one fails. Returns the number of programs.
fn compilers(
    devices: &[Arc<Device>],
    types: &[DataType],
    together: usize,
) -> (usize, Vec<JoinHandle<Result<()>>>) {
    let each = devices.iter().flat_map(|device| {
        let programs = likely_programs(types, device.shared_memory());
        programs
            .into_iter()
            .map(move |program| (Arc::clone(device), program))
    });
    let waiting: VecDeque<_> = each.collect();
    let programs = waiting.len();
    let waiting = Arc::new(Mutex::new(waiting));
    let start = |_| {
        let waiting = Arc::clone(&waiting);
        let next = move || locked(&waiting).pop_front();
        tokio::spawn(async move {
            while let Some((device, program)) = next() {
                // The runtime, when it ends, waits for one compilation, and drops the rest.
                blocking(move || device.prepare(&program)).await?;
            }
            Ok(())
        })
    };
    (programs, (0..together).map(start).collect())
}
