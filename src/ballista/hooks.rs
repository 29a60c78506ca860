//! Configurations of schedulers and executors, with this crate in them.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_scheduler::config::SchedulerConfig;
use datafusion::common::Result;
use datafusion::prelude::SessionConfig;

use super::codec::QuantilesCodec;
use super::identity::{Identity, with_identity};
use super::serve;
use super::session::{runtime, scheduler_session, scheduler_session_within, session_config};
use super::stores::StoreLimits;
use super::tasks::{Engine, Tasks};
use crate::config::DeviceChoice;
use crate::exec::staged::RoundDevice;

/// The callers that a scheduler or an executor serves, and the stores that its plans may reach.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Stores that plans may reach.
    pub stores: StoreLimits,
    /// The certificate that the process shows to others and expects from them; without one it serves every caller.
    pub identity: Option<Identity>,
}

/// The configuration of a scheduler with this crate in it. Its own hooks for sessions, configurations and physical codecs are replaced.
pub fn scheduler_hooks(config: SchedulerConfig) -> SchedulerConfig {
    scheduler_hooks_with(config, Access::default())
}

/// [`scheduler_hooks`] for a scheduler whose plans reach these stores only, and which [`serve_scheduler`](super::serve_scheduler) starts
/// with the same identity.
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

/// The configuration of an executor with this crate in it. Its own hooks for functions, configurations, runtimes and physical codecs are
/// replaced.
///
/// # Errors
/// DataFusion's, if the functions cannot be registered.
pub fn executor_hooks(config: ExecutorProcessConfig) -> Result<ExecutorProcessConfig> {
    executor_hooks_with(
        config,
        RoundDevice::try_new(DeviceChoice::Cpu)?,
        Access::default(),
    )
}

/// [`executor_hooks`] for an executor whose rounds run on an opened device, with the callers and stores of `access`.
///
/// # Errors
/// Those of [`executor_hooks`]; a configuration error for an identity with push-staged scheduling.
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
