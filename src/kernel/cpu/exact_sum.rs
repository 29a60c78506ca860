//! Sums of floating-point numbers without rounding, the same whatever their order: one fixed-point number that is wide enough for all of
//! them (U. Kulisch's long accumulator; R. M. Neal, "Fast exact summation using small and large superaccumulators", 2015).
//!
//! ```text
//! f64:  mantissa * 2^(position - 1074), position from 0 to 2045
//! sum:  digit * 2^(32 * limb - 1074), added over 70 limbs
//! ```
//! A limb has 64 bits for a digit of 32, so that carries wait until 2^30 numbers were added.

use datafusion::common::Result;

use super::exact_levels::{LevelSum, MOST};
use crate::wire::{Message, Reader, put};

/// Bits of a digit.
const DIGIT: u32 = 32;

/// Limbs that hold the sum of 2^64 numbers.
const LIMBS: usize = 70;

/// Additions after which carries move on.
const MOST_PENDING: u32 = 1 << 30;

/// Exponent of the least bit of a `f64`.
const LEAST: i32 = -1074;

/// The exponent of infinities and NaNs.
const NOT_FINITE: u32 = 0x7ff;

/// The exponent of a number, as its bits have it.
#[inline]
fn exponent(bits: u64) -> u32 {
    (bits >> 52) as u32 & NOT_FINITE
}

/// The mantissa of a finite number, and the position of its least bit.
#[inline]
fn parts(bits: u64) -> (u64, u32) {
    let exponent = exponent(bits);
    let mantissa = bits & ((1 << 52) - 1) | u64::from(exponent > 0) << 52;
    (mantissa, exponent.max(1) - 1)
}

/// An exact sum of floating-point numbers.
#[derive(Debug, Clone)]
pub(crate) struct ExactSum {
    limbs: [i64; LIMBS],
    /// Additions since carries moved on.
    pending: u32,
    /// The sum of numbers that are not finite.
    special: Option<f64>,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self {
            limbs: [0; LIMBS],
            pending: 0,
            special: None,
        }
    }
}

impl ExactSum {
    /// Adds a number `copies` times.
    pub(crate) fn add(&mut self, value: f64, copies: u64) {
        if copies == 0 {
            return;
        }
        if !value.is_finite() {
            self.special = Some(self.special.unwrap_or(0.0) + value);
            return;
        }
        let (mantissa, position) = parts(value.to_bits());
        let sign = if value.is_sign_negative() { -1 } else { 1 };
        self.add_fixed(u128::from(mantissa) * u128::from(copies), sign, position);
    }

    /// Adds `sign` times `magnitude`, whose least bit stands at `position`.
    fn add_fixed(&mut self, magnitude: u128, sign: i64, position: u32) {
        let (limb, shift) = ((position / DIGIT) as usize, position % DIGIT);
        let mut rest = magnitude;
        let mut digit = (u64::from(rest as u32) << shift) as u32;
        rest >>= DIGIT - shift;
        for limb in &mut self.limbs[limb..] {
            *limb += sign * i64::from(digit);
            if rest == 0 {
                break;
            }
            digit = rest as u32;
            rest >>= DIGIT;
        }
        self.pending += 1;
        if self.pending == MOST_PENDING {
            self.carry();
        }
    }

    /// Adds a number.
    #[inline]
    pub(crate) fn add_one(&mut self, value: f64) {
        let bits = value.to_bits();
        let (mantissa, position) = parts(bits);
        let (limb, shift) = ((position / DIGIT) as usize, position % DIGIT);
        let Some([low, middle, high]) = self
            .limbs
            .get_mut(limb..limb + 3)
            .filter(|_| exponent(bits) < NOT_FINITE)
        else {
            return self.add(value, 1);
        };
        let digits = u128::from(mantissa) << shift;
        // -1 for numbers below 0, and 0 for others.
        let sign = bits as i64 >> 63;
        let signed = |digit: u128| (i64::from(digit as u32) ^ sign) - sign;
        *low += signed(digits);
        *middle += signed(digits >> DIGIT);
        *high += signed(digits >> (2 * DIGIT));
        self.pending += 1;
        if self.pending == MOST_PENDING {
            self.carry();
        }
    }

