//! `dfq` as a process, for the tests of this program.

#[cfg(unix)]
pub(crate) mod terminal;
pub(crate) mod watched;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// `dfq` in a folder.
pub(crate) fn dfq(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
    // Not the user's configuration.
    command
        .current_dir(folder)
        .env("XDG_CONFIG_HOME", folder)
        .stdin(Stdio::null());
    command
}

/// Runs `dfq` with these arguments in a folder.
pub(crate) fn run(folder: &Path, args: &[&str]) -> Output {
    dfq(folder).args(args).output().unwrap()
}

/// Runs `dfq` with these arguments and this on its standard input.
pub(crate) fn run_stdin(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut child = dfq(folder)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// An empty folder.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// What is on standard output.
pub(crate) fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// What is on standard error.
pub(crate) fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The standard output of a run that must succeed and say nothing else.
pub(crate) fn answer(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert_eq!((output.status.code(), err(&output)), (Some(0), ""), "{args:?}");
    out(&output).to_string()
}

/// The standard error of a run that must end with `code`.
pub(crate) fn failure(folder: &Path, args: &[&str], code: i32) -> String {
    let output = run(folder, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", err(&output));
    err(&output).to_string()
}
