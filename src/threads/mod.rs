//! Threads that work, and the flag that ends their work early.

#[cfg(feature = "cuda")]
mod feed;
mod lock;

use std::convert::Infallible;
use std::iter::Enumerate;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::common::runtime::{JoinSet, SpawnedTask};
use datafusion::common::{DataFusionError, Result, exec_err, internal_datafusion_err};
use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

#[cfg(feature = "cuda")]
pub(crate) use feed::{Batches, fed};
pub(crate) use lock::locked;

/// A flag that ends work early: kernels check it every few thousand values.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks all who share the flag to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Checks whether the work may go on.
    ///
    /// # Errors
    /// An execution error once [`Self::stop`] was called.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            exec_err!("selection was cancelled")
        } else {
            Ok(())
        }
    }
}

/// Sets the flag when it is dropped: nobody waits for the work any more.
#[derive(Debug, Default)]
pub(crate) struct StopOnDrop(pub(crate) Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The threads that work on the pieces of one selection. Dropping the pool stops the work that still runs.
pub struct ThreadPool {
    threads: usize,
    scoped: bool,
    stop: Stop,
}

impl ThreadPool {
    /// A pool of at most `threads` blocking threads of the runtime that polls the pool's futures. Without a runtime it
    /// works as [`Self::scoped`]. `stop` ends the work early.
    pub fn new(threads: usize, stop: Stop) -> Self {
        Self {
            threads: threads.max(1),
            scoped: false,
            stop,
        }
    }

    /// A pool of the caller's thread and up to `threads - 1` others, which end with each piece of work. The pool's
    /// futures are ready when they are first polled.
    pub fn scoped(threads: usize, stop: Stop) -> Self {
        Self {
            threads: threads.max(1),
            scoped: true,
            stop,
        }
    }

    /// A pool of equally many threads of the same kind, with a stop flag of its own.
    pub(crate) fn another(&self) -> Self {
        Self {
            threads: self.threads,
            scoped: self.scoped,
            stop: Stop::default(),
        }
    }

    /// Most pieces that are worked on at the same time.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The flag that ends the work early.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Calls `work` with each item. Returns the results in the order of the items. Work that takes long must check the
    /// flag that it gets.
    ///
    /// # Errors
    /// The first error of any item; an execution error if the pool was stopped.
    pub(crate) async fn map<T, R>(
        &self,
        items: Vec<T>,
        work: impl Fn(T, &Stop) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        if self.scoped || Handle::try_current().is_err() {
            return scoped_map(self.threads, items, &self.stop, work);
        }
        let threads = self.threads.min(items.len());
        let queue = Arc::new(Queue::new(items, work, &self.stop));
        let spawn = || {
            let queue = Arc::clone(&queue);
            SpawnedTask::spawn_blocking(move || queue.run())
        };
        let tasks: Vec<_> = (0..threads).map(|_| spawn()).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.extend(joined(task).await?);
        }
        Ok(in_order(results))
    }
}

/// Calls `work` with each item, on this thread and up to `threads - 1` others, which end before it returns: items and work may be
/// borrowed. Returns the results in the order of the items.
///
/// # Errors
/// The first error of any item; an execution error if `stop` was set.
pub(crate) fn scoped_map<T: Send, R: Send>(
    threads: usize,
    items: Vec<T>,
    stop: &Stop,
    work: impl Fn(T, &Stop) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let threads = threads.min(items.len());
    let queue = Queue::new(items, work, stop);
    let results = std::thread::scope(|scope| {
        // One piece runs on this thread: starting another thread costs as much as a read on a device.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| queue.run())).collect();
        let mut results = queue.run()?;
        for thread in others {
            results.extend(match thread.join() {
                Ok(part) => part?,
                Err(panic) => std::panic::resume_unwind(panic),
            });
        }
        Ok::<_, DataFusionError>(results)
    })?;
    Ok(in_order(results))
}

/// Results in the order of their items.
fn in_order<R>(mut results: Vec<(usize, R)>) -> Vec<R> {
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// Runs `work` on a blocking thread of the runtime.
///
/// # Errors
/// Errors of `work`; an error if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let running = RUNNING.try_with(Clone::clone).ok();
    // Nobody takes the result of a task that was aborted: it is dropped before `running` is.
    let work = move || work().map(|result| (result, running));
    let (result, _running) = joined(SpawnedTask::spawn_blocking(work)).await?;
    Ok(result)
}

async fn joined<T: 'static>(task: SpawnedTask<Result<T>>) -> Result<T> {
    let joined = task.join().await;
    joined.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
}

