//! Exact quantiles on a Ballista cluster: what scheduler, executors and clients need.
//!
//! ```text
//! client      register_all(&ctx)         functions by name, SET quantiles.*
//!    │ logical plan
//! scheduler   scheduler_hooks(config)    QuantilesPlanner::staged(), QuantilesCodec
//!    │ stages
//! executors   executor_hooks(config)     QuantilesCodec, the functions
//! ```
//! Ungrouped quantiles become the stages of [`crate::exec::staged`]: the table stays where it is, kilobytes move. Everything
//! else of ours runs as ordinary aggregates, whose partial states are numbered, so that none is merged twice: Ballista 55
//! can deliver one twice when an executor is lost.
//!
//! ```no_run
//! # async fn example() -> datafusion::error::Result<()> {
//! let ctx = datafusion_quantiles::ballista::connect("df://localhost:50050").await?;
//! ctx.register_parquet("trips", "/data/trips", Default::default()).await?;
//! ctx.sql("SELECT exact_quantiles(fare, [0.5, 0.99]) FROM trips").await?.show().await?;
//! # Ok(())
//! # }
//! ```

mod again;
mod client;
mod codec;
mod identity;
mod listener;
mod named;
mod pool;
mod scheduler;
mod serve;
mod stores;
mod tasks;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use ballista_core::config::{BALLISTA_ADAPTIVE_PLANNER_ENABLED, BALLISTA_CLIENT_PULL};
use ballista_core::extension::SessionConfigExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_scheduler::config::SchedulerConfig;
use datafusion::common::Result;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;

pub use again::{collect, writes};
pub use client::{
    cancel, check_membership, connect, connect_with_config, endpoint, explained, http_client,
    is_worth_another_try,
};
pub use codec::QuantilesCodec;
pub use identity::{Identity, with_identity};
pub use serve::serve_scheduler;
pub use stores::{EnvironmentStores, StoreLimits};
pub use watch::Watch;

use self::tasks::{Engine, Tasks};
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::staged::RoundDevice;
use crate::planner::{BoundariesRule, QuantilesPlanner, SessionStateBuilderExt};

/// Ballista's configuration of a session, with the `quantiles.*` options: the same for scheduler, executors and clients, so
/// that what a client sets arrives.
///
/// Clients ask every 50 ms how far their query is (`ballista.client.pull`). What schedulers tell unasked names the query too
/// late to [`cancel`] it: when a stage has ended, and with adaptive planning at the end.
///
/// Adaptive planning is off: that of Ballista 55 repeats some stages without rows for ever, as below an outer join.
pub fn session_config() -> SessionConfig {
    SessionConfig::new_with_ballista()
        .set_bool(BALLISTA_CLIENT_PULL, true)
        .set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false)
        .with_information_schema(true)
        .with_option_extension(QuantilesOptions::default())
}

/// The scheduler's session for a client's: plans quantiles in stages.
///
/// # Errors
/// DataFusion's, if the session cannot be built.
pub fn scheduler_session(config: SessionConfig) -> Result<SessionState> {
    scheduler_session_within(config, StoreLimits::default())
}

/// The session of [`scheduler_session`] whose plans reach stores within `limits` only.
fn scheduler_session_within(config: SessionConfig, limits: StoreLimits) -> Result<SessionState> {
    let plain = default_session_builder(config)?;
    let mut builder = SessionStateBuilder::new_from_existing(plain)
        .with_runtime_env(runtime(None, limits)?)
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles();
    let rules = &mut builder.physical_optimizers().get_or_insert_default().rules;
    rules.insert(0, Arc::new(BoundariesRule));
    Ok(builder.build())
}

/// Memory as DataFusion's default, stores by the environment: see [`EnvironmentStores`]; spills to `folder`.
fn runtime(folder: Option<&str>, limits: StoreLimits) -> Result<Arc<RuntimeEnv>> {
    let stores = Arc::new(EnvironmentStores::within(limits));
    let builder = RuntimeEnvBuilder::new().with_object_store_registry(stores);
    match folder {
        Some(folder) => builder.with_temp_file_path(folder),
        None => builder,
    }
    .build_arc()
}

