//! Messages of a client as they come from its socket: cut into frames, and checked before they are decoded.
//!
//! ```text
//! at the start   | length (4) | code (4) | ...                  startup, or a request of TLS or of a cancel
//! afterwards     | tag (1) | length (4) | body (length - 4)     every other message
//! ```

use bytes::{Buf, BytesMut};
use pgwire::error::PgWireError;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::failure::{code, fatal};

/// Most bytes of a message before the client has said who it is, and of each message that carries no statement and no values.
const SMALL: usize = 10_000;

/// Bytes that are read ahead of what is asked for, while a statement runs.
const AHEAD: usize = 64 << 10;

/// Frames that come from a socket.
pub(super) struct Frames<R> {
    socket: R,
    buffer: BytesMut,
    /// Most bytes of a statement, or of its values.
    most: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Frames of a socket whose first bytes are read already.
    pub(super) fn starting_with(socket: R, most: usize, start: &[u8]) -> Self {
        Self {
            socket,
            buffer: BytesMut::from(start),
            most,
        }
    }

    /// The next frame, whole and with a valid body; `None` at the end of the connection. Nothing is lost where the future is
    /// dropped before its end.
    ///
    /// # Errors
    /// Bytes that are no message, and a message that is too long.
    pub(super) async fn next(&mut self, phase: Phase) -> Result<Option<BytesMut>, PgWireError> {
        loop {
            if let Some(length) = length(&self.buffer, phase, self.most)?
                && self.buffer.len() >= length
            {
                let frame = self.buffer.split_to(length);
                if self.buffer.is_empty() {
                    // What a long message took is given back.
                    self.buffer = BytesMut::new();
                }
                check(&frame, phase)?;
                return Ok(Some(frame));
            }
            if !matches!(self.socket.read_buf(&mut self.buffer).await, Ok(1..)) {
                return Ok(None);
            }
        }
    }

    /// Waits until the client has closed the connection; without end while it sends more than can be kept.
    pub(super) async fn closed(&mut self) {
        while self.buffer.len() < AHEAD {
            if !matches!(self.socket.read_buf(&mut self.buffer).await, Ok(1..)) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Reads to the end of the connection, and keeps nothing.
    pub(super) async fn discard(&mut self) {
        let mut bytes = vec![0; AHEAD];
        while matches!(self.socket.read(&mut bytes).await, Ok(1..)) {}
    }
}

/// Which messages can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first message, which has no tag.
    Startup,
    /// Answers to questions of who the client is; the first names how.
    FirstPassword,
    Password,
    /// Statements.
    Ready,
}

/// Bytes of the frame at the start of `bytes`, once its head is there.
fn length(bytes: &[u8], phase: Phase, most: usize) -> Result<Option<usize>, PgWireError> {
    let tagged = usize::from(phase != Phase::Startup);
    let Some(head) = bytes.get(tagged..tagged + 4) else {
        return Ok(None);
    };
    let (tag, mut head) = (bytes.first().copied().unwrap_or_default(), head);
    let length = head.get_i32();
    let most = match (phase, tag) {
        (Phase::Ready, b'Q' | b'P' | b'B') => most,
        (Phase::Ready, b'D' | b'C' | b'E' | b'H' | b'S' | b'X' | b'c' | b'd' | b'f')
        | (Phase::Startup, _) => SMALL,
        (Phase::FirstPassword | Phase::Password, b'p' | b'X') => SMALL,
        _ => return Err(invalid(format!("unexpected message of type {tag:#04x}"))),
    };
    match usize::try_from(length) {
        Ok(length) if length > most => Err(fatal(
            code::TOO_LARGE,
            format!("a message of {length} bytes is longer than the {most} bytes that are allowed"),
        )),
        Ok(length) if length >= 4 + 4 * usize::from(tagged == 0) => Ok(Some(tagged + length)),
        _ => Err(invalid(format!("invalid message length {length}"))),
    }
}

fn invalid(message: impl Into<String>) -> PgWireError {
    fatal(code::PROTOCOL, message)
}

/// Proves that the body of a frame is what its tag says, to the last byte.
fn check(frame: &[u8], phase: Phase) -> Result<(), PgWireError> {
    let tag = frame.first().copied().unwrap_or_default();
    let mut body = Body(frame.get(5..).unwrap_or_default());
    let well_formed = match (phase, tag) {
        // What comes without a tag, and what is not cut any further, is checked by its decoder.
        (Phase::Startup, _) | (Phase::Password, b'p') => return Ok(()),
        (Phase::FirstPassword, b'p') => body.first_password(),
        _ => body.of_message(tag),
    };
    match (well_formed, body.0) {
        (Some(()), []) => Ok(()),
        _ => Err(invalid(format!(
            "invalid message of type '{}'",
            char::from(tag).escape_default()
        ))),
    }
}

/// What is left of a body.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.0.first().copied()?;
        self.skip(1)?;
        Some(byte)
    }

    fn count(&mut self) -> Option<usize> {
        (self.0.len() >= 2).then(|| usize::from(self.0.get_u16()))
    }

    fn number(&mut self) -> Option<i32> {
        (self.0.len() >= 4).then(|| self.0.get_i32())
    }

    /// A text that ends with a zero byte.
    fn text(&mut self) -> Option<()> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(self.0.get(..end)?).ok()?;
        self.skip(end + 1)
    }

    fn of_message(&mut self, tag: u8) -> Option<()> {
        match tag {
            b'Q' => self.text(),
            b'P' => {
                self.text()?;
                self.text()?;
                let types = self.count()?;
                self.skip(4 * types)
            }
            b'B' => self.bind(),
            b'D' | b'C' => {
                matches!(self.byte()?, b'S' | b'P').then_some(())?;
                self.text()
            }
            b'E' => {
                self.text()?;
                self.number().map(drop)
            }
            b'H' | b'S' | b'X' => Some(()),
            _ => None,
        }
    }

    /// The way to prove a password, and the first step of it.
    fn first_password(&mut self) -> Option<()> {
        self.text()?;
        match self.number()? {
            -1 => Some(()),
            length => self.skip(usize::try_from(length).ok()?),
        }
    }

    /// The portal, the statement, formats of values, values, formats of columns.
    fn bind(&mut self) -> Option<()> {
        self.text()?;
        self.text()?;
        let formats = self.count()?;
        self.skip(2 * formats)?;
        for _ in 0..self.count()? {
            match self.number()? {
                -1 => {}
                length => self.skip(usize::try_from(length).ok()?)?,
            }
        }
        let formats = self.count()?;
        self.skip(2 * formats)
    }
}

