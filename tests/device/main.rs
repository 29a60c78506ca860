//! Tests that need a device, and tests of its kernels, which only need their compiler.
//!
//! Without a device they are ignored, so that no report counts them as passed; with `QUANTILES_REQUIRE_CUDA=1` they
//! fail. `cargo test --test device -- NAME` runs those whose names contain a word, such as `matrix` or `kernels`.

mod brackets;
mod explain;
mod faults;
mod kernels;
mod limits;
mod matrix;
mod nearest;
mod pairs;
mod pinned;
mod repeats;
mod requests;
mod runs;
mod selection;
mod several;
mod shards;
mod short_groups;
mod streamed;
mod support;

use std::process::ExitCode;

use datafusion_quantiles::kernel::cuda::{NVRTC_VARIABLE, Nvrtc};
use libtest_mimic::{Arguments, Trial};

/// The tests. They become ignored ones if something that they need is missing, unless it is required to be there.
fn needing(missing: Option<String>, is_required: bool, tests: Vec<Trial>) -> Vec<Trial> {
    let Some(missing) = missing.filter(|_| !is_required) else {
        return tests;
    };
    eprintln!("{} tests are ignored: {missing}", tests.len());
    let ignored = tests.into_iter().map(|test| test.with_ignored_flag(true));
    ignored.collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = needing(
        support::missing_device(),
        support::is_device_required(),
        [
            brackets::tests(),
            explain::tests(),
            faults::tests(),
            shards::tests(),
            limits::tests(),
            matrix::tests(),
            nearest::tests(),
            pairs::tests(),
            pinned::tests(),
            repeats::tests(),
            requests::tests(),
            runs::tests(),
            several::tests(),
            short_groups::tests(),
            streamed::tests(),
        ]
        .into_iter()
        .flatten()
        .collect(),
    );
    tests.extend(needing(
        Nvrtc::get().err().map(|error| error.to_string()),
        std::env::var_os(NVRTC_VARIABLE).is_some(),
        kernels::tests(),
    ));
    libtest_mimic::run(&arguments, tests).exit_code()
}
