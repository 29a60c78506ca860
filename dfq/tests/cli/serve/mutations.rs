//! Broken bytes: clear errors, no panic, nothing held.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::{AT_ONCE, PATIENCE, Server, text};

/// Conversations that are changed. `QUANTILES_MUTATIONS` makes more of them.
const MUTATIONS: usize = 2_000;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

fn startup() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0ann\0database\0datafusion\0DateStyle\0ISO\0options\0-c geqo=off\0\0";
    [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

/// Messages of a client that uses all of the protocol.
fn conversation() -> Vec<Vec<u8>> {
    vec![
        startup(),
        message(b'Q', b"SELECT 1 AS a, 'b' AS b; SHOW datestyle\0"),
        message(
            b'P',
            b"s\0SELECT x, s FROM t WHERE x > $1 AND s LIKE $2\0\0\x02\0\0\0\x14\0\0\0\x19",
        ),
        message(b'D', b"Ss\0"),
        message(
            b'B',
            b"p\0s\0\0\x02\0\x01\0\0\0\x02\0\0\0\x08\0\0\0\0\0\0\x27\x00\0\0\0\x01%\0\x02\0\x01\0\0",
        ),
        message(b'D', b"Pp\0"),
        message(b'E', b"p\0\0\0\0\x05"),
        message(b'E', b"p\0\0\0\0\0"),
        message(b'C', b"Pp\0"),
        message(b'H', b""),
        message(b'S', b""),
        message(b'P', b"\0BEGIN\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'Q', b"ROLLBACK\0"),
        message(b'X', b""),
    ]
}

/// Changes a conversation: bytes, lengths, counts, tags, order and end of messages.
fn mutate(random: &mut SmallRng, messages: &mut Vec<Vec<u8>>) {
    for _ in 0..random.random_range(1..4) {
        let place = random.random_range(0..messages.len());
        let other = random.random_range(0..messages.len());
        let chosen = &mut messages[place];
        if chosen.is_empty() {
            continue;
        }
        let byte = random.random_range(0..chosen.len());
        let is_startup = place == 0;
        let length_at = if is_startup { 0..4 } else { 1..5 };
        match random.random_range(0..9) {
            0 => chosen[byte] = random.random(),
            1 => chosen[byte] ^= 1 << random.random_range(0..8),
            2 => chosen.truncate(byte),
            3 => {
                let kinds = [
                    0,
                    1,
                    3,
                    4,
                    5,
                    1 << 16,
                    i32::MAX,
                    -1,
                    i32::MIN,
                    random.random_range(0..256),
                ];
                let length = kinds[random.random_range(0..kinds.len())];
                if let Some(bytes) = chosen.get_mut(length_at) {
                    bytes.copy_from_slice(&length.to_be_bytes());
                }
            }
            4 => chosen[0] = b"QPBDECHSXpdcfF\0\xffzRK"[random.random_range(0..19)],
            5 => {
                // Two bytes where a count may be, in a message as long as before.
                if byte > 5 && byte + 1 < chosen.len() {
                    let count: u16 = [0, 1, 2, 255, 32_768, u16::MAX][random.random_range(0..6)];
                    chosen[byte..byte + 2].copy_from_slice(&count.to_be_bytes());
                }
            }
            6 => {
                // A longer or shorter body with a right length.
                if byte > 5 {
                    if random.random() {
                        chosen.insert(byte, random.random());
                    } else {
                        chosen.remove(byte);
                    }
                    let length = (chosen.len() - length_at.start) as u32;
                    chosen[length_at].copy_from_slice(&length.to_be_bytes());
                }
            }
            7 => messages.swap(place, other),
            _ => drop(messages.remove(place)),
        }
        if messages.is_empty() {
            messages.push(startup());
        }
    }
}

/// After so long without an answer the server waits for the rest of a message.
const SILENCE: Duration = Duration::from_millis(1500);

/// Conversations at once.
const TOGETHER: usize = 256;

/// Sends bytes and reads until the server closes the connection, or waits for more.
async fn talk(server: &Server, bytes: &[u8], silence: Duration) -> Vec<u8> {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    // A server that has seen enough closes while more is sent.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(silence, socket.read_buf(&mut answer)).await {}
    answer
}

/// The answers to conversations, which are held at once. The last conversation is one without a change: while it is not answered, the machine
/// has other work, and silence means nothing yet.
async fn answers_of(server: &Server, batch: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let whole = conversation().concat();
    let mut silence = SILENCE;
    loop {
        let all = batch.iter().chain([&whole]);
        let mut answers = futures::future::join_all(all.map(|bytes| talk(server, bytes, silence))).await;
        let last = answers.pop().unwrap_or_default();
        if last.windows(7).any(|bytes| bytes == b"name 99") {
            return answers;
        }
        assert!(silence < PATIENCE, "{}", String::from_utf8_lossy(&last));
        silence *= 2;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_bytes_do_no_harm() {
    let mut server = Server::start(&[
        "--log",
        "dfq=error",
        "--max-connections",
        "1000",
        "--max-waiting",
        "1000",
    ]);
    let count = std::env::var("QUANTILES_MUTATIONS").map_or(MUTATIONS, |count| count.parse().unwrap());
    let whole = talk(&server, &conversation().concat(), Duration::from_secs(5)).await;
    assert!(
        whole.windows(7).any(|bytes| bytes == b"name 99"),
        "{}",
        String::from_utf8_lossy(&whole)
    );
    let mut random = SmallRng::seed_from_u64(11);
    let (mut refused, mut answered) = (0, 0);
    let mut left = count;
    while left > 0 {
        let batch: Vec<_> = (0..left.min(TOGETHER))
            .map(|_| {
                let mut messages = conversation();
                mutate(&mut random, &mut messages);
                messages.concat()
            })
            .collect();
        left -= batch.len();
        let answers = answers_of(&server, &batch).await;
        refused += answers
            .iter()
            .filter(|answer| answer.windows(5).any(|bytes| bytes == b"08P01"))
            .count();
        answered += answers
            .iter()
            .filter(|answer| answer.windows(7).any(|bytes| bytes == b"name 99"))
            .count();
        for (answer, bytes) in answers.iter().zip(&batch) {
            let panicked = answer.windows(8).any(|bytes| bytes == b"panicked");
            assert!(!panicked, "{}\nto\n{bytes:?}", String::from_utf8_lossy(answer));
        }
        assert!(server.is_running(), "{}", server.said());
    }
    assert!(!server.said().contains("panicked"), "{}", server.said());
    println!("{count} conversations: {refused} refused by the protocol, {answered} with rows all the same");
    assert!(
        refused > count / 20 && answered > count / 20,
        "{refused} and {answered} of {count}"
    );
    server.holds_nothing().await;
    server.settles("dfq_connections", 0.0, AT_ONCE).await;
    let client = server.connect().await;
    assert_eq!(text(&client, "SELECT median(x) FROM t").await, "5000.5");
}
