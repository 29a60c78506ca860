//! From a socket to a client that is known: TLS, the startup message, the password.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::SinkExt;
use pgwire::api::auth::sasl::SASLAuthStartupHandler;
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::{ClientInfo, DefaultClient, PgWireConnectionState, PidSecretKeyGenerator};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::startup::Startup;
use pgwire::messages::{DecodeContext, PgWireBackendMessage, PgWireFrontendMessage};
use pgwire::tokio::server::{MaybeTls, PgWireMessageServerCodec};
use tokio::io::ReadHalf;
use tokio::net::TcpStream;
use tokio_util::codec::Framed;

use super::Server;
use super::failure::{code, fatal};
use super::frames::{Frames, Phase};
use super::metrics::{Connected, Metrics};
use super::policy::Writes;
use super::settings::{self, Assigned, Settings};
use super::socket::{Opened, Outgoing, open};
use super::statement::{Prepared, VERSION};

/// What is written to a client, and what is known of it.
pub(super) type Client = Framed<Outgoing, PgWireMessageServerCodec<Prepared>>;

/// A client that may send statements.
pub(super) struct Known {
    pub(super) client: Client,
    pub(super) frames: Frames<ReadHalf<MaybeTls>>,
    /// The variables that it starts with.
    pub(super) values: Vec<Assigned>,
    /// As logs name it.
    pub(super) name: String,
    pub(super) user: String,
    pub(super) connected: Connected,
}

/// Takes a connection up to its first statement. `None` if it ends before: it was a cancel, or was refused.
pub(super) async fn start(server: &Arc<Server>, socket: TcpStream, address: SocketAddr) -> Option<Known> {
    let tls = server.access.tls.as_ref();
    let opened = match open(socket, tls.map(|tls| &tls.acceptor)).await {
        Ok(opened) => opened,
        Err(error) => {
            log::info!("{address}: no connection: {error}");
            return None;
        }
    };
    let Opened {
        socket,
        start,
        is_secure,
    } = opened;
    let (read, write) = tokio::io::split(socket);
    let mut frames = Frames::starting_with(read, server.limits.message, &start);
    let codec = PgWireMessageServerCodec::new(DefaultClient::new(address, is_secure));
    let mut client = Framed::new(Outgoing(write), codec);
    client.set_state(PgWireConnectionState::AwaitingStartup);
    match greet(server, &mut client, &mut frames).await {
        Ok(Some((values, user, connected))) => Some(Known {
            name: named(&client, &user),
            client,
            frames,
            values,
            user,
            connected,
        }),
        Ok(None) => None,
        Err(error) => {
            refuse(server, &mut client, error).await;
            None
        }
    }
}

async fn greet(
    server: &Arc<Server>,
    client: &mut Client,
    frames: &mut Frames<ReadHalf<MaybeTls>>,
) -> PgWireResult<Option<(Vec<Assigned>, String, Connected)>> {
    let Some(mut frame) = frames.next(Phase::Startup).await? else {
        return Ok(None);
    };
    let mut context = DecodeContext::default();
    context.awaiting_frontend_ssl = false;
    let startup = match PgWireFrontendMessage::decode(&mut frame, &context)? {
        Some(PgWireFrontendMessage::Startup(startup)) => startup,
        Some(PgWireFrontendMessage::CancelRequest(cancel)) => {
            server.clients.cancel(cancel.pid, &cancel.secret_key).await;
            return Ok(None);
        }
        _ => return Err(fatal(code::PROTOCOL, "invalid startup message")),
    };
    let user = startup.parameters.get("user").cloned().unwrap_or_default();
    check(server, client, &user)?;
    let Some(connected) = Connected::count(&server.metrics, server.limits.connections) else {
        Metrics::count(&server.metrics.refused_connections);
        return Err(fatal(
            code::TOO_MANY_CONNECTIONS,
            "sorry, too many clients already",
        ));
    };
    let parameters = startup.parameters.clone().into_iter().collect();
    let values = settings::of_startup(&parameters)?;
    let reported = Arc::new(Reported::new(&values, &user, server.base.writes));
    match authenticate(server, client, frames, startup, reported).await {
        Ok(true) => Ok(Some((values, user, connected))),
        Ok(false) => Ok(None),
        Err(error) => Err(of_login(error, &user)),
    }
}

fn named(client: &Client, user: &str) -> String {
    format!("{} ({})", client.socket_addr(), user.escape_debug())
}

