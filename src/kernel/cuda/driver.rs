//! Calls into the driver that the safe interface has not: its version, and the pools that it takes memory from.

use cudarc::driver::{CudaContext, DriverError, sys};
use datafusion::common::{Result, exec_err};

use super::fault::fault;

/// Oldest driver whose functions are all there: that of CUDA 12.8.
const OLDEST_DRIVER: i32 = 12080;

/// Bytes of device memory that stay with the driver when they are freed, at most.
const KEPT: u64 = 256 << 20;

/// Whether there is a driver that can do what is asked of it. Called before anything else of CUDA: without the library,
/// every other function panics.
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

fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Has the driver keep some memory that was freed for what is allocated next, which takes it a hundred times as long from the
/// system.
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

/// Has the driver give all memory back that it keeps of what was freed.
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

/// Has kernels of one context read the memory that the other's device allocates in the order of a stream, all that is there and
/// all that will be; whether they can.
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
