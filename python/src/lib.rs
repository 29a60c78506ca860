//! The extension module `dfq._dfq`: what the Python package `dfq` is made of.
//!
//! | file | gives Python |
//! | --- | --- |
//! | `session` | sessions: tables by their names, and statements |
//! | `foreign` | tables of other packages with DataFusion inside, and functions for the package `datafusion` |
//! | `overlay` | tables that one statement sees, and no other |
//! | `place` | where queries run: in this process or on a cluster |
//! | `query` | queries, which run when their rows are wanted, and their rows |
//! | `quantiles`, `topk`, `sketch` | functions of arrays |
//! | `tables`, `input` | data of Python as tables, and as arrays that are read without a copy |
//! | `output` | answers as NumPy arrays, Python objects and Arrow capsules |
//! | `progress` | how far a query is, which is shown while a call waits |
//! | `wait` | work without the interpreter's lock, which Ctrl-C ends |
//! | `error` | exceptions |

mod error;
mod foreign;
mod input;
mod output;
mod overlay;
mod place;
mod progress;
mod quantiles;
mod query;
mod session;
mod sketch;
mod tables;
mod topk;
mod wait;

use datafusion::DATAFUSION_VERSION;
use pyo3::prelude::*;

/// What `dfq` is made of. Use `dfq`.
#[pymodule]
fn _dfq(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DATAFUSION_VERSION", DATAFUSION_VERSION)?;
    error::add_to(module)?;
    module.add_class::<foreign::AggregateFunction>()?;
    module.add_class::<foreign::ScalarFunction>()?;
    module.add_class::<output::Answer>()?;
    module.add_class::<query::Query>()?;
    module.add_class::<query::Rows>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<sketch::Sketch>()?;
    module.add_function(wrap_pyfunction!(foreign::functions, module)?)?;
    module.add_function(wrap_pyfunction!(quantiles::quantiles, module)?)?;
    module.add_function(wrap_pyfunction!(topk::topk, module)?)
}
