//! Cell functions in the form that the kernels of `kernels/bucket.cu` take, and the input that is copied to the device for them.

use datafusion::common::Result;

use super::launch::{ColumnArgument, halves, kernel_argument};
use crate::cells::Brackets;
use crate::cells::{CellTable, Cells};
use crate::key::KeyVec;
use crate::key::{KeyBits, Width};

/// Bytes of shared memory for the entries of a [`CellTable`].
pub(super) const TABLE_BYTES: usize = 2048 * 4;
/// Cells of a guide for each splitter. A guide has one more cell for each entry of its table.
const GUIDE_SHARE: usize = 4;
/// Least cells of a guide.
const GUIDE_LEAST: usize = 4096;
/// Most cells of a guide where keys are counted.
pub(super) const GUIDE_MOST: usize = 28_000;
/// Most cells of a guide where lists share the memory with it.
pub(super) const GUIDE_MOST_BESIDE: usize = 12_000;
/// Bytes of shared memory for the guide to pieces.
const PLACE_BYTES: usize = (2048 + 8) * 2;

kernel_argument! {
    /// `struct Round` of `kernels/bucket_cells.cuh`, which explains the fields.
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

/// The bytes that a pass copies to the device, each item aligned to 16 bytes.
#[derive(Debug, Default)]
pub(super) struct RoundInput(pub(super) Vec<u8>);

impl RoundInput {
    /// Appends an item, and returns the index of its first byte.
    pub(super) fn put(&mut self, item: &[u8]) -> u64 {
        let start = self.0.len();
        self.0.extend_from_slice(item);
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

/// The kernels for a cell function, and the bytes of shared memory for it.
pub(super) struct CellKernels {
    /// Kernels that count: the plain one, for all keys with counters in shared memory, and the one for all other cases.
    pub(super) counting: [&'static str; 2],
    /// Kernel that collects keys.
    pub(super) collecting: &'static str,
    /// Bytes of shared memory that the function must have.
    pub(super) needed: usize,
    /// Bytes of shared memory that make it faster: splitters, or pieces.
    pub(super) liked: usize,
}

impl CellKernels {
    /// Puts the cell function into `input` and `round`, where addresses count from the front of the input until [`RoundArgument::moved`].
    /// A guide has at most `guide_most` cells, without those of entries.
    ///
    /// # Errors
    /// An internal error if splitters are not ascending.
    pub(super) fn of(
        cells: &Cells,
        width: Width,
        guide_most: usize,
        input: &mut RoundInput,
        round: &mut RoundArgument,
    ) -> Result<Self> {
        round.cells = cells.len() as u32;
        Ok(match cells {
            Cells::Table(table) => {
                round.put_table(table, input);
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
                round.edges = input.put_keys(edges.iter().copied(), width);
                round.edge_count = edges.len() as u32;
                let mut needed = 0;
                if !edges.is_empty() {
                    let most = (GUIDE_SHARE * edges.len()).clamp(GUIDE_LEAST, guide_most);
                    let guide =
                        CellTable::from_sample(&KeyVec::from_bits(edges.iter().copied(), width), most)?;
                    round.put_table(&guide, input);
                    round.guide_cells = guide.len() as u32;
                    // One word more than cells, rounded up to whole vectors.
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
                round.pieces = input.put(&bytes);
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
    /// Puts the entries and the ends of a table into `input` and the round.
    fn put_table(&mut self, table: &CellTable, input: &mut RoundInput) {
        let entries = table.entries.iter().flat_map(|entry| [entry.add, entry.shift]);
        self.entries = input.put(bytemuck::cast_slice(&entries.collect::<Vec<u32>>()));
        self.entry_count = table.entries.len() as u32;
        (self.base, self.top) = (halves(table.base), halves(table.top));
        self.shift = table.shift;
    }

    /// Adds the address `base` of the input on the device to all addresses that count from its front.
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
