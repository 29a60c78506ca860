//! Memory that no query uses at the moment and that a device keeps for the next one.
//!
//! The driver unmaps freed device memory at the next wait for the stream, and maps it again for the next query. Mapping can take
//! longer than filling the memory. So freed memory waits here. It is given up when a limit or the device has no room beside it, and
//! when nothing has used the device for some time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaSlice, PinnedHostSlice};

use crate::threads::locked;

/// Bytes of the smallest buffer that is worth keeping.
const LEAST: usize = 1 << 20;
/// Most bytes by which a kept buffer may exceed the bytes asked for.
const WASTE: usize = 4096;

/// The workspace of a device between two queries.
#[derive(Debug)]
pub(super) struct IdleWorkspace {
    /// The device memory.
    pub(super) slice: CudaSlice<u8>,
    /// Bytes of device memory that the device counts as held for it.
    pub(super) bytes: usize,
    /// The page-locked host memory.
    pub(super) host: PinnedHostSlice<u8>,
}

/// One buffer of a copy that has ended.
#[derive(Debug)]
pub(super) struct IdleCopyBuffer {
    /// The page-locked host memory.
    pub(super) memory: PinnedHostSlice<u8>,
    /// The event that follows the copies with this memory.
    pub(super) copied: CudaEvent,
}

/// Freed device memory, the oldest first.
#[derive(Debug, Default)]
pub(super) struct IdleMemory {
    slices: Vec<CudaSlice<u8>>,
    bytes: u64,
}

impl IdleMemory {
    /// Bytes of all slices together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes out the smallest slice that has `bytes` bytes, and at most [`WASTE`] more.
    pub(super) fn take(&mut self, bytes: usize) -> Option<CudaSlice<u8>> {
        let lengths = self.slices.iter().map(CudaSlice::len);
        let index = fitting(lengths, bytes)?;
        let slice = self.slices.remove(index);
        self.bytes -= slice.len() as u64;
        Some(slice)
    }

    /// Keeps the slice if it has [`LEAST`] bytes, then gives up the oldest slices until at most `most` bytes are kept.
    pub(super) fn keep(&mut self, slice: CudaSlice<u8>, most: u64) {
        if slice.len() >= LEAST {
            self.bytes += slice.len() as u64;
            self.slices.push(slice);
            self.shrink(most);
        }
    }

    /// Gives up the oldest slices until at most `most` bytes are kept.
    pub(super) fn shrink(&mut self, most: u64) {
        while self.bytes > most && !self.slices.is_empty() {
            self.bytes -= self.slices.remove(0).len() as u64;
        }
    }
}

/// Remembers when a holder of idle memory was last used, and has it give that memory back some time later.
#[derive(Debug)]
pub(super) struct IdleWatch {
    last_used: Mutex<Instant>,
    /// Whether a thread sleeps until the memory is due.
    is_watched: AtomicBool,
    /// How long the memory may stay unused.
    patience: Duration,
}

/// A holder of memory that can be idle.
pub(super) trait GivesBack: Send + Sync + 'static {
    /// The watch of this holder.
    fn watch(&self) -> &IdleWatch;

    /// Gives back the idle memory. Returns false if memory is in use now that will be idle later.
    fn give_idle_back(&self) -> bool;
}

impl IdleWatch {
    /// A watch of memory that is given back after it was unused for `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            last_used: Mutex::new(Instant::now()),
            is_watched: AtomicBool::new(false),
            patience,
        }
    }

    /// Notes that `holder` is used now. To be called also after memory has become idle.
    pub(super) fn used<T: GivesBack>(holder: &Arc<T>) {
        let watch = holder.watch();
        *locked(&watch.last_used) = Instant::now();
        if watch.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (watched, patience) = (Arc::downgrade(holder), watch.patience);
        let thread = std::thread::Builder::new().name("idle device memory".to_owned());
        if let Err(error) = thread.spawn(move || give_back_in_time(&watched, patience)) {
            log::warn!("idle memory of a device is kept: {error}");
            watch.is_watched.store(false, Ordering::Release);
        }
    }
}

/// Sleeps until the holder was unused for `patience`, has it give its idle memory back, and ends.
fn give_back_in_time<T: GivesBack>(watched: &Weak<T>, patience: Duration) {
    let mut wait = patience;
    loop {
        std::thread::sleep(wait);
        let Some(holder) = watched.upgrade() else { return };
        let watch = holder.watch();
        let unused = locked(&watch.last_used).elapsed();
        if unused < patience {
            wait = patience - unused;
            continue;
        }
        // A use from now on starts another thread.
        watch.is_watched.store(false, Ordering::Release);
        if holder.give_idle_back() || watch.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        wait = patience;
    }
}

/// Index of the least length from `bytes` to `bytes` + [`WASTE`].
fn fitting(lengths: impl Iterator<Item = usize>, bytes: usize) -> Option<usize> {
    let fits = lengths
        .enumerate()
        .filter(|(_, length)| (bytes..=bytes + WASTE).contains(length));
    fits.min_by_key(|(_, length)| *length).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Holder {
        watch: IdleWatch,
        is_busy: AtomicBool,
        refusals: Mutex<usize>,
        given: Mutex<usize>,
    }

    impl GivesBack for Holder {
        fn watch(&self) -> &IdleWatch {
            &self.watch
        }

        fn give_idle_back(&self) -> bool {
            let is_busy = self.is_busy.load(Ordering::Acquire);
            let counted = if is_busy { &self.refusals } else { &self.given };
            *locked(counted) += 1;
            !is_busy
        }
    }

    fn until(what: impl Fn() -> bool) {
        let started = Instant::now();
        while !what() {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn idle_memory_is_given_back_once_nothing_uses_it() {
        let holder = Arc::new(Holder {
            watch: IdleWatch::new(Duration::from_millis(5)),
            is_busy: AtomicBool::new(true),
            refusals: Mutex::default(),
            given: Mutex::default(),
        });
        let unwatched = || !holder.watch.is_watched.load(Ordering::Acquire);
        IdleWatch::used(&holder);
        until(|| *locked(&holder.refusals) > 2);
        assert_eq!(*locked(&holder.given), 0);
        holder.is_busy.store(false, Ordering::Release);
        until(|| *locked(&holder.given) == 1 && unwatched());
        // A new use starts a new watch.
        IdleWatch::used(&holder);
        IdleWatch::used(&holder);
        until(|| *locked(&holder.given) >= 2 && unwatched());
        // The watch does not keep the holder alive.
        IdleWatch::used(&holder);
        let weak = Arc::downgrade(&holder);
        drop(holder);
        until(|| weak.upgrade().is_none());
    }

    #[test]
    fn the_least_that_fits_is_taken() {
        let lengths = || [100, 100_000, 103_000, 110_000, 101_000].into_iter();
        assert_eq!(fitting(lengths(), 100_001), Some(4));
        assert_eq!(fitting(lengths(), 100_000), Some(1));
        assert_eq!(fitting(lengths(), 97_000), Some(1));
        assert_eq!(fitting(lengths(), 105_000), None);
        assert_eq!(fitting(lengths(), 110_001), None);
        assert_eq!(fitting(lengths(), 5000), None);
    }
}
