//! The choice of a method for the best rows of groups, and the division of records among warps.

use super::sort::RecordShape;

/// Least number of records of a warp's share.
const SHORTEST: u64 = 4096;
/// Shares for each multiprocessor, unless they would be too short.
const SHARES: u64 = 64;
/// Bit of [`Chunk::out`] that marks a list of the answer: `LAST` of `kernels/group_top.cu`.
const LAST: u64 = 1 << 63;
/// The kernels that select: most rows of the queue, name, and the times for a record of 64 and of 128 bits in picoseconds, on an H200
/// with 2^27 records in 8 to 16 384 groups (`benches/results/2026-11-22-cuda.md`, *Best rows of groups*).
pub(super) const QUEUES: [(u64, &str, [u64; 2]); 4] = [
    (32, "gt_select_32", [6, 10]),
    (128, "gt_select_128", [8, 17]),
    (256, "gt_select_256", [12, 32]),
    (1024, "gt_select_1024", [33, 145]),
];
/// Times of one digit of the sort for a record of 64 and of 128 bits, in picoseconds.
const DIGIT: [u64; 2] = [10, 15];

/// How the best rows of groups are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopMethod {
    /// All rows are sorted.
    Sort,
    /// Rows are sorted by group, and warps select among the rows of each group.
    Warps,
    /// A sample gives a floor for each group, and one read of the keys finds the few rows that reach it, which are sorted.
    Floors,
    /// Rows of groups lie together already: one read of the keys finds few rows, which are sorted.
    Runs,
    /// As `Runs`, where a block reads each run, even if warps would be faster.
    RunsByBlocks,
    /// As `Runs`, where a warp reads each run, even if blocks would be faster.
    RunsByWarps,
}

/// `struct Chunk` of `kernels/group_top.cu`: a warp's share of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Index of its first record.
    pub(super) from: u64,
    /// Index at which its list begins, and [`LAST`].
    pub(super) out: u64,
    /// Number of its records.
    pub(super) length: u32,
    /// Index of its group.
    pub(super) group: u32,
}

impl Chunk {
    /// Bytes of the kernels' structure.
    pub(super) const BYTES: usize = 24;

    /// The structure as numbers of 64 bits.
    pub(super) fn words(self) -> [u64; 3] {
        [
            self.from,
            self.out,
            u64::from(self.length) | u64::from(self.group) << 32,
        ]
    }
}

/// Whether warps can select `k` records of this shape: a queue holds `k`, and an item has a bit above the key of a record.
pub(super) fn is_for_warps(shape: RecordShape, k: u64) -> bool {
    let bytes = shape.bytes().unwrap_or(0);
    k <= QUEUES[QUEUES.len() - 1].0 && (shape.key_bits as usize) < 8 * bytes
}

/// The faster method, by measured times, for the `k` best of each of at most `groups` groups among `records` records.
pub(super) fn method(records: u64, groups: u64, k: u64, shape: RecordShape) -> TopMethod {
    let Some((_, _, times)) = QUEUES.iter().find(|(most, ..)| k <= *most) else {
        return TopMethod::Sort;
    };
    // With short groups most of a warp is idle, and there are many lists.
    if !is_for_warps(shape, k) || records / groups.max(1) < SHORTEST.max(8 * k) {
        return TopMethod::Sort;
    }
    let wide = usize::from(shape.bytes() == Some(16));
    let saved = shape.passes(0).saturating_sub(shape.passes(shape.key_bits)) as u64;
    if saved * DIGIT[wide] > times[wide] {
        TopMethod::Warps
    } else {
        TopMethod::Sort
    }
}

/// Number of records of a warp's share.
pub(super) fn share(records: u64, k: u64, multiprocessors: u64) -> u64 {
    let even = records / (SHARES * multiprocessors.max(1));
    even.max(SHORTEST).max(8 * k).min(u64::from(u32::MAX))
}

