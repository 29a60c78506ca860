//! A session whose queries run on a cluster.

use ballista::extension::SessionContextExt;
use datafusion::common::{DataFusionError, Result, config_err, exec_datafusion_err, exec_err};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use url::Url;

use super::endpoint::{address, http_client, innermost};
use super::identity::Identity;
use super::scheduler::Scheduler;
use super::session::{runtime, session_config};
use super::stores::StoreLimits;
use super::watch::{LOST_EXECUTOR, LOST_TRACK};
use crate::exec::staged::READ_DIFFERENTLY;
use crate::functions::DELIVERED_TWICE;
use crate::planner::register_all;

/// What errors say of callers that show no certificate of the cluster, or another one.
const STRANGERS: &str = "not authorised";

/// What an error says of a scheduler that takes no certificates.
const OPEN: &str = "asks nobody for a certificate or token";

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
    check(url, Identity::of(&config).as_deref()).await?;
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime(None, StoreLimits::default())?)
        .build();
    let ctx = SessionContext::remote_with_state(url, state).await?;
    register_all(&ctx)?;
    Ok(ctx)
}

/// Asks the scheduler whether it is ready for queries.
async fn check(url: &str, identity: Option<&Identity>) -> Result<()> {
    let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "df");
    if parsed.is_none_or(|parsed| parsed.host_str().is_none()) {
        return config_err!("'{url}' is no address of a cluster: allowed is df://host or df://host:port");
    };
    match ask(url, "readyz", identity).await? {
        response if response.status().is_success() => Ok(()),
        // It is not ready as long as one is missing of those that it was started for.
        response if response.status().as_u16() == 503 && has_executors(url, identity).await => Ok(()),
        response if response.status().as_u16() == 503 => {
            exec_err!("the scheduler at {url} has no executor yet: start one with 'dfq executor'")
        }
        response => exec_err!(
            "what answers at {url} is no Ballista scheduler: {} gives {}",
            response.url(),
            response.status()
        ),
    }
}

/// What the scheduler at `url` answers to a caller with this identity.
///
/// # Errors
/// Where nobody answers, and where the caller is a stranger: see [`is_of_a_stranger`].
async fn ask(url: &str, path: &str, identity: Option<&Identity>) -> Result<reqwest::Response> {
    let asked = format!("{}/{path}", address(url, identity));
    match http_client(identity)?.get(asked).send().await {
        Ok(response) if response.status().as_u16() == 401 => {
            let told = response.text().await.unwrap_or_default();
            exec_err!("the scheduler at {url}: {told}")
        }
        Ok(response) => Ok(response),
        Err(error) => exec_err!("{}", unanswered(url, identity, &innermost(&error))),
    }
}

/// Checks, before an executor starts, that the scheduler at `url` serves it: Ballista's executor would ask again and again.
/// Where no scheduler answers yet, nothing is known.
///
/// # Errors
/// An execution error where the scheduler and this process do not know each other's certificates or token.
pub async fn check_membership(url: &str, identity: Option<&Identity>) -> Result<()> {
    match ask(url, "healthz", identity).await {
        Err(error) if is_of_a_stranger(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether a process of a cluster did not serve a caller for want of a certificate or token that both know.
fn is_of_a_stranger(error: &DataFusionError) -> bool {
    [STRANGERS, OPEN]
        .iter()
        .any(|text| error.to_string().contains(text))
}

/// Why a scheduler did not answer.
fn unanswered(url: &str, identity: Option<&Identity>, error: &str) -> String {
    // A scheduler of another authority ends the connection when it sees the certificate, some after the caller has.
    let is_stranger = error.contains("certificate") || error.contains("fatal alert");
    match (identity.is_some(), is_stranger) {
        (true, true) => format!(
            "{STRANGERS}: the scheduler at {url} and this program do not know the same token, or do not trust each \
             other's certificates ({error})"
        ),
        (true, false) if error.contains("corrupt message") => format!(
            "the scheduler at {url} {OPEN}, and what is sent to it can be read: start it \
             with the same ones ({error})"
        ),
        _ => format!(
            "no scheduler answers at {url}: start one with 'dfq scheduler', or correct the address ({error})"
        ),
    }
}

async fn has_executors(url: &str, identity: Option<&Identity>) -> bool {
    match Scheduler::at(url, identity) {
        Some(scheduler) => scheduler.executors().await.is_ok_and(|ids| !ids.is_empty()),
        None => false,
    }
}

/// Whether a query failed because a machine was lost or its input changed while it ran, so that it may succeed if it is
/// run again.
pub fn is_worth_another_try(error: &DataFusionError) -> bool {
    let text = error.to_string();
    [READ_DIFFERENTLY, DELIVERED_TWICE, LOST_TRACK, LOST_EXECUTOR]
        .iter()
        .any(|failure| text.contains(failure))
}

/// The same error, with what to do about it if the cluster is not set up for this crate.
pub fn explained(error: DataFusionError) -> DataFusionError {
    let text = error.to_string();
    let hint = if text.contains("rejected by executor") {
        "an executor may not know this crate's operators: start executors with 'dfq executor' of the same version"
    } else if text.contains("Error during planning: Invalid function")
        || text.contains("There is no UDF named")
        || text.contains("There is no UDAF named")
    {
        "the scheduler may not know this crate's functions: start it with 'dfq scheduler' of the same version"
    } else {
        return error;
    };
    exec_datafusion_err!("{} ({hint})", error.strip_backtrace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_are_told_is_known() {
        assert!(super::super::listener::NOT_AUTHORISED.starts_with(STRANGERS));
    }
}