#[cfg(test)]
mod tests {
    use pgwire::messages::{DecodeContext, PgWireFrontendMessage, ProtocolVersion};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as i32 + 4).to_be_bytes();
        [&[tag], &length[..], body].concat()
    }

    /// One message of each kind.
    fn messages() -> Vec<Vec<u8>> {
        let bind = b"p\0s\0\0\x02\0\0\0\x01\0\x02\0\0\0\x011\xff\xff\xff\xff\0\x01\0\0";
        vec![
            frame(b'Q', b"SELECT 1\0"),
            frame(b'P', b"s\0SELECT $1\0\0\x01\0\0\0\x17"),
            frame(b'B', bind),
            frame(b'D', b"Sname\0"),
            frame(b'C', b"P\0"),
            frame(b'E', b"\0\0\0\0\x05"),
            frame(b'H', b""),
            frame(b'S', b""),
            frame(b'X', b""),
        ]
    }

    async fn read(bytes: &[u8]) -> Result<Option<BytesMut>, PgWireError> {
        Frames::starting_with(bytes, 1 << 20, b"")
            .next(Phase::Ready)
            .await
    }

    #[tokio::test]
    async fn well_formed_messages_pass() {
        for message in messages() {
            assert_eq!(read(&message).await.unwrap().unwrap(), message, "{message:?}");
        }
        let all = messages().concat();
        let mut frames = Frames::starting_with(all.as_slice(), 1 << 20, b"");
        for message in messages() {
            assert_eq!(frames.next(Phase::Ready).await.unwrap().unwrap(), message);
        }
        assert!(frames.next(Phase::Ready).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn lengths_are_believed_within_limits_only() {
        for (head, expected) in [
            (&b"Q\x00\x20\x00\x00"[..], "longer than the 1048576 bytes"),
            (b"S\x00\x00\x40\x00", "longer than the 10000 bytes"),
            (b"Q\xff\xff\xff\xff", "invalid message length -1"),
            (b"Q\x00\x00\x00\x03", "invalid message length 3"),
            (b"z\x00\x00\x00\x04", "unexpected message of type 0x7a"),
        ] {
            let error = read(head).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// What passes the check is decoded without a panic, and to its last byte.
    #[tokio::test]
    async fn changed_messages_are_refused_or_decoded() {
        let context = DecodeContext::new(ProtocolVersion::default());
        let mut context = context;
        (context.awaiting_frontend_ssl, context.awaiting_frontend_startup) = (false, false);
        let mut random = SmallRng::seed_from_u64(7);
        let (mut refused, mut decoded) = (0, 0);
        let messages = messages();
        for _ in 0..100_000 {
            let mut message = messages[random.random_range(0..messages.len())].clone();
            for _ in 0..random.random_range(1..4) {
                let place = random.random_range(0..message.len());
                match random.random_range(0..4) {
                    0 => message[place] = random.random(),
                    1 => message[place] ^= 1 << random.random_range(0..8),
                    2 => message.insert(place, random.random()),
                    _ if message.len() > 1 => drop(message.remove(place)),
                    _ => {}
                }
            }
            if random.random() && message.len() >= 5 {
                let length = (message.len() as i32 - 1).to_be_bytes();
                message[1..5].copy_from_slice(&length);
            }
            match read(&message).await {
                Ok(Some(mut frame)) => {
                    PgWireFrontendMessage::decode(&mut frame, &context)
                        .unwrap()
                        .unwrap();
                    assert!(frame.is_empty(), "{message:?}");
                    decoded += 1;
                }
                Ok(None) | Err(_) => refused += 1,
            }
        }
        assert!(refused > 10_000 && decoded > 10_000, "{refused} {decoded}");
    }
}
