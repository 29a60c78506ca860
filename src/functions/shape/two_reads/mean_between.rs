//! The mean of the values that lie between two of them.

use std::mem::size_of_val;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_datafusion_err, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};

use crate::functions::CHANGED;
use crate::functions::shape::mean::{ExactMean, Sum};
use crate::functions::shape::name::ShapeName;
use crate::functions::shape::number::number_type;
use crate::key::{Key, KeyBits, KeySpec, Width, dense, with_key};
use crate::quantile::Quantile;
use crate::wire::{Message, Reader, put};

/// `mean_between(x, low, high, n)`: the trimmed or winsorized mean of `n` values, of which `low` and `high` are those next to the ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MeanBetween {
    sql_name: ShapeName,
    /// The share of values that is an end.
    pub(super) share: Quantile,
    signature: Signature,
}

impl MeanBetween {
    /// The second read of a function of this name.
    pub(super) fn new(sql_name: ShapeName, share: Quantile) -> Self {
        Self {
            sql_name,
            share,
            signature: Signature::any(4, Volatility::Immutable),
        }
    }
}

impl AggregateUDFImpl for MeanBetween {
    fn name(&self) -> &str {
        "mean_between"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [x, ..] => number_type(self.sql_name, x),
            [] => internal_err!("{} without values", self.name()),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let name = format_state_name(args.name, "between");
        Ok(vec![Field::new(name, DataType::Binary, true).into()])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let x = args.expr_fields[0].data_type();
        let spec = KeySpec::try_new(x)?;
        let result = KeySpec::try_new(&number_type(self.sql_name, x)?)?;
        let is_winsorized = self.sql_name == ShapeName::WinsorizedMean;
        Ok(with_key!(spec.width(), K => Box::new(Between::<K> {
            is_winsorized,
            mean: ExactMean::new(&spec, result),
            sum: Sum::default(),
            spec,
            share: self.share,
            bounds: None,
            counts: Counts::default(),
            keys: Vec::new(),
            numbers: Vec::new(),
        }) as Box<dyn Accumulator>))
    }
}

/// The keys of the values next to the ends, and the number of values, by the first read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    low: KeyBits,
    high: KeyBits,
    n: u64,
}

/// How many values were seen, at or below the lower bound, and at or above the upper one.
#[derive(Debug, Default)]
struct Counts {
    all: u64,
    low: u64,
    high: u64,
}

#[derive(Debug)]
struct Between<K> {
    spec: KeySpec,
    share: Quantile,
    /// None before the first row.
    bounds: Option<Bounds>,
    counts: Counts,
    is_winsorized: bool,
    mean: ExactMean,
    /// The sum of what lies between the bounds.
    sum: Sum,
    /// Buffers for the keys of a batch, and for the numbers that they stand for.
    keys: Vec<K>,
    numbers: Vec<f64>,
}

/// Keeps the keys between two, in their order.
fn keep_between<K: Key>(keys: &mut Vec<K>, low: K, high: K) {
    let mut kept = 0;
    // Without a branch for each key, which no processor would foresee.
    for at in 0..keys.len() {
        let key = keys[at];
        keys[kept] = key;
        kept += usize::from(key > low && key < high);
    }
    keys.truncate(kept);
}

fn changed<T>(first: u64, later: u64) -> Result<T> {
    exec_err!("{first} values were read first, {later} later: {CHANGED}")
}

impl<K: Key> Between<K> {
    /// The bounds in the first row of a batch; `None` if the first read found no values.
    fn bounds(&self, low: &ArrayRef, high: &ArrayRef, n: &ArrayRef) -> Result<Option<Bounds>> {
        if low.is_null(0) || high.is_null(0) {
            return Ok(None);
        }
        let key = |bound: &ArrayRef| {
            Ok::<_, datafusion::error::DataFusionError>(self.spec.keys(&bound.slice(0, 1))?[0])
        };
        let n = n.as_primitive_opt::<Int64Type>().map(|n| n.value(0));
        let n = n.and_then(|n| u64::try_from(n).ok());
        Ok(Some(Bounds {
            low: key(low)?,
            high: key(high)?,
            n: n.ok_or_else(|| internal_datafusion_err!("a number of values that is no number"))?,
        }))
    }

