//! Places where tests make a step fail on purpose.

/// A place where tests have a phase fail or wait, by the name `quantiles::<phase>`: see the crate `fail`. Elsewhere
/// nothing is compiled of it.
macro_rules! may_fail {
    ($phase:literal) => {
        fail::fail_point!(concat!("quantiles::", $phase), |error| {
            datafusion::common::exec_err!("{}", error.unwrap_or_default())
        })
    };
}
pub(crate) use may_fail;
