//! How `dfq` prints answers: formats, headings, files.

use std::fs;

use crate::support::{answer, err, failure, folder, out, run};

#[test]
fn every_format() {
    let folder = folder();
    let sql = "SELECT * FROM (VALUES (1, [1.5, NULL], 'a,\"b'), (2, NULL, NULL)) t(n, l, s) ORDER BY n";
    let expected = [
        (
            "table",
            "+---+-------------+------+\n\
             | n | l           | s    |\n\
             +---+-------------+------+\n\
             | 1 | [1.5, NULL] | a,\"b |\n\
             | 2 | NULL        | NULL |\n\
             +---+-------------+------+\n",
        ),
        ("csv", "n,l,s\n1,\"[1.5, NULL]\",\"a,\"\"b\"\n2,,\n"),
        ("tsv", "n\tl\ts\n1\t[1.5, NULL]\t\"a,\"\"b\"\n2\t\t\n"),
        (
            "json",
            "[{\"n\":1,\"l\":[1.5,null],\"s\":\"a,\\\"b\"},{\"n\":2,\"l\":null,\"s\":null}]\n",
        ),
        (
            "nd-json",
            "{\"n\":1,\"l\":[1.5,null],\"s\":\"a,\\\"b\"}\n{\"n\":2,\"l\":null,\"s\":null}\n",
        ),
    ];
    for (format, text) in expected {
        assert_eq!(
            answer(folder.path(), &["sql", "--quiet", "--format", format, "-c", sql]),
            text,
            "{format}"
        );
    }
}

/// A folder is a table where its name is a path; a plain word is the name of a table.
#[test]
fn answers_without_rows() {
    let folder = folder();
    let expected = [
        ("table", "+---+---+\n| a | b |\n+---+---+\n+---+---+\n"),
        ("csv", "a,b\n"),
        ("tsv", "a\tb\n"),
        ("json", "[]\n"),
        ("nd-json", ""),
    ];
    for (format, text) in expected {
        let sql = "SELECT 1 AS a, 2 AS b WHERE false";
        assert_eq!(
            answer(folder.path(), &["sql", "-q", "--format", format, "-c", sql]),
            text,
            "{format}"
        );
    }
    assert_eq!(
        answer(
            folder.path(),
            &[
                "sql",
                "-q",
                "--format",
                "json",
                "-c",
                "SET datafusion.execution.batch_size = 10"
            ]
        ),
        ""
    );
}

#[test]
fn no_row_is_left_out() {
    let folder = folder();
    const ROWS: usize = 20_000;
    let sql = format!("SELECT value AS v FROM generate_series(1, {ROWS}) ORDER BY v");
    let text = |format| answer(folder.path(), &["sql", "-q", "--format", format, "-c", &sql]);
    let lines: String = (1..=ROWS).map(|v| format!("{v}\n")).collect();
    assert_eq!(text("csv"), format!("v\n{lines}"));
    assert_eq!(text("tsv"), format!("v\n{lines}"));
    let objects: Vec<_> = (1..=ROWS).map(|v| format!("{{\"v\":{v}}}")).collect();
    assert_eq!(text("json"), format!("[{}]\n", objects.join(",")));
    assert_eq!(text("nd-json"), format!("{}\n", objects.join("\n")));
    assert_eq!(text("table").lines().count(), ROWS + 4);
}

/// People read what was written, programs the name of the column.
#[test]
fn calls_without_a_name_have_short_headings() {
    let folder = folder();
    let sql = "SELECT exact_quantiles(v, [0.5, 1]), max(v) AS top, median(v) FROM (VALUES (1), (3)) AS t (v)";
    let text = |format| answer(folder.path(), &["sql", "-q", "--format", format, "-c", sql]);
    assert_eq!(
        text("markdown").lines().next(),
        Some("| exact_quantiles(v) | top | median(v) |")
    );
    let table = text("table");
    assert!(
        table.contains("| exact_quantiles(v) | top | median(v) |"),
        "{table}"
    );
    assert!(
        text("line").contains("exact_quantiles(v) = [1, 3]"),
        "{}",
        text("line")
    );
    assert!(
        text("csv").starts_with("\"exact_quantiles(t.v,make_array("),
        "{}",
        text("csv")
    );
}

#[test]
fn a_table_can_be_shortened_and_says_so() {
    let folder = folder();
    let sql = "SELECT value AS v FROM generate_series(1, 100) ORDER BY v";
    let output = run(folder.path(), &["sql", "-q", "--maxrows", "2", "-c", sql]);
    assert_eq!(out(&output), "+---+\n| v |\n+---+\n| 1 |\n| 2 |\n| . |\n+---+\n");
    assert_eq!(
        err(&output),
        "Only the first 2 rows are shown; --maxrows inf shows all.\n"
    );
    let exact = answer(folder.path(), &["sql", "-q", "--maxrows", "100", "-c", sql]);
    assert_eq!(exact.lines().count(), 104);
    let plan = answer(
        folder.path(),
        &["sql", "-q", "--maxrows", "1", "-c", &format!("EXPLAIN {sql}")],
    );
    assert!(
        plan.contains("logical_plan") && plan.contains("physical_plan"),
        "{plan}"
    );
    let message = failure(
        folder.path(),
        &["sql", "--maxrows", "2", "--format", "csv", "-c", sql],
        2,
    );
    assert!(message.contains("LIMIT"), "{message}");
}

