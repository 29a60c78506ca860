//! The best `k` rows of each group of one hash partition.
//!
//! A counting sort brings each group's rows together. Groups of up to 64 rows are then ordered by comparing all with
//! all ([`ranking`](super::ranking)), larger ones by selection. A group that has many times `k` rows gets room for only
//! a few times `k`: once that is full, its floor rejects most rows before they are stored ([`slots`](super::slots)).
//! Nothing is allocated for a group, and nothing for a hash partition once the memory suffices for the largest one.

use super::filter::CHUNK;
use super::floor::Floor;
use super::ranking::FEW;
use super::slots::{Segments, Slot, Slots, WhenFull};
use crate::key::Key;
use datafusion::common::{Result, internal_err};

use super::make_room;

/// Some rows of a hash partition: slices of equal length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupedRows<'a, K, R> {
    /// The number of each row's group.
    pub(crate) groups: &'a [u32],
    /// The key of each row.
    pub(crate) keys: &'a [K],
    /// The row number of each row: the lower one comes first among equal keys.
    pub(crate) rows: &'a [R],
}

impl<K, R> GroupedRows<'_, K, R> {
    /// # Errors
    /// An internal error if the slices differ in length.
    pub(crate) fn check(&self) -> Result<()> {
        let (groups, keys, rows) = (self.groups.len(), self.keys.len(), self.rows.len());
        if groups != keys || rows != keys {
            return internal_err!("{groups} groups and {rows} row numbers for {keys} keys");
        }
        Ok(())
    }
}

/// A group gets room for only some of its rows if it has more than this multiple of `k` rows, and more than twice
/// [`FEW`].
const LARGE: usize = 4;

/// Finds the best `k` rows of each group of a hash partition. The memory is used again for the next one.
///
/// `R` is the type of row numbers: `u32` inside a hash partition. Holds about `size_of::<K>() + size_of::<R>()` bytes
/// for each row and 24 for each group of the largest hash partition so far.
#[derive(Debug)]
pub(crate) struct SegmentBest<K, R = u32> {
    slots: Slots<K, R>,
}

impl<K: Key, R: Key> Default for SegmentBest<K, R> {
    fn default() -> Self {
        Self { slots: Slots::new() }
    }
}

