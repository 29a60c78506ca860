//! The local sort of psrs and of sort-and-choose: seconds for each key, compared with the standard library's sort, so that no baseline is
//! slow because of its sort.

use std::time::Instant;

use datafusion::common::{Result, exec_err};
use datafusion_quantiles::key::KeyVec;
use quantiles_literature::{LocalSort, sort};

use super::Arguments;
use super::methods::mix;
use super::output::Table;

const SORTS: [LocalSort; 3] = [LocalSort::Standard, LocalSort::InPlace, LocalSort::OutOfPlace];

const COLUMNS: [&str; 8] = [
    "values",
    "bits",
    "data",
    "sort_unstable, ns a key",
    "in place, ns",
    "out of place, ns",
    "in place / sort_unstable",
    "out of place / sort_unstable",
];

/// A named way to make the i-th of n keys.
type Data = (&'static str, fn(u64, u64) -> u64);

const DATA: [Data; 5] = [
    ("random", |i, _| mix(i)),
    ("sorted", |i, _| i << 20),
    ("reversed", |i, n| (n - i) << 20),
    ("all equal", |_, _| 42),
    ("16 values", |i, _| (mix(i) % 16) << 40),
];

pub(crate) fn table(arguments: &Arguments) -> Result<()> {
    let title = "Local sorts, one thread";
    let mut table = Table::try_new(&arguments.output, "sorts", title, &COLUMNS)?;
    let sizes = [100_000_u64, 1_000_000, 10_000_000];
    for n in sizes.into_iter().filter(|n| *n as f64 <= arguments.rows) {
        for (name, key) in DATA {
            for bits in [32, 64] {
                let keys = match bits {
                    32 => KeyVec::W32((0..n).map(|i| (key(i, n) >> 20) as u32).collect()),
                    _ => KeyVec::W64((0..n).map(|i| key(i, n)).collect()),
                };
                let [standard, inside, outside] = nanoseconds(&keys, arguments.repeat)?;
                table.row(&[
                    &n,
                    &bits,
                    &name,
                    &format!("{standard:.2}"),
                    &format!("{inside:.2}"),
                    &format!("{outside:.2}"),
                    &format!("{:.2}", inside / standard),
                    &format!("{:.2}", outside / standard),
                ])?;
            }
        }
    }
    Ok(())
}

/// The time for each key of the fastest of some runs of each sort. It is an error if their results differ.
fn nanoseconds(keys: &KeyVec, repeat: usize) -> Result<[f64; 3]> {
    let mut least = [f64::INFINITY; 3];
    let mut expected = keys.clone();
    expected.sort();
    for _ in 0..repeat.max(3) {
        for (least, how) in least.iter_mut().zip(SORTS) {
            let mut own = keys.clone();
            let start = Instant::now();
            sort(&mut own, how);
            *least = least.min(start.elapsed().as_secs_f64() * 1e9 / keys.len() as f64);
            if own != expected {
                return exec_err!("{how:?} does not sort {} keys", keys.len());
            }
        }
    }
    Ok(least)
}
