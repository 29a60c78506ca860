//! Memory for keys: large pieces in huge pages, which the next query uses again.
//!
//! A scan of 3e7 keys touches 240 MB of new memory. With small pages that is 60 000 page faults. With huge pages it is
//! 120, but the system still has to clear them, which takes as long as a third of reading the data. So the pages of one
//! query are kept for a second for the next one. This is done only where the memory pool has no limit, and so no say in
//! what is held after a query. Elsewhere memory is given back at once.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use memmap2::MmapMut;
use sysinfo::System;

use crate::threads::locked;

/// Least bytes of a piece that is in huge pages and is kept. Neighbouring pieces share a huge page of 2 MiB.
const LEAST_KEPT_BYTES: usize = 512 << 10;

/// The share of the machine's memory, as a divisor, that kept pages may take.
const KEPT_MEMORY_SHARE: u64 = 8;

/// Time after which unused pages are given back.
const KEEP_TIME: Duration = Duration::from_secs(1);

/// Pages that are kept for their next use.
#[derive(Debug)]
pub(crate) struct FreePages {
    kept: Mutex<KeptPages>,
    /// Most bytes that are kept.
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct KeptPages {
    /// The pages, by their number of bytes. No list is empty.
    maps: BTreeMap<usize, Vec<MmapMut>>,
    /// Bytes of all pages.
    bytes: usize,
    /// Whether pages were taken or given since the sweeper thread looked last; `None` while no such thread runs.
    touched: Option<bool>,
}

/// The free pages of the whole process: pages differ only in size.
static FREE: LazyLock<Arc<FreePages>> = LazyLock::new(|| {
    Arc::new(FreePages::at_most(
        (machine_memory() / KEPT_MEMORY_SHARE) as usize,
    ))
});

/// Bytes of memory that this process may use: those of the machine, or of its control group if those are fewer.
fn machine_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let group = system
        .cgroup_limits()
        .map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(group)
}

impl FreePages {
    /// No pages yet, and at most `most_bytes` bytes of them later.
    fn at_most(most_bytes: usize) -> Self {
        Self {
            kept: Mutex::default(),
            most_bytes,
        }
    }

    /// The free pages for shards of this pool; `None` if the pool has a limit.
    pub(crate) fn of(pool: &dyn MemoryPool) -> Option<Arc<Self>> {
        matches!(pool.memory_limit(), MemoryLimit::Infinite).then(|| Arc::clone(&FREE))
    }

    fn lock(&self) -> MutexGuard<'_, KeptPages> {
        // No critical section panics half-way.
        locked(&self.kept)
    }

    /// Takes pages of at least `bytes` bytes, and at most a quarter more.
    fn take(&self, bytes: usize) -> Option<MmapMut> {
        let mut kept = self.lock();
        let (size, maps) = kept.maps.range_mut(bytes..=bytes + bytes / 4).next()?;
        let (size, map) = (*size, maps.pop()?);
        if maps.is_empty() {
            kept.maps.remove(&size);
        }
        kept.bytes -= size;
        kept.touched = kept.touched.map(|_| true);
        Some(map)
    }

    fn give(self: &Arc<Self>, map: MmapMut) {
        let mut kept = self.lock();
        if kept.bytes + map.len() > self.most_bytes {
            return;
        }
        if kept.touched.is_none() {
            let free = Arc::clone(self);
            let sweeper = std::thread::Builder::new().name("quantiles-pages".into());
            if sweeper.spawn(move || free.sweep()).is_err() {
                return;
            }
        }
        kept.bytes += map.len();
        kept.maps.entry(map.len()).or_default().push(map);
        kept.touched = Some(true);
    }

    /// Gives all pages back once none was used for a while, and ends.
    fn sweep(&self) {
        loop {
            std::thread::sleep(KEEP_TIME);
            let mut kept = self.lock();
            if kept.touched == Some(false) {
                *kept = KeptPages::default();
                return;
            }
            kept.touched = Some(false);
        }
    }
}

/// Memory of fixed capacity for plain integers. Its initial contents are not specified.
pub(crate) struct Pages<T> {
    /// The mapping; `None` only while it is dropped.
    map: Option<MmapMut>,
    /// Bytes that were requested. Pages that were kept may be larger, but no more bytes are reserved.
    bytes: usize,
    free: Option<Arc<FreePages>>,
    _words: PhantomData<T>,
}

