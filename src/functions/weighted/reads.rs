//! Quantiles of rows with weights in three reads, of which few rows are held.
//!
//! ```text
//! first:   edges of bins with about the same number of rows each
//! second:  the sum of the weights in each bin, which tells the bins that hold an answer
//! third:   the rows of those bins; one row stands for all of each other bin, with the sum of their weights
//! ```
//! The third read is the same call over fewer rows, so that its answer is that over all rows, bit by bit.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, StructArray, UInt64Array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, UInt32Type, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast,
};

use super::weights::counted;
use crate::functions::call::constant_quantiles;
use crate::functions::exact_quantiles::{Arguments, ExactQuantiles};
use crate::functions::shape::bins::{Binning, CountedList, counts_type};
use crate::functions::shape::{LastSearch, bin_of, edges_of_depth};
use crate::functions::{CHANGED, call_of};
use crate::quantile::QuantileSpec;

/// Bins for each quantile, and the fewest and the most of them.
const BINS: (usize, usize, usize) = (64, 256, 4096);

/// The names of the values and the weights of the rows that stand for bins.
pub(crate) const ROW: [&str; 2] = ["x", "weight"];

/// A call with weights that is answered in three reads.
pub(crate) struct WeightedReads {
    asked: AggregateFunction,
    x: Expr,
    weight: Expr,
    binning: Binning,
    spec: QuantileSpec,
}

impl WeightedReads {
    /// How a call over values and weights of these types is answered in three reads; `None` if it is not.
    ///
    /// # Errors
    /// A planning error for quantiles that are not allowed.
    pub(crate) fn of(
        asked: &AggregateFunction,
        type_of: impl Fn(&Expr) -> Result<DataType>,
    ) -> Result<Option<Self>> {
        let (Some(function), args) = (ExactQuantiles::of(&asked.func), &asked.params.args) else {
            return Ok(None);
        };
        let Ok(Arguments {
            x,
            quantiles,
            weight: Some(weight),
        }) = function.arguments(args)
        else {
            return Ok(None);
        };
        if asked.params.distinct || !asked.params.order_by.is_empty() {
            return Ok(None);
        }
        let (data_type, weight_type) = (type_of(x)?, type_of(weight)?);
        if !crate::key::KeySpec::supports(&data_type) || !weight_type.is_integer() {
            return Ok(None);
        }
        let quantiles = match (function.bound(), quantiles) {
            (Some(bound), _) => bound.list.clone(),
            (None, Some(quantiles)) => constant_quantiles(function.sql_name(), quantiles)?.list,
            (None, None) => return Ok(None),
        };
        let (each, least, most) = BINS;
        Ok(Some(Self {
            asked: asked.clone(),
            x: x.clone(),
            weight: weight.clone(),
            binning: Binning::of_depth(data_type, (each * quantiles.len()).clamp(least, most)),
            spec: QuantileSpec {
                quantiles,
                method: function.method(),
                descending: function.is_descending(),
            },
        }))
    }

    /// The call of the first read: the edges of bins.
    pub(crate) fn edges(&self) -> Expr {
        edges_of_depth(&self.x, &self.binning)
    }

    /// The columns of the second read: the bin and the weight of each row.
    pub(crate) fn binned(&self, edges: Expr) -> [Expr; 2] {
        [bin_of(&self.x, vec![edges], &self.binning), self.weight.clone()]
    }

    /// The call of the second read over its columns: a list of the sums of the weights of each bin.
    pub(crate) fn weights(bin: Expr, weight: Expr) -> Expr {
        call_of(
            Arc::new(AggregateUDF::from(WeightsOf::default())),
            vec![bin, weight],
        )
    }

    /// Whether a row is in a bin that may hold an answer. `bins`: a struct of the edges and the weights of the bins.
    pub(crate) fn is_wanted(&self, bins: Expr) -> Expr {
        let function = InWantedBin {
            binning: self.binning.clone(),
            last: LastSearch::default(),
            spec: self.spec.clone(),
            signature: Signature::any(2, Volatility::Immutable),
        };
        ScalarUDF::from(function).call(vec![self.x.clone(), bins])
    }

    /// The columns of the third read: values and weights.
    pub(crate) fn columns(&self) -> [Expr; 2] {
        [self.x.clone(), cast(self.weight.clone(), DataType::UInt64)]
    }

    /// A list of rows that stand for all other bins. `bins` is that of [`Self::is_wanted`].
    pub(crate) fn others(&self, bins: Expr) -> Expr {
        let function = OtherBins {
            binning: self.binning.clone(),
            spec: self.spec.clone(),
            signature: Signature::any(1, Volatility::Immutable),
        };
        ScalarUDF::from(function).call(vec![bins])
    }

