//! The command `dfq`, run as a process: what it prints where, and how it ends.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support::{answer, dfq, err, failure, folder, out, run, run_stdin};

#[test]
fn tables_that_have_the_name_of_a_folder() {
    let folder = folder();
    fs::create_dir(folder.path().join("trips")).unwrap();
    fs::write(folder.path().join("trips/a.csv"), "x\n1\n2\n").unwrap();
    let script = [
        "CREATE TABLE trips AS SELECT sum(x) AS x FROM 'trips/'",
        "SELECT trips.x, (SELECT count(*) FROM './trips') AS n FROM trips",
    ];
    let args = ["sql", "-q", "--format", "csv", "-c", script[0], "-c", script[1]];
    assert_eq!(answer(folder.path(), &args), "x,n\n3,2\n");
    let summary = answer(folder.path(), &["profile", "trips"]);
    assert!(summary.contains('x') && summary.contains('2'), "{summary}");
}

#[test]
fn statements_from_everywhere_run_in_turn() {
    let folder = folder();
    fs::write(
        folder.path().join("s.sql"),
        "\u{feff}#!/usr/bin/env dfq\n-- semicolons; in comments\nSELECT 'x;y' AS f;",
    )
    .unwrap();
    let args = [
        "sql",
        "-q",
        "--format",
        "csv",
        "-c",
        "SELECT 1 AS a; SELECT 2 AS a",
        "-f",
        "s.sql",
        "-c",
        "-- only a comment",
        "-c",
        "SELECT 3 AS a;",
    ];
    assert_eq!(answer(folder.path(), &args), "a\n1\na\n2\nf\nx;y\na\n3\n");
    let input = "\u{feff}SELECT 1 AS a; SELECT 2\n AS a -- no; end\n;\n\nSELECT ';\n' AS s";
    for args in [
        &["sql", "-q", "--format", "nd-json"][..],
        &["sql", "-q", "--format", "nd-json", "-f", "-"],
    ] {
        let output = run_stdin(folder.path(), args, input);
        assert_eq!((output.status.code(), err(&output)), (Some(0), ""));
        assert_eq!(out(&output), "{\"a\":1}\n{\"a\":2}\n{\"s\":\";\\n\"}\n");
    }
}

