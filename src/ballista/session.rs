//! Sessions of schedulers, executors and clients.

use std::sync::Arc;

use ballista_core::config::{BALLISTA_ADAPTIVE_PLANNER_ENABLED, BALLISTA_CLIENT_PULL};
use ballista_core::extension::SessionConfigExt;
use ballista_core::utils::default_session_builder;
use datafusion::common::Result;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;

use super::stores::{EnvironmentStores, StoreLimits};
use crate::config::QuantilesOptions;
use crate::planner::{BoundariesRule, QuantilesPlanner, SessionStateBuilderExt};

/// Ballista's configuration of a session, with the options `quantiles.*`. Scheduler, executors and clients have the same one, so that an
/// option that a client sets reaches them all.
///
/// Clients ask for the status of their query every 50 ms (`ballista.client.pull`). If schedulers report the status themselves, they name
/// the query too late to [`cancel`](super::cancel) it: when a stage has ended, or with adaptive planning at the end.
///
/// Adaptive planning is off: in Ballista 55 it repeats some stages without rows for ever, as below an outer join.
pub fn session_config() -> SessionConfig {
    SessionConfig::new_with_ballista()
        .set_bool(BALLISTA_CLIENT_PULL, true)
        .set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false)
        .with_information_schema(true)
        .with_option_extension(QuantilesOptions::default())
}

/// The scheduler's session for a client with this configuration. It plans quantiles as stages.
///
/// # Errors
/// DataFusion's, if the session cannot be built.
pub fn scheduler_session(config: SessionConfig) -> Result<SessionState> {
    scheduler_session_within(config, StoreLimits::default())
}

/// The session of [`scheduler_session`], with plans that reach only stores within `limits`.
pub(super) fn scheduler_session_within(config: SessionConfig, limits: StoreLimits) -> Result<SessionState> {
    let plain = default_session_builder(config)?;
    let mut builder = SessionStateBuilder::new_from_existing(plain)
        .with_runtime_env(runtime(None, limits)?)
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles();
    let rules = &mut builder.physical_optimizers().get_or_insert_default().rules;
    rules.insert(0, Arc::new(BoundariesRule));
    Ok(builder.build())
}

/// A runtime with DataFusion's default memory, the stores of [`EnvironmentStores`], and spill files in `folder`.
pub(super) fn runtime(folder: Option<&str>, limits: StoreLimits) -> Result<Arc<RuntimeEnv>> {
    let stores = Arc::new(EnvironmentStores::within(limits));
    let builder = RuntimeEnvBuilder::new().with_object_store_registry(stores);
    match folder {
        Some(folder) => builder.with_temp_file_path(folder),
        None => builder,
    }
    .build_arc()
}
