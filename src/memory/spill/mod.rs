//! Spill files: raw bytes on disk, for data that the memory pool refuses. Bytes are appended, then read at any offset
//! by any number of threads.
//!
//! The files come from DataFusion's disk manager. So they lie in its folders, count towards
//! `datafusion.runtime.max_temp_directory_size`, and are removed with their last owner, however a query ends. Unlike
//! DataFusion's own spill files they hold no record batches: data is found by its offset. Bytes that differ from those
//! that were written are an error.

#[cfg(test)]
mod mutated;
mod sums;

use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{DataFusionError, Result, resources_datafusion_err, resources_err};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SpillFile as TempFile, SpillWriter};

use self::sums::{Block, MOST, Sums};
use crate::failpoint::may_fail;

/// Most bytes of one write. After a write that failed, the disk manager goes on counting its bytes as used.
const WRITE: usize = 1 << 20;

/// Makes spill files, and counts the files and the bytes written to them.
#[derive(Debug, Clone)]
pub(crate) struct Spiller {
    disk: Arc<DiskManager>,
    pool: Arc<dyn MemoryPool>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Spiller {
    /// A maker of files of the disk manager of `runtime`. Clones share their counts.
    pub(crate) fn new(runtime: &RuntimeEnv) -> Self {
        Self {
            disk: Arc::clone(&runtime.disk_manager),
            pool: Arc::clone(&runtime.memory_pool),
            counts: Arc::default(),
        }
    }

    /// Whether the disk manager makes files at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.disk.tmp_files_enabled()
    }

    /// Makes an empty file. Errors name `what`, the data that it is for.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the disk manager is disabled, or keeps its files elsewhere than on a local disk; an I/O
    /// error if no file can be made.
    pub(crate) fn create(&self, what: &str) -> Result<SpillFile> {
        let file = self.disk.create_tmp_file(what)?;
        let Some(path) = file.path() else {
            return resources_err!("cannot spill {what}: the disk manager's files are not local");
        };
        let reader = Reader::open(path)
            .map_err(|error| failed(error, format!("cannot open the spill file of {what}, {path:?}")))?;
        let writer = Mutex::new(file.open_writer()?);
        self.counts.files.fetch_add(1, Ordering::Relaxed);
        Ok(SpillFile {
            what: what.to_owned(),
            len: 0,
            sums: Sums::default(),
            sums_memory: MemoryConsumer::new("checksums of spilled blocks").register(&self.pool),
            counts: Arc::clone(&self.counts),
            writer,
            reader,
            file,
        })
    }

    /// Number of files made so far.
    pub(crate) fn spilled_files(&self) -> u64 {
        self.counts.files.load(Ordering::Relaxed)
    }

