//! Bins of one width, between ends that an earlier read of the same values found.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt64Array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, UInt32Type, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::argument::first_value;
use super::bin_search::{BinSearch, LastSearch};
use crate::functions::shape::histogram::{Bins, EquiWidth};
use crate::key::{KeyBits, KeySpec};

/// Bins of one width. The first read gives the least and the greatest value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Binning {
    /// Number of bins.
    pub(super) bins: usize,
    /// The type of the values.
    pub(super) x: DataType,
}

impl Binning {
    /// The keys of the least and the greatest value, which the first read gives; empty if it found none.
    fn found(&self, first: &[ScalarValue]) -> Result<Vec<KeyBits>> {
        let mut keys = Vec::new();
        for value in first {
            let value = value.to_array()?;
            if value.null_count() == 0 {
                keys.extend(KeySpec::try_new(&self.x)?.keys(value.as_ref())?);
            }
        }
        Ok(keys)
    }

    /// The greatest key of each bin but the last one, from the values of the first read.
    fn tops(&self, first: &[ScalarValue]) -> Result<Vec<KeyBits>> {
        let found = self.found(first)?;
        let spec = KeySpec::try_new(&self.x)?;
        match found.as_slice() {
            [] => Ok(Vec::new()),
            [least, greatest] => EquiWidth::try_new(&spec, self.bins)?.tops(&spec, [*least, *greatest]),
            _ => internal_err!("{} ends", found.len()),
        }
    }

    /// The search for the bins of values. `first`: the values of the first read.
    ///
    /// # Errors
    /// An execution error for bins of one width between ends that are not finite.
    fn search(&self, first: &[ScalarValue]) -> Result<BinSearch> {
        BinSearch::try_new(KeySpec::try_new(&self.x)?, &self.tops(first)?)
    }

    /// The histogram with bins of the same width, from the values of the first read and the numbers of values in the bins.
    pub(super) fn histogram(&self, first: &[ScalarValue], counts: &ScalarValue) -> Result<ArrayRef> {
        let (found, spec) = (self.found(first)?, KeySpec::try_new(&self.x)?);
        let counts = counts.to_array()?;
        let counts = counts.as_list::<i32>().value(0);
        let mut through = counts.as_primitive::<UInt64Type>().values().to_vec();
        through.resize(self.bins, 0);
        let mut sum = 0;
        for count in &mut through {
            sum += *count;
            *count = sum;
        }
        let wide = EquiWidth::try_new(&spec, self.bins)?;
        let mut answers = Bins::<KeyBits>::default();
        match found.as_slice() {
            [least, greatest] => wide.bins(&spec, [*least, *greatest], &through, &mut answers)?,
            _ => answers.end(),
        }
        wide.array(answers)
    }
}

/// `bin_of(x, ..)`: the number of the bin that holds `x`, from 0. The other arguments are the values of the first read.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct BinOf {
    binning: Binning,
    last: LastSearch,
    signature: Signature,
}

impl BinOf {
    pub(super) fn new(binning: Binning) -> Self {
        Self {
            binning,
            last: LastSearch::default(),
            signature: Signature::variadic_any(Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for BinOf {
    fn name(&self) -> &str {
        "bin_of"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt32)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((x, first)) = args.args.split_first() else {
            return internal_err!("{} without values", self.name());
        };
        let x = x.to_array(args.number_rows)?;
        let first = first.iter().map(first_value).collect::<Result<Vec<_>>>()?;
        let bins = self.last.bins_of(&x, first, |first| self.binning.search(first))?;
        Ok(ColumnarValue::Array(Arc::new(bins)))
    }
}

/// `counts_of(bin)`: a list of how often each of the numbers 0, 1, .. occurs, up to the greatest one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CountsOf {
    signature: Signature,
}

impl Default for CountsOf {
    fn default() -> Self {
        Self {
            signature: Signature::exact(vec![DataType::UInt32], Volatility::Immutable),
        }
    }
}

/// The type of a list of counts.
fn counts_type() -> DataType {
    DataType::new_list(DataType::UInt64, true)
}

impl AggregateUDFImpl for CountsOf {
    fn name(&self) -> &str {
        "counts_of"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(counts_type())
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let name = format_state_name(args.name, "counts");
        Ok(vec![Field::new(name, counts_type(), true).into()])
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Counted(CountedList::default())))
    }
}

/// A count for each of the numbers 0, 1, .., up to the greatest one.
#[derive(Debug, Default)]
struct CountedList(Vec<u64>);

impl CountedList {
    /// Adds to the count of a number.
    ///
    /// # Errors
    /// An execution error for a count of more than 64 bits.
    #[inline]
    fn add(&mut self, number: usize, count: u64) -> Result<()> {
        if number >= self.0.len() {
            self.0.resize(number + 1, 0);
        }
        match self.0[number].checked_add(count) {
            Some(sum) => self.0[number] = sum,
            None => return exec_err!("a count of more than 64 bits"),
        }
        Ok(())
    }

    /// The counts as a list.
    ///
    /// # Errors
    /// Those of making an array.
    fn list(&self) -> Result<ScalarValue> {
        let counts = Arc::new(UInt64Array::from(self.0.clone()));
        let offsets = OffsetBuffer::from_lengths([counts.len()]);
        let field = Arc::new(Field::new_list_field(DataType::UInt64, true));
        let list = ListArray::try_new(field, offsets, counts, None)?;
        Ok(ScalarValue::List(Arc::new(list)))
    }

    /// Adds lists of counts.
    ///
    /// # Errors
    /// An internal error for other states; an execution error for a count of more than 64 bits.
    fn merge(&mut self, states: &[ArrayRef]) -> Result<()> {
        let Some(lists) = states.first().and_then(|states| states.as_list_opt::<i32>()) else {
            return internal_err!("states of counts that are no lists");
        };
        for list in lists.iter().flatten() {
            let Some(counts) = list.as_primitive_opt::<UInt64Type>() else {
                return internal_err!("states of counts that are no counts");
            };
            for (number, count) in counts.values().iter().enumerate() {
                self.add(number, *count)?;
            }
        }
        Ok(())
    }

    /// Bytes held.
    fn size(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}

#[derive(Debug)]
struct Counted(CountedList);

impl Accumulator for Counted {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(bins) = values
            .first()
            .and_then(|bins| bins.as_primitive_opt::<UInt32Type>())
        else {
            return internal_err!("counts_of of values that are no bins");
        };
        if bins.null_count() > 0 {
            return bins
                .iter()
                .flatten()
                .try_for_each(|bin| self.0.add(bin as usize, 1));
        }
        let counts = &mut self.0.0;
        let most = bins.values().iter().max().map_or(0, |most| *most as usize + 1);
        counts.resize(counts.len().max(most), 0);
        bins.values().iter().for_each(|bin| counts[*bin as usize] += 1);
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.0.list()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.0.list()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.0.merge(states)
    }
}
