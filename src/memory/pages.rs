//! Memory for keys: large pieces in huge pages, which the next query uses again.
//!
//! A scan of 3e7 keys touches 240 MB of new memory. With small pages that is 60 000 page faults. With huge pages it is
//! 120, but the system still has to clear them, which takes as long as a third of reading the data. So the pages of one
//! query are kept for a second for the next one. This is done only where the memory pool has no limit, and so no say in
//! what is held after a query. Where it has one, an execution keeps a few pages for itself, on the account of the pool: rows that go to
//! disk in many runs then need no new pages for each.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use memmap2::MmapMut;
use sysinfo::System;

use super::pools::{Ration, WrappedPool, limit};
use crate::threads::locked;

/// Least bytes of a piece that is in huge pages and is kept. Neighbouring pieces share a huge page of 2 MiB.
const LEAST_KEPT_BYTES: usize = 512 << 10;

/// The share of the machine's memory, as a divisor, that kept pages may take.
const KEPT_MEMORY_SHARE: u64 = 8;

/// The share of a memory limit, as a divisor, that the kept pages of an execution may take.
const KEPT_LIMIT_SHARE: usize = 16;

/// Sizes are rounded up to a multiple of about this fraction of themselves, as a divisor, so that pieces of nearly the same size can replace each
/// other.
const SIZE_STEPS: usize = 16;

/// Time after which unused pages are given back.
const KEEP_TIME: Duration = Duration::from_secs(1);

/// Pages that are kept for their next use.
#[derive(Debug)]
pub(crate) struct FreePages {
    kept: Mutex<KeptPages>,
    /// Most bytes that are kept.
    most_bytes: usize,
    /// The part of a pool with a limit that is kept, if it has one.
    limited: Option<LimitedPages>,
}

/// What an execution in a pool with a limit keeps.
#[derive(Debug)]
struct LimitedPages {
    pool: Arc<dyn MemoryPool>,
    /// The reservation for what is kept.
    memory: MemoryReservation,
    /// Nothing is kept where more bytes than these would be reserved then.
    most_reserved: usize,
}

impl LimitedPages {
    /// Reserves `bytes` bytes to keep, if that leaves enough to others.
    fn reserve(&self, bytes: usize) -> bool {
        self.pool.reserved() + bytes <= self.most_reserved && self.memory.try_grow(bytes).is_ok()
    }
}

