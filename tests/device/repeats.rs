//! Columns with repeated values: few distinct ones, frequent ones, and frequent ones beside many rare ones.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int16Array, Int64Array, UInt32Array,
};
use datafusion_quantiles::kernel::cuda::{DeviceColumn, Report};
use datafusion_quantiles::key::KeyBits;
use quantiles_testing::numbers::mixed;
use quantiles_testing::rounds::ranks_of;

use crate::selection::selection;
use crate::support::{device, sorted_keys, tests, with_nulls};

tests! {
    plain few_distinct_values,
    plain long_columns_of_few_distinct_values,
}

/// How often values occur, and where they lie in the range of keys.
#[derive(Debug, Clone, Copy)]
enum Repeats {
    /// All values are equally frequent, and lie anywhere.
    Spread,
    /// All values are equally frequent, and are whole numbers from 0.
    FromZero,
    /// Three neighbouring values, then a long gap.
    Neighbours,
    /// These values have half of the rows; the other rows are distinct.
    AmongOthers,
    /// Each value is half as frequent as the one before.
    Halves,
    /// One value has nearly all rows.
    One,
}

impl Repeats {
    const ALL: [Repeats; 6] = [
        Repeats::Spread,
        Repeats::FromZero,
        Repeats::Neighbours,
        Repeats::AmongOthers,
        Repeats::Halves,
        Repeats::One,
    ];

    fn value(self, row: u64, distinct: u64) -> u64 {
        let word = mixed(row);
        match self {
            Repeats::Spread => mixed(word % distinct),
            Repeats::FromZero => word % distinct,
            Repeats::Neighbours => {
                let number = word % distinct;
                (mixed(number / 3) | 3) - number % 3
            }
            Repeats::AmongOthers if word >> 63 == 0 => mixed(word + 1),
            Repeats::AmongOthers => mixed(word % distinct),
            Repeats::Halves => mixed(u64::from(word.trailing_zeros()).min(distinct)),
            Repeats::One if !word.is_multiple_of(50) => mixed(7),
            Repeats::One => mixed(mixed(word) % distinct),
        }
    }
}

fn columns(len: usize, value: impl Fn(u64) -> u64) -> Vec<(&'static str, ArrayRef)> {
    let values: Vec<u64> = (0..len as u64).map(value).collect();
    let values = || values.iter().copied();
    let decimals = Decimal128Array::from_iter_values(values().map(|value| i128::from(value as i64) << 20));
    vec![
        (
            "i16",
            Arc::new(Int16Array::from_iter_values(values().map(|value| value as i16))),
        ),
        (
            "u32",
            Arc::new(UInt32Array::from_iter_values(values().map(|value| value as u32))),
        ),
        (
            "i64",
            Arc::new(Int64Array::from_iter_values(values().map(|value| value as i64))),
        ),
        (
            "f64",
            Arc::new(Float64Array::from_iter_values(
                values().map(|value| value as i64 as f64 / 4.0),
            )),
        ),
        ("dec", Arc::new(decimals.with_precision_and_scale(38, 6).unwrap())),
    ]
}

/// Checks some ranks one by one, and 3, 101 and 1000 ranks together.
fn check(values: &ArrayRef, what: &str) {
    let device = device();
    let (_, sorted) = sorted_keys(values);
    let column = DeviceColumn::upload(&device, values.data_type(), std::slice::from_ref(values)).unwrap();
    let selection = selection(&column, None);
    let n = sorted.len() as u64;
    let singles = (0..12).map(|turn| vec![1 + mixed(turn + n) % n]);
    let several = [3, 101, 1000].map(|count| ranks_of(n, count));
    for ranks in singles.chain(several) {
        let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
        let found = selection.keys(&ranks, &mut Report::default()).unwrap();
        assert!(found == expected, "{what}: ranks {ranks:?}");
    }
}

fn few_distinct_values() {
    for repeats in Repeats::ALL {
        for distinct in [1, 2, 3, 16, 100, 300, 1000, 3000] {
            let values = columns(300_007, |row| repeats.value(row, distinct));
            for (name, values) in values.iter().cloned().chain(with_nulls(values.clone())) {
                check(
                    &values,
                    &format!("{name}, {repeats:?} of {distinct}, {} NULLs", values.null_count()),
                );
            }
        }
    }
}

/// A number of rows for which the cell of a rank has more keys than one block selects among.
fn long_columns_of_few_distinct_values() {
    for repeats in Repeats::ALL {
        for distinct in [2, 150, 1000] {
            let values = columns(20_000_003, |row| repeats.value(row, distinct));
            for (name, values) in values
                .into_iter()
                .filter(|(name, _)| ["u32", "f64"].contains(name))
            {
                check(&values, &format!("{name}, {repeats:?} of {distinct}"));
            }
        }
    }
}
