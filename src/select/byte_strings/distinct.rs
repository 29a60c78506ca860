//! The distinct values among byte strings, by hash tables, each for a range of the hashes.
//!
//! ```text
//! in memory    each thread reads all values, and keeps those with hashes of its own range in a table
//! on disk, or  values are written to files by their hashes, once, and each file becomes a table; a file whose
//! too many     table finds no memory is written to files again, by further bits of the hashes
//! ```
//! Repeated values cost no memory, however many there are.

use std::sync::{Arc, Mutex};

use datafusion::common::{DataFusionError, Result, internal_err};

use super::ByteStringSelection;
use super::gather::PART_BYTES;
use super::level::{WorkChunk, each_value, work_chunks_of};
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::{ByteStrings, DistinctByteStrings, hash};
use crate::memory::{RoundMemory, is_exhausted};
use crate::threads::Stop;
use crate::threads::locked;

/// Most files that values are written to at a time.
const FAN: usize = 1 << FAN_BITS;
/// Bits of a hash that choose the file.
const FAN_BITS: u32 = 5;

/// Most times that a value is written to a file. Each time uses other bits of the lower half of the hash.
const DEEPEST: u32 = u32::BITS / FAN_BITS;

/// Fewest values that are worth a thread.
const VALUES_A_THREAD: u64 = 1 << 15;

/// Values with hashes in one range. Their distinct ones are expected to fit in memory.
struct HashRange {
    values: Arc<ByteStrings>,
    /// The range: its number, from 0, and the number of equal ranges that hashes are cut into.
    range: (u64, u64),
    /// How often the values were written to files.
    depth: u32,
}

impl HashRange {
    /// Whether the range holds a hash, by its upper half.
    fn has(&self, hash: u64) -> bool {
        let (number, ranges) = self.range;
        ranges == 1 || ((hash >> u32::BITS) * ranges) >> u32::BITS == number
    }

    /// The distinct values of the range.
    fn table(&self, round_memory: &Arc<RoundMemory>, stop: &Stop) -> Result<DistinctByteStrings> {
        let held = round_memory.hold(self.values.largest_block(), "distinct values")?;
        let mut table = DistinctByteStrings::try_new(held)?;
        let all = WorkChunk::Pieces(self.values.pieces());
        each_value(&self.values, &all, stop, |value| {
            let hash = hash(value);
            if self.has(hash) {
                table.insert(hash, value)
            } else {
                Ok(())
            }
        })?;
        Ok(table)
    }
}

impl ByteStringSelection {
    /// The distinct values of `values`, in several lists.
    ///
    /// # Errors
    /// `ResourcesExhausted` where memory is refused and there is no disk, or no room on it; when cancelled.
    pub(crate) async fn distinct(&self, values: ByteStrings) -> Result<Vec<ByteStrings>> {
        // All lists begin before tables take memory.
        let lists = (0..self.pool.threads().max(1))
            .map(|_| ByteStrings::spilling(self.memory.new_empty(), self.disk.clone()));
        let outputs = Arc::new(Outputs {
            lists: Mutex::new(lists.collect::<Result<_>>()?),
        });
        let is_spilled = values.is_spilled();
        let ranges = if is_spilled {
            1
        } else {
            values
                .len()
                .div_ceil(VALUES_A_THREAD)
                .clamp(1, self.pool.threads() as u64)
        };
        let values = Arc::new(values);
        let parts = (0..ranges).map(|number| HashRange {
            values: Arc::clone(&values),
            range: (number, ranges),
            depth: 0,
        });
        let mut parts: Vec<HashRange> = parts.collect();
        drop(values);
        if is_spilled && let Some(all) = parts.pop() {
            parts = self.dealt_by_hash(all).await?;
        }
        while !parts.is_empty() {
            let refused = self.collect(parts, &outputs).await?;
            parts = Vec::new();
            for (part, error) in refused.into_iter().flatten() {
                if self.disk.is_none() || part.depth == DEEPEST {
                    return Err(error);
                }
                parts.extend(self.dealt_by_hash(part).await?);
            }
        }
        let mut lists = std::mem::take(&mut *locked(&outputs.lists));
        // At least one remains.
        lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
        let used = lists.iter().take_while(|list| list.len() > 0).count();
        lists.truncate(used.max(1));
        Ok(lists)
    }

    /// Adds the distinct values of each range to `outputs`. Ranges that there is no memory for come back, with the error.
    async fn collect(
        &self,
        parts: Vec<HashRange>,
        outputs: &Arc<Outputs>,
    ) -> Result<Vec<Option<(HashRange, DataFusionError)>>> {
        let (round_memory, outputs) = (Arc::clone(&self.round_memory), Arc::clone(outputs));
        let collect = move |part: HashRange, stop: &Stop| {
            may_fail!("value_distinct");
            match part.table(&round_memory, stop) {
                Ok(table) => outputs.add(table.values(), stop).map(|()| None),
                Err(error) if is_exhausted(&error) => Ok(Some((part, error))),
                Err(error) => Err(error),
            }
        };
        self.pool.map(parts, collect).await
    }

    /// A range cut into files, by further bits of the hashes.
    async fn dealt_by_hash(&self, part: HashRange) -> Result<Vec<HashRange>> {
        let (_held, bytes) = self.hold_to_deal(part.values.largest_block())?;
        let files = FAN.min(bytes / PART_BYTES).max(2);
        let depth = part.depth + 1;
        let shift = part.depth * FAN_BITS;
        let values = Arc::clone(&part.values);
        let chunks = work_chunks_of(&values, self.pool.threads());
        let file_of = move |value: &[u8]| {
            let hash = hash(value);
            let bits = (hash >> shift) as usize & (FAN - 1);
            part.has(hash).then_some((bits * files / FAN, 0))
        };
        let dealt = self
            .deal_out(&values, chunks, (files, bytes / files), file_of)
            .await?;
        let parts = dealt.into_iter().filter(|values| values.len() > 0);
        let parts = parts.map(|values| HashRange {
            values: Arc::new(values),
            range: (0, 1),
            depth,
        });
        Ok(parts.collect())
    }
}

/// The lists of distinct values: one for each thread, so that each thread has at most one file.
struct Outputs {
    /// The lists that no thread is adding to.
    lists: Mutex<Vec<ByteStrings>>,
}

impl Outputs {
    fn add(&self, values: &ByteStrings, stop: &Stop) -> Result<()> {
        // A poisoned lock is fine: no thread can panic while it takes or puts a list.
        let list = locked(&self.lists).pop();
        let Some(mut list) = list else {
            return internal_err!("more threads than lists of distinct values");
        };
        let all = WorkChunk::Pieces(values.pieces());
        each_value(values, &all, stop, |value| list.push(value).map(drop))?;
        locked(&self.lists).push(list);
        Ok(())
    }
}