#[derive(Debug, Default)]
struct KeptPages {
    /// The pages, by their number of bytes. No list is empty.
    maps: BTreeMap<usize, Vec<MmapMut>>,
    /// Bytes of all pages.
    bytes: usize,
    /// Whether pages were taken or given since the sweeper thread looked last; `None` while no such thread runs.
    touched: Option<bool>,
    /// Whether nothing is kept any more.
    is_closed: bool,
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
            limited: None,
        }
    }

    /// The free pages for an execution in this pool: those of the process if the pool has no limit, or its own, which are reserved.
    pub(crate) fn for_execution(pool: &Arc<dyn MemoryPool>) -> Option<Arc<Self>> {
        let Some(limit) = limit(pool.as_ref()) else {
            return Self::of(pool.as_ref());
        };
        let limited = LimitedPages {
            pool: Arc::clone(pool),
            memory: MemoryConsumer::new("pages kept for the next run").register(pool),
            most_reserved: limit / 4 * 3,
        };
        Some(Arc::new(Self {
            limited: Some(limited),
            ..Self::at_most(limit / KEPT_LIMIT_SHARE)
        }))
    }

    /// A reservation in the name of `memory`, in its pool. It and those made of it take the memory of kept pages before they are refused.
    pub(crate) fn reservation(self: &Arc<Self>, memory: &MemoryReservation) -> MemoryReservation {
        let Some(limited) = &self.limited else {
            return memory.new_empty();
        };
        let pool = WrappedPool::new(Arc::clone(&limited.pool), PagesFirst(Arc::clone(self)));
        MemoryConsumer::new(memory.consumer().name()).register(&(Arc::new(pool) as _))
    }

    /// Gives the kept pages of an execution in a pool with a limit back to the system, since somebody else needs their memory.
    fn give_back(&self) {
        if let Some(limited) = &self.limited {
            let mut kept = self.lock();
            kept.maps.clear();
            kept.bytes = 0;
            limited.memory.free();
        }
    }

    /// Gives back what an execution in a pool with a limit keeps, and keeps nothing from now on.
    pub(crate) fn close(&self) {
        if self.limited.is_some() {
            self.lock().is_closed = true;
            self.give_back();
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

    /// Takes pages of at least `bytes` bytes, and at most a quarter more; an eighth where what they replace is reserved.
    fn take(&self, bytes: usize) -> Option<MmapMut> {
        let more = bytes / if self.limited.is_some() { 8 } else { 4 };
        let mut kept = self.lock();
        let (size, maps) = kept.maps.range_mut(bytes..=bytes + more).next()?;
        let (size, map) = (*size, maps.pop()?);
        if maps.is_empty() {
            kept.maps.remove(&size);
        }
        kept.bytes -= size;
        if let Some(limited) = &self.limited {
            limited.memory.shrink(size);
        }
        kept.touched = kept.touched.map(|_| true);
        Some(map)
    }

    fn give(self: &Arc<Self>, map: MmapMut) {
        let mut kept = self.lock();
        if kept.bytes + map.len() > self.most_bytes || kept.is_closed {
            return;
        }
        if let Some(limited) = &self.limited {
            if !limited.reserve(map.len()) {
                return;
            }
        } else if kept.touched.is_none() {
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

/// Kept pages are given back before more memory is refused.
#[derive(Debug)]
struct PagesFirst(Arc<FreePages>);

impl Ration for PagesFirst {
    fn try_grow(
        &self,
        pool: &dyn MemoryPool,
        reservation: &MemoryReservation,
        additional: usize,
    ) -> Result<()> {
        pool.try_grow(reservation, additional).or_else(|_| {
            self.0.give_back();
            pool.try_grow(reservation, additional)
        })
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
            None if free.is_some() => fresh(bytes.next_multiple_of(bytes.next_power_of_two() / SIZE_STEPS))?,
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

    /// In a pool with a limit, what is kept is reserved until it is taken, given back or dropped, and is a part of the limit.
    #[test]
    fn an_execution_keeps_pages_that_are_reserved() {
        let pool: Arc<dyn MemoryPool> =
            Arc::new(GreedyMemoryPool::new(KEPT_LIMIT_SHARE * 4 * LEAST_KEPT_BYTES));
        let free = FreePages::for_execution(&pool).unwrap();
        let pages = |bytes: usize| Pages::<u8>::new(bytes, Some(&free)).unwrap();
        let (one, other) = (pages(LEAST_KEPT_BYTES + 1), pages(LEAST_KEPT_BYTES));
        assert_eq!(pool.reserved(), 0);
        let (at, length) = (one.words().as_ptr(), one.map.as_ref().unwrap().len());
        drop(one);
        assert_eq!(pool.reserved(), length);
        assert!(length < 2 * LEAST_KEPT_BYTES && length > LEAST_KEPT_BYTES + LEAST_KEPT_BYTES / SIZE_STEPS);
        // A piece of about the same size takes its place, even if it is a little longer.
        let again = pages(LEAST_KEPT_BYTES + 1000);
        assert_eq!((again.words().as_ptr(), pool.reserved()), (at, 0));
        drop((again, other));
        assert_eq!(pool.reserved(), length + LEAST_KEPT_BYTES);
        // Whoever needs the memory gets it, in this execution.
        let all = KEPT_LIMIT_SHARE * 4 * LEAST_KEPT_BYTES;
        let elsewhere = MemoryConsumer::new("elsewhere").register(&pool);
        assert!(elsewhere.try_grow(all).is_err());
        let here = free.reservation(&elsewhere).new_empty();
        assert_eq!(here.consumer().name(), "elsewhere");
        here.try_grow(all).unwrap();
        assert_eq!(pool.reserved(), all);
        assert!(here.try_grow(1).is_err());
        drop(here);
        assert_eq!(pool.reserved(), 0);
        let ten = || (0..10).map(|_| pages(LEAST_KEPT_BYTES)).collect::<Vec<_>>();
        drop(ten());
        assert_eq!(pool.reserved(), 4 * LEAST_KEPT_BYTES);
        free.give_back();
        // Others have most of the memory.
        let others = MemoryConsumer::new("others").register(&pool);
        others.grow(KEPT_LIMIT_SHARE * 3 * LEAST_KEPT_BYTES - LEAST_KEPT_BYTES);
        drop(ten());
        assert_eq!(pool.reserved(), others.size() + LEAST_KEPT_BYTES);
        free.close();
        others.free();
        drop(ten());
        assert_eq!(pool.reserved(), 0);
        assert!(FreePages::for_execution(&(Arc::new(UnboundedMemoryPool::default()) as _)).is_some());
    }

    #[test]
    fn a_limited_pool_gets_its_memory_back_at_once() {
        assert!(FreePages::of(&GreedyMemoryPool::new(1 << 30)).is_none());
        assert!(FreePages::of(&UnboundedMemoryPool::default()).is_some());
    }
}
