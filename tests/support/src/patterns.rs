//! Input patterns: named sequences of 64-bit words for any length and seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A named way to fill an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Any words.
    Random,
    /// Ascending, in steps of 2^20 around 0.
    Sorted,
    /// Descending.
    Reversed,
    /// One value.
    AllEqual,
    /// 16 values.
    FewDistinct,
    /// Small numbers, the less the more often.
    Zipf,
    /// Ascending a thousand times over.
    Sawtooth,
    /// Half of the values are one value, the others random.
    HalfEqual,
    /// Runs of 64 to 512 neighbours that are close together.
    Runs,
    /// Most of the mass in a few adjacent values, the rest many scales away.
    Clusters,
    /// Period 2^16, which a regular sample would alias.
    Periodic,
    /// The least and the greatest words, and little else.
    Extremes,
}

/// All patterns.
pub const ALL: [Pattern; 12] = [
    Pattern::Random,
    Pattern::Sorted,
    Pattern::Reversed,
    Pattern::AllEqual,
    Pattern::FewDistinct,
    Pattern::Zipf,
    Pattern::Sawtooth,
    Pattern::HalfEqual,
    Pattern::Runs,
    Pattern::Clusters,
    Pattern::Periodic,
    Pattern::Extremes,
];

/// Patterns that mislead a sample, or try to.
pub const MISLEADING: [Pattern; 6] = [
    Pattern::Sorted,
    Pattern::Reversed,
    Pattern::HalfEqual,
    Pattern::Runs,
    Pattern::Clusters,
    Pattern::Periodic,
];

impl Pattern {
    /// `len` words; the same for the same seed.
    pub fn words(self, len: usize, seed: u64) -> Vec<i64> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let at = |i: usize| i as i64 - len as i64 / 2;
        let mut run = 0_i64;
        let mut left = 0_u32;
        (0..len)
            .map(|i| match self {
                Pattern::Random => rng.random(),
                Pattern::Sorted => at(i) << 20,
                Pattern::Reversed => -at(i) << 20,
                Pattern::AllEqual => 42,
                Pattern::FewDistinct => rng.random_range(0..16) << 40,
                Pattern::Zipf => {
                    let u: f64 = rng.random_range(1e-9..1.0);
                    (u.powf(-3.0) as i64).min(1 << 20)
                }
                Pattern::Sawtooth => (i as i64 % 1000) << 10,
                Pattern::HalfEqual if rng.random() => 7,
                Pattern::HalfEqual => rng.random(),
                Pattern::Runs => {
                    if left == 0 {
                        run = rng.random_range(-(1 << 60)..1 << 60);
                        left = rng.random_range(64..512);
                    }
                    left -= 1;
                    run + rng.random_range(0..1000)
                }
                Pattern::Clusters => match rng.random_range(0..100) {
                    0..88 => 1_000_003 + rng.random_range(0..150),
                    88..95 => rng.random_range(0..1 << 20),
                    _ => rng.random(),
                },
                Pattern::Periodic => (((i as i64) & 0xffff) << 32) + rng.random_range(0..1 << 16),
                Pattern::Extremes => [i64::MIN, i64::MAX, i64::MIN + 1, i64::MAX - 1, 0, -1][i % 6],
            })
            .collect()
    }

    /// Floats with NaNs of both signs, infinities and both zeros among them.
    pub fn floats(self, len: usize, seed: u64) -> Vec<f64> {
        const SPECIAL: [f64; 7] = [
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            f64::MIN_POSITIVE,
        ];
        let words = self.words(len, seed);
        words
            .into_iter()
            .enumerate()
            .map(|(i, word)| {
                if i % 13 == 5 {
                    SPECIAL[i / 13 % 7]
                } else {
                    word as f64 / 1024.0
                }
            })
            .collect()
    }
}
