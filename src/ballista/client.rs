//! A session whose queries run on a cluster.

use std::time::Duration;

use ballista::extension::SessionContextExt;
use datafusion::common::{Result, config_datafusion_err, config_err, exec_err};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use url::Url;

use super::session_config;
use crate::planner::register_all;

/// A scheduler's port, unless its address names one.
const PORT: u16 = 50050;

/// How long a scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session on the cluster of this scheduler, `df://host:port`, with this crate's functions and options.
///
/// # Errors
/// For an address that is none, where no scheduler answers, and while it has no executor: a query would wait for one.
pub async fn connect(url: &str) -> Result<SessionContext> {
    connect_with_config(url, session_config()).await
}

/// As [`connect`], with a configuration: one that [`session_config`] gave, changed.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with_config(url: &str, config: SessionConfig) -> Result<SessionContext> {
    check(url).await?;
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .build();
    let ctx = SessionContext::remote_with_state(url, state).await?;
    register_all(&ctx)?;
    Ok(ctx)
}

/// Asks the scheduler whether it is ready for queries.
async fn check(url: &str) -> Result<()> {
    let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "df");
    let Some((parsed, host)) = parsed
        .as_ref()
        .and_then(|parsed| Some((parsed, parsed.host_str()?)))
    else {
        return config_err!("'{url}' is no address of a cluster: allowed is df://host or df://host:port");
    };
    let ready = format!("http://{host}:{}/readyz", parsed.port().unwrap_or(PORT));
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let client = client.map_err(|error| config_datafusion_err!("no client for {url}: {error}"))?;
    match client.get(&ready).send().await {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) if response.status().as_u16() == 503 => {
            exec_err!("the scheduler at {url} has no executor yet: start one with 'dfq executor'")
        }
        Ok(response) => exec_err!(
            "what answers at {url} is no Ballista scheduler: {ready} gives {}",
            response.status()
        ),
        Err(error) => exec_err!(
            "no scheduler answers at {url}: start one with 'dfq scheduler', or correct the address ({})",
            innermost(&error)
        ),
    }
}

/// The cause that says most: those around it name the request.
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