#[test]
fn exact_quantiles_in_every_format() {
    let folder = folder();
    let sql = "SELECT exact_quantiles(value, [0, 0.5, 1]) AS q, exact_quantiles(value, 0.25) AS s \
               FROM generate_series(1, 1001)";
    let expected = [
        ("csv", "q,s\n\"[1, 501, 1001]\",251\n"),
        ("tsv", "q\ts\n[1, 501, 1001]\t251\n"),
        ("json", "[{\"q\":[1,501,1001],\"s\":251}]\n"),
        ("nd-json", "{\"q\":[1,501,1001],\"s\":251}\n"),
    ];
    for (format, text) in expected {
        assert_eq!(
            answer(folder.path(), &["sql", "-q", "--format", format, "-c", sql]),
            text,
            "{format}"
        );
    }
    let message = failure(folder.path(), &["sql", "-c", "SELECT exact_quantiles(1, 1.5)"], 1);
    assert!(message.contains("1.5"), "{message}");
}

#[test]
fn formats_for_documents_and_for_programs() {
    let folder = folder();
    let sql = "SELECT * FROM (VALUES (1, 'a|b'), (2, NULL)) t(n, s) ORDER BY n";
    let of = |format| answer(folder.path(), &["sql", "-q", "--format", format, "-c", sql]);
    assert_eq!(
        of("markdown"),
        "| n | s |\n| ---: | --- |\n| 1 | a\\|b |\n| 2 | NULL |\n"
    );
    assert_eq!(of("line"), "n = 1\ns = a|b\n\nn = 2\ns = NULL\n");
    let file = folder.path().join("answer");
    for format in ["parquet", "arrow", "csv"] {
        let name = format!("answer.{format}");
        let args = ["sql", "-q", "--format", format, "-o", &name, "-c", sql];
        assert_eq!(answer(folder.path(), &args), "");
        let back = format!("SELECT * FROM '{name}' ORDER BY n");
        let back = answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &back]);
        assert_eq!(back, "n,s\n1,a|b\n2,\n", "{format}");
        assert!(
            !run(folder.path(), &["sql", "-q", "--format", format, "-c", sql])
                .stdout
                .is_empty(),
            "{format}"
        );
    }
    // Nothing that is not whole has the file's name.
    let file = file.with_extension("broken");
    let error = failure(
        folder.path(),
        &[
            "sql",
            "-q",
            "--format",
            "csv",
            "-o",
            "answer.broken",
            "-c",
            sql,
            "-c",
            "SELECT nowhere",
        ],
        1,
    );
    assert!(error.contains("nowhere") && !file.exists(), "{error}");
    let error = failure(
        folder.path(),
        &[
            "sql",
            "-q",
            "--format",
            "parquet",
            "-o",
            "answer.broken",
            "-c",
            sql,
            "-c",
            sql,
        ],
        1,
    );
    assert!(
        error.contains("one file of the format Parquet holds one answer") && !file.exists(),
        "{error}"
    );
    let error = failure(folder.path(), &["sql", "-o", "nowhere/answer", "-c", sql], 1);
    assert!(error.contains("cannot write 'nowhere/answer'"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[cfg(unix)]
#[test]
fn what_is_there_is_written_as_it_is() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str| {
        let args = ["sql", "-q", "--format", "csv", "-o", name, "-c", "SELECT 1 AS n"];
        assert_eq!(answer(folder.path(), &args), "");
    };
    // A file keeps its permissions, and its neighbours.
    fs::write(at("own.csv"), "before").unwrap();
    fs::set_permissions(at("own.csv"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(at("own.csv.unfinished"), "mine").unwrap();
    write("own.csv");
    assert_eq!(fs::read_to_string(at("own.csv")).unwrap(), "n\n1\n");
    assert_eq!(
        at("own.csv").metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(fs::read_to_string(at("own.csv.unfinished")).unwrap(), "mine");
    // Links stay links, to a file that is there and to one that is not.
    for target in ["own.csv", "new.csv"] {
        let link = format!("link-to-{target}");
        std::os::unix::fs::symlink(target, at(&link)).unwrap();
        write(&link);
        assert!(at(&link).is_symlink());
        assert_eq!(fs::read_to_string(at(target)).unwrap(), "n\n1\n");
    }
    // So does a pipe, whose reader gets the answer.
    let made = std::process::Command::new("mkfifo")
        .arg(at("pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    let pipe = at("pipe");
    let reader = std::thread::spawn(move || fs::read_to_string(pipe).unwrap());
    write("pipe");
    assert!(at("pipe").metadata().unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap(), "n\n1\n");
    let error = failure(folder.path(), &["sql", "-o", ".", "-c", "SELECT 1"], 1);
    assert!(
        error.contains("cannot write '.'") && error.contains("is a directory"),
        "{error}"
    );
}
