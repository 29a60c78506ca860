//! The best `k` rows of each group of one part of grouped rows, as partitioning by group yields it.
//!
//! A counting sort brings each group's rows together; groups of up to 64 rows are then ordered by comparing all with
//! all ([`ranking`](super::ranking)), larger ones by selection. A group that has many times `k` rows gets room for a few
//! times `k` only: once that is full, its floor rejects most rows before they are kept ([`slots`](super::slots)).
//! Nothing is allocated for a group, and nothing for a part once the memory is as large as the largest needed.

use super::filter::CHUNK;
use super::floor::Floor;
use super::ranking::FEW;
use super::slots::{Segments, Slot, Slots, WhenFull};
use crate::key::Key;
use datafusion::common::{Result, internal_err};

use super::make_room;

/// Some rows of a part: slices of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupedRows<'a, K, R> {
    /// The number of each row's group.
    pub(crate) groups: &'a [u32],
    /// Its key.
    pub(crate) keys: &'a [K],
    /// Its number: the lower one comes first among equal keys.
    pub(crate) rows: &'a [R],
}

impl<K, R> GroupedRows<'_, K, R> {
    /// # Errors
    /// If they are not of one length.
    pub(crate) fn check(&self) -> Result<()> {
        let (groups, keys, rows) = (self.groups.len(), self.keys.len(), self.rows.len());
        if groups != keys || rows != keys {
            return internal_err!("{groups} groups and {rows} row numbers for {keys} keys");
        }
        Ok(())
    }
}

/// A group of more than so many times `k` rows is not kept as a whole, nor is one of more than twice [`FEW`] rows if
/// that is more.
const LARGE: usize = 4;

/// The best `k` rows of each group of a part; the memory is used again for the next part.
///
/// `R` is the type of row numbers: `u32` inside a part. Holds about `size_of::<K>() + size_of::<R>()` bytes a row and 24 a group of
/// the largest part so far.
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
    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slots.held_bytes()
    }

    /// Appends to `out` the best `k` rows of each of `groups` groups: all of a group that has no more.
    ///
    /// Row numbers are distinct. Where they ascend, as they do in the order of arrival, equal keys cost least.
    ///
    /// # Errors
    /// If `k` is zero, the slices of a piece differ in length, a group's number is not below `groups`, or there are
    /// 2^32 rows or more; when the system gives no memory.
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
                    .offer(piece.groups, piece.keys, piece.rows, &mut Cut { k })?;
            }
        }
        self.slots.rank(k, ascending(pieces), out)
    }

    /// The best row of each group: its floor is all that has to be kept.
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

    /// Empty slots.
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

    /// Leaves in each slot's `next` the rows of its group.
    fn count(&mut self, groups: usize, pieces: &[GroupedRows<'_, K, R>]) -> Result<()> {
        self.clear(groups)?;
        let slots = &mut self.slots.slots;
        let mut rows = 0_usize;
        for piece in pieces {
            piece.check()?;
            rows = rows.saturating_add(piece.keys.len());
            // An upper bound on what is laid out, with a free place in each group and what may be read beyond.
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

    /// Turns counts into extents; whether all groups are kept as a whole.
    fn lay_out(&mut self, k: usize) -> Result<bool> {
        let most = k.saturating_mul(LARGE).max(2 * FEW);
        let (mut start, mut whole) = (0, true);
        for slot in &mut self.slots.slots {
            let rows = slot.next as usize;
            whole &= rows <= most;
            // One more than its rows: the extent of a group that is not cut never fills.
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

    /// Brings the rows of each group together; the groups were checked by [`Self::count`].
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

/// A full extent is cut.
struct Cut {
    k: usize,
}

impl<K: Key, R: Key> WhenFull<K, R> for Cut {
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
        // In pieces without an early end, so that the compiler vectorises it.
        let pairs = |rows: &[R]| {
            rows.iter()
                .zip(rows.iter().skip(1))
                .fold(true, |all, (a, b)| all & (a < b))
        };
        follows && piece.rows.chunks(CHUNK).all(pairs) && piece.rows.iter().step_by(CHUNK).is_sorted()
    })
}
