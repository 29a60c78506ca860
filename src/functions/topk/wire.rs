//! The number of rows of a bound function as bytes: see [`crate::functions::wire`].

use datafusion::common::Result;

use super::TopKBy;
use crate::functions::wire::{put_option, read_option};
use crate::wire::{Reader, put};

impl TopKBy {
    pub(in crate::functions) fn put_bound(&self, out: &mut Vec<u8>) {
        put_option(self.bound.as_ref(), out, |k, out| {
            put_option(k.as_ref(), out, |k, out| put(out, *k as u64));
        });
    }

    /// The same function, with the number of rows that comes next.
    ///
    /// # Errors
    /// An execution error for other bytes.
    pub(in crate::functions) fn with_bound(&self, input: &mut Reader<'_>) -> Result<Self> {
        let k = |input: &mut Reader<'_>| input.number::<usize>("number of rows");
        match read_option(input, |input| read_option(input, k))? {
            None => Ok(Self::new(self.called, self.ascending)),
            Some(Some(0)) => input.damaged("0 rows".to_string()),
            Some(None) if !self.called.answers_one() => {
                input.damaged(format!("{} without a number of rows", self.called))
            }
            Some(bound) => Ok(self.bound_to(bound)),
        }
    }
}
