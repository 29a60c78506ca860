//! The answer of a call, from the values of both reads.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use super::argument::first_value;
use super::bins::Binning;
use super::deviations::deviation_of;
use crate::functions::CHANGED;

/// How an answer is made of the values of both reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// It is the only value of the second read.
    Value,
    /// It is the median deviation of integers: the first read gives the two values in the middle, the second the whole parts of the two
    /// deviations there.
    Deviation,
    /// It is a histogram: the first read gives edges, the second the numbers of values in the bins.
    Histogram(Binning),
}

/// `answer_of_two_reads(..)`: the answer of a call, from the values of both reads, of which the last ones are the number of values. An execution
/// error if those two differ.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct AnswerOf {
    form: Form,
    result: DataType,
    /// Number of values of the first read.
    first: usize,
    signature: Signature,
}

impl AnswerOf {
    pub(super) fn new(form: Form, result: DataType, first: usize) -> Self {
        Self {
            form,
            result,
            first,
            signature: Signature::variadic_any(Volatility::Immutable),
        }
    }

    fn of(&self, values: &[ScalarValue]) -> Result<ScalarValue> {
        let (first, second) = values.split_at(self.first.min(values.len()));
        let (Some((read, first)), Some((read_again, second))) = (first.split_last(), second.split_last())
        else {
            return internal_err!("{} of {values:?}", self.name());
        };
        if read != read_again {
            return exec_err!("{read} values were read first, {read_again} later: {CHANGED}");
        }
        match (&self.form, second) {
            (Form::Value, [answer]) => Ok(answer.clone()),
            (Form::Deviation, [low, _]) if low.is_null() => ScalarValue::try_from(&self.result),
            (Form::Deviation, [low, high]) => deviation_of(first, [low, high], &self.result),
            (Form::Histogram(binning), [counts]) => {
                ScalarValue::try_from_array(&binning.histogram(first, counts)?, 0)
            }
            _ => internal_err!("{} of {values:?}", self.name()),
        }
    }
}

impl ScalarUDFImpl for AnswerOf {
    fn name(&self) -> &str {
        "answer_of_two_reads"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.result.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let values = args.args.iter().map(first_value).collect::<Result<Vec<_>>>()?;
        let answer = self.of(&values)?;
        Ok(ColumnarValue::Array(answer.to_array_of_size(args.number_rows)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_changes_between_two_reads_is_an_error() {
        let number = |number| ScalarValue::Int64(Some(number));
        let answer = AnswerOf::new(Form::Value, DataType::Int64, 2);
        let values = |later| [number(7), number(3), number(5), number(later)];
        assert_eq!(answer.of(&values(3)).unwrap(), number(5));
        let error = answer.of(&values(4)).unwrap_err().to_string();
        assert!(
            error.contains(CHANGED) && error.contains("3 values were read first, 4 later"),
            "{error}"
        );
    }
}
