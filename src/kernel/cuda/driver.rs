//! Calls into the driver that the safe interface of cudarc does not have: the version, and memory pools.

use cudarc::driver::{CudaContext, DriverError, sys};
use datafusion::common::{Result, exec_err};

use super::fault::fault;

/// Version of the oldest driver that has all functions used here: that of CUDA 12.8.
const OLDEST_DRIVER: i32 = 12080;

/// Most bytes of freed device memory that the driver keeps.
const KEPT: u64 = 256 << 20;

/// Checks that there is a driver, and that it is new enough. Called before anything else of CUDA: without the driver's library every
/// other function panics.
///
/// # Errors
/// An execution error if there is none, or if it is too old.
#[allow(unsafe_code, reason = "calls into the driver")]
pub(super) fn check_driver() -> Result<()> {
    // SAFETY: loads the driver's library if it is there; its initialisers ask nothing of the program.
    if !unsafe { sys::is_culib_present() } {
        return exec_err!("this machine has no NVIDIA driver: its library is not found");
    }
    let mut version = 0;
    // SAFETY: allowed before cuInit; an integer to write to.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) };
    asked
        .result()
        .map_err(|error| fault("asking for the driver's version", error))?;
    if version < OLDEST_DRIVER {
        return exec_err!(
            "the NVIDIA driver is too old: it is of CUDA {}, wanted is {} or newer",
            shown(version),
            shown(OLDEST_DRIVER)
        );
    }
    Ok(())
}

/// A version of CUDA as it is written, such as `12.8`.
fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Has the driver keep up to [`KEPT`] bytes of freed memory for later allocations: to get memory from the system takes a hundred times
/// as long.
#[allow(unsafe_code, reason = "a setting that the safe interface has not")]
pub(super) fn keep_freed_memory(context: &CudaContext) -> Result<(), DriverError> {
    let mut pool = std::ptr::null_mut();
    let mut bytes: u64 = KEPT;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: both functions are older than the oldest driver. The first writes the pool's handle, which lives as long as the
    // device; the second reads 8 bytes, as this attribute has it.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()).result()?;
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut bytes).cast()).result()
    }
}

/// Has the driver give all freed memory that it keeps back to the system.
#[allow(unsafe_code, reason = "the safe interface has no pools")]
pub(super) fn give_up_freed_memory(context: &CudaContext) -> Result<(), DriverError> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: both functions are older than the oldest driver. The first writes the pool's handle, which lives as long as the
    // device; the second frees only what is not allocated.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()).result()?;
        sys::cuMemPoolTrimTo(pool, 0).result()
    }
}

/// Lets kernels of the context `reader` access all memory that streams of the context `owner` have allocated or will allocate. Returns
/// whether they can.
#[allow(unsafe_code, reason = "the safe interface has no memory of other devices")]
pub(super) fn allow_to_read(reader: &CudaContext, owner: &CudaContext) -> Result<bool, DriverError> {
    let (mut can, mut pool) = (0, std::ptr::null_mut());
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: reader.cu_device(),
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: all three functions are older than the oldest driver. The first two write an integer and the pool's handle, which
    // lives as long as the device; the third reads one description.
    unsafe {
        sys::cuDeviceCanAccessPeer(&raw mut can, reader.cu_device(), owner.cu_device()).result()?;
        if can == 0 {
            return Ok(false);
        }
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, owner.cu_device()).result()?;
        sys::cuMemPoolSetAccess(pool, &raw const access, 1).result()?;
    }
    Ok(true)
}
