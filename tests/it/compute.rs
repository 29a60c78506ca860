//! Arrays without a session: large ones, which are read again, and sketches.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion_quantiles::Method;
use datafusion_quantiles::compute::{Chunks, GkSketch, Stop, Values, quantiles, quantiles_of};

/// Rows of an array that is read again and not copied.
const LARGE: u64 = (1 << 20) + 12_345;

fn mixed(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11
}

/// The value of a row.
type Pattern = fn(u64) -> Option<i64>;

/// Patterns of values by row, each of a kind of its own.
fn patterns() -> Vec<(&'static str, Pattern)> {
    vec![
        ("random", |row| Some(mixed(row) as i64 - (1 << 52))),
        ("ascending", |row| Some(row as i64)),
        ("descending", |row| Some(-(row as i64))),
        ("one value", |_| Some(7)),
        ("few values", |row| Some((mixed(row) % 5) as i64)),
        ("one far off", |row| Some(if row == 77 { i64::MAX } else { 0 })),
        ("half NULL", |row| {
            (row % 2 == 0).then(|| mixed(row) as i64 % 1000)
        }),
        ("nearly all NULL", |row| {
            row.is_multiple_of(100_000).then_some(row as i64)
        }),
        ("all NULL", |_| None),
        ("two scales", |row| {
            Some(if row % 2 == 0 {
                (mixed(row) % 100) as i64
            } else {
                mixed(row) as i64
            })
        }),
    ]
}

#[test]
fn large_arrays_are_answered_as_a_sort_does() {
    let asked = [0.0, 1e-6, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0];
    let percentiles: Vec<f64> = (1..100).map(|percent| f64::from(percent) / 100.0).collect();
    for (name, pattern) in patterns() {
        let array: Int64Array = (0..LARGE).map(pattern).collect();
        let mut sorted: Vec<i64> = array.iter().flatten().collect();
        sorted.sort_unstable();
        for asked in [&asked[..], &asked[4..5], &percentiles] {
            let answers = quantiles(&array, asked, Method::Lower).unwrap();
            let answers = answers.as_primitive::<Int64Type>();
            // Millionths, as integers: no rounding in the test.
            let expected = asked.iter().map(|q| {
                let millionths = (q * 1e6).round() as u128;
                sorted
                    .len()
                    .checked_sub(1)
                    .map(|last| sorted[(last as u128 * millionths / 1_000_000) as usize])
            });
            assert_eq!(
                answers.iter().collect::<Vec<_>>(),
                expected.collect::<Vec<_>>(),
                "{name}"
            );
        }
    }
}

#[test]
fn chunks_give_the_answer_of_one_array() {
    let all: Float64Array = (0..LARGE)
        .map(|row| if row == 5 { f64::NAN } else { mixed(row) as f64 })
        .collect();
    let whole = quantiles(&all, &[0.1, 0.5, 1.0], Method::Linear).unwrap();
    for length in [1000, 40_000, 700_000] {
        let starts = (0..all.len()).step_by(length);
        let chunks =
            starts.map(|start| Arc::new(all.slice(start, length.min(all.len() - start))) as ArrayRef);
        let chunks = Chunks::try_new(DataType::Float64, chunks.collect()).unwrap();
        let answers = quantiles_of(&chunks, &[0.1, 0.5, 1.0], Method::Linear, &Stop::default()).unwrap();
        assert_eq!(&answers, &whole, "chunks of {length}");
    }
    let texts =
        [vec!["b", "c"], vec![], vec!["a"]].map(|texts| Arc::new(StringArray::from(texts)) as ArrayRef);
    let texts = Chunks::try_new(DataType::Utf8, texts.to_vec()).unwrap();
    let median = quantiles_of(&texts, &[0.5], Method::Disc, &Stop::default()).unwrap();
    assert_eq!(median.as_string::<i32>().value(0), "b");
    let none = Chunks::try_new(DataType::Int32, vec![]).unwrap();
    let none = quantiles_of(&none, &[0.5], Method::Disc, &Stop::default()).unwrap();
    assert!(none.is_null(0));
}

/// Values that go wrong after some reads.
struct Failing {
    reads: AtomicU64,
    allowed: u64,
    /// Whether they change; otherwise reading fails.
    change: bool,
}

impl Values for Failing {
    fn data_type(&self) -> &DataType {
        &DataType::Int64
    }

    fn rows(&self) -> u64 {
        LARGE
    }

