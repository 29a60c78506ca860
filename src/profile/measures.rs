//! The aggregate calls that describe a column in the first read of a table, chosen by its type.

use datafusion::arrow::compute::{cast as arrow_cast, kernels::length::length};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Column, Result, ScalarValue, internal_err};
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::functions::expr_fn::{character_length, isnan};
use datafusion::functions_aggregate::expr_fn::{avg, count, max, min, stddev};
use datafusion::functions_nested::expr_fn::cardinality;
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Expr, ExprFunctionExt, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, cast, lit, when,
};

use super::types::BINS;
use crate::functions::constant_list;
use crate::functions::expr_fn::{exact_quantiles, histogram_equi_depth};
use crate::functions::tukey_fences;
use crate::quantile::Method;

/// Percentages of the percentiles of a profile: those that [`super::types::PERCENTAGES`] tells, and the edges of [`BINS`] bins.
pub(super) const RANKS: [u8; 23] = [
    0, 1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99, 100,
];

/// How values of a type are described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Integers, decimals and floating point: percentiles, mean and deviation.
    Number,
    /// Dates, times, timestamps and durations: percentiles.
    Time,
    /// Text: least and greatest value, and lengths in characters.
    Text,
    /// Binary values: lengths in bytes.
    Bytes,
    /// Lists: lengths in items.
    List,
    /// Maps: lengths in entries.
    Map,
    /// Values that are only counted by how often each occurs, such as booleans.
    Category,
    /// Values that are counted, with NULLs beside.
    Opaque,
}

impl Kind {
    /// How values of this type are described.
    pub(super) fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => Self::Time,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Self::Bytes,
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => Self::List,
            DataType::Map(..) => Self::Map,
            DataType::Boolean | DataType::Interval(_) => Self::Category,
            number if number.is_numeric() => Self::Number,
            _ => Self::Opaque,
        }
    }

    /// Whether percentiles are asked for.
    pub(super) fn has_percentiles(self) -> bool {
        matches!(self, Self::Number | Self::Time)
    }

    /// Whether it is counted how often each value occurs.
    pub(super) fn has_frequencies(self) -> bool {
        !matches!(self, Self::List | Self::Map | Self::Opaque)
    }

    /// The length of a value, in the unit of its kind; `None` for kinds without.
    fn length(self, value: Expr) -> Option<Expr> {
        match self {
            Self::Text => Some(character_length(value)),
            Self::Bytes | Self::List => Some(value_length().call(vec![value])),
            Self::Map => Some(cardinality(value)),
            _ => None,
        }
    }
}

/// The number of bytes of a binary value, or of items of a list: `value_length(x)`. DataFusion has none for binary values, and of an empty list
/// its own is NULL.
fn value_length() -> ScalarUDF {
    ScalarUDF::new_from_impl(ValueLength(Signature::any(1, Volatility::Immutable)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ValueLength(Signature);

impl ScalarUDFImpl for ValueLength {
    fn name(&self) -> &'static str {
        "value_length"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [values] = &ColumnarValue::values_to_arrays(&args.args)?[..] else {
            return internal_err!("value_length takes one argument");
        };
        Ok(ColumnarValue::Array(arrow_cast(
            &length(values)?,
            &DataType::Int64,
        )?))
    }
}

/// A column of a profile: a column of the table, or a field of one that is a struct.
#[derive(Debug, Clone)]
pub(super) struct Described {
    /// Its name; that of a field follows the name of its struct and a dot.
    pub(super) name: String,
    /// The type that the table has it in.
    pub(super) data_type: DataType,
    /// How its values are described.
    pub(super) kind: Kind,
    /// Its values.
    pub(super) value: Expr,
}

impl Described {
    /// The columns of a table, structs as their fields.
    pub(super) fn all<'a>(columns: impl IntoIterator<Item = (Column, &'a FieldRef)>) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (column, field) in columns {
            let name = column.name.clone();
            Self::add(name, field.data_type(), Expr::Column(column), &mut all)?;
        }
        Ok(all)
    }

    fn add(name: String, data_type: &DataType, value: Expr, all: &mut Vec<Self>) -> Result<()> {
        if let DataType::Struct(fields) = data_type
            && !fields.is_empty()
        {
            for field in fields {
                let inner = when(
                    value.clone().is_not_null(),
                    value.clone().field(field.name().as_str()),
                )
                .end()?;
                Self::add(format!("{name}.{}", field.name()), field.data_type(), inner, all)?;
            }
            return Ok(());
        }
        let plain = plain(data_type);
        all.push(Self {
            name,
            data_type: data_type.clone(),
            kind: Kind::of(plain),
            value: if plain == data_type {
                value
            } else {
                cast(value, plain.clone())
            },
        });
        Ok(())
    }

    /// The calls that describe this column, each with a name of its own that ends in `place`.
    /// `by_group`: they are over groups of rows.
    pub(super) fn calls(
        &self,
        place: usize,
        frequencies: &AggregateUDF,
        by_group: bool,
    ) -> Result<Vec<Expr>> {
        let value = || self.value.clone();
        let mut calls = vec![(Measure::Values, count(value()))];
        if self.kind.has_frequencies() {
            calls.push((Measure::Frequencies, frequencies.call(vec![value()])));
        }
        if self.kind.has_percentiles() {
            let ranks: Vec<_> = RANKS
                .iter()
                .map(|&percent| ScalarValue::from(f64::from(percent) / 100.0))
                .collect();
            let ranks = constant_list(&ranks, &DataType::Float64);
            calls.push((
                Measure::Percentiles,
                exact_quantiles(value(), ranks, Method::Disc, false),
            ));
            // Accumulators of groups would hold all values.
            if !by_group {
                calls.push((Measure::Histogram, histogram_equi_depth(value(), BINS)));
                calls.push((Measure::Fences, tukey_fences(value())));
            }
        }
        if self.kind == Kind::Number {
            calls.push((Measure::Mean, avg(cast(value(), DataType::Float64))));
            calls.push((Measure::Deviation, stddev(cast(value(), DataType::Float64))));
        }
        if self.is_floating() {
            calls.push((Measure::NotANumber, count(lit(1)).filter(isnan(value())).build()?));
        }
        if matches!(self.kind, Kind::Text | Kind::Bytes) {
            calls.push((Measure::Least, min(value())));
            calls.push((Measure::Greatest, max(value())));
        }
        if let Some(length) = self.kind.length(value()) {
            let length = cast(length, DataType::Int64);
            calls.push((Measure::Shortest, min(length.clone())));
            calls.push((Measure::MeanLength, avg(length.clone())));
            calls.push((Measure::Longest, max(length)));
        }
        Ok(calls
            .into_iter()
            .map(|(measure, call)| call.alias(measure.name(place)))
            .collect())
    }

    /// Whether its values are floating point.
    pub(super) fn is_floating(&self) -> bool {
        plain(&self.data_type).is_floating()
    }
}

/// The type of the values of a dictionary; any other type as it is.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, plain) => plain,
        plain => plain,
    }
}

/// One figure of a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measure {
    Values,
    Frequencies,
    Percentiles,
    Histogram,
    Fences,
    Mean,
    Deviation,
    NotANumber,
    Least,
    Greatest,
    Shortest,
    MeanLength,
    Longest,
}

impl Measure {
    /// The name of the output column with this figure of the column in this place.
    pub(super) fn name(self, place: usize) -> String {
        format!("{self:?} {place}")
    }
}

const _: () = assert!(BINS == 20, "the edges of bins are among RANKS");
