//! `dfq serve`: a server that speaks PostgreSQL's protocol.
//!
//! ```text
//! mod          options, start, stop
//!   connection   one client: messages in, answers out
//!     startup      TLS, startup message, password (access)       socket, frames: bytes to messages
//!     statement    text to plan: PostgreSQL's catalog, parameters; settings: SET and SHOW; policy: what clients may do
//!     query        plan to rows; text: values as PostgreSQL writes them
//!     planning     plans on a thread of its own
//!     guard        cancel, timeout, stop                         admission: turns of statements
//!   http         /metrics, /healthz (metrics)
//! ```

mod access;
mod admission;
mod connection;
mod failure;
mod frames;
mod guard;
mod http;
mod metrics;
mod planning;
mod policy;
mod query;
mod session;
mod settings;
mod socket;
mod startup;
mod statement;
mod text;

use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::config_datafusion_err;
use datafusion::error::Result;
use futures::FutureExt;
use pgwire::api::{ConnectionManager, RandomPidSecretKeyGenerator};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use self::access::{Access, AccessArgs};
use self::admission::Admission;
use self::guard::Stop;
use self::metrics::Metrics;
use self::policy::Writes;
use self::session::Base;
use crate::args::{parse_bytes, parse_count, parse_seconds};
use crate::console::{End, message, panicked, say};
use crate::sql::{SessionArgs, run_setup};

/// Serves tables to PostgreSQL's clients: psql, drivers, dashboards.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Clients read, and run no statement that writes; --init makes tables and views for them. Signals TERM and INT stop the \
        server: statements that run may end within --stop-seconds.\n\n\
        Examples:\n  \
        dfq serve trips.parquet\n  \
        dfq serve --init setup.sql --memory-limit 4g --metrics-bind 127.0.0.1:9187\n  \
        dfq serve trips.parquet --bind-host 0.0.0.0 --password-file passwords --tls-cert server.pem --tls-key server.key"
)]
pub(crate) struct ServeArgs {
    /// Files, folders, globs or URLs to serve as tables, each named by its file or by NAME=
    #[arg(value_name = "[NAME=]FILE")]
    tables: Vec<String>,

    /// File of statements to run before there are clients, such as CREATE VIEW; can be given several times
    #[arg(long, value_name = "FILE")]
    init: Vec<String>,

    /// Columns to keep in the memory of a device, such as trips:fare,tip, or all of a table that can be; can be given several times
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "TABLE[:COLUMNS]")]
    pin: Vec<String>,

    /// Lets clients write: files, tables, and files of this machine by their names in statements
    #[arg(long)]
    allow_write: bool,

    /// Most connections at once
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "100")]
    max_connections: NonZeroUsize,

    /// Most statements that run at once [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_running: Option<NonZeroUsize>,

    /// Most statements that wait for their turn
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_waiting: usize,

    /// Most bytes of a statement, or of the values that it is given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "4MB")]
    max_message: usize,

    /// Seconds after which a statement is cancelled, its wait and the sending of its rows included [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    statement_timeout_seconds: Option<Duration>,

    /// Seconds that statements have to end when the server is stopped
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "30")]
    stop_seconds: Duration,

    /// What is logged on standard error, as RUST_LOG
    #[arg(long, value_name = "FILTER", default_value = "warn,dfq=info")]
    log: String,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    session: SessionArgs,
}

impl ServeArgs {
    /// Whether queries are to hold so much memory at most.
    pub(crate) fn limits_memory(&self) -> bool {
        self.session.limits_memory()
    }
}

/// What all connections share.
struct Server {
    base: Base,
    access: Access,
    limits: Limits,
    admission: Admission,
    metrics: Arc<Metrics>,
    /// Connections by the keys that cancel their statements.
    clients: Arc<ConnectionManager>,
    numbers: Arc<RandomPidSecretKeyGenerator>,
    stop: watch::Receiver<Stop>,
}

/// Limits of connections and statements.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: usize,
    /// Most bytes of a message.
    message: usize,
    /// How long a statement may take.
    statement: Option<Duration>,
}

/// Connections, beside those that are served, that may be about to start.
const STARTING: usize = 64;

/// How long cancelled statements have until their connections are dropped.
const CANCELLED: Duration = Duration::from_secs(1);

/// Runs `dfq serve` until it is told to stop.
pub(crate) async fn run(args: ServeArgs) -> End {
    let filter = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| args.log.clone());
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .init();
    match prepare(&args).await {
        Ok(prepared) => serve(prepared, args.stop_seconds).await,
        Err(end) => end,
    }
}

/// A server that can start.
struct Prepared {
    server: Arc<Server>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    stop: watch::Sender<Stop>,
}

