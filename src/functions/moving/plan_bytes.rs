//! Encodes a call over a moving frame as bytes of a plan: see [`crate::functions::wire`].

use datafusion::common::Result;
use datafusion::logical_expr::{Signature, Volatility};

use super::{FrameOffsets, MovingQuantiles};
use crate::functions::{ExactQuantiles, all_aggregates, wire};
use crate::quantile::Quantiles;
use crate::wire::Reader;

impl MovingQuantiles {
    /// Appends the call to `out`.
    pub(in crate::functions) fn put(&self, out: &mut Vec<u8>) {
        wire::put_name(self.function.registered_name(), out);
        self.quantiles.put(out);
        for end in [self.offsets.first, self.offsets.last] {
            wire::put_option(end.as_ref(), out, |end, out| out.extend(end.to_le_bytes()));
        }
        out.push(u8::from(self.is_distinct));
    }

    /// Reads a call.
    ///
    /// # Errors
    /// An execution error for bytes that are no call.
    pub(in crate::functions) fn read(input: &mut Reader<'_>) -> Result<Self> {
        let function = wire::named(all_aggregates(), input)?;
        let Some(function) = ExactQuantiles::of(&function) else {
            return input.damaged(format!("{} as a moving function", function.name()));
        };
        let quantiles = Quantiles::read(input)?;
        let mut end = || wire::read_option(input, |input| input.key::<u64>().map(u64::cast_signed));
        let offsets = FrameOffsets {
            first: end()?,
            last: end()?,
        };
        Ok(Self {
            function: ExactQuantiles::new(function.sql_name(), function.method(), function.is_descending()),
            quantiles,
            offsets,
            is_distinct: input.flag("DISTINCT")?,
            signature: Signature::any(1, Volatility::Immutable),
        })
    }
}
