//! The replies of a shard on a device: counts, lists of keys, samples and sketches, by the passes of `pass.rs`.

use datafusion::common::Result;

use super::buffer::numbers;
use super::launch::ColumnArgument;
use super::pass::{NO_LIST, Passes, cells_of};
use super::shard::{BracketCopy, CudaShard, granted};
use crate::cells::{Bracket, Brackets, Cells};
use crate::kernel::intervals::{LEAST_SHARE, intervals};
use crate::kernel::round::Reply;
use crate::key::{KeyVec, ShardKey, Width};
use crate::sketch::{AnySketch, AnySummary, Epsilon, Variant};
use crate::threads::Stop;

/// Most keys that are copied to the host at once for a sketch.
const SKETCHED: u64 = 1 << 22;
/// The keys inside brackets are copied to a buffer of their own if they are at most one in so many.
const REDUCED: u64 = 4;

impl CudaShard {
    /// Columns that hold all keys inside `within`, and whether they hold no other keys. `within` is not the whole range of keys.
    fn source(&self, within: &Brackets) -> (Vec<ColumnArgument>, bool) {
        match &self.bracket_copy {
            Some(bracket_copy) if bracket_copy.brackets.cover(within) => {
                let column = ColumnArgument::dense(bracket_copy.values.address(), bracket_copy.len);
                (vec![column], bracket_copy.brackets == *within)
            }
            _ => (self.arguments(), false),
        }
    }

    /// Number of keys inside each bracket, if the last count says it.
    fn known_sizes(&self, brackets: &Brackets) -> Result<Option<Vec<u64>>> {
        let Some((cells, counts)) = &self.counted else {
            return Ok(None);
        };
        let mut sizes = Vec::with_capacity(brackets.as_slice().len());
        for bracket in brackets.as_slice() {
            // Keys outside of all cells were not counted.
            let (Some(first), Some(last)) = (cells.cell(bracket.first), cells.cell(bracket.last)) else {
                return Ok(None);
            };
            let range = |cell| cells.range(cell, self.width());
            let (Some(from), Some(to)) = (range(first), range(last)) else {
                return Ok(None);
            };
            let joined = match cells {
                Cells::Linear(_) => (first..last).all(|cell| {
                    let (own, next) = (range(cell), range(cell + 1));
                    own.zip(next)
                        .is_some_and(|(own, next)| own.last + 1 == next.first)
                }),
                Cells::Table(_) | Cells::Edges(_) => true,
            };
            if !joined || from.first < bracket.first || to.last > bracket.last {
                return Ok(None);
            }
            sizes.push(counts[first as usize..=last as usize].iter().sum());
        }
        Ok(Some(sizes))
    }

    /// A map from cells to lists, one for each bracket. Brackets consist of whole cells.
    fn map_of(cells: &Cells, brackets: &Brackets) -> Result<Vec<u16>> {
        let mut map = vec![NO_LIST; cells.len()];
        for (list, bracket) in brackets.as_slice().iter().enumerate() {
            let (first, last) = cells.span(bracket)?;
            map[first as usize..=last as usize].fill(list as u16);
        }
        Ok(map)
    }

    /// Copies the keys inside `within` to a buffer of their own, if they are few and there is memory. Some other keys may be copied, too.
    fn reduce(&mut self, within: &Brackets, stop: &Stop) -> Result<()> {
        if within.is_all(self.width()) || self.covers(within) {
            return Ok(());
        }
        stop.check()?;
        let passes = self.passes_over(false)?;
        let (columns, _) = self.source(within);
        let (cells, map, sizes) = match self.known_sizes(within)? {
            Some(sizes) => {
                let (cells, _) = self.counted.clone().unzip();
                let Some(cells) = cells else { return Ok(()) };
                let map = Self::map_of(&cells, within)?;
                (cells, map, sizes)
            }
            None => {
                let (cells, map) = cells_of(within.as_slice(), self.width())?;
                let counts = passes.count(&columns, &cells, None)?;
                let sizes = sums(&counts, &map, within.as_slice().len());
                (cells, map, sizes)
            }
        };
        let total = sizes.iter().sum::<u64>();
        if total > self.len / REDUCED {
            return Ok(());
        }
        stop.check()?;
        // One list for all keys, because their order does not matter.
        let map: Vec<u16> = map
            .into_iter()
            .map(|list| if list == NO_LIST { NO_LIST } else { 0 })
            .collect();
        let words = Some(self.word_bytes());
        let collected = passes.collect(&columns, &cells, (&map, &[total]), None, words);
        if let Some(values) = granted(collected)? {
            self.bracket_copy = Some(BracketCopy {
                brackets: within.clone(),
                values,
                len: total,
                in_order: false,
            });
        }
        Ok(())
    }

