//! Cells between splitters.

use datafusion::common::{Result, internal_err};

use super::{Bracket, MAX_CELLS};
use crate::key::{KeyBits, Width};

/// Splitters, ascending and distinct: the cell of a key is the number of edges at or below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edges(Vec<KeyBits>);

impl Edges {
    /// A cell function from edges in any order. Duplicates are dropped, and the edge 0, because no key lies below it.
    ///
    /// # Errors
    /// An internal error for more than [`MAX_CELLS`] cells.
    pub fn try_new(mut edges: Vec<KeyBits>) -> Result<Self> {
        edges.sort_unstable();
        edges.dedup();
        edges.retain(|edge| *edge != 0);
        if edges.len() >= MAX_CELLS {
            return internal_err!("{} edges are more than an oracle can tell apart", edges.len());
        }
        Ok(Self(edges))
    }

    /// The edges, ascending.
    pub fn as_slice(&self) -> &[KeyBits] {
        &self.0
    }

    pub(super) fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
        let cell = cell as usize;
        let first = if cell == 0 { 0 } else { *self.0.get(cell - 1)? };
        let last = self.0.get(cell).map_or(width.max_key(), |edge| edge - 1);
        Some(Bracket { first, last })
    }
}
