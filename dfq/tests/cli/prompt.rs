//! `dfq sql` in a terminal: the bar of a statement that takes long, and the prompt.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::terminal::{Piped, Terminal};
use crate::support::{answer, dfq, folder, run};

const SLOW: &str = "SELECT count(*) AS groups FROM (SELECT v % 1000 AS g, exact_quantiles(v * v, [0.1, 0.5]) AS q FROM 't.parquet' GROUP BY g)";

/// Writes a table over which a statement takes more than a second and a half, however the program was built.
fn make_slow(folder: &Path) {
    let mut rows = 1 << 19;
    loop {
        let copy = format!("COPY (SELECT value * 7919 % 1000003 AS v FROM range({rows})) TO 't.parquet'");
        answer(folder, &["sql", "-q", "--format", "csv", "-c", &copy]);
        let started = Instant::now();
        answer(
            folder,
            &["sql", "-q", "--format", "csv", "--partitions", "2", "-c", SLOW],
        );
        if started.elapsed() > Duration::from_millis(2500) {
            return;
        }
        rows *= 2;
    }
}

#[test]
fn a_terminal_shows_how_far_a_long_statement_is() {
    let folder = folder();
    make_slow(folder.path());
    let args = ["sql", "--format", "csv", "--partitions", "2", "-c", SLOW];
    for columns in [100, 40] {
        let (code, piped, text) =
            Terminal::start(dfq(folder.path()).args(args), columns, Piped::Output).end();
        assert_eq!((code, piped.as_str()), (Some(0), "groups\n1000\n"), "{text}");
        let lines: Vec<&str> = text.split(['\r', '\n']).map(str::trim).collect();
        let is_bar = |line: &&str| line.starts_with("[#") && line.contains(" %, ") && line.contains(" left");
        let is_whole = |line: &str| line.contains(" rows read, ") && line.contains("iB, ");
        assert!(lines.iter().any(is_bar), "{text:?}");
        assert_eq!(
            lines.iter().any(|line| is_whole(line)),
            columns == 100,
            "{text:?}"
        );
        assert!(
            lines.iter().all(|line| line.chars().count() < columns.into()),
            "{text:?}"
        );
        // Nothing of it is left below the time.
        assert!(lines.iter().any(|line| line.starts_with("Elapsed")), "{text:?}");
        assert!(text.trim_end().ends_with("seconds."), "{text:?}");
    }
    // Pipes get nothing of it, nor do terminals that cannot go back in a line, nor those who want to be left alone.
    let output = run(folder.path(), &args);
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("rows read"),
        "{output:?}"
    );
    let dumb = |command: &mut Command| Terminal::start_as("dumb", command, 60, Piped::Output).end();
    let (code, _, text) = dumb(dfq(folder.path()).args(args));
    assert!(code == Some(0) && !text.contains("rows read"), "{text}");
    let (code, _, text) = Terminal::start(dfq(folder.path()).args(args).arg("-q"), 60, Piped::Output).end();
    assert_eq!((code, text.as_str()), (Some(0), ""));
}

#[test]
fn the_bar_is_there_for_whatever_takes_long() {
    let folder = folder();
    make_slow(folder.path());
    let csv = "COPY 't.parquet' TO 't.csv'";
    answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", csv]);
    let table = format!("CREATE TABLE u AS {SLOW}");
    let of_text = SLOW.replace(".parquet", ".csv");
    for (args, total) in [
        (vec!["sql", "-c", &table], " of "),
        (vec!["sql", "-c", "SUMMARIZE 't.parquet'"], " of "),
        (vec!["profile", "t.parquet"], " of "),
        (vec!["sql", "-c", &of_text], " of about "),
    ] {
        let (code, _, text) = Terminal::start(dfq(folder.path()).args(&args), 100, Piped::Output).end();
        let is_bar =
            |line: &str| line.starts_with('[') && line.contains(total) && line.contains(" rows read");
        let mut lines = text.split(['\r', '\n']).map(str::trim);
        assert!(code == Some(0) && lines.any(is_bar), "{args:?}: {text:?}");
    }
}

/// The prompt in a folder, with its state in another one below it.
fn prompt(folder: &Path) -> Terminal {
    let mut command = dfq(folder);
    command.arg("sql").env("XDG_STATE_HOME", folder.join("state"));
    let terminal = Terminal::start(&mut command, 100, Piped::Nothing);
    terminal.wait_for("> ", 0);
    terminal
}