    fn read(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>> {
        let is_late = self.reads.fetch_add(1, Ordering::Relaxed) >= self.allowed;
        let shift = match (is_late, self.change) {
            (true, false) => return exec_err!("row {} is gone", rows.start),
            (late, _) => i64::from(late),
        };
        let values = rows.map(|row| mixed(row) as i64 + shift);
        Ok(vec![Arc::new(values.collect::<Int64Array>())])
    }
}

#[test]
fn what_goes_wrong_while_an_array_is_read_is_an_error() {
    let percentiles: Vec<f64> = (1..100).map(|percent| f64::from(percent) / 100.0).collect();
    let ask = |allowed, change, stop: &Stop| {
        let values = Failing {
            reads: AtomicU64::new(0),
            allowed,
            change,
        };
        let answers = quantiles_of(&values, &percentiles, Method::Disc, stop);
        answers.map(|_| ()).map_err(|error| error.strip_backtrace())
    };
    let go_on = Stop::default();
    assert_eq!(ask(u64::MAX, false, &go_on), Ok(()));
    assert!(ask(0, false, &go_on).unwrap_err().contains("row "));
    assert!(ask(40, false, &go_on).unwrap_err().contains("is gone"));
    // The first read ends after 32 runs of a sample and 33 blocks.
    let changed = ask(32 + 33, true, &go_on).unwrap_err();
    assert!(changed.contains("the values were changed"), "{changed}");
    let stop = Stop::default();
    stop.stop();
    assert!(ask(u64::MAX, false, &stop).unwrap_err().contains("cancelled"));
}

#[test]
fn a_sketch_keeps_its_bound_over_updates_merges_answers_and_bytes() {
    let mut all = Vec::new();
    let mut merged = GkSketch::try_new(100.0).unwrap();
    assert_eq!(
        (merged.n(), merged.data_type(), merged.error_fraction()),
        (0, None, 0.01)
    );
    assert!(merged.quantiles(&[0.5]).unwrap().is_null(0));
    for day in 0..20_u64 {
        let values: Vec<f64> = (0..1000 * (day + 1))
            .map(|row| mixed(row * 31 + day) as f64)
            .collect();
        let mut daily = GkSketch::try_new(100.0).unwrap();
        for part in values.chunks(700) {
            daily.update(&Float64Array::from(part.to_vec())).unwrap();
            daily.quantiles(&[0.5]).unwrap();
        }
        all.extend(values);
        let mut daily = GkSketch::from_bytes(&daily.to_bytes().unwrap()).unwrap();
        merged.merge(&mut daily).unwrap();
        assert_eq!(daily.n(), 1000 * (day + 1), "the other side keeps its values");
        all.sort_by(f64::total_cmp);
        let n = all.len() as u64;
        assert_eq!(merged.n(), n);
        for q in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let answer = merged
                .quantiles(&[q])
                .unwrap()
                .as_primitive::<Float64Type>()
                .value(0);
            let wanted = ((q * n as f64).ceil() as u64).max(1);
            let rank = all.partition_point(|value| *value <= answer) as u64;
            assert!(
                rank.abs_diff(wanted) <= n / 100,
                "{q}: {rank} for {wanted} of {n}"
            );
            let bounds = merged.rank(&ScalarValue::Float64(Some(answer))).unwrap();
            assert!(
                bounds.rank_min <= rank && rank <= bounds.rank_max && bounds.n == n,
                "{bounds:?}"
            );
        }
    }
}

#[test]
fn sketches_refuse_what_they_cannot_hold() {
    let mut sketch = GkSketch::try_new(10.0).unwrap();
    let refused = |result: Result<()>| result.unwrap_err().strip_backtrace();
    assert!(refused(GkSketch::try_new(0.0).map(drop)).contains("accuracy is 0"));
    assert!(refused(sketch.update(&StringArray::from(vec!["a"]))).contains("got Utf8"));
    sketch
        .update(&Int32Array::from(vec![Some(3), None, Some(1)]))
        .unwrap();
    assert_eq!((sketch.n(), sketch.data_type()), (2, Some(&DataType::Int32)));
    let other = refused(sketch.update(&Int64Array::from(vec![1])));
    assert_eq!(
        other,
        "Execution error: a sketch of values of type Int32 takes none of type Int64"
    );
    let mut floats = GkSketch::try_new(5.0).unwrap();
    // Without values a sketch has no type, but its error counts.
    sketch.merge(&mut floats).unwrap();
    assert_eq!(sketch.error_fraction(), 0.2);
    floats.update(&Float64Array::from(vec![1.0])).unwrap();
    assert!(refused(sketch.merge(&mut floats)).contains("takes none of type Float64"));
    assert!(refused(sketch.quantiles(&[2.0]).map(drop)).contains("quantile 2 is out of range"));
    assert_eq!(
        sketch
            .quantiles(&[1.0])
            .unwrap()
            .as_primitive::<Int32Type>()
            .value(0),
        3
    );
    let mut bytes = sketch.to_bytes().unwrap();
    bytes[10] ^= 1;
    assert!(GkSketch::from_bytes(&bytes).is_err());
    assert!(GkSketch::from_bytes(b"").is_err());
}