/// Makes the tables that there are before there are clients.
async fn base(args: &ServeArgs) -> Result<Base, End> {
    let writes = match args.allow_write {
        true => Writes::Allowed,
        false => Writes::Refused,
    };
    let base = Base::new(&args.session, writes).await?;
    for table in &args.tables {
        base.add_table(table).await?;
    }
    for file in &args.init {
        match run_setup(&base.ctx, file).await {
            End::Success => {}
            end => return Err(end),
        }
    }
    #[cfg(feature = "cuda")]
    for pin in &args.pin {
        self::pin(&base, pin).await?;
    }
    Ok(base)
}

async fn prepare(args: &ServeArgs) -> Result<Prepared, End> {
    let access = args.access.access()?;
    let base = base(args).await?;
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let running = args.max_running.unwrap_or(cores).get();
    let (stop, stopped) = watch::channel(Stop::Serving);
    let server = Server {
        base,
        access,
        limits: Limits {
            connections: args.max_connections.get(),
            message: args.max_message,
            statement: args.statement_timeout_seconds,
        },
        admission: Admission::new(running, args.max_waiting),
        metrics: Arc::default(),
        clients: Arc::new(ConnectionManager::new()),
        numbers: Arc::new(RandomPidSecretKeyGenerator::default()),
        stop: stopped,
    };
    let metrics = match args.access.metrics_address() {
        Some(address) => Some(bind("--metrics-bind", address).await?),
        None => None,
    };
    Ok(Prepared {
        server: Arc::new(server),
        listener: bind("--bind-host and --bind-port", args.access.address()).await?,
        metrics,
        stop,
    })
}

async fn bind(option: &str, address: std::net::SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| config_datafusion_err!("cannot listen on {address}, as {option} say: {error}"))
}

/// Pins columns given as `table:column,column`, or all of a `table` that can be pinned.
#[cfg(feature = "cuda")]
async fn pin(base: &Base, text: &str) -> Result<()> {
    let Some((table, columns)) = text.split_once(':') else {
        let columns = datafusion_quantiles::pinned::pin_all_columns(&base.ctx, text).await?;
        for column in columns.iter().filter(|column| column.left_out.is_some()) {
            log::warn!("--pin {text}: column {column}");
        }
        return Ok(());
    };
    let columns: Vec<_> = columns.split(',').map(str::trim).collect();
    datafusion_quantiles::pinned::pin_table(&base.ctx, table, &columns).await
}

async fn serve(prepared: Prepared, patience: Duration) -> End {
    let Prepared {
        server,
        listener,
        metrics,
        stop,
    } = prepared;
    let (Ok(mut terminated), Ok(mut interrupted)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return End::error("cannot listen to signals".to_string());
    };
    let mut connections = JoinSet::new();
    announce(&listener, metrics.as_ref());
    let _http = metrics.map(|metrics| AbortOnDrop(tokio::spawn(http::serve(metrics, Arc::clone(&server)))));
    let end = tokio::select! {
        biased;
        _ = terminated.recv() => End::Success,
        _ = interrupted.recv() => End::Interrupted,
        () = accept(&listener, &server, &mut connections) => End::Success,
    };
    drop(listener);
    log::info!("stopping: {} connections", connections.len());
    stop.send_replace(Stop::Draining);
    let ended = tokio::select! {
        () = all(&mut connections) => true,
        () = tokio::time::sleep(patience) => false,
        _ = terminated.recv() => false,
        _ = interrupted.recv() => false,
    };
    if !ended {
        log::warn!("cancelling what runs: {} connections", connections.len());
        stop.send_replace(Stop::Now);
        let _ = tokio::time::timeout(CANCELLED, all(&mut connections)).await;
    }
    connections.shutdown().await;
    end
}

/// Ends a task with what started it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// Says where the server listens: whoever started it may have asked for a free port.
fn announce(listener: &TcpListener, metrics: Option<&TcpListener>) {
    let address = |listener: &TcpListener| listener.local_addr().map(|address| address.to_string());
    say(format_args!(
        "Listening on {}",
        address(listener).unwrap_or_default()
    ));
    if let Some(metrics) = metrics {
        say(format_args!(
            "Metrics on http://{}/metrics",
            address(metrics).unwrap_or_default()
        ));
    }
}

/// Accepts connections without end.
async fn accept(listener: &TcpListener, server: &Arc<Server>, connections: &mut JoinSet<()>) {
    let open = Arc::new(Semaphore::new(
        server
            .limits
            .connections
            .saturating_add(STARTING)
            .min(Semaphore::MAX_PERMITS),
    ));
    loop {
        // What has ended is forgotten.
        while connections.try_join_next().is_some() {}
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&open).try_acquire_owned() else {
            Metrics::count(&server.metrics.refused_connections);
            log::warn!("{address}: refused: too many connections are about to start");
            continue;
        };
        let server = Arc::clone(server);
        connections.spawn(async move {
            let served = AssertUnwindSafe(connection::serve(server, socket, address));
            if let Err(panic) = served.catch_unwind().await {
                log::error!("{address}: {}", message(&panicked(panic)));
            }
            drop(place);
        });
    }
}
