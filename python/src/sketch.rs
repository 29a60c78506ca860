//! Greenwald-Khanna sketches.

use std::sync::{Mutex, PoisonError};

use datafusion::common::ScalarValue;
use datafusion_quantiles::compute;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::exception;
use crate::input::Input;
use crate::output::{Answer, object};
use crate::quantiles::Fractions;
use crate::tables::array;
use crate::wait::stoppable;

/// Rows that a sketch takes at a time.
const BLOCK: u64 = 1 << 16;

/// A sketch, shared by threads.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Sketch(Mutex<compute::GkSketch>);

impl Sketch {
    /// Does `work` with the sketch, once no other thread works with it.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut compute::GkSketch) -> R + Send) -> R {
        py.detach(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn to_vec(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        self.with(py, |sketch| sketch.to_bytes()).map_err(exception)
    }
}

#[pymethods]
impl Sketch {
    #[new]
    fn new(accuracy: f64) -> PyResult<Self> {
        Ok(Self(Mutex::new(
            compute::GkSketch::try_new(accuracy).map_err(exception)?,
        )))
    }

    /// Adds values.
    fn update(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let input = Input::of(values)?;
        input.with(|values| {
            stoppable(py, values.rows(), |stop| {
                let rows = values.rows();
                let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let mut added = lock().another()?;
                for start in (0..rows).step_by(BLOCK as usize) {
                    stop.check()?;
                    for piece in values.read(start..(start + BLOCK).min(rows))? {
                        added.update(piece.as_ref())?;
                    }
                }
                // All of them or, after an error, none.
                lock().merge(&mut added)
            })
        })?
    }

    /// Adds the values of another sketch.
    fn merge(&self, py: Python<'_>, other: &Sketch) -> PyResult<()> {
        // Never two locks at once: another thread could take them the other way round.
        let bytes = other.to_vec(py)?;
        let mut other = compute::GkSketch::from_bytes(&bytes).map_err(exception)?;
        self.with(py, |sketch| sketch.merge(&mut other))
            .map_err(exception)
    }

    /// Values near some quantiles.
    fn quantile<'py>(&self, py: Python<'py>, q: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fractions = Fractions::of(q)?;
        let answers = self
            .with(py, |sketch| sketch.quantiles(&fractions.list))
            .map_err(exception)?;
        match fractions.is_list {
            true => Ok(Bound::new(py, Answer(answers))?.into_any()),
            false => object(py, &answers, 0),
        }
    }

    /// The least and the greatest number of values that may be at or below one, and the number of all.
    fn rank(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<(u64, u64, u64)> {
        let one = pyo3::types::PyList::new(py, [value])?;
        let value = ScalarValue::try_from_array(&array(&one)?, 0).map_err(exception)?;
        let bounds = self.with(py, |sketch| sketch.rank(&value)).map_err(exception)?;
        Ok((bounds.rank_min, bounds.rank_max, bounds.n))
    }

    /// Number of values.
    fn n(&self, py: Python<'_>) -> u64 {
        self.with(py, |sketch| sketch.n())
    }

    /// The part of all values by which a rank may be off.
    fn error_fraction(&self, py: Python<'_>) -> f64 {
        self.with(py, |sketch| sketch.error_fraction())
    }

    /// Type of the values; None while there are none.
    fn data_type(&self, py: Python<'_>) -> Option<String> {
        self.with(py, |sketch| sketch.data_type().map(ToString::to_string))
    }

    /// The stored form.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.to_vec(py)?))
    }

    /// A sketch from its stored form.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        Ok(Self(Mutex::new(
            compute::GkSketch::from_bytes(bytes).map_err(exception)?,
        )))
    }
}