    /// Adds numbers.
    pub(crate) fn add_all(&mut self, values: &[f64]) {
        for chunk in values.chunks(MOST) {
            let Some(sum) = LevelSum::of(chunk) else {
                chunk.iter().for_each(|value| self.add_one(*value));
                continue;
            };
            sum.levels.iter().for_each(|level| self.add_one(*level));
            if sum.has_rest {
                chunk.iter().for_each(|value| self.add_one(sum.rest(*value)));
            }
        }
    }

    /// Moves carries on, so that all limbs but the last are digits.
    fn carry(&mut self) {
        self.pending = 0;
        for limb in 0..LIMBS - 1 {
            let carry = self.limbs[limb] >> DIGIT;
            self.limbs[limb] -= carry << DIGIT;
            self.limbs[limb + 1] += carry;
        }
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.carry();
        other.carry();
        for (limb, other) in self.limbs.iter_mut().zip(other.limbs) {
            *limb += other;
        }
        if let Some(other) = other.special {
            self.special = Some(self.special.unwrap_or(0.0) + other);
        }
        self.pending = 1;
    }

    /// The sum divided by `count`, which is not 0, rounded once. NaN for numbers of which one is NaN, or that have both infinities.
    pub(crate) fn mean(&self, count: u64) -> f64 {
        if let Some(special) = self.special {
            return special;
        }
        let mut sum = self.clone();
        sum.carry();
        let is_negative = sum.limbs[LIMBS - 1] < 0;
        if is_negative {
            sum.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            sum.carry();
        }
        let limbs = sum.limbs;
        let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else {
            return 0.0;
        };
        // The first 128 bits, and whether there is anything behind them.
        let digit = |below: usize| top.checked_sub(below).map_or(0, |limb| limbs[limb] as u128);
        let shift = (digit(0) as u32).leading_zeros();
        let five = [0, 1, 2, 3, 4].map(digit);
        let mut first = five[..4].iter().fold(0, |all, digit| all << DIGIT | digit);
        first = first << shift | five[4] >> (DIGIT - shift);
        let behind = five[4] & ((1 << (DIGIT - shift)) - 1) != 0
            || limbs[..top.saturating_sub(4)].iter().any(|limb| *limb != 0);
        let exponent = DIGIT as i32 * (top as i32 - 3) - shift as i32 + LEAST;
        let mean = quotient(first, behind, exponent, count);
        if is_negative { -mean } else { mean }
    }
}

impl Message for ExactSum {
    fn write(&self, out: &mut Vec<u8>) {
        let mut sum = self.clone();
        sum.carry();
        sum.limbs.iter().for_each(|limb| put(out, *limb as u64));
        put(out, u64::from(self.special.is_some()));
        put(out, self.special.unwrap_or(0.0).to_bits());
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let mut sum = Self::default();
        let last = LIMBS - 1;
        for limb in &mut sum.limbs[..last] {
            *limb = input.number::<u32>("digit of a sum")?.into();
        }
        sum.limbs[last] = input.number::<u64>("digit of a sum")? as i64;
        let (is_special, bits) = (input.flag("flag of a sum")?, input.number("sum")?);
        sum.special = is_special.then_some(f64::from_bits(bits));
        Ok(sum)
    }
}

/// A whole number divided by `count`, which is not 0, rounded once.
pub(crate) fn integer_mean(sum: i128, count: u64) -> f64 {
    let magnitude = sum.unsigned_abs();
    if magnitude == 0 {
        return 0.0;
    }
    let shift = magnitude.leading_zeros();
    let mean = quotient(magnitude << shift, false, -(shift as i32), count);
    if sum < 0 { -mean } else { mean }
}