#[test]
fn standard_input_runs_each_statement_when_it_is_complete() {
    let folder = folder();
    let mut child = dfq(folder.path())
        .args(["sql", "-q", "--format", "nd-json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut answers = child.stdout.take().unwrap();
    for n in 1..=3 {
        writeln!(input, "SELECT {n} AS n; SELECT").unwrap();
        let mut answer = [0; 8];
        // The input is still open: only a statement that ran at once can answer.
        answers.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *format!("{{\"n\":{n}}}\n").as_bytes());
        writeln!(input, " 0 WHERE false;").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_first_failure_ends_the_run() {
    let folder = folder();
    fs::write(
        folder.path().join("s.sql"),
        "SELECT 1 AS a;\n\nSELECT b\nFROM nosuch; SELECT 2 AS a;",
    )
    .unwrap();
    let args = [
        "sql",
        "-q",
        "--format",
        "csv",
        "-f",
        "s.sql",
        "-c",
        "SELECT 3 AS a",
    ];
    let output = run(folder.path(), &args);
    assert_eq!((output.status.code(), out(&output)), (Some(1), "a\n1\n"));
    assert!(
        err(&output).starts_with("Error: s.sql, line 3: "),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("nosuch"), "{}", err(&output));
    let output = run_stdin(
        folder.path(),
        &["sql", "-q", "--format", "csv"],
        "SELECT 1 AS a;\nSELEC 2;\nSELECT 3;\n",
    );
    assert_eq!((output.status.code(), out(&output)), (Some(1), "a\n1\n"));
    assert!(
        err(&output).starts_with("Error: standard input, line 2: sql parser error"),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("Line: 2, Column: 1"), "{}", err(&output));
}

#[test]
fn errors_while_rows_are_read_end_with_1() {
    let folder = folder();
    let sql = "SELECT 1 / (value - 20000) AS x FROM generate_series(1, 30000)";
    for format in ["table", "csv", "tsv", "json", "nd-json"] {
        let message = failure(folder.path(), &["sql", "--format", format, "-c", sql], 1);
        assert!(
            message.starts_with("Error: ") && message.contains("Divide by zero"),
            "{message}"
        );
        assert!(!message.contains("Elapsed"), "{message}");
    }
}

#[test]
fn missing_files_are_named() {
    let folder = folder();
    let message = failure(folder.path(), &["sql", "-f", "no.sql"], 1);
    assert!(
        message.starts_with("Error: cannot read the file 'no.sql'"),
        "{message}"
    );
    for path in ["no.parquet", "sub/no", "no*.csv"] {
        let message = failure(
            folder.path(),
            &["sql", "-c", &format!("SELECT * FROM '{path}'")],
            1,
        );
        assert!(message.contains(&format!("'{path}'")), "{message}");
    }
    fs::write(folder.path().join("data.txt"), "x").unwrap();
    let message = failure(folder.path(), &["sql", "-c", "SELECT * FROM 'data.txt'"], 1);
    assert!(
        message.contains("cannot tell the format of 'data.txt'"),
        "{message}"
    );
    fs::write(folder.path().join("broken.parquet"), "no parquet at all").unwrap();
    let message = failure(folder.path(), &["sql", "-c", "SELECT * FROM 'broken.parquet'"], 1);
    assert!(message.contains("broken.parquet"), "{message}");
}

#[test]
fn files_are_tables() {
    let folder = folder();
    fs::write(folder.path().join("t.csv"), "a,b\n1,x\n2,y\n").unwrap();
    fs::write(folder.path().join("t.json"), "{\"a\":3}\n{\"a\":4}\n").unwrap();
    let copy = "COPY (SELECT a * 10 AS a FROM 't.csv') TO 't.parquet' STORED AS PARQUET";
    assert_eq!(
        answer(folder.path(), &["sql", "-q", "-c", copy]),
        "+-------+\n| count |\n+-------+\n| 2     |\n+-------+\n"
    );
    let absolute = folder.path().join("t.json");
    let absolute = absolute.to_str().unwrap();
    for (table, sum) in [
        ("t.csv", 3),
        ("./t.json", 7),
        (absolute, 7),
        ("t.parquet", 30),
        ("t.p*", 30),
    ] {
        let sql = format!("SELECT sum(a) AS s FROM '{table}'");
        assert_eq!(
            answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql]),
            format!("s\n{sum}\n")
        );
    }
    let sql = "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 't.csv'; SELECT count(*) AS n FROM e";
    assert_eq!(
        answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", sql]),
        "n\n2\n"
    );
}

/// What needs more stack than there is would end the program.
#[test]
fn statements_that_are_too_deep_are_refused() {
    let folder = folder();
    let failed = |sql: &str| {
        fs::write(folder.path().join("deep.sql"), sql).unwrap();
        failure(folder.path(), &["sql", "-f", "deep.sql"], 1)
    };
    for link in ["+", " OR ", " UNION ALL SELECT "] {
        let message = failed(&format!("SELECT {}", vec!["1"; 20_000].join(link)));
        assert!(
            message.starts_with("Error: ") && message.contains("at most 10000 can be planned"),
            "{message}"
        );
    }
    let message = failed(&format!("SELECT {} FROM missing", vec!["1"; 9000].join("+")));
    assert!(message.contains("missing' not found"), "{message}");
}

/// A folder is a table if its files are of one format, whatever else writers leave there.
#[test]
fn folders_are_tables_of_one_format() {
    let folder = folder();
    let answer_of = |path: &str| {
        let sql = format!("SELECT sum(a) AS s FROM '{path}'");
        answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql])
    };
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("f")).unwrap();
    write("f/_SUCCESS", "");
    write("f/1.csv", "a\n1\n");
    write("f/2.csv", "a\n2\n");
    assert_eq!(answer_of("f/"), "s\n3\n");
    for (name, text) in [
        ("f/3.json", "{\"a\":4}\n"),
        ("f/3.CSV", "a\n4\n"),
        ("f/3.csv.gz", ""),
    ] {
        write(name, text);
        let message = failure(folder.path(), &["sql", "-c", "SELECT * FROM 'f/'"], 1);
        for part in [
            "cannot read 'f/'",
            "files of several formats",
            &name[2..],
            ".csv ('csv')",
            "'*.",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(answer_of("f/*.csv"), "s\n3\n");
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!(answer_of("f/"), "s\n3\n");
}

#[test]
fn times_go_to_standard_error() {
    let folder = folder();
    let output = run(
        folder.path(),
        &["sql", "--format", "csv", "-c", "SELECT 1 AS a; SELECT 2 AS a"],
    );
    assert_eq!(out(&output), "a\n1\na\n2\n");
    let lines: Vec<_> = err(&output).lines().collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let seconds = line
            .strip_prefix("Elapsed ")
            .and_then(|rest| rest.strip_suffix(" seconds."));
        assert!(
            seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok()),
            "{line}"
        );
    }
}

