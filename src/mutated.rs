//! Tests of every decoder with damaged bytes: valid encodings, changed where it hurts (lengths, counts, tags, nesting),
//! must give a value or an error; never a panic, an abort, a hang, or an allocation beyond [`TIMES`] times the bytes
//! and some [`SLACK`].
//!
//! The tests of a decoder stand beside it, and have names that start with `mutated_`. Each runs in a process of its
//! own, so that an abort or a hang is an outcome as well. The number of inputs is that of `QUANTILES_MUTATIONS` (10
//! 000). The input of a number follows from it and `QUANTILES_MUTATIONS_SEED` (1). A recorded run, one line for each
//! decoder:
//!
//! ```text
//! QUANTILES_MUTATIONS=1000000 cargo test --release --locked --all-features --lib mutated_ -- --nocapture
//! ```

mod changes;
mod loose;

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub(crate) use self::loose::{Loose, put_piece};

/// Most bytes that may be held at once while bytes are decoded, for each of these bytes.
const TIMES: u64 = 10;

/// Bytes that may be held besides, for input of any length: for errors with their text, for schemas and plans, the
/// least of which take some kilobytes, and for values whose elements are wider than their shortest form (a 128-bit key
/// takes a byte at least, and 16 in memory).
pub(crate) const SLACK: u64 = 64 << 10;

/// Time after which an input counts as a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time after which harmful inputs are not shrunk.
const LONG: Duration = Duration::from_secs(1);

/// The number that stands for the time before the first input, while encodings are made, some by whole plans.
const STARTING: u64 = u64::MAX;

/// The variable with the path of the file in which the process of a test writes the number of its current input.
const PLACE: &str = "QUANTILES_MUTATIONS_PLACE";

/// A decoder under test: how bytes of one kind are made and read.
pub(crate) struct Decoder<'a, T> {
    /// Bytes that may be held for input of any length: [`SLACK`] where there is no reason for more.
    pub(crate) slack: u64,
    /// The name in records.
    pub(crate) name: &'static str,
    /// `module_path!()` and the name of the test function.
    pub(crate) test: (&'static str, &'static str),
    /// Encodings of varied shape.
    pub(crate) valid: &'a dyn Fn(&mut SmallRng) -> Vec<Vec<u8>>,
    /// Makes changed bytes pass their checksum, or a similar check; called for most inputs.
    pub(crate) seal: &'a dyn Fn(&mut Vec<u8>),
    pub(crate) decode: &'a dyn Fn(&[u8]) -> Result<T>,
    /// Uses a decoded value. An error is fine here too.
    pub(crate) apply: &'a dyn Fn(T) -> Result<()>,
}

/// The outcomes of inputs.
#[derive(Debug, Default)]
struct Tally {
    inputs: u64,
    decoded: u64,
    /// Number of values that could be used.
    applied: u64,
    /// Most bytes held beyond the slack, for each byte of an input.
    ratio: f64,
    /// Most bytes held.
    peak: u64,
    slowest: Duration,
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} inputs, {} decoded ({} of use), {} refused, peak {} bytes, {:.1} bytes a byte beyond the slack, slowest {:.1} ms",
            self.inputs,
            self.decoded,
            self.applied,
            self.inputs - self.decoded,
            self.peak,
            self.ratio,
            self.slowest.as_secs_f64() * 1e3
        )
    }
}

fn variable(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {text:?}: a number is wanted")),
        Err(_) => otherwise,
    }
}

/// The random numbers for the input of a number.
fn random(name: &str, seed: u64, number: u64) -> SmallRng {
    let mixed = name
        .bytes()
        .fold(seed, |mixed, byte| crate::key::finalised(mixed ^ u64::from(byte)));
    SmallRng::seed_from_u64(crate::key::finalised(mixed ^ number))
}