/// `number 2^exponent / count`, rounded once to the nearest `f64`, of two to the even one. The first bit of `number` is set. `behind`: there
/// is a fraction behind `number`.
fn quotient(number: u128, behind: bool, exponent: i32, count: u64) -> f64 {
    let count = u128::from(count);
    let (quotient, behind) = (number / count, behind || !number.is_multiple_of(count));
    let bits = (u128::BITS - quotient.leading_zeros()) as i32;
    // The exponent of the last bit that a `f64` of this size has.
    let last = (bits - 53 + exponent).max(LEAST);
    let dropped = last - exponent;
    if dropped > 128 {
        return 0.0;
    }
    let (kept, rest) = match dropped {
        ..=0 => return f64::from_bits(with_exponent(quotient << -dropped, last)),
        128 => (0, quotient),
        _ => (quotient >> dropped, quotient & ((1 << dropped) - 1)),
    };
    let half = 1_u128 << (dropped - 1);
    let is_above = rest > half || rest == half && (behind || kept & 1 == 1);
    f64::from_bits(with_exponent(kept + u128::from(is_above), last))
}

/// The bits of `mantissa 2^last`, of at most 53 bits, or of 2^53 after rounding; infinity if it is too large.
fn with_exponent(mantissa: u128, last: i32) -> u64 {
    // A mantissa of 53 bits adds its first bit to the exponent; a shorter one is that of a subnormal number.
    let bits = (((last - LEAST) as u64) << 52) + mantissa as u64;
    bits.min(f64::INFINITY.to_bits())
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn mean(values: &[(f64, u64)], count: u64) -> f64 {
        let mut sum = ExactSum::default();
        values.iter().for_each(|(value, copies)| sum.add(*value, *copies));
        sum.mean(count)
    }

    #[test]
    fn numbers_that_come_one_by_one_have_the_same_sum() {
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..200 {
            let (mut one_by_one, mut counted, mut merged) =
                (ExactSum::default(), ExactSum::default(), ExactSum::default());
            for _ in 0..100 {
                let value = f64::from_bits(random.random());
                one_by_one.add_one(value);
                counted.add(value, 1);
                let mut part = ExactSum::default();
                part.add_one(value);
                let mut bytes = Vec::new();
                part.write(&mut bytes);
                merged.merge(Reader::message(&bytes).unwrap());
            }
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let mean = counted.mean(7);
            assert!(
                same(one_by_one.mean(7), mean) && same(merged.mean(7), mean),
                "{mean}"
            );
        }
    }

    #[test]
    fn numbers_that_come_all_at_once_have_the_same_sum() {
        let mut random = SmallRng::seed_from_u64(4);
        // Exponents from one to all of them, from the least on, up to the greatest, and with numbers that are not finite.
        for exponents in [
            0..1,
            0..70,
            72..75,
            1000..1001,
            1000..1064,
            1000..1200,
            1000..1074,
            1980..2047,
            2030..2036,
            0..2047,
            0..2048,
        ] {
            for length in [0, 1, MOST, 3 * MOST + 7] {
                let values: Vec<f64> = (0..length)
                    .map(|_| {
                        let exponent = random.random_range(exponents.clone());
                        f64::from_bits(random.random::<u64>() & !(0x7ff << 52) | exponent << 52)
                    })
                    .collect();
                let (mut all, mut each) = (ExactSum::default(), ExactSum::default());
                all.add_all(&values);
                values.iter().for_each(|value| each.add(*value, 1));
                let (all, each) = (all.mean(3), each.mean(3));
                assert!(
                    all.to_bits() == each.to_bits() || all.is_nan() && each.is_nan(),
                    "{exponents:?} {length}: {all:e} {each:e}"
                );
            }
        }
        // The greatest sum of a chunk.
        let values = [f64::MAX; 2 * MOST];
        let mut sum = ExactSum::default();
        sum.add_all(&values);
        sum.add_all(&values.map(|value| -value));
        sum.add_all(&values);
        assert_eq!(sum.mean(values.len() as u64), f64::MAX);
    }

    #[test]
    fn one_number_is_its_own_sum() {
        let mut random = SmallRng::seed_from_u64(1);
        let ends = [
            0.0,
            5e-324,
            f64::MIN_POSITIVE,
            f64::MAX,
            1.0,
            0.1,
            2.0_f64.powi(52),
        ];
        let drawn = (0..10_000).map(|_| f64::from_bits(random.random()));
        for value in ends.into_iter().chain(drawn).filter(|value| value.is_finite()) {
            for value in [value, -value] {
                assert_eq!(
                    mean(&[(value, 1)], 1).to_bits(),
                    (value + 0.0).to_bits(),
                    "{value:e}"
                );
                assert_eq!(mean(&[(value, 12345)], 12345), value, "{value:e}");
                assert_eq!(mean(&[(value, 1 << 46), (-value, 1 << 46)], 3), 0.0, "{value:e}");
            }
        }
    }

    #[test]
    fn sums_of_two_are_those_of_the_processor() {
        let mut random = SmallRng::seed_from_u64(2);
        for _ in 0..100_000 {
            let [a, b] = [0, 1].map(|_| {
                let exponent = random.random_range(900..1100_u64);
                f64::from_bits(random.random::<u64>() & !(0x7ff << 52) | exponent << 52)
            });
            // Both round once.
            assert_eq!(mean(&[(a, 1), (b, 1)], 1), a + b, "{a:e} {b:e}");
            assert_eq!(mean(&[(a, 1)], 3), a / 3.0, "{a:e}");
            assert_eq!(mean(&[(b, 1)], 1000), b / 1000.0, "{b:e}");
        }
        // Subnormal quotients.
        for value in [5e-324, 1.5e-323, f64::MIN_POSITIVE, 3.3e-308] {
            for count in [1, 2, 3, 5, 1000] {
                assert_eq!(
                    mean(&[(value, 1)], count),
                    value / count as f64,
                    "{value:e} / {count}"
                );
            }
        }
    }

    #[test]
    fn order_does_not_matter_and_nothing_is_lost() {
        let mut values = [1e300, 1.0, -1e300, 1e-300, 3.5, f64::MAX, -f64::MAX, -3.5, -1.0];
        for _ in 0..values.len() {
            values.rotate_left(1);
            let values: Vec<_> = values.iter().map(|value| (*value, 1)).collect();
            assert_eq!(mean(&values, 1), 1e-300);
        }
        // The sum is beyond all numbers, the mean is not.
        assert_eq!(mean(&[(f64::MAX, 1 << 40)], 1 << 40), f64::MAX);
        assert_eq!(mean(&[(f64::MAX, 2)], 1), f64::INFINITY);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let inf = f64::INFINITY;
        assert_eq!(mean(&[(inf, 1), (1.0, 7)], 8), inf);
        assert_eq!(mean(&[(-inf, 3)], 3), -inf);
        assert!(mean(&[(inf, 1), (-inf, 1)], 2).is_nan());
        assert!(mean(&[(f64::NAN, 1), (1.0, 1)], 2).is_nan());
        // No copies are nothing.
        assert_eq!(mean(&[(inf, 0), (1.0, 1)], 1), 1.0);
    }

    #[test]
    fn carries_move_on_in_time() {
        let mut sum = ExactSum::default();
        for value in [f64::MAX, 1.0, 5e-324] {
            sum.pending = MOST_PENDING - 1;
            sum.add(value, 1 << 47);
            assert_eq!(sum.pending, 0);
        }
        sum.add(-f64::MAX, 1 << 47);
        sum.add(-1.0, 1 << 47);
        assert_eq!(sum.mean(1 << 47), 5e-324);
    }

    #[test]
    fn whole_numbers_are_divided_once() {
        for sum in [
            0,
            1,
            7,
            -7,
            1 << 53,
            (1 << 53) + 1,
            i64::MAX.into(),
            -(1_i128 << 100),
        ] {
            for count in [1_u64, 2, 4, 1 << 40] {
                // Division by a power of two does not round.
                assert_eq!(
                    integer_mean(sum, count),
                    sum as f64 / count as f64,
                    "{sum} / {count}"
                );
            }
            if let Ok(small) = i32::try_from(sum) {
                assert_eq!(integer_mean(sum, 3), f64::from(small) / 3.0);
            }
        }
        // 2^53 + 1 thirds: rounded once, not twice.
        assert_eq!(integer_mean(3 * ((1 << 53) + 1), 3), 2.0_f64.powi(53));
        assert_eq!(integer_mean(3 * ((1 << 53) + 1) + 1, 3), 2.0_f64.powi(53) + 2.0);
    }
}
