//! Encodes the cuts of a bound function as bytes: see [`crate::functions::wire`].
//!
//! ```text
//! cuts:  count | cut, .. | whether they are a list
//! cut:   0               NULL
//!        1 | key         before a key
//!        2 | n | bytes   before a byte string
//!        3               behind all values
//! ```

use datafusion::common::Result;

use super::RankFunction;
use super::cut::{Cut, Cuts, MOST_CUTS};
use crate::functions::wire::{put_option, read_option};
use crate::wire::{Reader, put};

const NULL: u8 = 0;
const KEY: u8 = 1;
const BYTES: u8 = 2;
const END: u8 = 3;

impl Cuts {
    fn put(&self, out: &mut Vec<u8>) {
        put(out, self.list.len() as u64);
        for cut in &self.list {
            match cut {
                None => out.push(NULL),
                Some(Cut::Key(key)) => {
                    out.push(KEY);
                    put(out, *key);
                }
                Some(Cut::Bytes(bytes)) => {
                    out.push(BYTES);
                    put(out, bytes.len() as u64);
                    out.extend_from_slice(bytes);
                }
                Some(Cut::End) => out.push(END),
            }
        }
        out.push(u8::from(self.is_list));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let count: usize = input.number("number of cuts")?;
        // Each takes a byte at least.
        if count > input.left() {
            return input.damaged(format!("{count} cuts in {} bytes", input.left()));
        }
        let mut list = Vec::with_capacity(count.min(MOST_CUTS));
        for _ in 0..count {
            list.push(match input.byte("kind of cut")? {
                NULL => None,
                KEY => Some(Cut::Key(input.number("key")?)),
                BYTES => {
                    let length = input.number("length of a cut")?;
                    Some(Cut::Bytes(input.take(length, "cut")?.to_vec()))
                }
                END => Some(Cut::End),
                kind => return input.damaged(format!("a cut of kind {kind}")),
            });
        }
        let is_list = input.flag("whether cuts are a list")?;
        if !is_list && list.len() != 1 {
            return input.damaged(format!("{} cuts in place of one", list.len()));
        }
        Ok(Self { list, is_list })
    }
}

impl RankFunction {
    /// Appends the cuts that are bound into the function, if there are any.
    pub(in crate::functions) fn put_bound(&self, out: &mut Vec<u8>) {
        put_option(self.bound.as_ref(), out, Cuts::put);
    }

    /// This function with the cuts that are read next.
    ///
    /// # Errors
    /// An execution error for bytes that are no cuts.
    pub(in crate::functions) fn with_bound(&self, input: &mut Reader<'_>) -> Result<Self> {
        Ok(match read_option(input, Cuts::read)? {
            Some(cuts) => self.with_cuts(cuts),
            None => Self::new(self.sql_name, self.direction),
        })
    }
}
