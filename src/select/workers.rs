//! Work on several threads: the same two ways as [`LocalShards`](super::LocalShards)' rounds.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use tokio::runtime::Handle;

use super::LocalShards;
use crate::kernel::{Lane, Stop};
use crate::key::Width;

/// Threads that work on the pieces of one selection. Dropping them stops what still runs.
pub(crate) struct Workers {
    threads: usize,
    blocking: bool,
    stop: Stop,
}

impl Workers {
    /// At most `threads` blocking threads of the runtime that polls them; where there is none, threads of their own.
    pub(crate) fn new(threads: usize) -> Self {
        Self::with(threads, false)
    }

    /// The same, but work blocks its caller: its future is ready when it is first polled.
    pub(crate) fn blocking(threads: usize) -> Self {
        Self::with(threads, true)
    }

    fn with(threads: usize, blocking: bool) -> Self {
        Self {
            threads: threads.max(1),
            blocking,
            stop: Stop::default(),
        }
    }

    /// Most pieces that are worked on at a time.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Shards whose rounds run on these threads.
    pub(crate) fn shards(&self, width: Width, lanes: Vec<Box<dyn Lane>>) -> LocalShards {
        match self.blocking {
            true => LocalShards::blocking(width, lanes, self.threads, Stop::default()),
            false => LocalShards::new(width, lanes, self.threads, Stop::default()),
        }
    }

    /// `work` on each item; the results in the order of the items. Long work looks at the flag that it gets.
    ///
    /// # Errors
    /// The first error of any item, or of being stopped.
    pub(crate) async fn map<T, R>(
        &self,
        items: Vec<T>,
        work: impl Fn(T, &Stop) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let threads = self.threads.min(items.len());
        let queue = Arc::new(Queue {
            items: Mutex::new(items.into_iter().enumerate()),
            work,
            stop: self.stop.clone(),
        });
        let mut results = Vec::new();
        if self.blocking || Handle::try_current().is_err() {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| queue.run())).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                threads.into_iter().map(join).try_for_each(|part| {
                    results.extend(part?);
                    Ok::<_, DataFusionError>(())
                })
            })?;
        } else {
            let spawn = || {
                let queue = Arc::clone(&queue);
                SpawnedTask::spawn_blocking(move || queue.run())
            };
            let tasks: Vec<_> = (0..threads).map(|_| spawn()).collect();
            for task in tasks {
                let part = task.join().await;
                results.extend(part.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??);
            }
        }
        results.sort_unstable_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// Items that threads take one by one.
struct Queue<I, W> {
    items: Mutex<I>,
    work: W,
    stop: Stop,
}

impl<I, W> Queue<I, W> {
    fn run<T, R>(&self) -> Result<Vec<(usize, R)>>
    where
        I: Iterator<Item = (usize, T)>,
        W: Fn(T, &Stop) -> Result<R>,
    {
        let mut results = Vec::new();
        loop {
            self.stop.check()?;
            // Taking an item never panics half-way.
            let next = self.items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, item)) = next else {
                return Ok(results);
            };
            results.push((index, (self.work)(item, &self.stop)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::exec_err;
    use futures::FutureExt;

    use super::*;

    async fn check(workers: Workers) {
        let items: Vec<u64> = (0..1000).collect();
        let squares = workers.map(items.clone(), |i, _| Ok(i * i)).await.unwrap();
        assert_eq!(squares, items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert!(
            workers
                .map(Vec::<u64>::new(), |i, _| Ok(i))
                .await
                .unwrap()
                .is_empty()
        );
        let error = workers
            .map(items, |i, _| {
                if i == 500 {
                    exec_err!("item {i} is broken")
                } else {
                    Ok(i)
                }
            })
            .await;
        assert_eq!(
            error.unwrap_err().strip_backtrace(),
            "Execution error: item 500 is broken"
        );
    }

    #[test]
    fn results_keep_their_order_and_errors_arrive() {
        check(Workers::new(3)).now_or_never().unwrap();
        check(Workers::blocking(3)).now_or_never().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        runtime.block_on(check(Workers::new(4)));
    }
}