fn check(server: &Server, client: &Client, user: &str) -> PgWireResult<()> {
    if user.is_empty() {
        return Err(fatal(code::NOT_AUTHORIZED, "no user name was given"));
    }
    if server.access.tls.is_some() && !client.is_secure() {
        return Err(fatal(
            code::NOT_AUTHORIZED,
            "this server takes connections with TLS only: set sslmode=require",
        ));
    }
    Ok(())
}

/// Has the client prove who it is, and tells it what it connected to. False if it went away.
async fn authenticate(
    server: &Arc<Server>,
    client: &mut Client,
    frames: &mut Frames<ReadHalf<MaybeTls>>,
    startup: Startup,
    reported: Arc<Reported>,
) -> PgWireResult<bool> {
    let Some(passwords) = &server.access.passwords else {
        protocol_negotiation(client, &startup).await?;
        save_startup_parameters_to_metadata(client, &startup);
        let (number, key) = server.numbers.generate(client);
        client.set_pid_and_secret_key(number, key);
        finish_authentication(client, reported.as_ref()).await?;
        return Ok(true);
    };
    let tls = server.access.tls.as_ref().filter(|_| client.is_secure());
    let handler = SASLAuthStartupHandler::new(reported)
        .with_scram(passwords.scram(tls))
        .with_pid_secret_key_generator(Arc::clone(&server.numbers) as Arc<dyn PidSecretKeyGenerator>);
    handler
        .on_startup(client, PgWireFrontendMessage::Startup(startup))
        .await?;
    let mut phase = Phase::FirstPassword;
    while !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
        let Some(mut frame) = frames.next(phase).await? else {
            return Ok(false);
        };
        phase = Phase::Password;
        match decode(client, &mut frame)? {
            message @ PgWireFrontendMessage::PasswordMessageFamily(_) => {
                handler.on_startup(client, message).await?
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Decodes a frame that was checked.
///
/// # Errors
/// A message that is none after all.
pub(super) fn decode(client: &Client, frame: &mut bytes::BytesMut) -> PgWireResult<PgWireFrontendMessage> {
    let mut context = DecodeContext::new(client.protocol_version());
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = false;
    match PgWireFrontendMessage::decode(frame, &context)? {
        Some(message) => Ok(message),
        None => Err(fatal(code::PROTOCOL, "invalid message")),
    }
}

/// What a client is told of a login that failed: nothing that tells a wrong name from a wrong password.
fn of_login(error: PgWireError, user: &str) -> PgWireError {
    match error {
        PgWireError::InvalidPassword(_) => fatal(
            "28P01",
            format!("password authentication failed for user \"{user}\""),
        ),
        other => other,
    }
}

/// Tells a client why it is not let in. It is not waited for.
async fn refuse(server: &Server, client: &mut Client, error: PgWireError) {
    let mut info = ErrorInfo::from(error);
    // Nothing goes on after a failed start.
    info.severity = "FATAL".to_string();
    info.severity_nonlocalized = Some(info.severity.clone());
    if info.code.starts_with("28") {
        Metrics::count(&server.metrics.failed_logins);
    }
    log::warn!(
        "{}: refused: {} {}",
        client.socket_addr(),
        info.code,
        info.message
    );
    let message = PgWireBackendMessage::ErrorResponse(info.into());
    if client.send(message).await.is_ok() {
        let _ = client.close().await;
    }
}

/// What a client is told of the server before its first statement.
struct Reported(Vec<(String, String)>);

impl Reported {
    fn new(values: &[Assigned], user: &str, writes: Writes) -> Self {
        let mut settings = Settings::default();
        for assigned in values {
            settings.assign(assigned);
        }
        let read_only = if writes == Writes::Allowed { "off" } else { "on" };
        let fixed = [
            ("default_transaction_read_only", read_only),
            ("in_hot_standby", "off"),
            ("integer_datetimes", "on"),
            ("is_superuser", "off"),
            ("server_encoding", "UTF8"),
            ("server_version", VERSION),
            ("session_authorization", user),
        ];
        let fixed = fixed.map(|(name, value)| (name.to_string(), value.to_string()));
        Self(settings.reported(None).into_iter().chain(fixed).collect())
    }
}

impl ServerParameterProvider for Reported {
    fn server_parameters<C: ClientInfo>(&self, _client: &C) -> Option<HashMap<String, String>> {
        Some(self.0.iter().cloned().collect())
    }
}
