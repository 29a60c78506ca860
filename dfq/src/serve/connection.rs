//! One client: its messages in, its answers out.
//!
//! While a statement runs its socket is read ahead, so that a client that goes away ends it.

mod extended;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use datafusion::common::ParamValues;
use datafusion::sql::sqlparser::ast::Set;
#[cfg(feature = "cuda")]
use datafusion_quantiles::pinned::{PinStatement, pin_all_columns};
use futures::{SinkExt, StreamExt};
use pgwire::api::portal::Format;
use pgwire::api::results::{FieldInfo, QueryResponse, Tag as CommandTag};
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionGuard, ConnectionHandle, Type};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::data::RowDescription;
use pgwire::messages::extendedquery::TARGET_TYPE_BYTE_STATEMENT;
use pgwire::messages::response::{EmptyQueryResponse, ReadyForQuery, TransactionStatus};
use pgwire::messages::startup::ParameterStatus;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Server;
use super::failure::{code, error, fatal, of_statement};
use super::frames::Phase;
use super::guard::{Guard, Stop, reached};
use super::metrics::Timed;
use super::planning::Planning;
use super::query::{self, Answer};
use super::session::{Identity, Session};
use super::settings::{self, Assigned};
use super::startup::{Client, Known, decode, start};
use super::statement::{self, Command, Prepared, Tag};

/// How long a client may take until its first statement can come.
const STARTUP: Duration = Duration::from_secs(10);

/// How long a cancelled statement has to tell its client.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How long the rest of a broken message is taken.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes of answers that are kept before they are written to the socket.
const UNWRITTEN: usize = 64 << 10;

/// Serves a client from its first byte to its last.
pub(super) async fn serve(server: Arc<Server>, socket: TcpStream, address: SocketAddr) {
    let known = tokio::time::timeout(STARTUP, start(&server, socket, address)).await;
    let Ok(known) = known else {
        log::warn!("{address}: no startup within {STARTUP:?}");
        return;
    };
    let Some(known) = known else { return };
    log::info!("{}: connected", known.name);
    let name = known.name.clone();
    match converse(server, known).await {
        Ok(()) => log::info!("{name}: disconnected"),
        Err(error) => log::info!("{name}: lost: {error}"),
    }
}