#[test]
fn the_prompt_completes_and_remembers() {
    let folder = folder();
    let setup = "COPY (SELECT value AS fare_of_trip, 3 AS tip FROM range(1, 6)) TO 'trips.csv'";
    answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", setup]);
    let mut terminal = prompt(folder.path());
    // Names of files, functions and columns.
    terminal.type_keys("SELECT count(*) AS all_rows FROM 'tr\t;\r");
    let at = terminal.wait_for("| 5        |", 0);
    // The columns of the file that stands behind the cursor, which then goes back to the end.
    terminal
        .type_keys("SELECT  FROM 'trips.csv';\u{1}\u{1b}[C\u{1b}[C\u{1b}[C\u{1b}[C\u{1b}[C\u{1b}[C\u{1b}[C");
    terminal.type_keys("exact_quanti\tfare_of\t, 0.5) AS middle\u{5}\r");
    let at = terminal.wait_for("| 3      |", at);
    // Several lines are one statement, and one entry of the history.
    terminal.type_keys("SELECT max(tip) AS high,\r  min(tip) AS low\rFROM 'trips.csv';\r");
    let at = terminal.wait_for("| 3    | 3   |", at);
    let at = terminal.wait_for("Elapsed", at);
    terminal.type_keys("\\timing off\r");
    let at = terminal.wait_for("Timing is off.", at);
    terminal.type_keys("\\pset format parquet\r");
    let at = terminal.wait_for("a terminal cannot show the format Parquet", at);
    terminal.type_keys("\\?\r");
    let at = terminal.wait_for("\\timing on|off", at);
    terminal.type_keys("SELECT nothing;\r");
    let at = terminal.wait_for("Error: ", at);
    terminal.type_keys("SELECT 6 * 7 AS answer;\r");
    terminal.wait_for("| 42     |", at);
    terminal.type_keys("\\q\r");
    let (code, _, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("Elapsed").count(), 3, "{text}");

    let history = folder.path().join("state/dfq/history");
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(
        kept.contains("\\\\timing off") && kept.contains("SELECT 6 * 7"),
        "{kept}"
    );
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&history).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // The next prompt has them: what was typed over three lines comes back as one.
    let mut terminal = prompt(folder.path());
    terminal.type_keys("\u{12}high,\r\r");
    let at = terminal.wait_for("| 3    | 3   |", 0);
    // Ctrl-D is lost where it comes before the prompt.
    terminal.wait_for("> ", at);
    terminal.type_keys("\u{4}");
    let (code, _, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_configuration_file_has_the_defaults_of_options() {
    let folder = folder();
    let (config, sql) = (
        folder.path().join("dfq"),
        "SELECT 1 AS one, NULL AS two; SHOW quantiles.strategy",
    );
    std::fs::create_dir(&config).unwrap();
    let text =
        "format = 'csv'\ntiming = false\n[set]\nquantiles.strategy = 'dibms'\ndatafusion.format.null = '-'\n";
    std::fs::write(config.join("config.toml"), text).unwrap();
    let with = |args: &[&str]| {
        let mut command = dfq(folder.path());
        command
            .env("XDG_CONFIG_HOME", folder.path())
            .args(["sql", "-c", sql])
            .args(args);
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let set = "one,two\n1,\nname,value\nquantiles.strategy,dibms\n".to_owned();
    assert_eq!(with(&[]), (Some(0), set, String::new()));
    // Options come first.
    let (_, out, said) = with(&["--format", "tsv"]);
    assert!(out.starts_with("one\ttwo\n") && said.is_empty(), "{out}");
    let (_, out, said) = with(&["--no-config"]);
    assert!(
        out.starts_with("+-") && out.contains("auto") && said.contains("Elapsed"),
        "{out}{said}"
    );
    std::fs::write(folder.path().join("other.toml"), "format = 'nd-json'\nfromat = 1").unwrap();
    let (code, out, said) = with(&["--config", "other.toml"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        said.starts_with("Error: ") && said.contains("'other.toml': no key 'fromat'; there are: format, "),
        "{said}"
    );
    let (code, _, said) = with(&["--config", "none.toml"]);
    assert!(
        code == Some(1) && said.contains("cannot read the configuration file 'none.toml'"),
        "{said}"
    );
    let (code, _, said) = with(&["--config", "none.toml", "--no-config"]);
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
}

#[test]
fn the_guide_has_a_configuration_file() {
    let folder = folder();
    let guide = std::fs::read_to_string(quantiles_testing::root().join("docs/guide/command.md")).unwrap();
    let block = guide
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let block = block
        .unwrap()
        .replace("/tmp/dfq", &folder.path().join("spill").to_string_lossy());
    std::fs::write(folder.path().join("guide.toml"), block).unwrap();
    let out = answer(
        folder.path(),
        &["sql", "--config", "guide.toml", "-c", "SELECT NULL AS n"],
    );
    assert!(out.contains("| - |"), "{out}");
    assert!(folder.path().join("spill").exists());
}

#[test]
fn answers_are_drawn() {
    let folder = folder();
    let out = answer(
        folder.path(),
        &[
            "sql",
            "-q",
            "--plot",
            "-c",
            "SELECT histogram(value, 4, 'equi-width') FROM range(0, 101)",
        ],
    );
    let bars: Vec<usize> = out.lines().map(|line| line.matches('█').count()).collect();
    assert!(bars.len() == 4 && bars.iter().all(|bar| *bar > 50), "{out}");
    let said = crate::support::failure(folder.path(), &["sql", "--plot", "-c", "SELECT 'a'"], 1);
    assert!(said.contains("--plot draws a list of numbers"), "{said}");
    crate::support::failure(
        folder.path(),
        &["sql", "--plot", "--format", "csv", "-c", "SELECT 'a'"],
        2,
    );
}

#[test]
fn plans_are_drawn_with_rows_and_times() {
    let folder = folder();
    let setup = "COPY (SELECT value AS fare, value % 3 AS city FROM range(0, 9000)) TO 'trips.parquet'";
    answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", setup]);
    let sql = "SELECT city, exact_quantiles(fare, 0.5) FROM trips GROUP BY city";
    let out = answer(folder.path(), &["explain", sql, "trips.parquet"]);
    assert!(out.starts_with("3 rows in "), "{out}");
    for part in [
        "GroupedQuantilesExec",
        "└─ DataSourceExec",
        "input_rows 9,000",
        "bytes_scanned",
        "█",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let plan = answer(
        folder.path(),
        &["explain", "--plan-only", sql, "trips=trips.parquet"],
    );
    assert!(
        plan.contains("└─ DataSourceExec") && !plan.contains("rows in"),
        "{plan}"
    );
    let said = crate::support::failure(
        folder.path(),
        &["explain", "DROP TABLE trips", "trips.parquet"],
        1,
    );
    assert!(said.contains("not supported"), "{said}");
}