/// The result of a future over a [scoped](ThreadPool::scoped) pool, without a runtime.
///
/// # Errors
/// Errors of `work`; an internal error for a future that waits for something else.
pub(crate) fn completed<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = work.now_or_never();
    done.ok_or_else(|| internal_datafusion_err!("work over a scoped pool did not block"))?
}

tokio::task_local! {
    /// Held by the tasks of [`partitions_in_order`], and by what they run on blocking threads, which cannot be aborted.
    static RUNNING: mpsc::Sender<Infallible>;
}

/// Runs the works of all partitions beside each other. Returns their results in the order of partitions, so that merging them is
/// reproducible. All works are there before the first one starts, and so is the memory that each of them begins with: none finds it taken
/// by those that started earlier.
///
/// # Errors
/// The first error of a work. It ends the others, and is reported when nothing of them runs any more: what they held has been given back.
pub(crate) async fn partitions_in_order<T: Send + 'static>(
    works: Vec<impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    let (running, mut ended) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    for (partition, work) in works.into_iter().enumerate() {
        let work = async move { (partition, work.await) };
        tasks.spawn(RUNNING.scope(running.clone(), work));
    }
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        let failed = match joined {
            Ok((partition, Ok(result))) => {
                done.push((partition, result));
                continue;
            }
            Ok((_, Err(error))) => error,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => internal_datafusion_err!("the task of a partition ended early: {error}"),
        };
        drop(done);
        tasks.shutdown().await;
        drop(running);
        // Nothing is ever sent: the channel closes when the last piece of work on a blocking thread has ended.
        ended.recv().await;
        return Err(failed);
    }
    done.sort_by_key(|(partition, _)| *partition);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// A queue of items that threads take one by one.
struct Queue<T, W> {
    items: Mutex<Enumerate<std::vec::IntoIter<T>>>,
    work: W,
    stop: Stop,
}

impl<T, W> Queue<T, W> {
    fn new(items: Vec<T>, work: W, stop: &Stop) -> Self {
        Self {
            items: Mutex::new(items.into_iter().enumerate()),
            work,
            stop: stop.clone(),
        }
    }

    /// Works on items until there are none: the results, each with the index of its item.
    fn run<R>(&self) -> Result<Vec<(usize, R)>>
    where
        W: Fn(T, &Stop) -> Result<R>,
    {
        let mut results = Vec::new();
        loop {
            self.stop.check()?;
            // Taking an item never panics half-way.
            let next = locked(&self.items).next();
            let Some((index, item)) = next else {
                return Ok(results);
            };
            results.push((index, (self.work)(item, &self.stop)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sets its flag when it is dropped, as memory is given back.
    struct Held(Arc<AtomicBool>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_error_is_reported_when_blocking_work_of_other_partitions_has_ended() {
        let given_back = Arc::new(AtomicBool::new(false));
        let held = Held(Arc::clone(&given_back));
        let (started, begins) = tokio::sync::oneshot::channel();
        let slow = async move {
            blocking(move || {
                let _ = started.send(());
                std::thread::sleep(Duration::from_millis(100));
                Ok(Some(held))
            })
            .await
        };
        let broken = async move {
            let _ = begins.await;
            exec_err!("broken")
        };
        let failed = partitions_in_order(vec![slow.boxed(), broken.boxed()]).await;
        let failed = failed.err().map(|error| error.to_string());
        assert!(failed.is_some_and(|error| error.contains("broken")));
        assert!(given_back.load(Ordering::Relaxed));
    }

    async fn check(pool: ThreadPool) {
        let items: Vec<u64> = (0..1000).collect();
        let squares = pool.map(items.clone(), |i, _| Ok(i * i)).await.unwrap();
        assert_eq!(squares, items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert!(
            pool.map(Vec::<u64>::new(), |i, _| Ok(i))
                .await
                .unwrap()
                .is_empty()
        );
        let error = pool
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
    fn borrowed_items_are_worked_on_by_several_threads() {
        let items = ["a".to_string(), "bb".to_string(), "ccc".to_string()];
        let lengths = |threads| {
            scoped_map(threads, items.iter().collect(), &Stop::default(), |item, _| {
                Ok(item.len())
            })
        };
        assert_eq!(lengths(1).unwrap(), [1, 2, 3]);
        assert_eq!(lengths(9).unwrap(), [1, 2, 3]);
        let stopped = Stop::default();
        stopped.stop();
        assert!(scoped_map(2, vec![1], &stopped, |_, _| Ok(())).is_err());
    }

    #[test]
    fn results_keep_their_order_and_errors_arrive() {
        check(ThreadPool::new(3, Stop::default())).now_or_never().unwrap();
        check(ThreadPool::scoped(3, Stop::default()))
            .now_or_never()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        runtime.block_on(check(ThreadPool::new(4, Stop::default())));
    }
}
