//! Scans that let other tasks run.

use std::time::{Duration, Instant};

/// How long a scan works before it lets other tasks run.
const YIELD_AFTER: Duration = Duration::from_millis(10);

/// Lets other tasks run if the last time was more than 10 ms before, and sets `since` to now if so.
///
/// Without it, a scan of a stream that is always ready would not notice that its query was cancelled.
pub(super) async fn give_way(since: &mut Instant) {
    if since.elapsed() > YIELD_AFTER {
        tokio::task::yield_now().await;
        *since = Instant::now();
    }
}
