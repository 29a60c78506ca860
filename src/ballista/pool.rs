//! Connections between executors, kept while they are idle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;

/// Where a connection goes, and how it was made.
type Target = (String, u16, GrpcClientConfig);

/// Idle connections with the time since which they are, the oldest first.
type Idle = HashMap<Target, Vec<(BallistaClient, Instant)>>;

/// Connections to executors: Ballista's own pool is not to be had outside of it.
#[derive(Clone)]
pub(super) struct Pool {
    idle: Arc<Mutex<Idle>>,
    /// How long an idle connection is kept.
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

    /// Does something with the connections that have not been idle for too long.
    fn with_idle<T>(&self, act: impl FnOnce(&mut Idle) -> T) -> T {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|_, clients| {
            clients.retain(|(_, since)| since.elapsed() < self.patience);
            !clients.is_empty()
        });
        act(&mut idle)
    }

    /// A connection that comes back here when it is dropped.
    fn lent(&self, client: BallistaClient, target: Target) -> PooledClient {
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
            return Ok(self.lent(client, target));
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
        Ok(self.lent(client.await?, target))
    }

    async fn evict_idle(&self) {
        self.with_idle(|_| ());
    }
}
