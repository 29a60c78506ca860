//! What a call without a session works with.

use std::sync::{Arc, LazyLock};

use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};

use crate::kernel::CpuBackend;

/// The backend, the memory reservation and the number of threads of a call.
pub(super) fn resources() -> (CpuBackend, MemoryReservation, usize) {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    // The system's answer takes longer than quantiles of a thousand values.
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    let memory = MemoryConsumer::new("quantiles").register(&pool);
    (CpuBackend::new(pool.as_ref()), memory, *THREADS)
}
