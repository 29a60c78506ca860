//! What `dfq` says of faults that are not a statement's own.

use std::process::{Command, Output, Stdio};

/// Runs a statement that panics while it is planned.
fn panicking(configure: impl FnOnce(&mut Command)) -> Output {
    let sql = "CREATE TABLE t AS SELECT value AS v FROM range(0, 5); \
               PREPARE p(BIGINT) AS SELECT [0, 0.5, 1] FROM t WHERE v > $1; \
               EXECUTE p(3)";
    let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
    command.args(["sql", "-c", sql]).stdin(Stdio::null());
    command.env_remove("RUST_BACKTRACE");
    configure(&mut command);
    command.output().unwrap()
}

#[test]
fn a_panic_is_the_error_of_its_statement_and_comes_to_this_project() {
    let output = panicking(|_| {});
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let version = format!("dfq {}", env!("CARGO_PKG_VERSION"));
    for part in [
        "Error: Internal error: panicked: ",
        "datafusion-quantiles",
        &version,
        "PREPARE p(BIGINT) AS SELECT",
    ] {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
    for part in [
        "apache/datafusion/issues",
        "bug in DataFusion's code",
        "backtrace",
        "thread '",
    ] {
        assert!(!said.contains(part), "{part:?}: {said}");
    }
}

#[test]
fn a_panic_shows_its_backtrace_where_that_is_asked_for() {
    let output = panicking(|command| {
        command.env("RUST_BACKTRACE", "1");
    });
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("stack backtrace:"), "{said}");
}