thread_local! {
    /// The place and the message of the last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

impl<T> Decoder<'_, T> {
    /// # Panics
    /// With the decoder, the seed, the number and the bytes of the first input that does harm.
    pub(crate) fn check(&self) {
        let seed = variable("QUANTILES_MUTATIONS_SEED", 1);
        let inputs = variable("QUANTILES_MUTATIONS", 10_000);
        match std::env::var_os(PLACE) {
            Some(place) => self.run(seed, inputs, Path::new(&place)),
            None => self.watch(seed),
        }
    }

    /// Runs this test in a process of its own.
    fn watch(&self, seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let (place, said) = (folder.path().join("place"), folder.path().join("said"));
        fs::write(&place, STARTING.to_le_bytes()).unwrap();
        let (_, module) = self.test.0.split_once("::").unwrap();
        let output = File::create(&said).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("{module}::{}", self.test.1), "--exact", "--nocapture"])
            .env(PLACE, &place)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let at = || {
            fs::read(&place)
                .unwrap()
                .try_into()
                .map_or(STARTING, u64::from_le_bytes)
        };
        let (mut seen, mut since) = (STARTING, Instant::now());
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.to_string();
            }
            let now = at();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > PATIENCE * if now == STARTING { 10 } else { 1 } {
                child.kill().unwrap();
                child.wait().unwrap();
                break "hangs".to_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = fs::read_to_string(&said).unwrap_or_default();
        let line = said.lines().find_map(|line| line.strip_prefix("mutated "));
        if let (Some(line), true) = (line, said.contains("test result: ok. 1 passed")) {
            println!("mutated {line}");
            return;
        }
        let number = at();
        let input = match number {
            STARTING => "none".to_owned(),
            number => hex(&self.input(seed, number, &self.pool(seed))),
        };
        panic!(
            "{}: {ended} at seed {seed}, number {number}, input {input}\n{said}",
            self.name
        );
    }

    fn pool(&self, seed: u64) -> Vec<Vec<u8>> {
        let pool = (self.valid)(&mut random(self.name, seed, STARTING));
        for bytes in &pool {
            let read = (self.decode)(bytes);
            assert!(read.is_ok(), "{}: {:?} of {}", self.name, read.err(), hex(bytes));
        }
        pool
    }

    fn input(&self, seed: u64, number: u64, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = changes::changed(pool, &mut random(self.name, seed, number));
        if !number.is_multiple_of(8) {
            (self.seal)(&mut bytes);
        }
        bytes
    }

    fn run(&self, seed: u64, inputs: u64, place: &Path) {
        let pool = self.pool(seed);
        std::panic::set_hook(Box::new(|info| {
            PANIC.with(|panic| {
                *panic.borrow_mut() = info.to_string();
            });
        }));
        let mut place = File::options().write(true).open(place).unwrap();
        let mut tally = Tally::default();
        for number in 0..inputs {
            place.seek(SeekFrom::Start(0)).unwrap();
            place.write_all(&number.to_le_bytes()).unwrap();
            let bytes = self.input(seed, number, &pool);
            let started = Instant::now();
            if let Err(harm) = self.attempt(&bytes, &mut tally) {
                let shrunk = if started.elapsed() < LONG {
                    self.shrunk(bytes)
                } else {
                    bytes
                };
                let _ = std::panic::take_hook();
                panic!(
                    "{} at seed {seed}, number {number}: {harm}\nshrunk to {} bytes: {}",
                    self.name,
                    shrunk.len(),
                    hex(&shrunk)
                );
            }
        }
        let _ = std::panic::take_hook();
        assert!(
            inputs < 1000 || (tally.decoded > 0 && tally.decoded < inputs),
            "{}: {tally}, which tests nothing",
            self.name
        );
        println!("\nmutated {}: {tally}", self.name);
    }

    /// Decodes and uses the bytes. An error says what harm they do.
    fn attempt(&self, bytes: &[u8], tally: &mut Tally) -> Result<(), String> {
        let (started, mut found) = (Instant::now(), None);
        let memory = allocation_counter::measure(|| {
            found = Some(catch_unwind(AssertUnwindSafe(|| (self.decode)(bytes))));
        });
        let panicked = || PANIC.with(|panic| panic.take());
        let read = found.unwrap().map_err(|_| format!("decoding: {}", panicked()))?;
        let (peak, length) = (memory.bytes_max, bytes.len() as u64);
        if peak > TIMES * length + self.slack {
            return Err(format!("decoding {length} bytes takes {peak} bytes"));
        }
        tally.inputs += 1;
        tally.peak = tally.peak.max(peak);
        let beyond = peak.saturating_sub(self.slack);
        tally.ratio = tally.ratio.max(beyond as f64 / length.max(1) as f64);
        if let Ok(value) = read {
            tally.decoded += 1;
            let applied = catch_unwind(AssertUnwindSafe(|| (self.apply)(value)));
            let applied: Result<(), DataFusionError> =
                applied.map_err(|_| format!("using what was decoded: {}", panicked()))?;
            tally.applied += u64::from(applied.is_ok());
        }
        tally.slowest = tally.slowest.max(started.elapsed());
        Ok(())
    }

    /// Fewer bytes, and smaller ones, that do harm too.
    fn shrunk(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let harms = |bytes: &[u8]| self.attempt(bytes, &mut Tally::default()).is_err();
        let (mut size, until) = (bytes.len() / 2, Instant::now() + Duration::from_secs(10));
        while size > 0 && Instant::now() < until {
            let mut at = 0;
            while at + size <= bytes.len() {
                let mut fewer = bytes.clone();
                fewer.drain(at..at + size);
                (self.seal)(&mut fewer);
                if harms(&fewer) { bytes = fewer } else { at += size }
            }
            size /= 2;
        }
        for at in 0..bytes.len() {
            let mut smaller = bytes.clone();
            smaller[at] = 0;
            if Instant::now() < until && harms(&smaller) {
                bytes = smaller;
            }
        }
        bytes
    }
}

/// Replaces the contents of a file. (File systems wait for the disk where a file is first truncated.)
pub(crate) fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

/// Makes something whose memory is not counted: inputs of a decoder that are not bytes.
pub(crate) fn uncounted<T>(make: impl FnOnce() -> T) -> T {
    let mut made = None;
    allocation_counter::opt_out(|| made = Some(make()));
    made.unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
