//! Cell functions as the kernels of `kernels/bucket.cu` take them, and what is sent with them.

use datafusion::common::Result;

use super::launch::{ColumnArgument, halves, kernel_argument};
use crate::cells::Brackets;
use crate::cells::{CellTable, Cells};
use crate::key::KeyVec;
use crate::key::{KeyBits, Width};

/// Bytes of a [`CellTable`]'s entries in shared memory.
pub(super) const TABLE_BYTES: usize = 2048 * 4;
/// Cells of a guide to splitters, beside one for each entry: for each splitter, at least, and at most where keys are counted
/// and where other things share the memory with it.
const GUIDE_SHARE: usize = 4;
const GUIDE_LEAST: usize = 4096;
pub(super) const GUIDE_MOST: usize = 28_000;
pub(super) const GUIDE_MOST_BESIDE: usize = 12_000;
/// Bytes of the guide to pieces.
const PLACE_BYTES: usize = (2048 + 8) * 2;

kernel_argument! {
    /// `struct Round` of `kernels/bucket.cu`.
    pub(super) struct RoundArgument = bk_sizes[0] {
        pub(super) column: ColumnArgument,
        pub(super) within: u64,
        pub(super) counts: u64,
        pub(super) entries: u64,
        pub(super) edges: u64,
        pub(super) pieces: u64,
        pub(super) map: u64,
        pub(super) starts: u64,
        pub(super) cursors: u64,
        pub(super) out: u64,
        pub(super) extremes: u64,
        pub(super) lock: u64,
        pub(super) population: u64,
        pub(super) offset: u64,
        pub(super) samples: u64,
        pub(super) seed: u64,
        pub(super) base: [u64; 2],
        pub(super) top: [u64; 2],
        pub(super) heavy: [[u64; 2]; 8],
        pub(super) within_count: u32,
        pub(super) cells: u32,
        pub(super) shared_cells: u32,
        pub(super) shift: u32,
        pub(super) entry_count: u32,
        pub(super) heavy_count: u32,
        pub(super) edge_count: u32,
        pub(super) piece_count: u32,
        pub(super) shared_edges: u32,
        pub(super) shared_map: u32,
        pub(super) list_count: u32,
        pub(super) stage: u32,
        pub(super) words: u32,
        pub(super) guide_cells: u32,
    }
}

const _: () = assert!(CellTable::MOST_HEAVY == 8, "places for heavy keys");

/// Bytes on their way to the device, each part aligned to 16.
#[derive(Debug, Default)]
pub(super) struct Sent(pub(super) Vec<u8>);

impl Sent {
    /// Where the part starts.
    pub(super) fn put(&mut self, part: &[u8]) -> u64 {
        let start = self.0.len();
        self.0.extend_from_slice(part);
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        start as u64
    }

    pub(super) fn put_keys(&mut self, keys: impl Iterator<Item = KeyBits>, width: Width) -> u64 {
        let bytes: Vec<u8> = keys
            .flat_map(|key| key.to_le_bytes().into_iter().take(width.bytes()))
            .collect();
        self.put(&bytes)
    }

    pub(super) fn put_brackets(&mut self, brackets: &Brackets, width: Width) -> u64 {
        let ends = brackets.as_slice().iter();
        self.put_keys(ends.flat_map(|bracket| [bracket.first, bracket.last]), width)
    }
}

/// A cell function as kernels take it: its kernels, and the shared memory that it cannot do without and that it likes to have.
pub(super) struct Classes {
    /// Counting plainly and otherwise.
    pub(super) counting: [&'static str; 2],
    pub(super) collecting: &'static str,
    pub(super) needed: usize,
    pub(super) liked: usize,
}

impl Classes {
    /// Puts the function into `sent` and `round`; addresses count from the front of what is sent. A guide has at most so many
    /// cells beside its entries.
    ///
    /// # Errors
    /// An internal error if splitters are not ascending.
    pub(super) fn of(
        cells: &Cells,
        width: Width,
        guide_most: usize,
        sent: &mut Sent,
        round: &mut RoundArgument,
    ) -> Result<Self> {
        round.cells = cells.len() as u32;
        Ok(match cells {
            Cells::Table(table) => {
                round.put_table(table, sent);
                round.heavy_count = table.heavy.len() as u32;
                for (place, heavy) in round.heavy.iter_mut().zip(&table.heavy) {
                    *place = halves(*heavy);
                }
                let plain = match round.heavy_count {
                    0 => "bk_count_table",
                    _ => "bk_count_table_heavy",
                };
                Self {
                    counting: [plain, "bk_count_table_any"],
                    collecting: "bk_collect_table",
                    needed: TABLE_BYTES,
                    liked: 0,
                }
            }
            Cells::Edges(edges) => {
                let edges = edges.as_slice();
                round.edges = sent.put_keys(edges.iter().copied(), width);
                round.edge_count = edges.len() as u32;
                let mut needed = 0;
                if !edges.is_empty() {
                    let most = (GUIDE_SHARE * edges.len()).clamp(GUIDE_LEAST, guide_most);
                    let guide =
                        CellTable::from_sample(&KeyVec::from_bits(edges.iter().copied(), width), most)?;
                    round.put_table(&guide, sent);
                    round.guide_cells = guide.len() as u32;
                    // A word more, in whole vectors.
                    needed = TABLE_BYTES + (guide.len() + 1).next_multiple_of(4) * 4;
                }
                Self {
                    counting: ["bk_count_edges", "bk_count_edges_any"],
                    collecting: "bk_collect_edges",
                    needed,
                    liked: edges.len() * width.bytes(),
                }
            }
            Cells::Linear(linear) => {
                let mut bytes = Vec::new();
                for piece in &linear.pieces {
                    for end in [piece.first, piece.last] {
                        bytes.extend_from_slice(&end.to_le_bytes()[..width.bytes()]);
                    }
                    bytes.extend_from_slice(&piece.slope.to_le_bytes());
                    bytes.extend_from_slice(&piece.base.to_le_bytes());
                    bytes.extend_from_slice(&piece.shift.to_le_bytes());
                }
                round.piece_count = linear.pieces.len() as u32;
                round.pieces = sent.put(&bytes);
                Self {
                    counting: ["bk_count_linear", "bk_count_linear_any"],
                    collecting: "bk_collect_linear",
                    needed: 0,
                    liked: PLACE_BYTES + bytes.len(),
                }
            }
        })
    }
}

impl RoundArgument {
    /// The entries and ends of a table.
    fn put_table(&mut self, table: &CellTable, sent: &mut Sent) {
        let entries = table.entries.iter().flat_map(|entry| [entry.add, entry.shift]);
        self.entries = sent.put(bytemuck::cast_slice(&entries.collect::<Vec<u32>>()));
        self.entry_count = table.entries.len() as u32;
        (self.base, self.top) = (halves(table.base), halves(table.top));
        self.shift = table.shift;
    }

    /// What was sent lies at `base`.
    pub(super) fn moved(&mut self, base: u64) {
        for address in [
            &mut self.within,
            &mut self.entries,
            &mut self.edges,
            &mut self.pieces,
            &mut self.map,
            &mut self.starts,
            &mut self.extremes,
        ] {
            *address += base;
        }
    }
}
