//! The question of one call about a column, and the column of its answers.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ListArray, UInt64Array};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue};

use super::QuantileSpec;
use crate::key::{ByteSpec, KeySpec, Order, PrefixKey};

/// What a call gives of the values at the ranks of its quantiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AnswerForm {
    /// The values.
    Values,
    /// Bins between them, with the number of values in each. The first quantile is 0.
    Bins,
    /// The fences that follow from them, the quartiles, and the numbers of values beyond.
    Fences,
    /// The number of values, without any quantile.
    Count,
}

/// The question of one call about a column, whose keys (or byte strings) become the answers.
#[derive(Debug, Clone)]
pub(crate) struct TypedAnswerSpec<S = KeySpec> {
    spec: S,
    quantile_spec: QuantileSpec,
    is_list: bool,
    is_distinct: bool,
}

/// A [`TypedAnswerSpec`] of either kind.
#[derive(Debug, Clone)]
pub(crate) enum AnswerSpec {
    Keys(TypedAnswerSpec),
    Bytes(TypedAnswerSpec<ByteSpec>),
}

impl AnswerSpec {
    /// # Errors
    /// A planning error if values of this type have no order, or if the method needs values between two others and the
    /// type has none.
    pub(crate) fn try_new(
        data_type: &DataType,
        quantile_spec: QuantileSpec,
        is_list: bool,
        is_distinct: bool,
    ) -> Result<Self> {
        quantile_spec.method.result_type(data_type)?;
        Ok(match Order::try_new(data_type)? {
            Order::Keys(_) => Self::Keys(TypedAnswerSpec {
                spec: quantile_spec.method.key_spec(data_type)?,
                quantile_spec,
                is_list,
                is_distinct,
            }),
            Order::Bytes(spec) => Self::Bytes(TypedAnswerSpec {
                spec,
                quantile_spec,
                is_list,
                is_distinct,
            }),
        })
    }

    /// The specification of the values' keys, or of the widest keys of their prefixes.
    pub(crate) fn spec(&self) -> KeySpec {
        match self {
            AnswerSpec::Keys(column) => column.spec.clone(),
            AnswerSpec::Bytes(_) => u128::spec(),
        }
    }

    /// The specification of values as byte strings, where they have no keys.
    pub(crate) fn bytes(&self) -> Option<&ByteSpec> {
        match self {
            AnswerSpec::Keys(_) => None,
            AnswerSpec::Bytes(column) => Some(&column.spec),
        }
    }

    /// The same question over distinct values.
    pub(crate) fn distinct(self) -> Self {
        match self {
            AnswerSpec::Keys(column) => AnswerSpec::Keys(column.distinct()),
            AnswerSpec::Bytes(column) => AnswerSpec::Bytes(column.distinct()),
        }
    }

    pub(crate) fn is_distinct(&self) -> bool {
        match self {
            AnswerSpec::Keys(column) => column.is_distinct,
            AnswerSpec::Bytes(column) => column.is_distinct,
        }
    }

    pub(crate) fn quantile_spec(&self) -> &QuantileSpec {
        match self {
            AnswerSpec::Keys(column) => &column.quantile_spec,
            AnswerSpec::Bytes(column) => &column.quantile_spec,
        }
    }

    pub(crate) fn is_list(&self) -> bool {
        match self {
            AnswerSpec::Keys(column) => column.is_list,
            AnswerSpec::Bytes(column) => column.is_list,
        }
    }
}

/// Values whose type is known.
pub(crate) trait Typed {
    /// The type of the values.
    fn data_type(&self) -> &DataType;
}

impl Typed for KeySpec {
    fn data_type(&self) -> &DataType {
        self.data_type()
    }
}

impl Typed for ByteSpec {
    fn data_type(&self) -> &DataType {
        self.data_type()
    }
}

impl<S: Typed> TypedAnswerSpec<S> {
    pub(crate) fn spec(&self) -> &S {
        &self.spec
    }

    pub(crate) fn quantile_spec(&self) -> &QuantileSpec {
        &self.quantile_spec
    }

    /// The same question over distinct values.
    pub(crate) fn distinct(mut self) -> Self {
        self.is_distinct = true;
        self
    }

    pub(crate) fn is_distinct(&self) -> bool {
        self.is_distinct
    }

    pub(crate) fn is_list(&self) -> bool {
        self.is_list
    }

    /// The type of the answer to one quantile.
    pub(crate) fn answer_type(&self) -> Result<DataType> {
        self.quantile_spec.method.result_type(self.spec.data_type())
    }

    /// The type of the whole answer: of one quantile, or a list.
    pub(crate) fn result_type(&self) -> Result<DataType> {
        let one = self.answer_type()?;
        Ok(if self.is_list {
            DataType::new_list(one, true)
        } else {
            one
        })
    }

    /// The answers of one group, as the value of its row: NULL if the group has no values.
    pub(crate) fn row(&self, answers: ArrayRef, n: u64) -> Result<ScalarValue> {
        let one = answers.data_type();
        match self.is_list {
            true if n == 0 => ScalarValue::try_from(&DataType::new_list(one.clone(), true)),
            false if n == 0 => ScalarValue::try_from(one),
            true => Ok(SingleRowListArrayBuilder::new(answers)
                .with_nullable(true)
                .build_list_scalar()),
            false => ScalarValue::try_from_array(&answers, 0),
        }
    }

    /// One row for each group, from the answers of the groups that have values.
    pub(crate) fn group_rows(&self, answers: ArrayRef, lengths: &[u64]) -> Result<ArrayRef> {
        let valid = NullBuffer::from_iter(lengths.iter().map(|&length| length > 0));
        if self.is_list() {
            let quantiles = self.quantile_spec.quantiles.len();
            let lengths = lengths
                .iter()
                .map(|&length| if length > 0 { quantiles } else { 0 });
            let item = Arc::new(Field::new_list_field(answers.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths(lengths);
            let list = ListArray::try_new(item, offsets, answers, Some(valid))?;
            return Ok(Arc::new(list));
        }
        if valid.null_count() == 0 {
            return Ok(answers);
        }
        let mut next = 0;
        let indices = valid.iter().map(|has_answer| {
            has_answer.then(|| {
                next += 1;
                next - 1_u64
            })
        });
        let indices = indices.collect::<UInt64Array>();
        Ok(take(answers.as_ref(), &indices, None)?)
    }
}

/// The type of an accumulator's state: a list of values.
pub(crate) fn state_type(data_type: &DataType) -> DataType {
    DataType::LargeList(state_item(data_type))
}

pub(crate) fn state_item(data_type: &DataType) -> FieldRef {
    Arc::new(Field::new_list_field(data_type.clone(), true))
}
