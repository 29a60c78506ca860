//! Answers as NumPy arrays, Python objects and Arrow capsules.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::*;
use numpy::{IntoPyArray, ToPyArray};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};
use pyo3_arrow::PyScalar;
use pyo3_arrow::ffi::{to_array_pycapsules, to_schema_pycapsule};

use crate::error::{exception, mistake};
use crate::input::numpy;

/// An array of Arrow that other packages take over by its C interface.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Answer(pub(crate) ArrayRef);

impl Answer {
    fn field(&self) -> FieldRef {
        Arc::new(Field::new("", self.0.data_type().clone(), true))
    }
}

#[pymethods]
impl Answer {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.field().as_ref())?)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        Ok(to_array_pycapsules(
            py,
            self.field(),
            self.0.as_ref(),
            requested_schema,
        )?)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The values as Python objects.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = (0..self.0.len()).map(|row| object(py, &self.0, row));
        PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)
    }

    /// The values as a NumPy array.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_numpy(py, &self.0)
    }
}

/// The value of a row as a Python object: None for NULL, dicts for structs, pairs for the entries of maps, and months, days and
/// nanoseconds for intervals.
///
/// # Errors
/// An exception for a type that has no object, and for a time that Python has none for.
pub(crate) fn object<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    let list = |items: ArrayRef| {
        let items = (0..items.len()).map(|item| object(py, &items, item));
        Ok(PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any())
    };
    match array.data_type() {
        _ if array.is_null(row) => Ok(py.None().into_bound(py)),
        DataType::List(_) => list(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => list(array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => list(array.as_fixed_size_list().value(row)),
        DataType::Struct(fields) => {
            let dict = PyDict::new(py);
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                dict.set_item(field.name(), object(py, column, row)?)?;
            }
            Ok(dict.into_any())
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let entry = |entry| {
                (
                    object(py, entries.column(0), entry)?,
                    object(py, entries.column(1), entry)?,
                )
                    .into_pyobject(py)
            };
            let entries = (0..entries.len()).map(entry);
            Ok(PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            object(py, dictionary.values(), dictionary.normalized_keys()[row])
        }
        DataType::Interval(unit) => {
            let (months, days, nanoseconds) = interval(array, *unit, row);
            Ok((months, days, nanoseconds).into_pyobject(py)?.into_any())
        }
        DataType::Union(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::RunEndEncoded(..) => Err(mistake(format!(
            "no Python object for values of type {}: to_arrow gives them",
            array.data_type()
        ))),
        DataType::Float64 => Ok(array
            .as_primitive::<Float64Type>()
            .value(row)
            .into_pyobject(py)?
            .into_any()),
        DataType::Int64 => Ok(array
            .as_primitive::<Int64Type>()
            .value(row)
            .into_pyobject(py)?
            .into_any()),
        DataType::Utf8View => Ok(array.as_string_view().value(row).into_pyobject(py)?.into_any()),
        _ => {
            let scalar = PyScalar::try_from_array_ref(array.slice(row, 1)).map_err(PyErr::from)?;
            Bound::new(py, scalar)?.call_method0(intern!(py, "as_py"))
        }
    }
}

/// The months, days and nanoseconds of an interval.
fn interval(array: &ArrayRef, unit: IntervalUnit, row: usize) -> (i32, i32, i64) {
    match unit {
        IntervalUnit::YearMonth => (array.as_primitive::<IntervalYearMonthType>().value(row), 0, 0),
        IntervalUnit::DayTime => {
            let value = array.as_primitive::<IntervalDayTimeType>().value(row);
            (0, value.days, i64::from(value.milliseconds) * 1_000_000)
        }
        IntervalUnit::MonthDayNano => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            (value.months, value.days, value.nanoseconds)
        }
    }
}

/// The values as a NumPy array: numbers and times as such, NULLs of numbers as NaN and of times as NaT, other types as objects.
pub(crate) fn to_numpy<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
    use DataType::*;
    if array.null_count() > 0 && array.data_type().is_numeric() && !array.data_type().is_floating() {
        let floats = cast(array, &Float64).map_err(|error| exception(error.into()))?;
        return to_numpy(py, &floats);
    }
    macro_rules! numbers {
        ($arrow:ty) => {
            array
                .as_primitive::<$arrow>()
                .values()
                .to_pyarray(py)
                .into_any()
        };
    }
    macro_rules! floats {
        ($arrow:ty) => {{
            let absent = <$arrow as ArrowPrimitiveType>::Native::NAN;
            let items = array
                .as_primitive::<$arrow>()
                .iter()
                .map(|item| item.unwrap_or(absent));
            items.collect::<Vec<_>>().into_pyarray(py).into_any()
        }};
    }
    Ok(match array.data_type() {
        Boolean if array.null_count() == 0 => {
            let items = array.as_boolean().values().iter();
            items.collect::<Vec<_>>().into_pyarray(py).into_any()
        }
        Int8 => numbers!(Int8Type),
        Int16 => numbers!(Int16Type),
        Int32 => numbers!(Int32Type),
        Int64 => numbers!(Int64Type),
        UInt8 => numbers!(UInt8Type),
        UInt16 => numbers!(UInt16Type),
        UInt32 => numbers!(UInt32Type),
        UInt64 => numbers!(UInt64Type),
        Float16 => floats!(Float16Type),
        Float32 => floats!(Float32Type),
        Float64 => floats!(Float64Type),
        Timestamp(unit, None) => times(py, array, "datetime64", *unit)?,
        Duration(unit) => times(py, array, "timedelta64", *unit)?,
        _ => {
            let items = (0..array.len()).map(|row| object(py, array, row));
            let objects = numpy(py)?.call_method1(intern!(py, "empty"), (array.len(), "O"))?;
            for (row, item) in items.enumerate() {
                objects.set_item(row, item?)?;
            }
            objects
        }
    })
}

/// Times or durations without a time zone as a NumPy array.
fn times<'py>(py: Python<'py>, array: &ArrayRef, kind: &str, unit: TimeUnit) -> PyResult<Bound<'py, PyAny>> {
    let numbers = cast(array, &DataType::Int64).map_err(|error| exception(error.into()))?;
    // NULL is NaT.
    let numbers = numbers
        .as_primitive::<Int64Type>()
        .iter()
        .map(|item| item.unwrap_or(i64::MIN));
    let numbers = numbers.collect::<Vec<_>>().into_pyarray(py);
    let unit = match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    numbers.call_method1(intern!(py, "view"), (format!("{kind}[{unit}]"),))
}
