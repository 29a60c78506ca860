//! `dfq sql` within limits of memory and disk, as a process: what it takes, and what it leaves.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use crate::support::watched::{Watched, limited, watched};
use quantiles_testing::files_below;

/// A prime: its multiples of anything smaller take every value below it once.
const PRIME: u64 = 5_000_011;

/// Parquet with the numbers 1 to `PRIME - 1` as Float64, in no order.
static NUMBERS: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.parquet");
    let sql = format!(
        "COPY (SELECT CAST((value * 7919) % {PRIME} AS DOUBLE) AS x FROM generate_series(1, {})) TO '{}'",
        PRIME - 1,
        path.display()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_dfq"))
        .args(["sql", "-q", "-c", &sql])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    (folder, path)
});

fn quantiles() -> String {
    format!(
        "SELECT exact_quantiles(x, [0.01, 0.5, 0.99]) AS q FROM '{}'",
        NUMBERS.1.display()
    )
}

fn expected() -> String {
    let at = |percent: u64| ((PRIME - 1) * percent).div_ceil(100);
    format!("q\n\"[{}.0, {}.0, {}.0]\"\n", at(1), at(50), at(99))
}

/// A failed run: its message. Nothing on standard output, no file left.
fn message(output: &Output, folder: &TempDir) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(text(&output.stdout), "", "{message}");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "{:?}",
        files_below(folder.path())
    );
    message
}

#[cfg(target_os = "linux")]
#[test]
fn resident_memory_stays_near_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    // The program and the scan take what they take.
    let sum = format!("SELECT sum(x) FROM '{}'", NUMBERS.1.display());
    let Watched {
        output, peak: base, ..
    } = watched(&mut limited(&folder, &["-c", &sum]), || ());
    assert!(
        output.status.success() && base > 10 << 10,
        "{base} KiB, {output:?}"
    );
    for megabytes in [8, 16] {
        let limit = format!("{megabytes}MB");
        let mut spilled = false;
        let mut command = limited(&folder, &["--memory-limit", &limit, "-c", &quantiles()]);
        let Watched { output, peak, .. } = watched(&mut command, || {
            spilled |= !files_below(folder.path()).is_empty();
        });
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            (expected(), String::new())
        );
        assert!(spilled, "40 MB of keys fit in {limit}");
        // Without a limit it would be 50 MB more than the sum takes.
        assert!(
            peak < base + ((megabytes + 25) << 10),
            "{peak} KiB with {limit}, {base} KiB for a sum"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[cfg(unix)]
#[test]
fn a_file_size_limit_is_an_error_that_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let limited = limited(&folder, &["--memory-limit", "16MB", "-c", &quantiles()]);
    // In units of 512 or 1024 bytes.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 1000; exec \"$0\" \"$@\""])
        .arg(limited.get_program())
        .args(limited.get_args())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let message = message(&output, &folder);
    assert!(
        message.contains("cannot spill")
            && message.contains("more bytes of keys of exact quantiles after")
            && message.contains("File too large"),
        "{message}"
    );
}

#[test]
fn a_full_spill_folder_is_an_error_that_names_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let set = "SET datafusion.runtime.max_temp_directory_size = '5M'";
    let output = limited(
        &folder,
        &["--memory-limit", "16MB", "-c", set, "-c", &quantiles()],
    )
    .output()
    .unwrap();
    let message = message(&output, &folder);
    assert!(
        message.contains("cannot spill")
            && message.contains("more bytes of keys of exact quantiles after")
            && message.contains("allowable limit of 5.0 MB")
            && message.contains("datafusion.runtime.max_temp_directory_size"),
        "{message}"
    );
}