    /// The call over the rows of the third read.
    pub(crate) fn call(&self, [x, weight]: [Expr; 2]) -> Expr {
        let mut call = self.asked.clone();
        if let [first, .., last] = call.params.args.as_mut_slice() {
            (*first, *last) = (x, weight);
        }
        call.params.filter = None;
        Expr::AggregateFunction(call)
    }

    /// The answer of the call, after a check that the rows of the third read have the weights that the second one found. `sum`: the sum of their
    /// weights.
    pub(crate) fn checked(&self, answer: Expr, sum: Expr, bins: Expr) -> Expr {
        let function = WithSameWeights {
            signature: Signature::any(3, Volatility::Immutable),
        };
        ScalarUDF::from(function).call(vec![answer, sum, bins])
    }

    /// The filter of the call.
    pub(crate) fn filter(&self) -> Option<&Expr> {
        self.asked.params.filter.as_deref()
    }
}

/// Which bins hold a rank that an answer needs, by the sums of weights of all bins.
fn wanted_bins(spec: &QuantileSpec, weights: &[u64]) -> Vec<bool> {
    let mut through = Vec::with_capacity(weights.len());
    let mut sum = 0_u64;
    for weight in weights {
        sum = sum.saturating_add(*weight);
        through.push(sum);
    }
    let mut wanted = vec![false; weights.len()];
    if sum > 0 {
        for pick in spec.picks(sum).iter() {
            for rank in [pick.low, pick.high] {
                let bin = through.partition_point(|through| *through < rank);
                if let Some(wanted) = wanted.get_mut(bin) {
                    *wanted = true;
                }
            }
        }
    }
    wanted
}

/// The edges, as a value, and the weights of bins, of a struct of both that is the same in all rows.
fn edges_and_weights(argument: &ColumnarValue) -> Result<(ScalarValue, Vec<u64>)> {
    let bins = argument.to_array(1)?;
    let bins = bins.as_struct_opt().map(StructArray::columns);
    let Some([edges, weights]) = bins else {
        return internal_err!("bins that are no struct of edges and weights");
    };
    let edges = ScalarValue::try_from_array(edges, 0)?;
    let Some(lists) = weights.as_list_opt::<i32>() else {
        return internal_err!("weights of bins that are no list");
    };
    let weights = match lists.is_null(0) {
        true => Vec::new(),
        false => lists.value(0).as_primitive::<UInt64Type>().values().to_vec(),
    };
    Ok((edges, weights))
}

/// `in_wanted_bin(x, bins)`: whether a value is in a bin that holds a rank which an answer needs.
#[derive(Debug, PartialEq, Eq, Hash)]
struct InWantedBin {
    binning: Binning,
    last: LastSearch,
    spec: QuantileSpec,
    signature: Signature,
}

impl ScalarUDFImpl for InWantedBin {
    fn name(&self) -> &str {
        "in_wanted_bin"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [x, bins] = args.args.as_slice() else {
            return internal_err!("{} of {} arguments", self.name(), args.args.len());
        };
        let (edges, weights) = edges_and_weights(bins)?;
        let wanted = wanted_bins(&self.spec, &weights);
        let is_wanted = |bin: u32| wanted.get(bin as usize).copied().unwrap_or(false);
        let x = x.to_array(args.number_rows)?;
        let bins = self
            .last
            .bins_of(&x, vec![edges], |first| self.binning.search(first))?;
        let rows: BooleanArray = bins.iter().map(|bin| Some(bin.is_some_and(is_wanted))).collect();
        Ok(ColumnarValue::Array(Arc::new(rows)))
    }
}

/// `other_bins(bins)`: a list of a value and a weight for each bin that holds no answer.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OtherBins {
    binning: Binning,
    spec: QuantileSpec,
    signature: Signature,
}

impl OtherBins {
    fn fields(&self) -> Fields {
        let types = [self.binning.x.clone(), DataType::UInt64];
        let fields = ROW.into_iter().zip(types);
        fields
            .map(|(name, data_type)| Field::new(name, data_type, true))
            .collect()
    }
}

impl ScalarUDFImpl for OtherBins {
    fn name(&self) -> &str {
        "other_bins"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::new_list(DataType::Struct(self.fields()), true))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [bins] = args.args.as_slice() else {
            return internal_err!("{} of {} arguments", self.name(), args.args.len());
        };
        let (edges, weights) = edges_and_weights(bins)?;
        let wanted = wanted_bins(&self.spec, &weights);
        let edges = self.binning.edges(&[edges])?;
        let (mut keys, mut sums) = (Vec::new(), Vec::new());
        for ((edge, weight), is_wanted) in edges.iter().zip(&weights).zip(wanted) {
            if !is_wanted && *weight > 0 {
                keys.push(*edge);
                sums.push(*weight);
            }
        }
        let values = crate::key::KeySpec::try_new(&self.binning.x)?.to_array(&keys)?;
        let rows = StructArray::try_new(
            self.fields(),
            vec![values, Arc::new(UInt64Array::from(sums))],
            None,
        )?;
        let field = Arc::new(Field::new_list_field(rows.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths([rows.len()]);
        let list = ListArray::try_new(field, offsets, Arc::new(rows), None)?;
        Ok(ColumnarValue::Scalar(ScalarValue::List(Arc::new(list))))
    }
}

/// `with_same_weights(answer, sum, bins)`: the answer, if the weights of the bins have this sum. An execution error if they do not.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WithSameWeights {
    signature: Signature,
}