/// Divides lists, one for each group and given by first record and length, into shares for one launch. Then `lists` are those for the
/// next launch: a list that took several shares has become at most an eighth as long, and all others are empty.
pub(super) fn shares(lists: &mut [(u64, u64)], offsets: &[u64], share: u64, k: u64) -> Vec<Chunk> {
    let (mut chunks, mut next) = (Vec::new(), 0);
    for (group, list) in lists.iter_mut().enumerate() {
        let (from, length) = *list;
        let mut chunk = |from: u64, out: u64, length: u64| {
            chunks.push(Chunk {
                from,
                out,
                length: length as u32,
                group: group as u32,
            });
        };
        match length {
            0 => {}
            _ if length <= share => {
                chunk(from, LAST | offsets[group], length);
                list.1 = 0;
            }
            _ => {
                let start = next;
                for at in (0..length).step_by(share as usize) {
                    let own = share.min(length - at);
                    chunk(from + at, next, own);
                    next += own.min(k);
                }
                *list = (start, next - start);
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_groups_are_for_warps() {
        let shape = |key_bits, code_bits| RecordShape { key_bits, code_bits };
        // 1000 groups of ids by prices: 128-bit records of which 90 bits would be sorted.
        assert_eq!(method(1 << 28, 1000, 10, shape(90, 10)), TopMethod::Warps);
        assert_eq!(method(1 << 28, 1000, 1024, shape(90, 10)), TopMethod::Warps);
        // More rows than a queue has, short groups, and keys of one digit.
        assert_eq!(method(1 << 28, 1000, 1025, shape(90, 10)), TopMethod::Sort);
        assert_eq!(method(1 << 28, 1 << 20, 10, shape(90, 20)), TopMethod::Sort);
        assert_eq!(method(1 << 28, 10, 1000, shape(8, 4)), TopMethod::Sort);
        // No bit above the key is left.
        assert_eq!(method(1 << 28, 1, 10, shape(128, 0)), TopMethod::Sort);
    }

    #[test]
    fn shares_of_lists_end() {
        let (share, k) = (100, 10);
        let mut lists = vec![(0, 1_000_003), (1_000_003, 7), (1_000_010, 100), (1_000_110, 101)];
        let lengths: Vec<u64> = lists.iter().map(|(_, length)| *length).collect();
        let offsets = [0, 10, 17, 27, 37];
        let mut last = vec![0; 4];
        let mut passes = 0;
        loop {
            let before = lists.clone();
            let chunks = shares(&mut lists, &offsets, share, k);
            if chunks.is_empty() {
                break;
            }
            passes += 1;
            for (group, (from, length)) in before.iter().enumerate() {
                let own: Vec<_> = chunks
                    .iter()
                    .filter(|chunk| chunk.group == group as u32)
                    .collect();
                let mut next = *from;
                for chunk in &own {
                    assert_eq!(chunk.from, next);
                    assert!(u64::from(chunk.length) <= share);
                    next += u64::from(chunk.length);
                }
                assert_eq!(next, from + length);
                if let [only] = own.as_slice() {
                    assert_eq!(only.out, LAST | offsets[group]);
                    last[group] = u64::from(only.length).min(k);
                }
            }
            // Lists of one pass lie one after the other.
            let mut inner: Vec<_> = chunks.iter().filter(|chunk| chunk.out & LAST == 0).collect();
            inner.sort_by_key(|chunk| chunk.out);
            for pair in inner.windows(2) {
                assert_eq!(pair[0].out + u64::from(pair[0].length).min(k), pair[1].out);
            }
        }
        assert_eq!(passes, 6);
        assert_eq!(
            Chunk::BYTES,
            size_of_val(
                &Chunk {
                    from: 0,
                    out: 0,
                    length: 0,
                    group: 0
                }
                .words()
            )
        );
        let expected: Vec<u64> = lengths.iter().map(|length| k.min(*length)).collect();
        assert_eq!(last, expected);
    }

    #[test]
    fn shares_fill_the_device() {
        assert_eq!(share(1 << 28, 10, 132), 31_775);
        assert_eq!(share(1000, 10, 132), SHORTEST);
        assert_eq!(share(1 << 20, 1000, 132), 8000);
    }
}