    fn covers(&self, within: &Brackets) -> bool {
        self.bracket_copy
            .as_ref()
            .is_some_and(|bracket_copy| bracket_copy.brackets.cover(within))
    }

    /// Copies exactly the keys inside `within` to a buffer of their own, in the order of the shard, and returns their number. `None` if
    /// there is no memory for them.
    fn in_order(&mut self, within: &Brackets) -> Result<Option<u64>> {
        if let Some(bracket_copy) = &self.bracket_copy
            && bracket_copy.in_order
            && bracket_copy.brackets == *within
        {
            return Ok(Some(bracket_copy.len));
        }
        let passes = self.passes_over(false)?;
        let (cells, map) = cells_of(within.as_slice(), self.width())?;
        let columns = match &self.bracket_copy {
            Some(bracket_copy) if bracket_copy.in_order => self.source(within).0,
            _ => self.arguments(),
        };
        let compacted = passes.compact(&columns, &cells, &map, self.word_bytes(), u64::MAX);
        let Some(Some((values, len))) = granted(compacted)? else {
            return Ok(None);
        };
        self.bracket_copy = Some(BracketCopy {
            brackets: within.clone(),
            values,
            len,
            in_order: true,
        });
        Ok(Some(len))
    }

    /// The range of the keys inside `within` that can have a cell.
    fn domain(&self, cells: &Cells, within: &Brackets) -> Result<Brackets> {
        match cells {
            Cells::Linear(linear) if within.is_all(self.width()) => {
                let mut domain: Vec<Bracket> = Vec::new();
                for piece in &linear.pieces {
                    let piece = piece.bracket();
                    match domain.last_mut() {
                        Some(last) if last.last + 1 == piece.first => last.last = piece.last,
                        _ => domain.push(piece),
                    }
                }
                // One piece is the whole range of the data, as in the first phase of DIBMS.
                match domain.len() {
                    1 if self.bracket_copy.is_none() => Ok(within.clone()),
                    _ => Brackets::try_new(domain),
                }
            }
            _ => Ok(within.clone()),
        }
    }

    pub(super) fn count(
        &mut self,
        cells: &Cells,
        within: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let domain = self.domain(cells, within)?;
        self.reduce(&domain, stop)?;
        stop.check()?;
        let all = domain.is_all(self.width());
        let passes = self.passes_over(false)?;
        let (columns, exact) = if all {
            (self.arguments(), true)
        } else {
            self.source(&domain)
        };
        // A key outside of all pieces has no cell, so that brackets need not be looked up.
        let by_cells = matches!(cells, Cells::Linear(_)) && within.is_all(self.width());
        let inside = (!exact && !by_cells).then_some(&domain);
        let counts = passes.count(&columns, cells, inside)?;
        if all {
            self.counted = Some((cells.clone(), counts.clone()));
        }
        let kept = match keep {
            [] => Vec::new(),
            keep => {
                let mut map = vec![NO_LIST; cells.len()];
                let mut sizes = Vec::with_capacity(keep.len());
                for (list, cell) in keep.iter().enumerate() {
                    map[*cell as usize] = list as u16;
                    sizes.push(counts[*cell as usize]);
                }
                stop.check()?;
                self.lists(&passes, &columns, cells, (&map, &sizes), inside)?
            }
        };
        Ok(Reply::Counts { counts, kept })
    }

    pub(super) fn extract(&mut self, brackets: &Brackets, stop: &Stop) -> Result<Reply> {
        let slice = brackets.as_slice();
        if slice.is_empty() {
            return Ok(Reply::Extracted(Vec::new()));
        }
        let passes = self.passes_over(false)?;
        let known = if self.covers(brackets) {
            None
        } else {
            self.known_sizes(brackets)?
        };
        if let (Some(sizes), Some((cells, _))) = (known, &self.counted) {
            let map = Self::map_of(cells, brackets)?;
            let cells = cells.clone();
            let lists = self.lists(&passes, &self.arguments(), &cells, (&map, &sizes), None)?;
            return Ok(Reply::Extracted(lists));
        }
        let (columns, _) = self.source(brackets);
        let (cells, map) = cells_of(slice, self.width())?;
        let counts = passes.count(&columns, &cells, None)?;
        let sizes = sums(&counts, &map, slice.len());
        stop.check()?;
        let lists = self.lists(&passes, &columns, &cells, (&map, &sizes), None)?;
        Ok(Reply::Extracted(lists))
    }

