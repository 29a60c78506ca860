//! A port at which only members of the cluster are served.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, connect_info::Connected};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::identity::Identity;

/// The answer to a caller without a certificate. Clients recognise its first words.
pub(super) const NOT_AUTHORISED: &str = "not authorised: this process serves members of its cluster alone, which show a \
     certificate of its authority or know its token (dfq: --tls-cert, --tls-key and --tls-ca, or --token-file)";

/// Time limit for a caller's first bytes and its certificate.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the system could not accept a connection, as with too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// The first byte of a TLS connection.
const HANDSHAKE: u8 = 0x16;

/// The caller of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    address: SocketAddr,
    /// Whether it has shown a certificate of the authority.
    is_member: bool,
}

/// A connection. Only callers that are not members have one without TLS; they are told what is missing.
pub(super) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A port at which each caller is asked for its certificate.
pub(super) struct Listener {
    callers: mpsc::Receiver<(Stream, Caller)>,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// Those of the system, as where another process listens there.
    pub(super) async fn bind(address: SocketAddr, identity: &Identity) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (admitted, callers) = mpsc::channel(1);
        let address = listener.local_addr()?;
        tokio::spawn(accept(listener, TlsAcceptor::from(identity.server()), admitted));
        Ok(Self { callers, address })
    }

    /// Serves `routes` to members of the cluster until `ended`.
    ///
    /// # Errors
    /// None are known: a broken connection is no error of the server.
    pub(super) async fn serve(
        self,
        routes: Router,
        ended: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let routes = routes.layer(from_fn(members_only));
        let routes = routes.into_make_service_with_connect_info::<Caller>();
        axum::serve(self, routes).with_graceful_shutdown(ended).await
    }
}

/// Accepts connections until the receiver of `admitted` is gone. A slow connection delays no other.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, admitted: mpsc::Sender<(Stream, Caller)>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = admitted.closed() => return,
        };
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (acceptor, admitted) = (acceptor.clone(), admitted.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(PATIENCE, greet(stream, address, acceptor)).await {
                // The server may have ended by now.
                Ok(Ok(caller)) => drop(admitted.send(caller).await),
                Ok(Err(error)) => log::warn!("A connection from {address} was refused: {error}"),
                Err(_) => log::warn!("A connection from {address} was refused: silent for {PATIENCE:?}"),
            }
        });
    }
}

/// Identifies the caller of a connection, by TLS if it speaks that.
async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
) -> io::Result<(Stream, Caller)> {
    stream.set_nodelay(true)?;
    let mut first = [0];
    let read = stream.peek(&mut first).await?;
    let is_member = false;
    if read == 0 || first != [HANDSHAKE] {
        return Ok((Either::Left(stream), Caller { address, is_member }));
    }
    let stream = acceptor.accept(stream).await?;
    let is_member = stream.get_ref().1.peer_certificates().is_some();
    Ok((Either::Right(Box::new(stream)), Caller { address, is_member }))
}

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = Caller;

    async fn accept(&mut self) -> (Stream, Caller) {
        match self.callers.recv().await {
            Some(caller) => caller,
            // The accepting task ends only after the listener is dropped.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Caller> {
        let (address, is_member) = (self.address, false);
        Ok(Caller { address, is_member })
    }
}

impl Connected<IncomingStream<'_, Listener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// Answers members, and refuses other callers.
async fn members_only(mut request: Request, next: Next) -> Response {
    let caller = request
        .extensions()
        .get::<ConnectInfo<Caller>>()
        .map(|info| info.0.clone());
    match caller {
        Some(Caller {
            address,
            is_member: true,
        }) => {
            // Ballista reads the address of executors that do not name their host from here.
            request.extensions_mut().insert(ConnectInfo(address));
            next.run(request).await
        }
        _ => refusal(&request),
    }
}

/// The answer to a caller that is no member, in the protocol of its request.
fn refusal(request: &Request) -> Response {
    let asked = request
        .headers()
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |kind| kind.as_bytes());
    if asked.starts_with(b"application/grpc") {
        tonic::Status::unauthenticated(NOT_AUTHORISED).into_http::<Body>()
    } else {
        (StatusCode::UNAUTHORIZED, NOT_AUTHORISED).into_response()
    }
}