impl<T: bytemuck::Pod> Pages<T> {
    pub(crate) fn new(capacity: usize, free: Option<&Arc<FreePages>>) -> Result<Self> {
        let bytes = capacity * size_of::<T>();
        let free = free.filter(|_| bytes >= LEAST_KEPT_BYTES);
        let map = match free.and_then(|free| free.take(bytes)) {
            Some(map) => map,
            None => fresh(bytes.max(1))?,
        };
        Ok(Self {
            map: Some(map),
            bytes,
            free: free.cloned(),
            _words: PhantomData,
        })
    }

    pub(crate) fn words(&self) -> &[T] {
        let bytes = self.map.as_deref().unwrap_or_default();
        bytemuck::cast_slice(bytes.get(..self.bytes).unwrap_or_default())
    }

    pub(crate) fn words_mut(&mut self) -> &mut [T] {
        let bytes = self.map.as_deref_mut().unwrap_or_default();
        bytemuck::cast_slice_mut(bytes.get_mut(..self.bytes).unwrap_or_default())
    }
}

fn fresh(bytes: usize) -> Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)
        .map_err(|error| resources_datafusion_err!("cannot map {bytes} bytes of memory: {error}"))?;
    #[cfg(target_os = "linux")]
    if bytes >= LEAST_KEPT_BYTES {
        // This is advice only: without huge pages the memory is the same, but slower to touch first.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        if let (Some(free), Some(map)) = (&self.free, self.map.take()) {
            free.give(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};

    use super::*;

    #[test]
    fn pages_are_used_again_and_given_back_in_the_end() {
        let free = Arc::new(FreePages::at_most(usize::MAX));
        let words = LEAST_KEPT_BYTES / size_of::<u64>();
        let mut pages = Pages::<u64>::new(words, Some(&free)).unwrap();
        pages.words_mut()[7] = 42;
        let at = pages.words().as_ptr();
        drop(pages);
        assert_eq!(free.lock().bytes, LEAST_KEPT_BYTES);
        assert!(free.take(LEAST_KEPT_BYTES / 2).is_none() && free.take(2 * LEAST_KEPT_BYTES).is_none());
        let again = Pages::<u16>::new(LEAST_KEPT_BYTES / size_of::<u16>(), Some(&free)).unwrap();
        assert_eq!(again.words().as_ptr().cast(), at);
        drop(again);
        // A little less than what is kept: no more words than were requested.
        let less = Pages::<u64>::new(words - words / 8, Some(&free)).unwrap();
        assert_eq!(less.words().len(), words - words / 8);
        drop(less);
        let start = Instant::now();
        while free.lock().touched.is_some() {
            assert!(start.elapsed() < 20 * KEEP_TIME, "nobody swept");
            std::thread::sleep(KEEP_TIME / 10);
        }
        assert_eq!(free.lock().bytes, 0);
    }

    #[test]
    fn small_pages_and_too_many_are_not_kept() {
        let free = Arc::new(FreePages::at_most(10 * LEAST_KEPT_BYTES));
        drop(Pages::<u32>::new(1000, Some(&free)));
        assert_eq!(free.lock().bytes, 0);
        let many: Vec<_> = (0..13)
            .map(|_| Pages::<u8>::new(LEAST_KEPT_BYTES, Some(&free)))
            .collect();
        drop(many);
        assert_eq!(free.lock().bytes, 10 * LEAST_KEPT_BYTES);
    }

    #[test]
    fn kept_pages_take_a_share_of_the_memory() {
        let most = FreePages::of(&UnboundedMemoryPool::default()).map(|free| free.most_bytes);
        let memory = machine_memory();
        assert!(memory > 64 << 20, "{memory} bytes");
        assert_eq!(most, Some((memory / KEPT_MEMORY_SHARE) as usize));
    }

    #[test]
    fn a_limited_pool_gets_its_memory_back_at_once() {
        assert!(FreePages::of(&GreedyMemoryPool::new(1 << 30)).is_none());
        assert!(FreePages::of(&UnboundedMemoryPool::default()).is_some());
    }
}