    /// Number of bytes written so far.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}

/// Most bytes that are read through a buffer, with the rest of their blocks.
const NEAR: usize = 4 * MOST;

thread_local! {
    /// The buffer for blocks that are read from a file.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The means of keys and values to spill, and the limit from which they do.
#[derive(Debug, Clone)]
pub(crate) struct Spilling {
    pub(crate) spiller: Spiller,
    pool: Arc<dyn MemoryPool>,
    /// Bytes reserved in the pool above which keys and values request no more: others need memory too.
    most: usize,
}

impl Spilling {
    /// The means to spill, for keys and values that take at most two thirds of a pool of `limit` bytes.
    pub(crate) fn new(spiller: Spiller, pool: Arc<dyn MemoryPool>, limit: Option<usize>) -> Self {
        Self {
            spiller,
            pool,
            most: limit.map_or(usize::MAX, |limit| limit / 3 * 2),
        }
    }

    /// Whether `bytes` bytes more may be requested.
    pub(crate) fn allows(&self, bytes: usize) -> bool {
        self.pool.reserved().saturating_add(bytes) <= self.most
    }
}

/// A spill file, which is removed when it is dropped.
pub(crate) struct SpillFile {
    what: String,
    len: u64,
    sums: Sums,
    /// The reservation for `sums`. It grows even beyond the limit: files are written to make room.
    sums_memory: MemoryReservation,
    counts: Arc<Counts>,
    /// The mutex only makes the file `Sync`: whoever appends is the only owner.
    writer: Mutex<Box<dyn SpillWriter>>,
    reader: Reader,
    /// The last field, so that nothing has the file open when it is removed.
    file: Arc<dyn TempFile>,
}

impl SpillFile {
    /// Length of the file in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends bytes. Returns their offset.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says what was written, how many bytes, and why it failed: the disk or the file is
    /// full, or `max_temp_directory_size` is reached. The file cannot be used afterwards.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        self.append_pieces(bytes, [bytes.len()])
    }

    /// Appends bytes in pieces of these lengths, which are likely to be read one by one. Returns the offset of the first piece.
    ///
    /// # Errors
    /// As for [`Self::append`].
    pub(crate) fn append_pieces(
        &mut self,
        bytes: &[u8],
        pieces: impl IntoIterator<Item = usize>,
    ) -> Result<u64> {
        may_fail!("spill_write");
        let start = self.len();
        for part in bytes.chunks(WRITE) {
            let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = writer.write_all(part) {
                let (more, held) = (bytes.len(), self.len);
                return Err(resources_datafusion_err!(
                    "cannot spill {more} more bytes of {} after {held} bytes in {:?}: {error}",
                    self.what,
                    self.file.path().unwrap_or(Path::new(""))
                ));
            }
            self.len += part.len() as u64;
        }
        let mut rest = bytes;
        for piece in pieces {
            let (piece, others) = rest.split_at(piece.min(rest.len()));
            self.sums.append(piece);
            rest = others;
        }
        self.sums.append(rest);
        let held = self.sums.bytes();
        if held > self.sums_memory.size() {
            self.sums_memory.resize(held);
        }
        self.counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(start)
    }

    /// Reads bytes from `offset` on, as many as `into` has.
    ///
    /// # Errors
    /// An I/O error that says what was read; also if the bytes differ from those that were written.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        may_fail!("spill_read");
        let bytes = into.len();
        self.read_checked(offset, into).map_err(|error| {
            let what = &self.what;
            failed(
                error,
                format!("cannot read {bytes} spilled bytes of {what} at {offset}"),
            )
        })
    }

    /// Reads and checks bytes. Whole blocks are read directly into `into`; others through a buffer, with all blocks that they lie in: a few bytes
    /// at once, of many only the two ends.
    fn read_checked(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.len) else {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "failed to fill whole buffer",
            ));
        };
        if into.is_empty() {
            return Ok(());
        }
        let first = self.sums.block(offset);
        let last = if end <= first.end {
            first
        } else {
            self.sums.block(end - 1)
        };
        let is_whole = [first.start == offset, last.end == end];
        if is_whole != [true; 2] && last.end - first.start <= NEAR as u64 {
            return self.read_near(offset, into, first, last.end);
        }
        let from = if is_whole[0] { offset } else { first.end };
        let to = if is_whole[1] { end } else { last.start };
        let (head, rest) = into.split_at_mut((from - offset) as usize);
        let (whole, tail) = rest.split_at_mut((to - from) as usize);
        if !head.is_empty() {
            self.read_near(offset, head, first, first.end)?;
        }
        self.reader.read_exact_at(from, whole)?;
        let first_whole = if is_whole[0] { first } else { self.sums.block(from) };
        self.check(first_whole, whole)?;
        if tail.is_empty() {
            return Ok(());
        }
        self.read_near(to, tail, last, last.end)
    }

    /// Reads a few bytes through a buffer, with all blocks that they lie in: from `first` on, up to the offset `end`.
    fn read_near(&self, offset: u64, into: &mut [u8], first: Block, end: u64) -> io::Result<()> {
        let inside = (offset - first.start) as usize;
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(NEAR, 0);
            let blocks = &mut buffer[..(end - first.start) as usize];
            self.reader.read_exact_at(first.start, blocks)?;
            self.check(first, blocks)?;
            into.copy_from_slice(&blocks[inside..inside + into.len()]);
            Ok(())
        })
    }

    /// Compares blocks from `first` on with those that were written.
    fn check(&self, first: Block, blocks: &[u8]) -> io::Result<()> {
        if self.sums.match_blocks(first, blocks) {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the disk gives other bytes than were written",
            ))
        }
    }
}