    /// The keys of some cells in lists, as `map` and `sizes` say. No lists if there is no memory for them.
    fn lists(
        &self,
        passes: &Passes,
        columns: &[ColumnArgument],
        cells: &Cells,
        (map, sizes): (&[u16], &[u64]),
        within: Option<&Brackets>,
    ) -> Result<Vec<KeyVec>> {
        let (width, total) = (self.width(), sizes.iter().sum::<u64>());
        if total == 0 {
            return Ok(sizes.iter().map(|_| KeyVec::new(width)).collect());
        }
        let bytes = total as usize * width.bytes();
        // Twice the bytes, because the keys exist as bytes and as keys for a moment.
        if self.reservation.try_resize(2 * bytes).is_err() {
            return Ok(Vec::new());
        }
        let collected = passes.collect(columns, cells, (map, sizes), within, None);
        let Some(collected) = granted(collected)? else {
            self.reservation.free();
            return Ok(Vec::new());
        };
        let fetched = passes.fetched(&collected, bytes)?;
        let mut rest = fetched.as_slice();
        let lists = sizes.iter().map(|size| {
            let (own, others) = rest.split_at(*size as usize * width.bytes());
            rest = others;
            keys_from(own, width)
        });
        Ok(lists.collect())
    }

    pub(super) fn sample(
        &mut self,
        within: &Brackets,
        share: impl Fn(u64) -> u64,
        seed: u64,
        extremes: bool,
        stop: &Stop,
    ) -> Result<Reply> {
        let empty = Reply::Sample {
            keys: KeyVec::new(self.width()),
            extremes: None,
        };
        let (own, columns) = if within.is_all(self.width()) {
            (self.len, self.arguments())
        } else {
            match self.in_order(within)? {
                Some(own) => (own, self.source(within).0),
                // A coordinator that gets no sample asks for a count.
                None => return Ok(empty),
            }
        };
        if own == 0 {
            return Ok(empty);
        }
        stop.check()?;
        let passes = self.passes_over(false)?;
        let extremes = if extremes {
            Some(passes.extremes(&columns)?)
        } else {
            None
        };
        let count = share(own).min(own);
        self.reservation
            .try_resize(2 * count as usize * self.width().bytes())?;
        let mut keys = match count {
            0 => KeyVec::new(self.width()),
            count => keys_from(&passes.sample(&columns, own, count, seed)?, self.width()),
        };
        keys.sort();
        Ok(Reply::Sample { keys, extremes })
    }

    pub(super) fn sketch<K: ShardKey>(&mut self, eps: Epsilon, stop: &Stop) -> Result<Reply> {
        let (width, n) = (self.width(), self.len);
        let most = eps.budget(n).saturating_sub(1);
        if most >= LEAST_SHARE
            && let Some((ends, intervals)) = intervals::<K>(self, width, most, true, stop)?
        {
            // The copy for the counts of a few intervals is of no use in later rounds.
            self.bracket_copy = None;
            let summary = AnySummary::from_intervals(width, eps, ends, &intervals)?;
            return Ok(Reply::Sketch(Some(summary)));
        }
        let block = SKETCHED.min(n) as usize * 2 * width.bytes();
        let bytes = AnySketch::most_bytes(width, eps, n) + block;
        if self.reservation.try_resize(bytes).is_err() {
            return Ok(Reply::Sketch(None));
        }
        let mut sketch = AnySketch::new(width, eps, Variant::Modified);
        let passes = self.passes_over(false)?;
        for column in self.arguments() {
            let mut from = 0;
            while from < column.row_count() {
                stop.check()?;
                let count = SKETCHED.min(column.row_count() - from);
                let keys: Vec<K> = numbers(&passes.keys(column, from, count)?);
                sketch.extend_slice(&keys)?;
                from += count;
            }
        }
        Ok(Reply::Sketch(Some(sketch.partial()?)))
    }
}

/// Number of keys in each of `lists` lists, from the counts of cells.
fn sums(counts: &[u64], map: &[u16], lists: usize) -> Vec<u64> {
    let mut sizes = vec![0; lists];
    for (count, list) in counts.iter().zip(map) {
        if *list != NO_LIST {
            sizes[usize::from(*list)] += count;
        }
    }
    sizes
}

fn keys_from(bytes: &[u8], width: Width) -> KeyVec {
    match width {
        Width::W32 => KeyVec::W32(numbers(bytes)),
        Width::W64 => KeyVec::W64(numbers(bytes)),
        Width::W128 => KeyVec::W128(numbers(bytes)),
    }
}
