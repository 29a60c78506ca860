//! The kernels of `kernels/pairs.cu`: their parameter, their numbers, and the error of their products.

use super::launch::kernel_argument;
use super::source::{ColumnFormat, KernelFile, Program};

/// Queries, and rows, of a tile.
pub(super) const TILE: usize = 128;
/// Components of a step of the product.
pub(super) const SLICE: usize = 32;
/// Threads of a tile.
pub(super) const TILE_THREADS: u32 = 128;
kernel_argument! {
    /// `struct Pairs` of `kernels/pairs.cu`.
    pub(super) struct PairsArgument = vp_sizes[0] {
        pub(super) vectors: u64,
        pub(super) validity: u64,
        pub(super) mask: u64,
        pub(super) parts: u64,
        pub(super) scales: u64,
        pub(super) halves: u64,
        pub(super) points: u64,
        pub(super) queries: u64,
        pub(super) limits: u64,
        pub(super) factors: u64,
        pub(super) row_marks: u64,
        pub(super) query_marks: u64,
        pub(super) active: u64,
        pub(super) again: u64,
        pub(super) counts: u64,
        pub(super) before: u64,
        pub(super) items: u64,
        pub(super) starts: u64,
        pub(super) places: u64,
        pub(super) found_rows: u64,
        pub(super) found: u64,
        pub(super) out_rows: u64,
        pub(super) out: u64,
        pub(super) flags: u64,
        pub(super) rows: u64,
        pub(super) first: u64,
        pub(super) end: u64,
        pub(super) width: u32,
        pub(super) depth: u32,
        pub(super) query_count: u32,
        pub(super) k: u32,
        pub(super) room: u32,
        pub(super) measure: u32,
        pub(super) sign: f32,
        pub(super) margin: f32,
    }
}

/// The error of a product in tensor cores, as a share of the product of both lengths: of rounding both vectors to 16 bits, and of adding, which may
/// cut off at every step.
pub(super) fn relative_margin(width: usize) -> f64 {
    let (width, power) = (width as f64, |exponent: i32| 2.0_f64.powi(exponent));
    let rounding = power(-11) + power(-24) * width.sqrt();
    1.01 * ((1.0 + rounding).powi(2) - 1.0 + (width + 16.0) * power(-22))
}

/// The compilation of the kernels.
pub(super) fn pairs_program() -> Program {
    Program::of(KernelFile::Pairs, ColumnFormat::unsigned(size_of::<u64>()))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{ArrowPrimitiveType, Float16Type};

    use super::*;

    /// A number of 16 bits.
    type Half = <Float16Type as ArrowPrimitiveType>::Native;

    /// Products of numbers that are rounded as the kernels round them are within the margin.
    #[test]
    fn the_margin_covers_rounding_to_16_bits() {
        let mut state = 5_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        for width in [1, 3, 128, 1000] {
            for spread in [1.0, 1e-3] {
                // Some components are much larger than others.
                let mut vector = || -> Vec<f64> {
                    let size = |at: usize| if at.is_multiple_of(7) { 1.0 } else { spread };
                    (0..width).map(|at| size(at) * next()).collect()
                };
                for _ in 0..50 {
                    let (a, b) = (vector(), vector());
                    let length = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let rounded = |vector: &[f64]| -> Vec<f64> {
                        let above = 2.0_f64.powi(length(vector).log2().floor() as i32 + 1);
                        let half = |x: &f64| Half::from_f64(x / above).to_f64() * above;
                        vector.iter().map(half).collect()
                    };
                    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
                    let error = (product(&a, &b) - product(&rounded(&a), &rounded(&b))).abs();
                    let margin = relative_margin(width) * length(&a) * length(&b);
                    assert!(error <= margin, "{width} {spread}: {error} {margin}");
                }
            }
        }
    }
}
