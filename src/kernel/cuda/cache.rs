//! Compiled kernels on disk, so that a process compiles only the kernels that no earlier process has compiled.
//!
//! ```text
//! <folder>/<SHA-256 of source, options, architecture and NVRTC's version>.cubin
//!   "DFQCUB1\n" | SHA-256 of the name and the code | code
//! ```
//! The folder belongs to the user alone (mode 0700), because the code in it runs on the device. An entry with a wrong checksum is
//! compiled again. A cache that cannot be used is left out, and no query fails because of it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::source::Program;

/// Environment variable that names the folder of the cache.
pub const CACHE_VARIABLE: &str = "QUANTILES_CUDA_CACHE";

/// First bytes of an entry.
const MAGIC: &[u8] = b"DFQCUB1\n";
/// Bytes of the checksum of an entry.
const SUM: usize = 32;

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct CubinCache {
    folder: PathBuf,
}

/// The name of an entry: a hash of everything that the compilation depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CubinKey(String);

impl CubinKey {
    /// The key of `program` compiled for `architecture` by NVRTC of `version`.
    pub fn new(program: &Program, architecture: &str, version: (i32, i32)) -> Self {
        let mut hash = Sha256::new();
        let options = program.options().join(" ");
        let version = format!("{}.{}", version.0, version.1);
        for part in [&program.file.source(), &options, architecture, &version] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn sum(&self, cubin: &[u8]) -> [u8; SUM] {
        let hash = Sha256::new().chain_update(self.0.as_bytes());
        hash.chain_update(cubin).finalize().into()
    }
}

impl CubinCache {
    /// Opens the cache in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// If the folder cannot be created, belongs to another user, or can be written by others than its owner.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        make_private(&folder)?;
        Ok(Self { folder })
    }

    /// Opens the user's cache: the folder that `QUANTILES_CUDA_CACHE` names, or else one below the user's folder of caches. `None` if
    /// there is no such folder, or if it cannot be used.
    pub fn of_user() -> Option<Self> {
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let folder = set(CACHE_VARIABLE).or_else(|| {
            let caches = set("XDG_CACHE_HOME")
                .or_else(|| set("HOME").map(|home| home.join(".cache")))
                .or_else(|| set("LOCALAPPDATA"));
            caches.map(|caches| caches.join("datafusion-quantiles").join("cuda"))
        })?;
        match Self::open(&folder) {
            Ok(cache) => Some(cache),
            Err(error) => {
                log::warn!(
                    "CUDA kernels are not kept: the folder {} cannot be used: {error}",
                    folder.display()
                );
                None
            }
        }
    }

    fn path(&self, key: &CubinKey) -> PathBuf {
        self.folder.join(format!("{}.cubin", key.0))
    }

    /// The code under `key`. `None` if there is none, or if it is damaged.
    pub fn get(&self, key: &CubinKey) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut entry = fs::read(&path).ok()?;
        let head = MAGIC.len() + SUM;
        let whole = entry.len() > head
            && entry.starts_with(MAGIC)
            && entry[MAGIC.len()..head] == key.sum(&entry[head..]);
        if !whole {
            log::warn!("{} is damaged: its kernels are compiled anew", path.display());
            return None;
        }
        Some(entry.split_off(head))
    }

    /// Writes `cubin` under `key`. Readers see all of it or nothing.
    pub fn put(&self, key: &CubinKey, cubin: &[u8]) {
        if let Err(error) = self.write(key, cubin) {
            log::warn!("CUDA kernels are not kept in {}: {error}", self.folder.display());
        }
    }

    fn write(&self, key: &CubinKey, cubin: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let temporary = temporary_path(&self.folder, &key.0);
        let mut file = fs::File::create(&temporary)?;
        let written = file
            .write_all(MAGIC)
            .and_then(|()| file.write_all(&key.sum(cubin)))
            .and_then(|()| file.write_all(cubin))
            .and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            // If it cannot be removed, its name is still not that of an entry.
            fs::remove_file(&temporary).ok();
        }
        written
    }
}

/// The path of a file while it is written. No other thread or process uses the same path.
fn temporary_path(folder: &Path, name: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{name}.{}.{number}.part", std::process::id()))
}

