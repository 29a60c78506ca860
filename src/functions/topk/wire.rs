//! Encodes the number of rows of a bound function as bytes: see [`crate::functions::wire`].

use datafusion::common::Result;

use super::TopKBy;
use crate::functions::wire::{put_option, read_option};
use crate::wire::{Reader, put};

impl TopKBy {
    /// Appends the number of rows that is bound into the function, if there is one.
    pub(in crate::functions) fn put_bound(&self, out: &mut Vec<u8>) {
        put_option(self.bound.as_ref(), out, |k, out| {
            put_option(k.as_ref(), out, |k, out| put(out, *k as u64));
        });
    }

    /// This function with the number of rows that is read next.
    ///
    /// # Errors
    /// An execution error for bytes that are no such number.
    pub(in crate::functions) fn with_bound(&self, input: &mut Reader<'_>) -> Result<Self> {
        let k = |input: &mut Reader<'_>| input.number::<usize>("number of rows");
        match read_option(input, |input| read_option(input, k))? {
            None => Ok(Self::new(self.sql_name, self.ascending)),
            Some(Some(0)) => input.damaged("0 rows".to_string()),
            Some(None) if !self.sql_name.answers_one() => {
                input.damaged(format!("{} without a number of rows", self.sql_name))
            }
            Some(bound) => Ok(self.bound_to(bound)),
        }
    }
}
