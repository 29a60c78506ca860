//! Cells by linear projection inside pivot intervals.

use datafusion::common::{Result, internal_err};

use super::{Bracket, MAX_CELLS};
use crate::key::{KeyBits, Width};

/// One pivot interval of [`Linear`], both pivots inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub(crate) first: KeyBits,
    pub(crate) last: KeyBits,
    pub(crate) base: u32,
    pub(crate) cells: u32,
    /// Number of bits that the length of the interval is shifted by to the upper end of a field of 64 bits (for keys of
    /// 128 bits, of 128 bits, of which the upper half is used).
    pub(crate) shift: u32,
    /// Number of cells for each 2^64 of the shifted distance, rounded down.
    pub(crate) slope: u64,
}

impl Piece {
    /// The keys from the left to the right pivot, both included.
    pub(crate) fn bracket(&self) -> Bracket {
        Bracket {
            first: self.first,
            last: self.last,
        }
    }
}

/// Linear projection inside disjoint pivot intervals: DIBMS's `slope * (key - left pivot)` (section II-A2, eq. 5),
/// with the slope as an integer, so that the ends of a bucket are exact.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    pub(crate) pieces: Vec<Piece>,
    width: Width,
}

impl Linear {
    /// A cell function from intervals and their numbers of buckets, in ascending order. An interval of fewer keys than
    /// buckets gets one bucket a key.
    ///
    /// # Errors
    /// An internal error for no interval, an interval without a bucket or beyond the keys of `width`, or more than [`MAX_CELLS`].
    pub fn try_new(intervals: &[(Bracket, u32)], width: Width) -> Result<Self> {
        let field = width.bytes() as u32 * 8;
        let field = field.max(64);
        let mut pieces = Vec::with_capacity(intervals.len());
        let mut base = 0_u32;
        for &(Bracket { first, last }, cells) in intervals {
            if first > last || last > width.max_key() {
                return internal_err!("buckets from {first} to {last} of {width:?} keys");
            }
            let cells = KeyBits::from(cells).min((last - first).saturating_add(1)) as u32;
            if cells == 0 || base as usize + cells as usize > MAX_CELLS {
                return internal_err!("{cells} buckets for {first}..={last}, after {base}");
            }
            let shift = (last - first).max(1).leading_zeros() - (KeyBits::BITS - field);
            let longest = upper64(last - first, shift, field);
            let slope = (u128::from(cells) << 64) / (u128::from(longest) + 1);
            let slope = u64::try_from(slope).unwrap_or(u64::MAX);
            pieces.push(Piece {
                first,
                last,
                base,
                cells,
                shift,
                slope,
            });
            base += cells;
        }
        if pieces.is_empty() {
            return internal_err!("linear buckets need an interval");
        }
        Ok(Self { pieces, width })
    }

    /// The pieces, ascending.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn len(&self) -> usize {
        let last = self.pieces[self.pieces.len() - 1];
        (last.base + last.cells) as usize
    }

    fn field(&self) -> u32 {
        (self.width.bytes() as u32 * 8).max(64)
    }

    pub(super) fn cell(&self, key: KeyBits) -> Option<u32> {
        let at = self
            .pieces
            .partition_point(|piece| piece.first <= key)
            .checked_sub(1)?;
        let piece = self.pieces[at];
        (key <= piece.last).then(|| {
            let distance = upper64(key - piece.first, piece.shift, self.field());
            piece.base + ((u128::from(distance) * u128::from(piece.slope)) >> 64) as u32
        })
    }

    pub(super) fn range(&self, cell: u32) -> Option<Bracket> {
        let at = self
            .pieces
            .partition_point(|piece| piece.base <= cell)
            .checked_sub(1)?;
        let piece = self.pieces[at];
        let local = cell - piece.base;
        let first = self.first_distance(&piece, local)?;
        let next = (local + 1..piece.cells).find_map(|next| self.first_distance(&piece, next));
        let last = next.map_or(piece.last, |next| piece.first + (next - 1));
        let first = piece.first + first;
        (first <= last).then_some(Bracket { first, last })
    }

    /// The least distance from the left pivot at which a key falls into bucket `local` of the piece, or into a later
    /// one.
    fn first_distance(&self, piece: &Piece, local: u32) -> Option<KeyBits> {
        let moved = (u128::from(local) << 64).div_ceil(u128::from(piece.slope));
        // Back from the field's upper 64 bits: a distance of at least moved * 2^(field - 64) / 2^shift.
        let up = self.field() - 64;
        let distance = if up >= piece.shift {
            moved
                .checked_shl(up - piece.shift)
                .filter(|far| far >> (up - piece.shift) == moved)?
        } else {
            moved.div_ceil(1 << (piece.shift - up))
        };
        (distance <= piece.last - piece.first).then_some(distance)
    }
}

/// The upper 64 bits of `distance << shift` in a field of this many bits.
fn upper64(distance: KeyBits, shift: u32, field: u32) -> u64 {
    ((distance << shift) >> (field - 64)) as u64
}
