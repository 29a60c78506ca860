//! The constants of a bound function as bytes: see [`crate::functions::wire`].

use datafusion::common::Result;

use super::GkFunction;
use super::constants::{Constants, Precision};
use crate::functions::wire::{put_option, read_option};
use crate::kernel::round_messages::{epsilon, put_epsilon};
use crate::quantile::Quantiles;
use crate::select::splitters::NearestSplitter;
use crate::wire::{Reader, put};

const ACCURACY: u8 = 0;
const BUCKETS: u8 = 1;

impl Constants {
    fn put(&self, out: &mut Vec<u8>) {
        self.quantiles.put(out);
        match self.precision {
            Precision::Accuracy(eps) => {
                out.push(ACCURACY);
                put_epsilon(out, eps);
            }
            Precision::Buckets(buckets) => {
                out.push(BUCKETS);
                put(out, buckets);
            }
        }
    }

    fn read(input: &mut Reader<'_>, quantile_specs: bool) -> Result<Self> {
        let quantiles = match quantile_specs {
            true => Quantiles::read(input)?,
            false => Quantiles::read_any(input)?,
        };
        let precision = match input.byte("kind of precision")? {
            ACCURACY => Precision::Accuracy(epsilon(input)?),
            BUCKETS => match input.number("number of buckets")? {
                buckets @ 2..=NearestSplitter::MOST => Precision::Buckets(buckets),
                buckets => return input.damaged(format!("{buckets} buckets")),
            },
            kind => return input.damaged(format!("precision of kind {kind}")),
        };
        Ok(Self { quantiles, precision })
    }
}

impl GkFunction {
    pub(in crate::functions) fn put_constants(&self, out: &mut Vec<u8>) {
        put_option(self.bound.as_ref(), out, Constants::put);
    }

    /// The same function, with the constants that come next.
    ///
    /// # Errors
    /// An execution error for other bytes.
    pub(in crate::functions) fn with_constants(&self, input: &mut Reader<'_>) -> Result<Self> {
        let mut function = Self::new(self.called, self.descending);
        function.bound = read_option(input, |input| {
            Constants::read(input, self.called.quantile_specs())
        })?;
        Ok(function)
    }
}
