//! Numbers of rows, for columns too long for a generator of one thread.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float32Array, Float64Array};

const THREADS: u64 = 16;

/// 101 quantiles from 0 to 1, as SQL.
pub fn percentiles() -> String {
    let list: Vec<_> = (0..=100)
        .map(|percent| (f64::from(percent) / 100.0).to_string())
        .collect();
    format!("[{}]", list.join(", "))
}

/// SplitMix64: a word for each number.
pub fn mixed(mut word: u64) -> u64 {
    word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A number in [0, 1) for each row.
pub fn uniform(row: u64) -> f64 {
    (mixed(row) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The sum of twelve uniform numbers, less 6, for each row.
pub fn normal(row: u64) -> f64 {
    (0..3)
        .map(|part| {
            let word = mixed(row * 3 + part);
            (0..4)
                .map(|digit| (word >> (16 * digit) & 0xffff) as f64 / 65536.0)
                .sum::<f64>()
        })
        .sum::<f64>()
        - 6.0
}

/// What is made of `n` rows in as many parts as there are threads.
pub fn parts<T: Send>(n: u64, of: impl Fn(std::ops::Range<u64>) -> T + Sync) -> Vec<T> {
    let share = n.div_ceil(THREADS);
    std::thread::scope(|scope| {
        let parts = (0..THREADS).map(|part| {
            let (of, from) = (&of, (part * share).min(n));
            scope.spawn(move || of(from..(from + share).min(n)))
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    })
}

/// `n` values in as many arrays as there are threads.
pub fn arrays(n: u64, of: impl Fn(std::ops::Range<u64>) -> ArrayRef + Sync) -> Vec<ArrayRef> {
    parts(n, of)
}

/// `n` floats of 32 bits, or of 64 where `double`, in as many arrays.
pub fn floats(n: u64, double: bool, value: impl Fn(u64) -> f64 + Sync) -> Vec<ArrayRef> {
    arrays(n, |rows| match double {
        true => Arc::new(Float64Array::from_iter_values(rows.map(&value))),
        false => Arc::new(Float32Array::from_iter_values(rows.map(|row| value(row) as f32))),
    })
}
