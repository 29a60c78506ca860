//! The distinct ones among byte strings: a table for each share of the hashes.
//!
//! ```text
//! in memory    each thread reads all values and takes those whose hashes are its own into a table
//! on disk, or  values are dealt out by their hashes to files, once, and each file becomes a table; a file whose
//! too many     table finds no memory is dealt out again, by further bits
//! ```
//! Repeated values cost no memory, however many there are.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;

use super::ByteStringSelection;
use super::gather::PART_BYTES;
use super::level::{Reader, Share, shares_of};
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::{ByteStrings, Chunk, DistinctByteStrings, hash};
use crate::memory::RoundMemory;
use crate::memory::Spilling;
use crate::threads::Stop;

/// Most files that values are dealt out to at a time.
const FAN: usize = 1 << FAN_BITS;
const FAN_BITS: u32 = 5;

/// How often they are dealt out again at most: each time by other ones of the lower half of the hash's bits.
const DEEPEST: u32 = u32::BITS / FAN_BITS;

/// A thread for fewer values is not worth it.
const VALUES_A_THREAD: u64 = 1 << 15;

/// Values of which the distinct ones fit in memory, unless that is refused.
struct Part {
    values: Arc<ByteStrings>,
    /// Those of them whose hashes are in this one of so many equal ranges.
    range: (u64, u64),
    /// How often they were dealt out.
    depth: u32,
}

impl Part {
    fn has(&self, hash: u64) -> bool {
        let (number, ranges) = self.range;
        ranges == 1 || ((hash >> u32::BITS) * ranges) >> u32::BITS == number
    }

    fn table(&self, round_memory: &Arc<RoundMemory>, stop: &Stop) -> Result<DistinctByteStrings> {
        let held = round_memory.hold(self.values.largest_block(), "distinct values")?;
        let mut table = DistinctByteStrings::try_new(held)?;
        let all = Share::Pieces(self.values.pieces());
        Reader::new(Arc::clone(&self.values)).each(&all, stop, |value| {
            let hash = hash(value);
            match self.has(hash) {
                true => table.insert(hash, value),
                false => Ok(()),
            }
        })?;
        Ok(table)
    }
}

impl ByteStringSelection {
    /// The distinct ones of `values`, in several lists.
    ///
    /// # Errors
    /// `ResourcesExhausted` where memory is refused and there is no disk, or no room on it; when cancelled.
    pub(crate) async fn distinct(&self, values: ByteStrings) -> Result<Vec<ByteStrings>> {
        let outputs = Arc::new(Outputs {
            lists: Mutex::default(),
            memory: self.memory.new_empty(),
            disk: self.disk.clone(),
        });
        let is_spilled = values.is_spilled();
        let ranges = match is_spilled {
            true => 1,
            false => values
                .len()
                .div_ceil(VALUES_A_THREAD)
                .clamp(1, self.pool.threads() as u64),
        };
        let values = Arc::new(values);
        let parts = (0..ranges).map(|number| Part {
            values: Arc::clone(&values),
            range: (number, ranges),
            depth: 0,
        });
        let mut parts: Vec<Part> = parts.collect();
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
        Outputs::into_lists(outputs)
    }

    /// Adds the distinct values of each part to `outputs`. Parts that there is no memory for come back.
    async fn collect(
        &self,
        parts: Vec<Part>,
        outputs: &Arc<Outputs>,
    ) -> Result<Vec<Option<(Part, DataFusionError)>>> {
        let (round_memory, outputs) = (Arc::clone(&self.round_memory), Arc::clone(outputs));
        let collect = move |part: Part, stop: &Stop| {
            may_fail!("value_distinct");
            match part.table(&round_memory, stop) {
                Ok(table) => outputs.add(table.values(), stop).map(|()| None),
                Err(error) if matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) => {
                    Ok(Some((part, error)))
                }
                Err(error) => Err(error),
            }
        };
        self.pool.map(parts, collect).await
    }

    /// A part in files, by further bits of the hashes.
    async fn dealt_by_hash(&self, part: Part) -> Result<Vec<Part>> {
        let (_held, bytes) = self.hold_to_deal(part.values.largest_block())?;
        let files = FAN.min(bytes / PART_BYTES).max(2);
        let depth = part.depth + 1;
        let shift = part.depth * FAN_BITS;
        let values = Arc::clone(&part.values);
        let shares = shares_of(&values, self.pool.threads());
        let file_of = move |value: &[u8]| {
            let hash = hash(value);
            let bits = (hash >> shift) as usize & (FAN - 1);
            part.has(hash).then_some((bits * files / FAN, 0))
        };
        let dealt = self
            .deal_out(&values, shares, (files, bytes / files), file_of)
            .await?;
        let parts = dealt.into_iter().filter(|values| values.len() > 0);
        let parts = parts.map(|values| Part {
            values: Arc::new(values),
            range: (0, 1),
            depth,
        });
        Ok(parts.collect())
    }
}

/// Where distinct values go: a list for each thread, so that each has one file at most.
struct Outputs {
    /// Those that no thread is adding to.
    lists: Mutex<Vec<ByteStrings>>,
    memory: MemoryReservation,
    disk: Option<Spilling>,
}

impl Outputs {
    fn add(&self, values: &ByteStrings, stop: &Stop) -> Result<()> {
        // Taking a list never panics half-way.
        let list = self.lists.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut list = match list {
            Some(list) => list,
            None => self.new_list()?,
        };
        let mut scratch = Chunk::default();
        for piece in values.pieces() {
            stop.check()?;
            for value in values.piece(piece, &mut scratch)?.values() {
                list.push(value)?;
            }
        }
        self.lists
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(list);
        Ok(())
    }

    fn new_list(&self) -> Result<ByteStrings> {
        ByteStrings::spilling(self.memory.new_empty(), self.disk.clone())
    }

    /// All lists, at least one.
    fn into_lists(outputs: Arc<Self>) -> Result<Vec<ByteStrings>> {
        let mut lists = std::mem::take(&mut *outputs.lists.lock().unwrap_or_else(PoisonError::into_inner));
        if lists.is_empty() {
            lists.push(outputs.new_list()?);
        }
        Ok(lists)
    }
}