impl ScalarUDFImpl for WithSameWeights {
    fn name(&self) -> &str {
        "with_same_weights"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [answer, ..] => Ok(answer.clone()),
            [] => internal_err!("{} without an answer", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [answer, sum, bins] = args.args.as_slice() else {
            return internal_err!("{} of {} arguments", self.name(), args.args.len());
        };
        let (_, weights) = edges_and_weights(bins)?;
        let first: u64 = weights.iter().sum();
        let later = match ScalarValue::try_from_array(&sum.to_array(1)?, 0)? {
            ScalarValue::UInt64(sum) => sum.unwrap_or(0),
            other => return internal_err!("a sum of weights that is {other}"),
        };
        match first == later {
            true => Ok(answer.clone()),
            false => exec_err!("a weight of {first} was read first, {later} later: {CHANGED}"),
        }
    }
}

/// `weights_of(bin, weight)`: a list of the sums of the weights in the bins 0, 1, .., up to the greatest one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WeightsOf {
    signature: Signature,
}

impl Default for WeightsOf {
    fn default() -> Self {
        Self {
            signature: Signature::any(2, Volatility::Immutable),
        }
    }
}

impl AggregateUDFImpl for WeightsOf {
    fn name(&self) -> &str {
        "weights_of"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(counts_type())
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let name = format_state_name(args.name, "weights");
        Ok(vec![Field::new(name, counts_type(), true).into()])
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Weights(CountedList::default())))
    }
}

#[derive(Debug)]
struct Weights(CountedList);

impl Weights {
    /// Checks that all weights together can be counted.
    fn checked(&self) -> Result<()> {
        let sum = self
            .0
            .counts()
            .iter()
            .try_fold(0_u64, |sum, weight| sum.checked_add(*weight));
        match sum {
            Some(_) => Ok(()),
            None => exec_err!("the sum of the weights is more than 64 bits count"),
        }
    }
}

impl Accumulator for Weights {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let wide = |weights: &ArrayRef| {
            let data_type = match weights.data_type() {
                unsigned if unsigned.is_unsigned_integer() => DataType::UInt64,
                _ => DataType::Int64,
            };
            datafusion::arrow::compute::cast(weights, &data_type)
        };
        let [bins, weights] = values else {
            return internal_err!("weights_of of {} columns", values.len());
        };
        let (columns, _) = counted(&[Arc::clone(bins), wide(weights)?], None)?;
        let (bins, weights) = (
            columns[0].as_primitive::<UInt32Type>(),
            super::weights_of(&columns),
        );
        for (bin, weight) in bins.values().iter().zip(weights.values()) {
            self.0.add(*bin as usize, *weight)?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.checked()?;
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

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::ScalarFunctionArgs;

    use super::*;

    #[test]
    fn weights_that_change_between_two_reads_are_an_error() {
        let mut weights = CountedList::default();
        (0..3).for_each(|bin| weights.add(bin, 5).unwrap());
        let edges = ScalarValue::Int64(None).to_array().unwrap();
        let list = weights.list().unwrap().to_array().unwrap();
        let field = |name, column: &ArrayRef| Arc::new(Field::new(name, column.data_type().clone(), true));
        let bins = StructArray::from(vec![
            (field("edges", &edges), edges),
            (field("weights", &list), list),
        ]);
        let function = WithSameWeights {
            signature: Signature::any(3, Volatility::Immutable),
        };
        let answer = |sum| {
            let sum = ScalarValue::UInt64(Some(sum));
            let answer = ScalarValue::Int64(Some(7));
            let bins = ScalarValue::Struct(Arc::new(bins.clone()));
            let args = [answer, sum, bins].map(ColumnarValue::Scalar).to_vec();
            let arg_fields = args
                .iter()
                .map(|arg| Arc::new(Field::new("x", arg.data_type(), true)))
                .collect();
            function.invoke_with_args(ScalarFunctionArgs {
                args,
                arg_fields,
                number_rows: 1,
                return_field: Arc::new(Field::new("x", DataType::Int64, true)),
                config_options: Arc::default(),
            })
        };
        assert!(answer(15).is_ok());
        let error = answer(14).unwrap_err().to_string();
        assert!(
            error.contains(CHANGED) && error.contains("15 was read first, 14 later"),
            "{error}"
        );
    }
}