/// Creates the folder with access for its owner alone. An existing folder is left as it is; it must belong to this user, and nobody else
/// may be able to write there.
#[cfg(unix)]
fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::metadata(folder)?;
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "its mode is {mode:o}: only its owner may be able to write there"
        )));
    }
    // A new file belongs to the user of this process.
    let probe = temporary_path(folder, "owner");
    let ours = fs::File::create_new(&probe)
        .and_then(|file| file.metadata())
        .map(|file| file.uid());
    fs::remove_file(&probe).ok();
    let ours = ours?;
    if found.uid() != ours {
        return Err(io::Error::other(format!(
            "it belongs to user {}, and this process is of user {ours}",
            found.uid()
        )));
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::kernel::cuda::source::{ColumnFormat, KernelFile};
    use crate::mutated::{Decoder, SLACK, overwrite, uncounted};

    fn program(batch: u32) -> Program {
        Program {
            file: KernelFile::SampleSelect,
            format: ColumnFormat::ALL[0],
            masked: false,
            batch,
            descending: false,
        }
    }

    #[test]
    fn keys_depend_on_all_that_a_compilation_does() {
        let key = CubinKey::new(&program(4), "sm_90", (13, 0));
        assert_eq!(key, CubinKey::new(&program(4), "sm_90", (13, 0)));
        let other_file = Program {
            file: KernelFile::Bucket,
            ..program(4)
        };
        for other in [
            CubinKey::new(&program(2), "sm_90", (13, 0)),
            CubinKey::new(&program(4), "sm_80", (13, 0)),
            CubinKey::new(&program(4), "sm_90", (13, 1)),
            CubinKey::new(&other_file, "sm_90", (13, 0)),
        ] {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn damaged_entries_are_no_entries() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::open(folder.path().join("a/b")).unwrap();
        let key = CubinKey::new(&program(4), "sm_90", (13, 0));
        assert_eq!(cache.get(&key), None);
        cache.put(&key, b"machine code");
        assert_eq!(cache.get(&key).as_deref(), Some(&b"machine code"[..]));
        let path = cache.path(&key);
        let whole = fs::read(&path).unwrap();
        for at in [0, MAGIC.len(), whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get(&key), None, "byte {at}");
        }
        for length in [0, 3, MAGIC.len() + SUM, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.get(&key), None, "{length} bytes");
        }
        // The bytes of one entry under the name of another one are damaged.
        let other = CubinKey::new(&program(2), "sm_90", (13, 0));
        fs::write(cache.path(&other), &whole).unwrap();
        assert_eq!(cache.get(&other), None);
        cache.put(&key, b"machine code");
        assert_eq!(cache.get(&key).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(
            fs::read_dir(&cache.folder).unwrap().count(),
            2,
            "no part is left over"
        );
    }

    #[test]
    fn files_that_are_written_side_by_side_have_names_of_their_own() {
        let folder = Path::new("kernels");
        assert_ne!(temporary_path(folder, "key"), temporary_path(folder, "key"));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_can_write_is_refused_and_left_as_it_is() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let there = folder.path().join("there");
        fs::create_dir(&there).unwrap();
        for (given, is_taken) in [(0o1777, false), (0o777, false), (0o770, false), (0o755, true)] {
            fs::set_permissions(&there, fs::Permissions::from_mode(given)).unwrap();
            assert_eq!(CubinCache::open(&there).is_ok(), is_taken, "{given:o}");
            assert_eq!(mode(&there), given);
        }
        assert_eq!(fs::read_dir(&there).unwrap().count(), 0, "nothing is left there");
        let made = folder.path().join("made");
        CubinCache::open(&made).unwrap();
        assert_eq!(mode(&made), 0o700);
        fs::write(folder.path().join("file"), b"").unwrap();
        assert!(CubinCache::open(folder.path().join("file")).is_err());
    }

    /// Bytes that are accepted as an entry contain exactly the code that the checksum belongs to.
    #[test]
    fn mutated_kernels_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::open(folder.path().join("cache")).unwrap();
        let key = CubinKey::new(&program(4), "sm_90", (13, 0));
        let path = cache.path(&key);
        let head = MAGIC.len() + SUM;
        Decoder {
            slack: SLACK,
            name: "cached kernels",
            test: (module_path!(), "mutated_kernels_do_no_harm"),
            valid: &|random| {
                let entry = |length: u8| {
                    cache.put(&key, &(1..=length).map(|_| random.random()).collect::<Vec<u8>>());
                    fs::read(&path).unwrap()
                };
                [1, 9, 100, 255].map(entry).to_vec()
            },
            seal: &|bytes| {
                if bytes.len() > head {
                    let sum = key.sum(&bytes[head..]);
                    bytes[MAGIC.len()..head].copy_from_slice(&sum);
                }
            },
            decode: &|bytes| {
                uncounted(|| overwrite(&path, bytes));
                match cache.get(&key) {
                    Some(code) => Ok((code, bytes.to_vec())),
                    None => datafusion::common::exec_err!("no entry"),
                }
            },
            apply: &|(code, bytes)| {
                assert!(bytes.starts_with(MAGIC) && bytes[head..] == code);
                assert_eq!(bytes[MAGIC.len()..head], key.sum(&code));
                Ok(())
            },
        }
        .check();
    }
}
