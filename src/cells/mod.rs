//! Cell functions: monotone maps from a key to a small integer, in exact integer arithmetic, so that every device
//! gives the same cells and both ends of a cell are known.
//!
//! | form | cell of a key | cost | made from |
//! | --- | --- | --- | --- |
//! | [`CellTable`] | two shifts and one load | least | a sample: each range of keys gets cells by its share |
//! | [`Linear`] | a search for the piece, one multiplication | middle | pivots (DIBMS, section II: linear projection) |
//! | [`Edges`] | a search tree | most | any splitters (SampleSelect, section IV-B) |
//!
//! An equality cell holds one key only: it lies between two neighbouring edges, or it is as narrow as a key. It ends a
//! bracket at once, so that heavy duplicates cost nothing after the count.

pub mod bracket;
pub(crate) mod classify;
mod edges;
mod function;
mod linear;
pub(crate) mod simd;
mod table;

pub use bracket::{Bracket, Brackets};
pub use edges::Edges;
pub use function::Cells;
pub use linear::{Linear, Piece};
pub use table::CellTable;

/// Most cells of a cell function: their numbers fit in an oracle's two bytes, with one to spare.
pub const MAX_CELLS: usize = u16::MAX as usize;
