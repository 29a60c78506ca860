//! The functions `gk_quantile` and `gk_rank`, which read stored sketches.

use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, StructArray, UInt64Array, new_null_array,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::{CastOptions, cast_with_options, concat};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{
    DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err, internal_err, plan_err,
};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::functions::ranks::Cut;
use crate::functions::types::{answer_type, is_list};
use crate::key::{KeyBits, KeySpec, Order};
use crate::quantile::Quantiles;
use crate::sketch::{AnySummary, Header};

/// Key of the metadata of a column of sketches that names the type of their values.
pub(super) const VALUES: &str = "quantiles.values";

/// A function of two arguments: a stored sketch, and a quantile or a value.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredFunction {
    question: Question,
    signature: Signature,
}

/// What a function asks of a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Question {
    /// The value of a quantile.
    Quantile,
    /// The number of values at or below a value.
    Rank,
}

/// The type in which sketches of type `data_type` are read, which is Binary.
///
/// # Errors
/// A planning error for types other than binary.
pub(super) fn binary(sql_name: &dyn std::fmt::Display, data_type: &DataType) -> Result<DataType> {
    use DataType::*;
    match data_type {
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Null => Ok(Binary),
        other => plan_err!("{sql_name} takes sketches of gk_sketch, which are Binary, got {other}"),
    }
}

/// The fields of an answer of `gk_rank`.
fn rank_fields() -> Fields {
    let count = |name| Field::new(name, DataType::UInt64, true);
    Fields::from(vec![count("rank_min"), count("rank_max"), count("n")])
}

/// Greatest length in bytes of the name of a type in a stored sketch.
const LONGEST_NAME: usize = 128;

/// The type with this name, if sketches can hold values of it. Names come from files and other programs.
///
/// Arrow's parser recurses into nested types without a limit, so it gets the names of flat types only.
fn type_of_values(name: &str) -> Option<DataType> {
    const WITH_PARAMETERS: [&str; 8] = [
        "Decimal32",
        "Decimal64",
        "Decimal128",
        "Duration",
        "Interval",
        "Time32",
        "Time64",
        "Timestamp",
    ];
    let is_flat = match name.split_once('(') {
        Some((head, _)) => WITH_PARAMETERS.contains(&head.trim()),
        None => true,
    };
    if !is_flat || name.len() > LONGEST_NAME {
        return None;
    }
    DataType::from_str(name).ok().filter(KeySpec::supports)
}

/// Whether a row has a value. `absent`: the logical NULLs of its column, which include those of the Null type and of dictionaries.
fn is_valid(absent: &Option<NullBuffer>, row: usize) -> bool {
    absent.as_ref().is_none_or(|nulls| nulls.is_valid(row))
}

/// A stored sketch as a summary, and the type of its values.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) summary: AnySummary,
    pub(crate) spec: KeySpec,
}

