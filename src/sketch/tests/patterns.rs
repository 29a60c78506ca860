//! Input patterns, shared by tests and benches.

/// The output of Steele, Lea and Flood's SplitMix64 (2014).
pub(super) fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn unit(counter: u64) -> f64 {
    (mix(counter) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number with a roughly normal distribution.
fn normal(counter: u64) -> f64 {
    (0..6)
        .map(|i| unit(counter.wrapping_mul(6).wrapping_add(i)))
        .sum::<f64>()
        - 3.0
}

/// The key of a float, in its order.
fn float(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

fn zipf(counter: u64) -> u64 {
    (unit(counter).powf(-2.0)).min(1e18) as u64
}

/// Names of all patterns of [`generate`].
pub(super) const ALL: [&str; 22] = [
    "random",
    "lognormal",
    "sorted",
    "reversed",
    "sawtooth",
    "organ pipe",
    "zoomed in",
    "all equal",
    "few distinct",
    "zipf",
    "float zipf",
    "atom",
    "many atoms",
    "drift",
    "fast drift",
    "jumps",
    "crowded",
    "outliers",
    "bimodal",
    "small integers",
    "nearly sorted",
    "block shuffled",
];

/// `n` keys of a pattern.
pub(super) fn generate(pattern: &str, n: usize, seed: u64) -> Vec<u64> {
    let seed = mix(seed) >> 8;
    let all = n as u64;
    let random = |i: u64| mix(seed.wrapping_add(i));
    let key = |i: u64| match pattern {
        "random" => random(i),
        "lognormal" => float(normal(seed + i).exp()),
        "sorted" => i << 20,
        "reversed" => (all - i) << 20,
        "sawtooth" => i % 10_007 * 1_000_003,
        "organ pipe" => i.min(all - i),
        "zoomed in" => {
            if i.is_multiple_of(2) {
                i
            } else {
                2 * all - i
            }
        }
        "all equal" => 42,
        "few distinct" => float((random(i) % 17) as f64 * 0.37),
        "zipf" => zipf(seed + i),
        "float zipf" => float(zipf(seed + i) as f64 / 7.0),
        "atom" => {
            if random(i) % 2 == 0 {
                float(0.0)
            } else {
                float(normal(seed + i) * 1e-3)
            }
        }
        "many atoms" => {
            let value = normal(seed + i);
            float(if random(i) % 2 == 0 {
                (value * 30.0).round() / 30.0
            } else {
                value
            })
        }
        "drift" => float(normal(seed + i) + 1e-7 * i as f64),
        "fast drift" => float(normal(seed + i) + 1e-5 * i as f64),
        "jumps" => float(normal(seed + i) * 10_f64.powi((mix(i / 200_000) % 20) as i32)),
        "crowded" => random(i) >> (mix(random(i)) % 60),
        "outliers" => float(match random(i) % 1000 {
            0 => f64::INFINITY,
            1 => -1e300,
            _ => 1e6 + normal(seed + i),
        }),
        "bimodal" => float(if random(i) % 2 == 0 { 1e-300 } else { 1e300 } * (1.0 + 1e-6 * normal(seed + i))),
        "small integers" => random(i) % 1000 + 1,
        "nearly sorted" => (i << 20) + random(i) % (1000 << 20),
        "block shuffled" => (mix(i / 1000) << 20) + i % 1000,
        _ => 0,
    };
    (0..all).map(key).collect()
}