    /// Takes over the bounds, which are the same in all rows.
    fn bound(&mut self, bounds: Bounds) -> Result<()> {
        match self.bounds.replace(bounds) {
            Some(before) if before != bounds => internal_err!("{bounds:?} after {before:?}"),
            _ => Ok(()),
        }
    }
}

impl<K: Key> Accumulator for Between<K> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [x, low, high, n] = values else {
            return internal_err!("mean_between of {} columns", values.len());
        };
        if x.null_count() == x.len() {
            return Ok(());
        }
        let Some(bounds) = self.bounds(low, high, n)? else {
            return changed(0, x.len() as u64);
        };
        self.bound(bounds)?;
        let dense = dense(x.as_ref(), None)?;
        self.keys.clear();
        self.spec
            .append_keys(dense.as_ref().unwrap_or(x).as_ref(), &mut self.keys)?;
        let (low, high) = (K::from_bits(bounds.low), K::from_bits(bounds.high));
        self.counts.all += self.keys.len() as u64;
        self.counts.low += self.keys.iter().filter(|key| **key <= low).count() as u64;
        self.counts.high += self.keys.iter().filter(|key| **key >= high).count() as u64;
        keep_between(&mut self.keys, low, high);
        self.mean
            .add_all(&mut self.sum, &self.spec, &self.keys, &mut self.numbers)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Some(Bounds { low, high, n }) = self.bounds else {
            return ScalarValue::try_from(self.mean.result.data_type());
        };
        let end = self.share.whole_part_of(n);
        if self.counts.all != n || self.counts.low <= end || self.counts.high <= end {
            return changed(n, self.counts.all);
        }
        // The values at the bounds count, without the ends or with them.
        let without = if self.is_winsorized { 0 } else { end };
        let count = n - 2 * without;
        let (spec, sum) = (&self.spec, &mut self.sum);
        if low == high {
            self.mean.add(sum, spec, low, count)?;
        } else {
            self.mean.add(sum, spec, low, self.counts.low - without)?;
            self.mean.add(sum, spec, high, self.counts.high - without)?;
        }
        let key = self.mean.of(sum, count)?;
        ScalarValue::try_from_array(&self.mean.result.to_array(&[key])?, 0)
    }

    fn size(&self) -> usize {
        let numbers = self.numbers.capacity() * size_of::<f64>();
        size_of_val(self) + self.keys.capacity() * size_of::<K>() + numbers
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let mut bytes = Vec::new();
        bytes.push(u8::from(self.bounds.is_some()));
        if let Some(Bounds { low, high, n }) = self.bounds {
            [low, high, n.into()]
                .into_iter()
                .for_each(|number| put(&mut bytes, number));
        }
        let Counts { all, low, high } = self.counts;
        [all, low, high]
            .into_iter()
            .for_each(|number| put(&mut bytes, number));
        self.sum.write(&mut bytes);
        Ok(vec![ScalarValue::Binary(Some(bytes))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let states = states.first().and_then(|states| states.as_binary_opt::<i32>());
        let Some(states) = states else {
            return internal_err!("states of mean_between that are no bytes");
        };
        for bytes in states.iter().flatten() {
            let mut reader = Reader::new("state of mean_between", bytes);
            if reader.flag("bounds")? {
                let (low, high) = (reader.number("bound")?, reader.number("bound")?);
                let n = reader.number("count")?;
                self.bound(Bounds { low, high, n })?;
            }
            self.counts.all += reader.number::<u64>("count")?;
            self.counts.low += reader.number::<u64>("count")?;
            self.counts.high += reader.number::<u64>("count")?;
            self.sum.merge(Sum::read(&mut reader)?);
            reader.end()?;
        }
        Ok(())
    }
}