impl Stored {
    /// Reads a stored sketch.
    ///
    /// # Errors
    /// An execution error for damaged bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let tag = Header::read(bytes)?.tag;
        let Some(data_type) = std::str::from_utf8(tag).ok().and_then(type_of_values) else {
            let shown = tag.get(..LONGEST_NAME).unwrap_or(tag);
            return exec_err!(
                "a quantile sketch of values of type {:?}, which is unknown",
                String::from_utf8_lossy(shown)
            );
        };
        let (summary, spec) = (AnySummary::read(bytes, tag)?, KeySpec::try_new(&data_type)?);
        if summary.width() == spec.width() {
            Ok(Self { summary, spec })
        } else {
            exec_err!("a damaged quantile sketch: its keys are not those of {data_type}")
        }
    }

    /// The stored form of the sketch.
    pub(crate) fn write(&self) -> Vec<u8> {
        self.summary.write(self.spec.data_type().to_string().as_bytes())
    }

    /// The values of some quantiles, as an array of type `data_type`.
    ///
    /// # Errors
    /// An execution error if they cannot be cast to that type; an internal error for a sketch without values.
    pub(crate) fn quantiles(&self, quantiles: &Quantiles, data_type: &DataType) -> Result<ArrayRef> {
        let n = self.summary.n();
        let key = |rank| Ok(self.summary.value_at(rank)?.0);
        let keys = quantiles.list.iter().map(|quantile| key(quantile.rank(n)));
        let values = self.spec.to_array(&keys.collect::<Result<Vec<KeyBits>>>()?)?;
        let whole = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        cast_with_options(&values, data_type, &whole).map_err(|error| {
            exec_datafusion_err!(
                "gk_quantile gives {data_type} here, since the column does not say what its sketches hold, and this one \
                 holds {}: {error}",
                self.spec.data_type()
            )
        })
    }

    /// The least and the greatest possible number of values at or below `value`, and the number of all values.
    ///
    /// # Errors
    /// A planning error for a value that is not compared with those of the sketch.
    pub(crate) fn rank(&self, value: &ScalarValue) -> Result<[u64; 3]> {
        let n = self.summary.n();
        let cut = Cut::of(&Order::Keys(self.spec.clone()), value, true).map_err(|error| match error {
            DataFusionError::Plan(message) => DataFusionError::Plan(format!("gk_rank: {message}")),
            other => other,
        })?;
        let (least, most) = match cut {
            Some(Cut::Key(key)) => key.checked_sub(1).map_or((0, 0), |last| self.summary.rank(last)),
            Some(Cut::End) => (n, n),
            _ => return internal_err!("gk_rank: no place for {value}"),
        };
        Ok([least, most, n])
    }
}

impl StoredFunction {
    pub(super) fn all() -> [Self; 2] {
        [Question::Quantile, Question::Rank].map(|question| Self {
            question,
            signature: Signature::user_defined(Volatility::Immutable),
        })
    }

    /// The answers of `gk_quantile`, one for each row.
    fn quantiles(&self, sketches: &BinaryArray, asked: &ArrayRef, result: &DataType) -> Result<ArrayRef> {
        let (one, is_list) = match result {
            DataType::List(item) => (item.data_type(), true),
            other => (other, false),
        };
        let mut rows: Vec<ArrayRef> = Vec::with_capacity(sketches.len());
        let absent = asked.logical_nulls();
        for (row, bytes) in sketches.iter().enumerate() {
            let (Some(bytes), true) = (bytes, is_valid(&absent, row)) else {
                rows.push(new_null_array(result, 1));
                continue;
            };
            let quantiles = Quantiles::try_from_scalar(&ScalarValue::try_from_array(asked, row)?)?;
            let stored = Stored::read(bytes)?;
            if stored.summary.n() == 0 {
                rows.push(new_null_array(result, 1));
                continue;
            }
            let values = stored.quantiles(&quantiles, one)?;
            rows.push(if is_list {
                Arc::new(
                    SingleRowListArrayBuilder::new(values)
                        .with_nullable(true)
                        .build_list_array(),
                )
            } else {
                values
            });
        }
        if rows.is_empty() {
            return Ok(new_null_array(result, 0));
        }
        let rows: Vec<&dyn Array> = rows.iter().map(AsRef::as_ref).collect();
        Ok(concat(&rows)?)
    }

    /// The answers of `gk_rank`, one for each row.
    fn ranks(sketches: &BinaryArray, values: &ArrayRef) -> Result<ArrayRef> {
        let mut ranks = [const { Vec::new() }; 3];
        let mut valid = Vec::with_capacity(sketches.len());
        let absent = values.logical_nulls();
        for (row, bytes) in sketches.iter().enumerate() {
            let found = match (bytes, is_valid(&absent, row)) {
                (Some(bytes), true) => {
                    Some(Stored::read(bytes)?.rank(&ScalarValue::try_from_array(values, row)?)?)
                }
                _ => None,
            };
            valid.push(found.is_some());
            for (ranks, rank) in ranks.iter_mut().zip(found.unwrap_or_default()) {
                ranks.push(rank);
            }
        }
        let columns = ranks.map(|ranks| Arc::new(UInt64Array::from(ranks)) as ArrayRef);
        let rows = StructArray::try_new(rank_fields(), columns.to_vec(), Some(valid.into()))?;
        Ok(Arc::new(rows))
    }
}

