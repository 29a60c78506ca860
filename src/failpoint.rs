//! Failpoints: places where tests make a step fail on purpose.

/// Declares a failpoint, where tests can make a phase fail or wait, by the name `quantiles::<phase>` (see the crate
/// `fail`). Outside of tests it compiles to nothing.
macro_rules! may_fail {
    ($phase:literal) => {
        fail::fail_point!(concat!("quantiles::", $phase), |error| {
            datafusion::common::exec_err!("{}", error.unwrap_or_default())
        })
    };
}
pub(crate) use may_fail;
