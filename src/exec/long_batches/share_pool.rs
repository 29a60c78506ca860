//! A share of a memory pool for sorts.

use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};

use crate::memory::Ration;

/// What the names of the consumers begin with that DataFusion's sort has for its rows, and for merging its files.
const SORT: &str = "ExternalSorter";

/// Sorts have no more than `most` bytes of a pool together.
///
/// A sort reads as many of its files at a time as it can reserve memory for. If it has the whole pool, the sorts of other partitions and the
/// operator that takes its rows have nothing.
#[derive(Debug)]
pub(super) struct SortsShare {
    most: usize,
    /// Bytes that sorts have.
    held: AtomicUsize,
}

impl SortsShare {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            held: AtomicUsize::new(0),
        }
    }
}

fn is_of_sort(reservation: &MemoryReservation) -> bool {
    reservation.consumer().name().starts_with(SORT)
}

impl Ration for SortsShare {
    fn grown(&self, reservation: &MemoryReservation, additional: usize) {
        if is_of_sort(reservation) {
            self.held.fetch_add(additional, Ordering::Relaxed);
        }
    }

    fn shrunk(&self, reservation: &MemoryReservation, bytes: usize) {
        if is_of_sort(reservation) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn try_grow(
        &self,
        pool: &dyn MemoryPool,
        reservation: &MemoryReservation,
        additional: usize,
    ) -> Result<()> {
        if !is_of_sort(reservation) {
            return pool.try_grow(reservation, additional);
        }
        let held = self.held.fetch_add(additional, Ordering::Relaxed) + additional;
        let taken = if held > self.most {
            resources_err!(
                "a sort of long rows: {held} bytes wanted, {} are its share of the memory limit",
                self.most
            )
        } else {
            pool.try_grow(reservation, additional)
        };
        if taken.is_err() {
            self.held.fetch_sub(additional, Ordering::Relaxed);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer};

    use super::*;
    use crate::memory::WrappedPool;

    #[test]
    fn a_sort_has_its_share_of_the_pool() {
        let inner: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let pool: Arc<dyn MemoryPool> = Arc::new(WrappedPool::new(Arc::clone(&inner), SortsShare::new(400)));
        let rows = MemoryConsumer::new("ExternalSorter[0]").register(&pool);
        let merge = MemoryConsumer::new("ExternalSorterMerge[0]").register(&pool);
        let other = MemoryConsumer::new("RepartitionExec[0]").register(&pool);
        rows.try_grow(300).unwrap();
        let refused = merge.try_grow(101).unwrap_err().to_string();
        assert!(refused.contains("401 bytes wanted, 400"), "{refused}");
        merge.try_grow(100).unwrap();
        other.try_grow(600).unwrap();
        // The pool itself is full.
        rows.free();
        other.try_grow(300).unwrap();
        assert!(merge.try_grow(1).is_err());
        assert_eq!((pool.reserved(), inner.reserved()), (1000, 1000));
        drop((rows, merge, other));
        assert_eq!(inner.reserved(), 0);
        let again = MemoryConsumer::new("ExternalSorter[1]").register(&pool);
        again.try_grow(400).unwrap();
    }
}
