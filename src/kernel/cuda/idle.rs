//! Device memory that was given back and may be wanted again.
//!
//! The driver unmaps what is freed when the stream is waited for the next time, and maps it anew for the next query, which can
//! take longer than to fill it. Memory waits here instead, and is given up where a limit or the device leaves no room beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::CudaSlice;

use super::device::locked;

/// Smaller buffers are not worth it.
const LEAST: usize = 1 << 20;
/// Most bytes that a buffer has beyond those asked for.
const WASTE: usize = 4096;

/// Freed memory, the oldest first.
#[derive(Debug, Default)]
pub(super) struct IdleMemory {
    slices: Vec<CudaSlice<u8>>,
    bytes: u64,
}

impl IdleMemory {
    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of at least so many bytes, and hardly more.
    pub(super) fn take(&mut self, bytes: usize) -> Option<CudaSlice<u8>> {
        let lengths = self.slices.iter().map(CudaSlice::len);
        let index = fitting(lengths, bytes)?;
        let slice = self.slices.remove(index);
        self.bytes -= slice.len() as u64;
        Some(slice)
    }

    /// Keeps what is worth it; the oldest goes, until there are at most `most` bytes.
    pub(super) fn keep(&mut self, slice: CudaSlice<u8>, most: u64) {
        if slice.len() >= LEAST {
            self.bytes += slice.len() as u64;
            self.slices.push(slice);
            self.shrink(most);
        }
    }

    /// Gives up the oldest, until there are at most `most` bytes.
    pub(super) fn shrink(&mut self, most: u64) {
        while self.bytes > most && !self.slices.is_empty() {
            self.bytes -= self.slices.remove(0).len() as u64;
        }
    }
}

/// When something was last used whose idle memory is given back after some time.
#[derive(Debug)]
pub(super) struct IdleWatch {
    last_used: Mutex<Instant>,
    /// Whether a thread waits for that time to pass.
    is_watched: AtomicBool,
    patience: Duration,
}

/// Holds memory that may be idle.
pub(super) trait GivesBack: Send + Sync + 'static {
    fn watch(&self) -> &IdleWatch;

    /// Gives back what is idle; whether that was all, and nothing is used that will be idle.
    fn give_idle_back(&self) -> bool;
}

impl IdleWatch {
    /// Idle memory goes after `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            last_used: Mutex::new(Instant::now()),
            is_watched: AtomicBool::new(false),
            patience,
        }
    }

    /// Tells that `holder` was used just now. To be called after memory became idle, too.
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

/// Has idle memory given back when it was not used for so long, and ends.
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
        // Whoever uses it from now on has another thread look after it.
        watch.is_watched.store(false, Ordering::Release);
        if holder.give_idle_back() || watch.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        wait = patience;
    }
}

/// Index of the least length that holds `bytes`, and wastes at most a page.
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
        // Used again, it is looked after again.
        IdleWatch::used(&holder);
        IdleWatch::used(&holder);
        until(|| *locked(&holder.given) >= 2 && unwatched());
        // Nobody is kept alive by that.
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