impl Debug for SpillFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillFile")
            .field("what", &self.what)
            .field("len", &self.len)
            .field("path", &self.file.path())
            .finish()
    }
}

fn failed(error: io::Error, doing: String) -> DataFusionError {
    DataFusionError::IoError(io::Error::new(error.kind(), format!("{doing}: {error}")))
}

/// A second handle on the file, so that reads do not move the position of writing.
struct Reader {
    #[cfg(unix)]
    file: File,
    #[cfg(not(unix))]
    file: Mutex<File>,
}

#[cfg(unix)]
impl Reader {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
        })
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, into, offset)
    }
}

#[cfg(not(unix))]
impl Reader {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: Mutex::new(File::open(path)?),
        })
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = crate::threads::locked(&self.file);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(into)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;

    use super::*;

    fn runtime(disk: DiskManagerBuilder) -> RuntimeEnv {
        RuntimeEnvBuilder::new()
            .with_disk_manager_builder(disk)
            .build()
            .unwrap()
    }

    fn bounded(most: u64) -> RuntimeEnv {
        runtime(DiskManagerBuilder::default().with_max_temp_directory_size(most))
    }

    #[test]
    fn bytes_come_back_from_any_place_while_more_are_written() {
        let runtime = bounded(1 << 30);
        let disk = &runtime.disk_manager;
        let spiller = Spiller::new(&runtime);
        let mut file = spiller.create("numbers").unwrap();
        let bytes: Vec<u8> = (0..3 * WRITE + 17).map(|i| (i % 251) as u8).collect();
        assert_eq!(file.append(&bytes[..10]).unwrap(), 0);
        let mut back = [0; 4];
        file.read_at(3, &mut back).unwrap();
        assert_eq!(back, [3, 4, 5, 6]);
        assert_eq!(file.append(&bytes[10..]).unwrap(), 10);
        assert_eq!(file.len(), bytes.len() as u64);
        let shared = &file;
        std::thread::scope(|scope| {
            for start in [0, WRITE - 3, 3 * WRITE] {
                let expected = &bytes[start..start + 17];
                scope.spawn(move || {
                    let mut back = [0; 17];
                    shared.read_at(start as u64, &mut back).unwrap();
                    assert_eq!(back, expected);
                });
            }
        });
        assert_eq!(
            (spiller.spilled_files(), spiller.clone().spilled_bytes()),
            (1, bytes.len() as u64)
        );
        assert_eq!(disk.used_disk_space(), bytes.len() as u64);
        let sums = bytes.len() / MOST * size_of::<u32>();
        assert!(runtime.memory_pool.reserved() >= sums, "checksums are reserved");
        let path = file.file.path().unwrap().to_owned();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
        assert_eq!(runtime.memory_pool.reserved(), 0);
        assert_eq!(disk.used_disk_space(), 0);
    }

    #[test]
    fn errors_say_what_was_written_and_why_it_failed() {
        let runtime = bounded(1000);
        let disk = &runtime.disk_manager;
        let mut file = Spiller::new(&runtime).create("keys of a shard").unwrap();
        file.append(&[1; 600]).unwrap();
        let error = file.append(&[2; 500]).unwrap_err();
        assert!(
            matches!(error, DataFusionError::ResourcesExhausted(_)),
            "{error:?}"
        );
        let message = error.strip_backtrace();
        assert!(
            message.contains("cannot spill 500 more bytes of keys of a shard after 600 bytes in")
                && message.contains("allowable limit of 1000.0 B")
                && message.contains("max_temp_directory_size"),
            "{message}"
        );
        let error = file.read_at(590, &mut [0; 20]).unwrap_err();
        assert_eq!(
            error.strip_backtrace(),
            "IO error: cannot read 20 spilled bytes of keys of a shard at 590: failed to fill whole buffer"
        );
        drop(file);
        assert_eq!(disk.used_disk_space(), 0);
    }

    #[test]
    fn nothing_spills_where_the_disk_manager_is_disabled() {
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let spiller = Spiller::new(&runtime(disk));
        assert!(!spiller.is_enabled());
        let error = spiller.create("keys").unwrap_err();
        assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
    }
}