/// Whom a scheduler or an executor serves, and what its plans may reach.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Stores that plans may reach.
    pub stores: StoreLimits,
    /// What the process shows to others and asks of them; without one it serves whoever reaches it.
    pub identity: Option<Identity>,
}

/// The same scheduler with this crate in it. Hooks of its own for sessions, configurations and physical codecs are replaced.
pub fn scheduler_hooks(config: SchedulerConfig) -> SchedulerConfig {
    scheduler_hooks_with(config, Access::default())
}

/// [`scheduler_hooks`] for a scheduler that is started by [`serve_scheduler`] with the same identity, and whose plans reach
/// these stores only.
pub fn scheduler_hooks_with(mut config: SchedulerConfig, access: Access) -> SchedulerConfig {
    config.override_config_producer = Some(Arc::new(session_config));
    let session = move |config| scheduler_session_within(config, access.stores.clone());
    config.override_session_builder = Some(Arc::new(session));
    config.override_physical_codec = Some(Arc::new(QuantilesCodec::default()));
    if let Some(identity) = access.identity {
        config.override_create_grpc_client_endpoint = Some(identity.endpoints(&session_config()));
    }
    config
}

/// The same executor with this crate in it. Hooks of its own for functions, configurations, runtimes and physical codecs
/// are replaced.
///
/// # Errors
/// DataFusion's, if the functions cannot be registered.
pub fn executor_hooks(config: ExecutorProcessConfig) -> Result<ExecutorProcessConfig> {
    executor_hooks_on(config, DeviceChoice::Cpu)
}

/// The same executor, whose rounds run on `device`: see [`RoundDevice`].
///
/// # Errors
/// As [`executor_hooks`]; an execution error that says why there is no such device.
pub fn executor_hooks_on(
    config: ExecutorProcessConfig,
    device: DeviceChoice,
) -> Result<ExecutorProcessConfig> {
    executor_hooks_with(config, RoundDevice::try_new(device)?, Access::default())
}

/// [`executor_hooks`] for an executor whose rounds run on an opened device, and which shows, asks and reaches what `access`
/// says.
///
/// # Errors
/// As [`executor_hooks`]; a configuration error for an identity with push-staged scheduling.
pub fn executor_hooks_with(
    mut config: ExecutorProcessConfig,
    device: RoundDevice,
    access: Access,
) -> Result<ExecutorProcessConfig> {
    let Access { stores, identity } = access;
    let state = scheduler_session(session_config())?;
    config.override_function_registry = Some(Arc::new(BallistaFunctionRegistry::from(&state)));
    if let Some(identity) = &identity {
        serve::check_policy(config.task_scheduling_policy)?;
        config.override_create_grpc_client_endpoint = Some(identity.endpoints(&session_config()));
        let tasks = Tasks::default();
        let engine = Engine::new(tasks.clone(), Duration::from_secs(config.client_ttl));
        config.override_execution_engine = Some(Arc::new(engine));
        let sizes = (
            config.grpc_max_decoding_message_size,
            config.grpc_max_encoding_message_size,
        );
        config.override_arrow_flight_service = Some(serve::results(identity.clone(), tasks, sizes));
        config.grpc_port = config.port;
    }
    config.override_config_producer = Some(Arc::new(move || {
        let mut config = session_config();
        device.clone().give(&mut config);
        match &identity {
            Some(identity) => with_identity(config, identity),
            None => config,
        }
    }));
    let folder = config.work_dir.clone();
    config.override_runtime_producer = Some(Arc::new(move |_: &SessionConfig| {
        runtime(folder.as_deref(), stores.clone())
    }));
    config.override_physical_codec = Some(Arc::new(QuantilesCodec::default()));
    Ok(config)
}
