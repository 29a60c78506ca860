//! The meaning of an error of the driver: for the call, and for the device.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use datafusion::common::{DataFusionError, exec_datafusion_err, resources_datafusion_err};

/// The error of a call into CUDA that was made for `what`.
pub(super) fn fault(what: &str, error: DriverError) -> DataFusionError {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            resources_datafusion_err!("{what}: the device is out of memory")
        }
        _ => exec_datafusion_err!("{what}: {error}"),
    }
}

/// Whether nothing runs in the context after this error: by CUDA's documentation the process has to be restarted, or the device is
/// gone. All other errors fail only the call.
pub(super) fn ends_the_context(error: CUresult) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_one_call_do_not_end_a_device() {
        for error in [
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_NOT_FOUND,
            CUresult::CUDA_ERROR_INVALID_IMAGE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        ] {
            assert!(!ends_the_context(error), "{error:?}");
        }
        for error in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(ends_the_context(error), "{error:?}");
        }
    }
}