impl ScalarUDFImpl for StoredFunction {
    fn name(&self) -> &str {
        match self.question {
            Question::Quantile => "gk_quantile",
            Question::Rank => "gk_rank",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let [sketch, asked] = arg_types else {
            let what = match self.question {
                Question::Quantile => "a quantile or list of quantiles from 0 to 1",
                Question::Rank => "a value",
            };
            return plan_err!(
                "{} takes 2 arguments, got {}: a sketch and {what}",
                self.name(),
                arg_types.len()
            );
        };
        Ok(vec![binary(&self.name(), sketch)?, asked.clone()])
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.returned(arg_types.get(1), None)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let values = args
            .arg_fields
            .first()
            .and_then(|field| field.metadata().get(VALUES));
        let values = values.and_then(|name| type_of_values(name));
        let asked = args.arg_fields.get(1).map(|field| field.data_type());
        Ok(Arc::new(Field::new(
            self.name(),
            self.returned(asked, values)?,
            true,
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [sketches, asked] = arrays.as_slice() else {
            return exec_err!("{} takes 2 arguments, got {}", self.name(), arrays.len());
        };
        let sketches = sketches.as_binary::<i32>();
        let rows = match self.question {
            Question::Quantile => self.quantiles(sketches, asked, args.return_field.data_type())?,
            Question::Rank => Self::ranks(sketches, asked)?,
        };
        Ok(ColumnarValue::Array(rows))
    }
}

impl StoredFunction {
    /// The type of the answer. `asked`: the type of the second argument; `values`: that of the sketches' values, if it is known.
    fn returned(&self, asked: Option<&DataType>, values: Option<DataType>) -> Result<DataType> {
        if self.question == Question::Rank {
            return Ok(DataType::Struct(rank_fields()));
        }
        let one = values.unwrap_or(DataType::Float64);
        Ok(answer_type(one, asked.is_some_and(is_list)))
    }
}

static SCALARS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    StoredFunction::all()
        .map(|function| Arc::new(ScalarUDF::from(function)))
        .to_vec()
});

/// The functions that read stored sketches.
pub(crate) fn gk_scalars() -> &'static [Arc<ScalarUDF>] {
    &SCALARS
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{IntervalUnit, TimeUnit};

    #[test]
    fn types_of_values_are_read_back_from_their_names() {
        use DataType::*;
        let zone = Some("America/Argentina/Buenos_Aires".into());
        for data_type in [
            Null,
            Boolean,
            Int8,
            Int64,
            UInt32,
            UInt64,
            Float16,
            Float32,
            Float64,
            Date32,
            Date64,
            Time32(TimeUnit::Second),
            Time64(TimeUnit::Nanosecond),
            Duration(TimeUnit::Millisecond),
            Interval(IntervalUnit::YearMonth),
            Timestamp(TimeUnit::Microsecond, None),
            Timestamp(TimeUnit::Nanosecond, zone),
            Decimal32(9, 2),
            Decimal64(18, -3),
            Decimal128(38, 10),
        ] {
            assert!(KeySpec::supports(&data_type), "{data_type}");
            assert_eq!(type_of_values(&data_type.to_string()), Some(data_type));
        }
    }

    #[test]
    fn names_of_nested_types_are_not_parsed() {
        for name in [
            "List(",
            "Dictionary(Int8, ",
            "Struct(",
            " List (",
            "Timestamp(s, List(",
        ] {
            assert_eq!(type_of_values(&name.repeat(1_000_000)), None, "{name}");
            assert_eq!(type_of_values(&name.repeat(5)), None, "{name}");
        }
        assert_eq!(type_of_values("List(Int8)"), None);
        assert_eq!(type_of_values("Utf8"), None);
        assert_eq!(type_of_values(""), None);
    }
}
