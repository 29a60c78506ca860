//! Exact sums of a few floating-point numbers at the speed of additions: each number is cut into parts whose sums need no rounding (T. Ogita,
//! S. M. Rump, S. Oishi, "Accurate sum and dot product", 2005; J. Demmel, H. D. Nguyen, "Fast reproducible floating-point summation", 2013).
//!
//! ```text
//! |x| < 2^E, and 1024 of them:   sigma = 1.5 * 2^(E + 10)
//! high = (x + sigma) - sigma     a multiple of 2^(E - 42): the sum of all has at most 53 bits
//! low  = x - high                exact, and |low| < 2^(E - 42): the next level's x
//! ```
//! Three levels hold all bits of numbers whose exponents are no more than 73 below the greatest.

use crate::cells::simd::{Kernel, dispatch};

/// Most numbers of a sum.
pub(super) const MOST: usize = 1 << 10;

/// Numbers that are added side by side.
const LANES: usize = 8;

/// Levels of a sum.
const LEVELS: usize = 3;

/// Bits of a number that a level takes.
const LEVEL_BITS: u64 = 42;

/// Bits without the sign.
const MAGNITUDE: u64 = u64::MAX >> 1;

/// The exponent of the first level's sigma above that of the greatest number, both as the bits of a `f64` have them.
const ABOVE: u64 = 11;

/// Greatest exponent of a number as its bits have it, so that a sigma is finite.
const GREATEST_EXPONENT: u64 = 2046 - ABOVE;

/// Least exponent of the greatest number, so that the last sigma is not subnormal.
const LEAST_EXPONENT: u64 = (LEVELS as u64 - 1) * LEVEL_BITS - ABOVE + 1;

/// The sum of some numbers, as a sum of other numbers.
pub(super) struct LevelSum {
    /// Three numbers, whose sum is that of all bits which the levels hold.
    pub(super) levels: [f64; LEVELS],
    sigmas: [f64; LEVELS],
    /// Whether some numbers have bits below the levels.
    pub(super) has_rest: bool,
}

impl LevelSum {
    /// The sum of at most [`MOST`] numbers; `None` if one is not finite, or the greatest is too small or too large for the levels.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut greatest = [0; LANES];
        dispatch(Greatest {
            values,
            greatest: &mut greatest,
        });
        let exponent = greatest.into_iter().max()? >> 52;
        if !(LEAST_EXPONENT..=GREATEST_EXPONENT).contains(&exponent) {
            return None;
        }
        let sigma = |level: usize| {
            let exponent = exponent + ABOVE - LEVEL_BITS * level as u64;
            f64::from_bits(exponent << 52 | 1 << 51)
        };
        let mut sums = Sums::default();
        let sigmas = std::array::from_fn(sigma);
        dispatch(Cut {
            values,
            sigmas: &sigmas,
            sums: &mut sums,
        });
        Some(Self {
            levels: sums.levels.map(|lanes| lanes.into_iter().sum()),
            sigmas,
            has_rest: sums.rest.iter().any(|bits| bits & MAGNITUDE != 0),
        })
    }

    /// What the levels leave of a number.
    pub(super) fn rest(&self, value: f64) -> f64 {
        let mut rest = value;
        for sigma in self.sigmas {
            rest -= (rest + sigma) - sigma;
        }
        rest
    }
}

/// Finds the greatest magnitude among the numbers of each lane, as bits.
struct Greatest<'a> {
    values: &'a [f64],
    greatest: &'a mut [u64; LANES],
}

impl Kernel for Greatest<'_> {
    #[inline(always)]
    fn run(self) {
        let mut greatest = [0; LANES];
        let (groups, others) = self.values.as_chunks::<LANES>();
        for group in groups {
            for (greatest, value) in greatest.iter_mut().zip(group) {
                *greatest = (value.to_bits() & MAGNITUDE).max(*greatest);
            }
        }
        for (greatest, value) in greatest.iter_mut().zip(others) {
            *greatest = (value.to_bits() & MAGNITUDE).max(*greatest);
        }
        *self.greatest = greatest;
    }
}

/// The sums of each lane: none of them was rounded.
#[derive(Default, Clone, Copy)]
struct Sums {
    levels: [[f64; LANES]; LEVELS],
    /// The bits that any number has left.
    rest: [u64; LANES],
}

impl Sums {
    /// Adds one number to each lane.
    #[inline(always)]
    fn add(&mut self, values: &[f64; LANES], sigmas: &[f64; LEVELS]) {
        let mut rest = *values;
        for (lanes, sigma) in self.levels.iter_mut().zip(sigmas) {
            for (sum, rest) in lanes.iter_mut().zip(&mut rest) {
                let high = (*rest + sigma) - sigma;
                *sum += high;
                *rest -= high;
            }
        }
        for (left, rest) in self.rest.iter_mut().zip(rest) {
            *left |= rest.to_bits();
        }
    }
}

/// Cuts numbers into the parts of the levels, and adds them.
struct Cut<'a> {
    values: &'a [f64],
    sigmas: &'a [f64; LEVELS],
    sums: &'a mut Sums,
}

impl Kernel for Cut<'_> {
    #[inline(always)]
    fn run(self) {
        let mut sums = Sums::default();
        let (groups, others) = self.values.as_chunks::<LANES>();
        for group in groups {
            sums.add(group, self.sigmas);
        }
        let mut last = [0.0; LANES];
        last[..others.len()].copy_from_slice(others);
        sums.add(&last, self.sigmas);
        *self.sums = sums;
    }
}
