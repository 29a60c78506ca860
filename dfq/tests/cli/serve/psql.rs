//! The client of PostgreSQL itself.

use std::process::Command;

use super::server::Server;

/// What psql prints; `None` if there is no psql, which is said.
fn psql(server: &Server, options: &[&str]) -> Option<String> {
    let mut psql = Command::new("psql");
    psql.args([
        "-X",
        "-h",
        "127.0.0.1",
        "-p",
        &server.address.port().to_string(),
        "-U",
        "ann",
        "-d",
        "datafusion",
    ]);
    let Ok(output) = psql.args(options).output() else {
        eprintln!("skipped: there is no psql");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn statements_and_descriptions() {
    let server = Server::start(&[]);
    for (sql, expected) in [
        ("SELECT exact_quantiles(x, [0.5]), 1 AS one FROM t", "{5000}|1\n"),
        ("SELECT x FROM t ORDER BY x LIMIT 2", "1\n2\n"),
    ] {
        let Some(printed) = psql(&server, &["-Atc", sql]) else {
            return;
        };
        assert_eq!(printed, expected, "{sql}");
    }
    for (command, expected) in [
        ("\\dt", vec!["public", "t", "table"]),
        ("\\dv", vec!["halves", "view"]),
        (
            "\\d t",
            vec![
                "Column",
                "x",
                "bigint",
                "f",
                "double precision",
                "at",
                "timestamp",
            ],
        ),
        ("\\dn", vec!["public"]),
        ("\\l", vec!["datafusion"]),
        (
            "\\conninfo",
            vec!["You are connected to database \"datafusion\" as user \"ann\""],
        ),
    ] {
        let printed = psql(&server, &["-c", command]).unwrap();
        for part in expected {
            assert!(printed.contains(part), "{command}: no {part} in\n{printed}");
        }
    }
}
