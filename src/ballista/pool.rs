//! Connections between executors, kept while they are idle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;

use crate::threads::locked;

/// Host and port of a connection, and its configuration.
type Target = (String, u16, GrpcClientConfig);

/// Idle connections, the oldest first, each with the time at which it became idle.
type Idle = HashMap<Target, Vec<(BallistaClient, Instant)>>;

/// A pool of connections to executors. Ballista's own pool is private to it.
#[derive(Clone)]
pub(super) struct Pool {
    idle: Arc<Mutex<Idle>>,
    /// Time for which an idle connection is kept.
    patience: Duration,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            idle: Arc::default(),
            patience,
        }
    }

    /// Calls `act` with the idle connections, after those that were idle for too long are closed.
    fn with_idle<T>(&self, act: impl FnOnce(&mut Idle) -> T) -> T {
        let mut idle = locked(&self.idle);
        idle.retain(|_, clients| {
            clients.retain(|(_, since)| since.elapsed() < self.patience);
            !clients.is_empty()
        });
        act(&mut idle)
    }

    /// A connection that returns to the pool when it is dropped.
    fn borrowed(&self, client: BallistaClient, target: Target) -> PooledClient {
        let pool = self.clone();
        let back = move |client| {
            pool.with_idle(|idle| idle.entry(target).or_default().push((client, Instant::now())));
        };
        PooledClient::new(client, Box::new(back))
    }
}

#[async_trait]
impl BallistaClientPool for Pool {
    async fn acquire(
        &self,
        host: &str,
        port: u16,
        config: &GrpcClientConfig,
        endpoints: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> Result<PooledClient> {
        let target = (host.to_owned(), port, config.clone());
        let found = self.with_idle(|idle| idle.get_mut(&target)?.pop());
        if let Some((client, _)) = found {
            return Ok(self.borrowed(client, target));
        }
        let client = BallistaClient::try_new(
            host,
            port,
            config.max_message_size,
            config.use_tls,
            endpoints,
            config.io_retries_times,
            config.io_retry_wait_time_ms,
            config.initial_connection_window_size,
            config.initial_stream_window_size,
        );
        Ok(self.borrowed(client.await?, target))
    }

    async fn evict_idle(&self) {
        self.with_idle(|_| ());
    }
}
