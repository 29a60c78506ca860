//! Folders for what executors write: one for each process, which goes with it, or with the next process if it was killed.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::security::{OWNER_ONLY, make_private_folder};
use crate::console::{End, say};

/// What names of such folders begin with.
const PREFIX: &str = "dfq-work-";

/// A folder that is locked as long as its process lives, and removed at the end of it.
pub(super) struct WorkFolder {
    folder: TempDir,
    /// The system unlocks what a killed process held.
    _lock: File,
}

impl WorkFolder {
    /// Makes one in `root`, by default the system's temporary folder, once those of processes that were killed are gone.
    pub(super) fn make(root: Option<&str>) -> Result<Self, End> {
        let root = root_of(root.map(Path::new));
        make_private_folder(&root)?;
        remove_ended(&root);
        Self::make_in(&root).map_err(|error| {
            End::error(format!(
                "cannot make a folder for the executor in '{}': {error}",
                root.display()
            ))
        })
    }

    fn make_in(root: &Path) -> io::Result<Self> {
        loop {
            let folder = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(OWNER_ONLY))
                .tempdir_in(root)?;
            // Another process may take it for one that was left, until it is locked.
            if let Some(lock) = locked(folder.path()) {
                return Ok(Self { folder, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes it.
    pub(super) fn close(self) {
        if let Err(error) = self.folder.close() {
            say(format_args!(
                "Warning: cannot remove the executor's folder: {error}"
            ));
        }
    }
}

/// Where the folders are.
pub(super) fn root_of(root: Option<&Path>) -> PathBuf {
    root.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// The lock of a folder that is there and that no process holds.
fn locked(folder: &Path) -> Option<File> {
    let lock = File::open(folder).ok()?;
    lock.try_lock().ok()?;
    let (held, there) = (lock.metadata().ok()?, std::fs::symlink_metadata(folder).ok()?);
    ((held.dev(), held.ino()) == (there.dev(), there.ino())).then_some(lock)
}

/// Removes the folders in `root` whose processes ended without doing so.
pub(super) fn remove_ended(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let folder = entry.path();
        if let Some(_lock) = locked(&folder)
            && let Err(error) = std::fs::remove_dir_all(&folder)
        {
            say(format_args!(
                "Warning: cannot remove '{}', which an executor that was killed has left: {error}",
                folder.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_live_stay_and_others_go() {
        let root = tempfile::tempdir().unwrap();
        let name = root.path().to_str().unwrap();
        let living = WorkFolder::make(Some(name)).ok().unwrap();
        std::fs::write(living.path().join("rows"), "1").unwrap();
        // As a killed process leaves it: there, and not locked.
        let left = root.path().join(format!("{PREFIX}left"));
        std::fs::create_dir_all(left.join("job/1")).unwrap();
        std::fs::write(left.join("job/1/rows"), "1").unwrap();
        let other = root.path().join("data");
        std::fs::create_dir(&other).unwrap();
        let linked = root.path().join(format!("{PREFIX}link"));
        std::os::unix::fs::symlink(&other, &linked).unwrap();
        let next = WorkFolder::make(Some(name)).ok().unwrap();
        assert!(!left.exists());
        assert!(living.path().join("rows").exists() && other.exists() && linked.exists());
        assert_ne!(living.path(), next.path());
        assert_eq!(next.path().metadata().unwrap().mode() & 0o777, 0o700);
        let path = living.path().to_path_buf();
        living.close();
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_was_removed_is_not_locked() {
        let root = tempfile::tempdir().unwrap();
        assert!(locked(&root.path().join("none")).is_none());
        let folder = root.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let lock = locked(&folder);
        assert!(lock.is_some() && locked(&folder).is_none());
        drop(lock);
        assert!(locked(&folder).is_some());
    }
}
