//! The first bytes of a connection: with TLS or without, a client or a cancel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use pgwire::tokio::TlsAcceptor;
use pgwire::tokio::server::MaybeTls;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, WriteHalf};
use tokio::net::TcpStream;

/// Bytes of a request that may come before the startup message: its length and its code.
const REQUEST: usize = 8;

const TLS_REQUEST: [u8; REQUEST] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS_REQUEST: [u8; REQUEST] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];

/// The first byte of a TLS handshake that comes without a request.
const HANDSHAKE: u8 = 0x16;

/// A connection whose next bytes are its startup message, or a cancel.
pub(super) struct Opened {
    pub(super) socket: MaybeTls,
    /// The first bytes of that message, which are read already.
    pub(super) start: [u8; REQUEST],
    pub(super) is_secure: bool,
}

/// Answers requests of encryption. Nothing that was sent in the clear is read as if it had come encrypted.
///
/// # Errors
/// The socket's, and those of TLS.
pub(super) async fn open(mut socket: TcpStream, tls: Option<&TlsAcceptor>) -> io::Result<Opened> {
    socket.set_nodelay(true)?;
    let mut first = [0];
    if socket.peek(&mut first).await? == 1 && first == [HANDSHAKE] {
        return match tls {
            Some(tls) => encrypted(socket, tls, true).await,
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "TLS without a certificate",
            )),
        };
    }
    // A client asks once for each kind at most.
    for _ in 0..3 {
        let mut start = [0; REQUEST];
        socket.read_exact(&mut start).await?;
        match (start, tls) {
            (TLS_REQUEST, Some(tls)) => {
                socket.write_all(b"S").await?;
                return encrypted(socket, tls, false).await;
            }
            (TLS_REQUEST, None) | (GSS_REQUEST, _) => socket.write_all(b"N").await?,
            _ => {
                return Ok(Opened {
                    socket: MaybeTls::Plain(socket),
                    start,
                    is_secure: false,
                });
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "too many requests of encryption",
    ))
}

async fn encrypted(socket: TcpStream, tls: &TlsAcceptor, direct: bool) -> io::Result<Opened> {
    let mut socket = tls.accept(socket).await?;
    if direct && socket.get_ref().1.alpn_protocol() != Some(b"postgresql") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "TLS for another protocol",
        ));
    }
    let mut start = [0; REQUEST];
    socket.read_exact(&mut start).await?;
    Ok(Opened {
        socket: MaybeTls::Tls(Box::new(socket)),
        start,
        is_secure: true,
    })
}

/// The half of a connection that is written. What comes is read elsewhere.
pub(super) struct Outgoing(pub(super) WriteHalf<MaybeTls>);

impl AsyncRead for Outgoing {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
