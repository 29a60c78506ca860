//! Loops that are compiled for each of the instruction sets that x86-64 servers have. The best one is chosen at run
//! time.
//!
//! No intrinsics: the compiler vectorises a plain loop once it may use the instructions.

/// A loop as a value: its inputs, its outputs, and its code.
pub(crate) trait Kernel {
    /// The loop. Implementations are `#[inline(always)]`, so that it is compiled once for each instruction set.
    fn run(self);
}

/// Runs the kernel with the best instruction set that this processor has.
#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_code,
    reason = "a function that needs instructions may be called only where they exist"
)]
pub(crate) fn dispatch(kernel: impl Kernel) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn avx512(kernel: impl Kernel) {
        kernel.run();
    }

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn avx2(kernel: impl Kernel) {
        kernel.run();
    }

    let common = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if common && wide {
        // SAFETY: every feature that `avx512` enables was just detected.
        unsafe { avx512(kernel) }
    } else if common {
        // SAFETY: every feature that `avx2` enables was just detected.
        unsafe { avx2(kernel) }
    } else {
        kernel.run();
    }
}

/// Runs the kernel.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn dispatch(kernel: impl Kernel) {
    kernel.run();
}