async fn converse(server: Arc<Server>, known: Known) -> io::Result<()> {
    let mut stop = server.stop.clone();
    let (mut connection, mut frames) = Connection::new(server, known).await?;
    loop {
        let frame = tokio::select! {
            biased;
            () = reached(&mut stop, Stop::Draining), if connection.is_idle => {
                Err(fatal(code::SHUTDOWN, "terminating connection: the server is stopping"))
            }
            frame = frames.next(Phase::Ready) => frame,
        };
        let is_broken = frame.is_err();
        let work = async {
            match frame {
                Ok(Some(frame)) => connection.handle(frame).await,
                Ok(None) => Ok(Next::End),
                Err(failure) => connection.report(failure, false).await,
            }
        };
        // Once the server stops, a client that does not read is not waited for.
        let given_up = async {
            reached(&mut stop, Stop::Now).await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let next = tokio::select! {
            biased;
            next = work => next?,
            () = given_up => Next::End,
            () = frames.closed() => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        if next == Next::End {
            if is_broken {
                // What is still to come is taken, so that the client reads the last answer before it sees the end.
                let _ = tokio::time::timeout(LINGER, frames.discard()).await;
            }
            return Ok(());
        }
    }
}

/// What comes after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Message,
    End,
}

struct Connection {
    server: Arc<Server>,
    client: Client,
    name: String,
    session: Session,
    identity: Identity,
    start: Vec<Assigned>,
    planning: Planning,
    cancel: Arc<ConnectionHandle>,
    /// Names of prepared statements and portals.
    names: HashSet<(u8, String)>,
    /// Whether an extended query failed: messages are skipped up to the next sync.
    is_skipping: bool,
    /// Whether the client was told that it may send a statement, and did not.
    is_idle: bool,
    stop: watch::Receiver<Stop>,
    _registered: ConnectionGuard,
}

type Frames = super::frames::Frames<tokio::io::ReadHalf<pgwire::tokio::server::MaybeTls>>;

impl Connection {
    async fn new(server: Arc<Server>, known: Known) -> io::Result<(Self, Frames)> {
        let Known {
            mut client,
            frames,
            values,
            name,
            user,
            connected,
        } = known;
        client.set_backpressure_boundary(UNWRITTEN);
        let (number, key) = client.pid_and_secret_key();
        let (cancel, registered) = server.clients.register(number, key);
        let identity = Identity { user, number };
        let session = match Session::start(&server.base, &values, &identity).await {
            Ok(session) => session,
            Err(failure) => {
                let info = ErrorInfo::from(failure);
                log::warn!("{name}: {} {}", info.code, info.message);
                client
                    .send(PgWireBackendMessage::ErrorResponse(info.into()))
                    .await?;
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        let stop = server.stop.clone();
        let connection = Self {
            server,
            client,
            name,
            session,
            identity,
            start: values,
            planning: Planning::new(connected),
            cancel,
            names: HashSet::new(),
            is_skipping: false,
            is_idle: true,
            stop,
            _registered: registered,
        };
        Ok((connection, frames))
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The socket's.
    async fn handle(&mut self, mut frame: BytesMut) -> io::Result<Next> {
        let message = match decode(&self.client, &mut frame) {
            Ok(message) => message,
            Err(failure) => return self.report(failure, false).await,
        };
        drop(frame);
        let is_sync = matches!(message, PgWireFrontendMessage::Sync(_));
        if matches!(message, PgWireFrontendMessage::Terminate(_)) {
            return Ok(Next::End);
        }
        if self.is_skipping && !is_sync {
            return Ok(Next::Message);
        }
        self.is_idle = false;
        let is_extended = message.is_extended_query();
        match self.answer(message).await {
            Ok(()) => Ok(Next::Message),
            Err(failure) => self.report(failure, is_extended).await,
        }
    }

    async fn answer(&mut self, message: PgWireFrontendMessage) -> PgWireResult<()> {
        match message {
            PgWireFrontendMessage::Query(query) => {
                self.simple(&query.query).await?;
                self.ready().await
            }
            PgWireFrontendMessage::Parse(parse) => self.parse(parse).await,
            PgWireFrontendMessage::Bind(bind) => self.bind(bind).await,
            PgWireFrontendMessage::Describe(describe) => self.describe(&describe).await,
            PgWireFrontendMessage::Execute(execute) => self.execute(&execute).await,
            PgWireFrontendMessage::Close(close) => self.close(&close).await,
            PgWireFrontendMessage::Flush(_) => Ok(self.client.flush().await?),
            PgWireFrontendMessage::Sync(_) => {
                self.is_skipping = false;
                self.ready().await
            }
            _ => Err(fatal(code::PROTOCOL, "unexpected message")),
        }
    }

    /// Tells the client of a failure. What comes up to the next sync is skipped if it is one of an extended query.
    async fn report(&mut self, failure: PgWireError, is_extended: bool) -> io::Result<Next> {
        if let PgWireError::IoError(error) = failure {
            return Err(error);
        }
        let info = ErrorInfo::from(failure);
        let level = if info.is_fatal() {
            log::Level::Warn
        } else {
            log::Level::Info
        };
        log::log!(level, "{}: {} {}", self.name, info.code, info.message);
        let is_fatal = info.is_fatal();
        self.client
            .feed(PgWireBackendMessage::ErrorResponse(info.into()))
            .await?;
        if is_fatal {
            self.client.close().await?;
            return Ok(Next::End);
        }
        let status = self.client.transaction_status().to_error_state();
        self.client.set_transaction_status(status);
        match is_extended {
            true => {
                self.is_skipping = true;
                self.client.flush().await?;
            }
            false => self.ready().await.map_err(io::Error::other)?,
        }
        Ok(Next::Message)
    }

    /// Tells the client that it may send a statement.
    async fn ready(&mut self) -> PgWireResult<()> {
        let status = self.client.transaction_status();
        if status == TransactionStatus::Idle {
            // Portals end with their transaction.
            self.client.portal_store().clear_portals();
            self.names.retain(|(kind, _)| *kind == TARGET_TYPE_BYTE_STATEMENT);
        }
        let message = PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status));
        self.client.send(message).await?;
        self.is_idle = true;
        Ok(())
    }

    /// What may end the statement that comes next, which is counted if it is one that `runs`.
    async fn guard(&self, runs: bool) -> Guard {
        let timeout = [self.session.timeout, self.server.limits.statement];
        Guard {
            cancel: self.cancel.start_query().await,
            timeout: timeout.into_iter().flatten().min(),
            stop: self.stop.clone(),
            timed: runs.then(|| Timed::start(&self.server.metrics)),
        }
    }

    /// Runs the statements of a text, one after the other.
    async fn simple(&mut self, text: &str) -> PgWireResult<()> {
        let pieces = statement::pieces(&self.session.ctx, text)?;
        if pieces.is_empty() {
            return Ok(self
                .feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()))
                .await?);
        }
        for piece in pieces {
            let guard = self.guard(true).await;
            let work = async {
                let prepared = self.prepare(&piece, &[]).await?;
                self.run(&prepared, None, &Format::UnifiedText).await
            };
            guard.run(&piece.text, work).await?;
        }
        Ok(())
    }

    async fn feed(&mut self, message: PgWireBackendMessage) -> io::Result<()> {
        self.client.feed(message).await
    }

    async fn prepare(&self, piece: &crate::sql::Piece, types: &[Option<Type>]) -> PgWireResult<Prepared> {
        let (server, ctx) = (Arc::clone(&self.server), self.session.ctx.clone());
        let (piece, types) = (piece.clone(), types.to_vec());
        let planned = self.planning.run(async move {
            let base = &server.base;
            statement::prepare(&ctx, &base.catalog, base.writes, &piece, &types).await
        });
        let prepared = planned.await?;
        let ends = matches!(prepared.command.as_ref(), Command::Commit | Command::Rollback);
        if self.client.transaction_status() == TransactionStatus::Error && !ends {
            return Err(error(
                code::TRANSACTION_ABORTED,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(prepared)
    }

    /// Runs a statement of a simple query and sends all of its answer.
    async fn run(
        &mut self,
        prepared: &Prepared,
        values: Option<&ParamValues>,
        format: &Format,
    ) -> PgWireResult<()> {
        let turn = self.turn(&prepared.command).await?;
        let tag = match self.begin(prepared, values, format, &turn).await? {
            Begun::Rows(mut rows, tag) => {
                let fields = rows.row_schema();
                self.feed(row_description(&fields)).await?;
                let (count, _) = self.send(&mut rows, 0).await?;
                tag_of(tag, count)
            }
            Begun::Done(tag) => tag,
        };
        self.feed(PgWireBackendMessage::CommandComplete(tag.into()))
            .await?;
        Ok(())
    }

    /// Waits until a statement may run.
    async fn turn(&self, command: &Command) -> PgWireResult<Turn> {
        match command.takes_turn() {
            true => Ok(Some(Arc::new(self.server.admission.turn().await?))),
            false => Ok(None),
        }
    }

    /// Starts a statement that takes a turn, which lasts as long as its planning at least.
    async fn start(
        &self,
        prepared: &Prepared,
        values: Option<&ParamValues>,
        format: &Format,
        turn: &Turn,
    ) -> PgWireResult<Answer> {
        let (session, writes, turn) = (self.session.clone(), self.server.base.writes, turn.clone());
        let (prepared, values, format) = (prepared.clone(), values.cloned(), format.clone());
        let started = self.planning.run(async move {
            let _turn = turn;
            let text = &prepared.text;
            match prepared.command.as_ref() {
                Command::Plan(planned) => {
                    query::start(&session, writes, planned, values.as_ref(), &format, text).await
                }
                Command::Summarize(statement) => {
                    let rows = query::summarize(&session, statement, &format, text).await;
                    rows.map(Answer::Rows)
                }
                _ => Ok(Answer::Done(None)),
            }
        });
        started.await
    }

    /// Begins a statement: all of it, if it has no rows.
    async fn begin(
        &mut self,
        prepared: &Prepared,
        values: Option<&ParamValues>,
        format: &Format,
        turn: &Turn,
    ) -> PgWireResult<Begun> {
        let word = |word: &str| Ok(Begun::Done(CommandTag::new(word)));
        match prepared.command.as_ref() {
            command @ (Command::Plan(_) | Command::Summarize(_)) => {
                let tag = command.tag();
                Ok(match self.start(prepared, values, format, turn).await? {
                    Answer::Rows(rows) => Begun::Rows(rows, tag),
                    Answer::Done(count) => Begun::Done(tag_of(tag, count.unwrap_or_default())),
                })
            }
            #[cfg(feature = "cuda")]
            Command::Pin(statement) => {
                self.pin(statement, &prepared.text).await?;
                word("PIN TABLE")
            }
            Command::Set(set) => {
                self.set(set).await?;
                word("SET")
            }
            Command::Show(name) => {
                let rows = query::shown(&self.session, name, format)?;
                Ok(Begun::Rows(rows, Tag::Answer("SHOW")))
            }
            Command::Begin | Command::Commit | Command::Rollback => word(self.transact(&prepared.command)),
            Command::Deallocate(name) => {
                self.deallocate(name.as_deref(), &prepared.text).await?;
                word("DEALLOCATE")
            }
            Command::Discard => {
                self.deallocate(None, &prepared.text).await?;
                self.session = Session::start(&self.server.base, &self.start, &self.identity).await?;
                word("DISCARD ALL")
            }
            Command::Nothing(tag) => word(tag),
        }
    }

    /// Pins or unpins. A notice says which columns of a whole table are left out.
    #[cfg(feature = "cuda")]
    async fn pin(&mut self, statement: &PinStatement, text: &str) -> PgWireResult<()> {
        let ctx = &self.session.ctx;
        let PinStatement::Pin { table, columns: None } = statement else {
            let pinned = statement.execute(ctx).await;
            return pinned.map(drop).map_err(|failure| of_statement(&failure, text));
        };
        let columns = pin_all_columns(ctx, table.clone()).await;
        let columns = columns.map_err(|failure| of_statement(&failure, text))?;
        for column in columns.iter().filter(|column| column.left_out.is_some()) {
            let told = ErrorInfo::new("NOTICE".into(), "00000".into(), format!("column {column}"));
            self.feed(PgWireBackendMessage::NoticeResponse(told.into()))
                .await?;
        }
        Ok(())
    }

    /// Begins or ends a transaction, and gives the tag of that.
    fn transact(&mut self, command: &Command) -> &'static str {
        let status = self.client.transaction_status();
        let (status, tag) = match (command, status) {
            (Command::Begin, status) => (status.to_in_transaction_state(), "BEGIN"),
            (Command::Commit, TransactionStatus::Idle | TransactionStatus::Transaction) => {
                (TransactionStatus::Idle, "COMMIT")
            }
            _ => (TransactionStatus::Idle, "ROLLBACK"),
        };
        self.client.set_transaction_status(status);
        tag
    }

    /// Forgets a prepared statement of the protocol or of SQL, or all of the protocol.
    async fn deallocate(&mut self, name: Option<&str>, text: &str) -> PgWireResult<()> {
        let mut is_known = false;
        self.names.retain(|(kind, known)| {
            let is_meant = *kind == TARGET_TYPE_BYTE_STATEMENT && name.is_none_or(|name| name == known);
            if is_meant {
                self.client.portal_store().rm_statement(known);
            }
            is_known |= is_meant;
            !is_meant
        });
        match name {
            Some(name) if !is_known => {
                let forgotten = query::deallocate(&self.session.ctx, name).await;
                forgotten.map_err(|failure| of_statement(&failure, text))
            }
            _ => Ok(()),
        }
    }

    async fn set(&mut self, set: &Set) -> PgWireResult<()> {
        match settings::assigned(set)? {
            Some(assigned) => self.assign(&assigned).await,
            None => Ok(()),
        }
    }

    async fn assign(&mut self, assigned: &Assigned) -> PgWireResult<()> {
        self.session.assign(assigned).await?;
        let reported = self.session.settings().reported(Some(assigned.name));
        for (name, value) in reported {
            let status = ParameterStatus::new(name, value);
            self.feed(PgWireBackendMessage::ParameterStatus(status)).await?;
        }
        Ok(())
    }

    /// Sends rows, at most so many if `most` is not 0: how many, and whether there are no more.
    async fn send(&mut self, rows: &mut QueryResponse, most: u64) -> PgWireResult<(u64, bool)> {
        let rows = rows.data_rows();
        let mut count = 0;
        while most == 0 || count < most {
            let Some(row) = rows.next().await else {
                return Ok((count, true));
            };
            self.client.feed(PgWireBackendMessage::DataRow(row?)).await?;
            self.server.metrics.sent(1);
            count += 1;
        }
        Ok((count, false))
    }
}

/// The right to run, which ends when nobody holds it.
type Turn = Option<Arc<OwnedSemaphorePermit>>;

/// A statement that started.
enum Begun {
    Rows(QueryResponse, Tag),
    Done(CommandTag),
}

fn tag_of(tag: Tag, count: u64) -> CommandTag {
    match tag {
        Tag::Rows(word) | Tag::Written(word) => {
            CommandTag::new(word).with_rows(usize::try_from(count).unwrap_or(usize::MAX))
        }
        Tag::Answer(word) | Tag::Done(word) => CommandTag::new(word),
    }
}

fn row_description(fields: &[FieldInfo]) -> PgWireBackendMessage {
    PgWireBackendMessage::RowDescription(RowDescription::new(fields.iter().map(Into::into).collect()))
}
