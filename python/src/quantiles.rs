//! Exact quantiles of an array.

use std::str::FromStr;

use datafusion_quantiles::Method;
use datafusion_quantiles::compute::quantiles_of;
use pyo3::prelude::*;

use crate::error::{exception, mistake};
use crate::input::Input;
use crate::output::{Answer, object, to_numpy};
use crate::wait::stoppable;

/// Fractions from Python: one, or a list of them.
pub(crate) struct Fractions {
    pub(crate) list: Vec<f64>,
    pub(crate) is_list: bool,
}

impl Fractions {
    /// # Errors
    /// An exception for what is neither a number nor a sequence of numbers.
    pub(crate) fn of(q: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || match q.repr() {
            Ok(shown) => mistake(format!(
                "q is {shown}: allowed are a number from 0 to 1 and a list of such numbers"
            )),
            Err(error) => error,
        };
        // An array of one item is a number to Python too.
        if q.len().is_err() {
            let number = q.extract().map_err(|_| wrong())?;
            return Ok(Self {
                list: vec![number],
                is_list: false,
            });
        }
        let numbers = q.try_iter()?.map(|item| item?.extract::<f64>());
        Ok(Self {
            list: numbers.collect::<PyResult<_>>().map_err(|_| wrong())?,
            is_list: true,
        })
    }
}

/// The quantiles of an array: of NumPy as an item or an array, else as a Python object or an `Answer`.
#[pyfunction]
pub(crate) fn quantiles<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    method: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let fractions = Fractions::of(q)?;
    let method = Method::from_str(method).map_err(exception)?;
    let input = Input::of(x)?;
    let answers = input.with(|values| {
        stoppable(py, values.rows(), |stop| {
            quantiles_of(values, &fractions.list, method, stop)
        })
    })??;
    match (input, fractions.is_list) {
        (Input::NumPy(_), true) => to_numpy(py, &answers),
        (Input::NumPy(_), false) => to_numpy(py, &answers)?.get_item(0),
        (Input::Arrow(_), true) => Ok(Bound::new(py, Answer(answers))?.into_any()),
        (Input::Arrow(_), false) => object(py, &answers, 0),
    }
}
