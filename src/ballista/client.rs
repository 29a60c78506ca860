//! Sessions of clients, whose queries run on a cluster.

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

/// Words of the error for a caller without a certificate of the cluster.
const STRANGERS: &str = "not authorised";

/// Words of the error for a scheduler that takes no certificates.
const OPEN: &str = "asks nobody for a certificate or token";

/// A session on the cluster of the scheduler at `url`, `df://host:port`, with this crate's functions and options.
///
/// # Errors
/// A configuration error for text that is no such address; an execution error where no scheduler answers, and while it has no executor,
/// as queries would wait for one.
pub async fn connect(url: &str) -> Result<SessionContext> {
    connect_with_config(url, session_config()).await
}

/// A session as [`connect`] gives it, with another configuration: one made by changing that of [`session_config`].
///
/// # Errors
/// Those of [`connect`].
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

/// Checks that the scheduler is ready for queries.
async fn check(url: &str, identity: Option<&Identity>) -> Result<()> {
    let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "df");
    if parsed.is_none_or(|parsed| parsed.host_str().is_none()) {
        return config_err!("'{url}' is no address of a cluster: allowed is df://host or df://host:port");
    };
    match get(url, "readyz", identity).await? {
        response if response.status().is_success() => Ok(()),
        // A scheduler is not ready while executors are missing that it was started for. One executor is enough here.
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

/// The answer of the scheduler at `url` to an HTTP request for `path`, sent with this identity.
///
/// # Errors
/// An execution error where nobody answers, and where the caller is refused: see [`is_of_a_stranger`].
async fn get(url: &str, path: &str, identity: Option<&Identity>) -> Result<reqwest::Response> {
    let asked = format!("{}/{path}", address(url, identity));
    match http_client(identity)?.get(asked).send().await {
        Ok(response) if response.status().as_u16() == 401 => {
            let answer = response.text().await.unwrap_or_default();
            exec_err!("the scheduler at {url}: {answer}")
        }
        Ok(response) => Ok(response),
        Err(error) => exec_err!("{}", unanswered(url, identity, &innermost(&error))),
    }
}

/// Checks, before an executor starts, that the scheduler at `url` will serve it: Ballista's executor would try again and again. It is no
/// error if no scheduler answers yet.
///
/// # Errors
/// An execution error where the scheduler and this process do not know each other's certificates or token.
pub async fn check_membership(url: &str, identity: Option<&Identity>) -> Result<()> {
    match get(url, "healthz", identity).await {
        Err(error) if is_of_a_stranger(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an error means that caller and process of the cluster do not share a certificate authority or token.
fn is_of_a_stranger(error: &DataFusionError) -> bool {
    [STRANGERS, OPEN]
        .iter()
        .any(|text| error.to_string().contains(text))
}

/// The error text for a scheduler that did not answer.
fn unanswered(url: &str, identity: Option<&Identity>, error: &str) -> String {
    // A scheduler of another authority ends the connection when it sees the certificate, in some cases after the caller accepted its own.
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

/// Whether the scheduler at `url` has an executor.
async fn has_executors(url: &str, identity: Option<&Identity>) -> bool {
    match Scheduler::at(url, identity) {
        Some(scheduler) => scheduler.executors().await.is_ok_and(|ids| !ids.is_empty()),
        None => false,
    }
}

/// Whether a query failed because a machine was lost, or because its input changed while it ran, so that a second run may succeed.
pub fn is_worth_another_try(error: &DataFusionError) -> bool {
    let text = error.to_string();
    [READ_DIFFERENTLY, DELIVERED_TWICE, LOST_TRACK, LOST_EXECUTOR]
        .iter()
        .any(|failure| text.contains(failure))
}

/// Errors of a cluster: pieces that such an error has, and what it means and what to do instead.
const HINTS: [(&[&str], &str); 8] = [
    (
        &["rejected by executor"],
        "an executor may not know this crate's operators: start executors with 'dfq executor' of the same version; or the statement has what \
         Ballista 55 does not send to executors: WITH RECURSIVE, range(), or a table in memory. Write such rows to a file first",
    ),
    (&["Error during planning: Invalid function"], UNKNOWN_FUNCTIONS),
    (&["There is no UDF named"], UNKNOWN_FUNCTIONS),
    (&["There is no UDAF named"], UNKNOWN_FUNCTIONS),
    (
        &["PlanParsingFailure", "No field named", "Did you mean '\\\""],
        "Ballista 55 takes a name with a dot, of a table or an alias, for a schema and a table: write another alias behind it",
    ),
    (
        &["PlanParsingFailure", "No field named"],
        "Ballista 55 loses the columns of what the optimizer finds to be empty, such as the rows of WHERE false: leave that part of the \
         statement out",
    ),
    (&["RowConverter column schema mismatch"], DICTIONARIES),
    (&["column types must match schema types"], DICTIONARIES),
];

const UNKNOWN_FUNCTIONS: &str =
    "the scheduler may not know this crate's functions: start it with 'dfq scheduler' of the same version";

const DICTIONARIES: &str = "columns of dictionaries may end so with adaptive planning: SET ballista.planner.adaptive.enabled = false";

/// The error with a hint, if it is one that a cluster is known to give; else the error unchanged.
pub fn explained(error: DataFusionError) -> DataFusionError {
    let text = error.to_string();
    let is_it = |pieces: &[&str]| pieces.iter().all(|piece| text.contains(piece));
    match HINTS.iter().find(|(pieces, _)| is_it(pieces)) {
        Some((_, hint)) => exec_datafusion_err!("{} ({hint})", error.strip_backtrace()),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_cluster_say_what_to_do() {
        let hint = |text: &str| explained(exec_datafusion_err!("{text}")).strip_backtrace();
        for (error, expected) in [
            (
                "stage 1 was rejected by executor x: no codec",
                "a table in memory",
            ),
            ("PlanParsingFailure: No field named b.", "WHERE false"),
            (
                "PlanParsingFailure: No field named a.b.x. Did you mean '\\\"a.b\\\".x'?",
                "another alias",
            ),
            (
                "RowConverter column schema mismatch, expected Utf8",
                "adaptive.enabled = false",
            ),
            (
                "Error during planning: Invalid function 'exact_quantiles'",
                "'dfq scheduler'",
            ),
        ] {
            let shown = hint(error);
            assert!(shown.contains(error) && shown.contains(expected), "{shown}");
        }
        for other in ["divide by zero", "Schema error: No field named b."] {
            assert_eq!(hint(other), format!("Execution error: {other}"));
        }
    }

    #[test]
    fn what_strangers_are_told_is_known() {
        assert!(super::super::listener::NOT_AUTHORISED.starts_with(STRANGERS));
    }
}