#[test]
fn nothing_is_left_in_the_current_folder() {
    let folder = folder();
    run_stdin(folder.path(), &["sql"], "SELECT 1; SELECT 2;");
    run(
        folder.path(),
        &["sql", "-c", "SELECT 1", "--memory-limit", "100MB"],
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let folder = folder();
    for format in ["csv", "json", "nd-json", "table"] {
        let sql = "SELECT value AS v FROM generate_series(1, 200000); SELECT 'never' AS v";
        let mut child = dfq(folder.path())
            .args(["sql", "-q", "--format", format, "-c", sql, "-c", "SELECT 'never'"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut start = [0; 3];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut start).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), err(&output)), (Some(0), ""), "{format}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_with_130() {
    let folder = folder();
    let sql =
        "SELECT 'begun' AS b; SELECT count(*) FROM generate_series(1, 100000000000) WHERE value % 7 = 9";
    let mut child = dfq(folder.path())
        .args(["sql", "--format", "csv", "-c", sql])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn the_memory_limit_holds() {
    let folder = folder();
    let sql = "SELECT array_agg(value) FROM generate_series(1, 3000000)";
    let message = failure(folder.path(), &["sql", "--memory-limit", "2MB", "-c", sql], 1);
    assert!(message.contains("Resources exhausted"), "{message}");
    // Rows that only pass through need no memory.
    let sql = "SELECT value FROM generate_series(1, 300000)";
    let rows = answer(
        folder.path(),
        &["sql", "-q", "--memory-limit", "2MB", "--format", "csv", "-c", sql],
    );
    assert_eq!(rows.lines().count(), 300_001);
    // A sort of few rows needs little.
    let sql = "SELECT value % 10 AS g, count(*) FROM generate_series(1, 300000) GROUP BY g ORDER BY g DESC";
    let args = [
        "sql",
        "-q",
        "--memory-limit",
        "4MB",
        "--partitions",
        "4",
        "--format",
        "csv",
        "-c",
        sql,
    ];
    let rows = answer(folder.path(), &args);
    assert_eq!(rows.lines().nth(1), Some("9,30000"), "{rows}");
}

#[test]
fn a_sort_past_the_limit_spills_into_the_folder() {
    let folder = folder();
    let sql = "EXPLAIN ANALYZE SELECT value FROM generate_series(1, 2000000) ORDER BY -value";
    let args = [
        "sql",
        "-q",
        "--memory-limit",
        "20MB",
        "--partitions",
        "1",
        "--spill-dir",
        "spill/here",
        "-c",
        sql,
    ];
    let plan = answer(folder.path(), &args);
    let count = plan
        .split("spill_count=")
        .nth(1)
        .and_then(|rest| rest.split([',', ']']).next());
    assert!(count.is_some_and(|count| count.trim() != "0"), "{plan}");
    assert_eq!(fs::read_dir(folder.path().join("spill/here")).unwrap().count(), 0);
    fs::write(folder.path().join("file"), "").unwrap();
    let message = failure(
        folder.path(),
        &["sql", "--spill-dir", "file", "-c", "SELECT 1"],
        1,
    );
    assert!(
        message.contains("cannot write in the spill folder 'file'"),
        "{message}"
    );
}

#[test]
fn partitions_are_as_asked() {
    let folder = folder();
    let sql = "SELECT value AS v FROM information_schema.df_settings WHERE name = 'datafusion.execution.target_partitions'";
    assert_eq!(
        answer(
            folder.path(),
            &["sql", "-q", "--partitions", "7", "--format", "csv", "-c", sql]
        ),
        "v\n7\n"
    );
}

#[test]
fn wrong_options_say_what_is_allowed() {
    let folder = folder();
    let cases: [(&[&str], &str, &str); 9] = [
        (&["sql", "--memory-limit", "abc"], "'abc'", "such as 512MB"),
        (&["sql", "--memory-limit", "0"], "'0'", "positive"),
        (&["sql", "--partitions", "0"], "'0'", "from 1 to 65536"),
        (&["sql", "--format", "xml"], "'xml'", "nd-json"),
        (&["sql", "--maxrows", "x"], "x", "inf"),
        (
            &["generate", "tpch", "--output", "d", "--scale", "0"],
            "'0'",
            "from 0.0001",
        ),
        (
            &["generate", "tpch", "--output", "d", "--tables", "foo"],
            "'foo'",
            "lineitem",
        ),
        (
            &["generate", "synthetic", "--output", "d", "--rows", "1.5"],
            "'1.5'",
            "3e7",
        ),
        (&["demo", "--scale", "big"], "'big'", "such as 0.1"),
    ];
    for (args, value, allowed) in cases {
        let message = failure(folder.path(), args, 2);
        assert!(message.contains(value) && message.contains(allowed), "{message}");
    }
    assert!(failure(folder.path(), &["generate", "tpch"], 2).contains("--output"));
}

#[test]
fn version_and_help() {
    let folder = folder();
    assert_eq!(
        answer(folder.path(), &["--version"]),
        format!(
            "dfq {} (with failpoints for tests, slower)\n",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert!(answer(folder.path(), &["--help"]).contains("dfq sql -c"));
}

#[test]
fn completions() {
    let folder = folder();
    for shell in ["bash", "zsh", "fish"] {
        let script = answer(folder.path(), &["completions", shell]);
        assert!(
            script.contains("memory-limit") && script.contains("profile"),
            "{shell}"
        );
    }
}
