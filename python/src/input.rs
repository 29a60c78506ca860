//! Arrays of NumPy and of Arrow as values that can be read again, where they are.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, StringArray,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::*;
use datafusion::common::Result;
use datafusion_quantiles::compute::{Chunks, Values};
use half::f16;
use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use pyo3_arrow::input::AnyArray;

use crate::error::{exception, mistake};

/// Values from Python.
pub(crate) enum Input<'py> {
    /// An array of NumPy: one-dimensional, contiguous, in the machine's byte order.
    NumPy(NumPy<'py>),
    /// Arrays of Arrow; also texts of NumPy, copied.
    Arrow(Chunks),
}

/// An array of NumPy by the type of its items.
pub(crate) enum NumPy<'py> {
    Bool(PyReadonlyArray1<'py, bool>),
    I8(PyReadonlyArray1<'py, i8>),
    I16(PyReadonlyArray1<'py, i16>),
    I32(PyReadonlyArray1<'py, i32>),
    I64(PyReadonlyArray1<'py, i64>),
    U8(PyReadonlyArray1<'py, u8>),
    U16(PyReadonlyArray1<'py, u16>),
    U32(PyReadonlyArray1<'py, u32>),
    U64(PyReadonlyArray1<'py, u64>),
    F16(PyReadonlyArray1<'py, f16>),
    F32(PyReadonlyArray1<'py, f32>),
    F64(PyReadonlyArray1<'py, f64>),
    /// Times or durations, as whole numbers of the unit of the type.
    Time(PyReadonlyArray1<'py, i64>, DataType),
}

impl<'py> Input<'py> {
    /// The values of `object`: an array of NumPy, an object that offers Arrow's C interface, or what NumPy makes an array of.
    ///
    /// # Errors
    /// An exception that names a type that has no order here.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            return Self::of_numpy(array);
        }
        if object.hasattr(intern!(py, "__arrow_c_array__"))?
            || object.hasattr(intern!(py, "__arrow_c_stream__"))?
        {
            return Ok(Self::Arrow(chunks(object)?));
        }
        let array = numpy(py)?.call_method1(intern!(py, "asarray"), (object,))?;
        Self::of_numpy(array.cast::<PyUntypedArray>()?)
    }

    fn of_numpy(array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        match array.dtype().kind() {
            b'U' | b'O' => texts(array).map(Self::Arrow),
            _ => NumPy::of(array).map(Self::NumPy),
        }
    }

    /// Calls `take` with the values.
    pub(crate) fn with<R>(&self, take: impl FnOnce(&dyn Values) -> R) -> PyResult<R> {
        match self {
            Input::Arrow(chunks) => Ok(take(chunks)),
            Input::NumPy(array) => array.with(take),
        }
    }
}

/// The module `numpy`.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "numpy"))
        .map_err(|_| PyImportError::new_err("dfq needs NumPy for this: pip install numpy"))
}

/// The arrays of an object that offers Arrow's C interface.
fn chunks(object: &Bound<'_, PyAny>) -> PyResult<Chunks> {
    let (arrays, field) = match object.extract::<AnyArray>()? {
        AnyArray::Array(array) => {
            let (array, field) = PyArray::into_inner(array);
            (vec![array], field)
        }
        stream => stream.into_chunked_array().map_err(PyErr::from)?.into_inner(),
    };
    Chunks::try_new(field.data_type().clone(), arrays).map_err(exception)
}

/// The texts in an array of NumPy. None is a missing one.
fn texts(array: &Bound<'_, PyUntypedArray>) -> PyResult<Chunks> {
    let py = array.py();
    let items = array.call_method1(intern!(py, "ravel"), ("C",))?;
    let texts = items
        .call_method0(intern!(py, "tolist"))?
        .extract::<Vec<Option<String>>>();
    let texts = texts.map_err(|_| {
        mistake(
            "an array of Python objects may have texts and None alone: give missing numbers as NaN, or all in a column of Polars or \
             PyArrow",
        )
    })?;
    let texts: ArrayRef = Arc::new(StringArray::from(texts));
    Chunks::try_new(DataType::Utf8, vec![texts]).map_err(exception)
}

impl<'py> NumPy<'py> {
    fn of(array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        let plain = plain(array)?;
        let dtype = plain.dtype();
        let own = |name: &str| mistake(format!("no quantiles of NumPy arrays of type {name}"));
        Ok(match (dtype.kind(), dtype.itemsize()) {
            (b'b', _) => Self::Bool(items(&plain)?),
            (b'i', 1) => Self::I8(items(&plain)?),
            (b'i', 2) => Self::I16(items(&plain)?),
            (b'i', 4) => Self::I32(items(&plain)?),
            (b'i', 8) => Self::I64(items(&plain)?),
            (b'u', 1) => Self::U8(items(&plain)?),
            (b'u', 2) => Self::U16(items(&plain)?),
            (b'u', 4) => Self::U32(items(&plain)?),
            (b'u', 8) => Self::U64(items(&plain)?),
            (b'f', 2) => Self::F16(items(&plain)?),
            (b'f', 4) => Self::F32(items(&plain)?),
            (b'f', 8) => Self::F64(items(&plain)?),
            (b'M' | b'm', _) => Self::times(&plain)?,
            _ => return Err(own(&dtype.str()?.to_string_lossy())),
        })
    }

    /// An array of datetime64 or timedelta64.
    fn times(array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        let py = array.py();
        let name = array.dtype().str()?.to_string_lossy().into_owned();
        let unit = match name.split_once('[').map(|(_, unit)| unit.trim_end_matches(']')) {
            Some("s") => TimeUnit::Second,
            Some("ms") => TimeUnit::Millisecond,
            Some("us") => TimeUnit::Microsecond,
            Some("ns") => TimeUnit::Nanosecond,
            _ => {
                return Err(mistake(format!(
                    "no quantiles of NumPy arrays of type {name}: allowed are the units s, ms, us and ns, as astype('datetime64[s]') gives them"
                )));
            }
        };
        let data_type = if array.dtype().kind() == b'M' {
            DataType::Timestamp(unit, None)
        } else {
            DataType::Duration(unit)
        };
        let numbers = array.call_method1(intern!(py, "view"), ("int64",))?;
        Ok(Self::Time(items(numbers.cast::<PyUntypedArray>()?)?, data_type))
    }

    fn with<R>(&self, take: impl FnOnce(&dyn Values) -> R) -> PyResult<R> {
        macro_rules! slice {
            ($array:expr, $arrow:ty) => {
                take(&Slice::<$arrow> {
                    items: contiguous($array)?,
                    data_type: &<$arrow>::DATA_TYPE,
                    absent: None,
                })
            };
        }
        Ok(match self {
            Self::Bool(array) => take(&Flags(contiguous(array)?)),
            Self::I8(array) => slice!(array, Int8Type),
            Self::I16(array) => slice!(array, Int16Type),
            Self::I32(array) => slice!(array, Int32Type),
            Self::I64(array) => slice!(array, Int64Type),
            Self::U8(array) => slice!(array, UInt8Type),
            Self::U16(array) => slice!(array, UInt16Type),
            Self::U32(array) => slice!(array, UInt32Type),
            Self::U64(array) => slice!(array, UInt64Type),
            Self::F16(array) => slice!(array, Float16Type),
            Self::F32(array) => slice!(array, Float32Type),
            Self::F64(array) => slice!(array, Float64Type),
            Self::Time(array, data_type) => take(&Slice::<Int64Type> {
                items: contiguous(array)?,
                data_type,
                // NaT.
                absent: Some(i64::MIN),
            }),
        })
    }
}

/// The array in one dimension, contiguous and in the machine's byte order: itself, a view of it, or else a copy.
fn plain<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let (py, dtype) = (array.py(), array.dtype());
    let is_native = dtype.is_native_byteorder().unwrap_or(true);
    let is_aligned = || -> PyResult<bool> {
        let flags = array.getattr(intern!(py, "flags"))?;
        flags.getattr(intern!(py, "aligned"))?.extract()
    };
    if array.ndim() == 1 && array.is_c_contiguous() && is_native && is_aligned()? {
        return Ok(array.clone());
    }
    // The order of values does not matter: that of memory needs the fewest copies.
    let mut plain = array.call_method1(intern!(py, "ravel"), ("K",))?;
    if !is_native {
        let native = dtype.call_method1(intern!(py, "newbyteorder"), ("=",))?;
        plain = plain.call_method1(intern!(py, "astype"), (native,))?;
    }
    let plain = numpy(py)?.call_method1(intern!(py, "require"), (plain, py.None(), ["C", "A"]))?;
    Ok(plain.cast_into::<PyUntypedArray>()?)
}

/// The array as one of items of type `T`.
fn items<'py, T: Element>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArray1<'py, T>> {
    let typed = array.cast::<PyArray1<T>>().map_err(|_| {
        let name = array
            .dtype()
            .str()
            .map(|name| name.to_string_lossy().into_owned());
        mistake(format!(
            "no quantiles of NumPy arrays of type {}",
            name.unwrap_or_default()
        ))
    })?;
    typed
        .try_readonly()
        .map_err(|error| mistake(format!("the NumPy array cannot be read: {error}")))
}

fn contiguous<'a, T: Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array
        .as_slice()
        .map_err(|error| mistake(format!("the NumPy array cannot be read: {error}")))
}

/// Items of an array of numbers.
struct Slice<'a, T: ArrowPrimitiveType> {
    items: &'a [T::Native],
    data_type: &'a DataType,
    /// The item that stands for no value.
    absent: Option<T::Native>,
}

impl<T: ArrowPrimitiveType> Values for Slice<'_, T> {
    fn data_type(&self) -> &DataType {
        self.data_type
    }

    fn rows(&self) -> u64 {
        self.items.len() as u64
    }

    fn read(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>> {
        let items = &self.items[rows.start as usize..rows.end as usize];
        let nulls = self.absent.filter(|absent| items.contains(absent));
        let nulls = nulls.map(|absent| items.iter().map(|item| *item != absent).collect::<NullBuffer>());
        let array = PrimitiveArray::<T>::try_new(items.to_vec().into(), nulls)?;
        // The same numbers under the type that they stand for.
        if T::DATA_TYPE == *self.data_type {
            return Ok(vec![Arc::new(array)]);
        }
        let data = array
            .into_data()
            .into_builder()
            .data_type(self.data_type.clone())
            .build()?;
        Ok(vec![datafusion::arrow::array::make_array(data)])
    }
}

/// Items of an array of Booleans.
struct Flags<'a>(&'a [bool]);

impl Values for Flags<'_> {
    fn data_type(&self) -> &DataType {
        &DataType::Boolean
    }

    fn rows(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>> {
        let items = &self.0[rows.start as usize..rows.end as usize];
        Ok(vec![Arc::new(BooleanArray::from(items.to_vec()))])
    }
}
