//! Runs of `dfq` whose memory is watched.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// `dfq sql` with two partitions and these arguments, which spills into `folder`.
pub(crate) fn limited(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
    command
        .args(["sql", "-q", "--format", "csv", "--partitions", "2", "--spill-dir"])
        .arg(folder.path())
        .args(args)
        // `SET datafusion.runtime...` makes DataFusion forget the folder, and spill here.
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null());
    command
}

/// What a command gave and took.
#[cfg(target_os = "linux")]
pub(crate) struct Watched {
    pub(crate) output: Output,
    /// Peak of its resident memory, in KiB.
    pub(crate) peak: u64,
    /// Bytes that it wrote, to files and to its output.
    pub(crate) written: u64,
}

/// The number behind `name` in a file of `/proc/ID`, as long as the process runs.
#[cfg(target_os = "linux")]
fn proc_number(id: u32, file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Runs a command whose output is short, calling `look` every two milliseconds.
#[cfg(target_os = "linux")]
pub(crate) fn watched(command: &mut Command, mut look: impl FnMut()) -> Watched {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut peak, mut written) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        peak = proc_number(child.id(), "status", "VmHWM:").unwrap_or(0).max(peak);
        written = proc_number(child.id(), "io", "wchar:").unwrap_or(0).max(written);
        look();
        std::thread::sleep(Duration::from_millis(2));
    }
    Watched {
        output: child.wait_with_output().unwrap(),
        peak,
        written,
    }
}