impl<K: Key, R: Key> SegmentBest<K, R> {
    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slots.held_bytes()
    }

    /// Appends to `out` the best `k` rows of each of `groups` groups. A group with fewer rows gets all of them.
    ///
    /// Row numbers are distinct. Equal keys cost least where row numbers ascend, as they do in the order of arrival.
    ///
    /// # Errors
    /// An internal error if `k` is zero, the slices of a piece differ in length, a group's number is not below
    /// `groups`, or there are 2^32 rows or more; `ResourcesExhausted` when the system gives no memory.
    pub(crate) fn best(
        &mut self,
        groups: usize,
        pieces: &[GroupedRows<'_, K, R>],
        k: usize,
        out: &mut Segments<K, R>,
    ) -> Result<()> {
        if k == 0 {
            return internal_err!("k must be at least 1");
        }
        if k == 1 {
            return self.first(groups, pieces, out);
        }
        self.count(groups, pieces)?;
        let whole = self.lay_out(k)?;
        for piece in pieces {
            if whole {
                self.scatter(piece);
            } else {
                self.slots
                    .offer(piece.groups, piece.keys, piece.rows, &mut CutWhenFull { k })?;
            }
        }
        self.slots.rank(k, ascending(pieces), out)
    }

    /// Finds the best row of each group: with `k = 1` the floor of the group is its best row, so nothing else is
    /// stored.
    fn first(
        &mut self,
        groups: usize,
        pieces: &[GroupedRows<'_, K, R>],
        out: &mut Segments<K, R>,
    ) -> Result<()> {
        self.clear(groups)?;
        let slots = &mut self.slots.slots;
        for piece in pieces {
            piece.check()?;
            for ((group, key), row) in piece.groups.iter().zip(piece.keys).zip(piece.rows) {
                let Some(slot) = slots.get_mut(*group as usize) else {
                    return internal_err!("group {group} of {groups}");
                };
                if slot.floor.admits(*key, *row) {
                    slot.floor = Floor { key: *key, row: *row };
                }
                slot.next = 1;
            }
        }
        make_room(&mut out.offsets, groups, usize::MAX)?;
        make_room(&mut out.keys, groups, usize::MAX)?;
        make_room(&mut out.rows, groups, usize::MAX)?;
        for slot in slots {
            if slot.next > 0 {
                out.keys.push(slot.floor.key);
                out.rows.push(slot.floor.row);
            }
            out.offsets.push(out.keys.len());
        }
        Ok(())
    }

    /// Makes an empty slot for each group.
    fn clear(&mut self, groups: usize) -> Result<()> {
        let empty = Slot {
            floor: Floor::open(),
            start: 0,
            next: 0,
            end: 0,
        };
        let slots = &mut self.slots.slots;
        slots.clear();
        make_room(slots, groups, usize::MAX)?;
        slots.resize(groups, empty);
        Ok(())
    }

    /// Counts the rows of each group in the `next` field of its slot.
    fn count(&mut self, groups: usize, pieces: &[GroupedRows<'_, K, R>]) -> Result<()> {
        self.clear(groups)?;
        let slots = &mut self.slots.slots;
        let mut rows = 0_usize;
        for piece in pieces {
            piece.check()?;
            rows = rows.saturating_add(piece.keys.len());
            // An upper bound on the size of the extents, with one free row for each group and the rows that may be read
            // beyond the end.
            if rows.saturating_add(groups).saturating_add(FEW) > u32::MAX as usize {
                return internal_err!("{rows} rows and {groups} groups in one part");
            }
            for group in piece.groups {
                match slots.get_mut(*group as usize) {
                    Some(slot) => slot.next += 1,
                    None => return internal_err!("group {group} of {groups}"),
                }
            }
        }
        Ok(())
    }

    /// Turns counts into extents. Returns whether there is room for all rows of all groups.
    fn lay_out(&mut self, k: usize) -> Result<bool> {
        let most = k.saturating_mul(LARGE).max(2 * FEW);
        let (mut start, mut whole) = (0, true);
        for slot in &mut self.slots.slots {
            let rows = slot.next as usize;
            whole &= rows <= most;
            // One row more than needed: the extent of a group that is not cut never fills.
            let capacity = if rows <= most { rows + 1 } else { most };
            (slot.start, slot.next) = (start, start);
            start += capacity as u32;
            slot.end = start;
        }
        let len = start as usize + FEW;
        let Slots { keys, rows, .. } = &mut self.slots;
        make_room(keys, len.saturating_sub(keys.len()), usize::MAX)?;
        make_room(rows, len.saturating_sub(rows.len()), usize::MAX)?;
        if keys.len() < len {
            keys.resize(len, K::default());
            rows.resize(len, R::default());
        }
        self.slots.forget_lowest();
        Ok(whole)
    }

    /// Brings the rows of each group together. [`Self::count`] has checked the group numbers.
    fn scatter(&mut self, piece: &GroupedRows<'_, K, R>) {
        let Slots {
            slots, keys, rows, ..
        } = &mut self.slots;
        for ((group, key), row) in piece.groups.iter().zip(piece.keys).zip(piece.rows) {
            let slot = &mut slots[*group as usize];
            let at = slot.next as usize;
            (keys[at], rows[at]) = (*key, *row);
            slot.next += 1;
        }
    }
}

/// Cuts a group whose extent is full to its best `k` rows.
struct CutWhenFull {
    k: usize,
}

impl<K: Key, R: Key> WhenFull<K, R> for CutWhenFull {
    #[inline(never)]
    fn make_room(&mut self, slots: &mut Slots<K, R>, group: usize) -> Result<()> {
        slots.cut(group, self.k)
    }
}

/// Whether row numbers ascend over all pieces.
fn ascending<K, R: Key>(pieces: &[GroupedRows<'_, K, R>]) -> bool {
    let mut last = None;
    pieces.iter().all(|piece| {
        let follows = match (last, piece.rows.first()) {
            (Some(last), Some(first)) => last < *first,
            _ => true,
        };
        last = piece.rows.last().copied().or(last);
        // In chunks, without an early exit inside, so that the compiler vectorises the loop.
        let pairs = |rows: &[R]| {
            rows.iter()
                .zip(rows.iter().skip(1))
                .fold(true, |all, (a, b)| all & (a < b))
        };
        follows && piece.rows.chunks(CHUNK).all(pairs) && piece.rows.iter().step_by(CHUNK).is_sorted()
    })
}
