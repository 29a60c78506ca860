//! The README and the guide: their SQL and their commands run, their links lead somewhere, and they mention every option of
//! `dfq`, and none that does not exist.
#![cfg(all(feature = "ballista", feature = "cloud", feature = "cuda", feature = "serve"))]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use quantiles_testing::root;

/// Commands that other tests run, or that cannot run in a test.
const NOT_RUN: [&str; 15] = [
    "cargo install --path dfq",
    // This command.
    "cargo test --locked --all-features",
    // .ci/python, whose tests run the blocks of Python too
    "pip install ./python",
    "pip install ./python --config-settings build-args=\"--features cluster\"",
    // tests/cluster
    "cargo run --release --features ballista -- cluster --executors 2",
    "cargo run --release --features ballista -- sql --cluster df://127.0.0.1:50050",
    "dfq sql --cluster df://127.0.0.1:50050",
    "openssl rand -hex 32 > secret",
    "dfq scheduler --bind-host 0.0.0.0 --external-host one --token-file secret",
    "dfq executor --bind-host 0.0.0.0 --external-host two --scheduler-host one --token-file secret",
    "dfq sql --cluster df://one:50050 --token-file secret",
    // tests/cli/serve
    "dfq serve trips.parquet",
    "psql -h 127.0.0.1 -U me -d datafusion -c \"SELECT exact_quantiles(fare, [0.5, 0.99]) FROM trips\"",
    "dfq serve --init setup.sql --memory-limit 4g --metrics-bind 127.0.0.1:9187",
    "dfq serve trips.parquet --bind-host 0.0.0.0 --password-file passwords --tls-cert server.pem --tls-key server.key",
];

/// What makes a command small enough for a test; the rest of it is run as it stands.
const SMALLER: [(&str, &str); 3] = [
    ("--rows 3e7", "--rows 1000"),
    ("--scale 1", "--scale 0.001"),
    ("dfq demo", "dfq demo --scale 0.001 --output ."),
];

/// Every page: its path and its text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|name| root().join(name))
        .into();
    for folder in ["docs", "docs/guide"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// The blocks of code of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut inside) {
            (Some(_), Some(_)) => blocks.extend(inside.take().flatten()),
            (Some(name), None) => inside = Some((name == language).then(String::new)),
            (None, Some(Some(block))) => {
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

/// A folder with the files that the pages speak of.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let trips = "COPY (SELECT value AS id, concat('city ', value % 7) AS city, value % 61 * 0.5 AS fare, value % 9 * 0.25 AS tip, value % 5 AS riders,
         to_timestamp(value * 100) AS started FROM generate_series(1, 2000)) TO 'trips.parquet'";
    let output = dfq(folder.path(), &["sql", "-q", "-c", trips]);
    assert!(output.status.success(), "{output:?}");
    let setup = "CREATE VIEW report AS SELECT city, median(fare) FROM 'trips.parquet' GROUP BY city;";
    std::fs::write(folder.path().join("setup.sql"), setup).unwrap();
    folder
}

fn dfq(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// Whether there is a GPU to pin tables in, which a run that asks for one must have.
fn has_device() -> bool {
    let device = datafusion_quantiles::kernel::cuda::Device::get(0);
    let is_required = std::env::var("QUANTILES_REQUIRE_CUDA").is_ok_and(|value| value == "1");
    assert!(
        device.is_ok() || !is_required,
        "QUANTILES_REQUIRE_CUDA=1, and there is no device"
    );
    device.is_ok()
}

#[test]
fn sql_of_the_pages_runs() {
    let folder = folder();
    let table = "CREATE EXTERNAL TABLE trips STORED AS PARQUET LOCATION 'trips.parquet'";
    let mut run = 0;
    for (path, text) in pages() {
        for sql in blocks(&text, "sql") {
            if sql.contains("PIN TABLE") && !has_device() {
                continue;
            }
            std::fs::write(folder.path().join("block.sql"), &sql).unwrap();
            let output = dfq(folder.path(), &["sql", "-c", table, "-f", "block.sql"]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:\n{sql}\n{said}", path.display());
            run += 1;
        }
    }
    assert!(run >= 8, "{run} blocks");
}

/// What a shell runs for a line of a page; `None` for one that is run elsewhere.
fn command(line: &str) -> Option<String> {
    let line = line.split(" #").next().unwrap_or_default().trim();
    if line.is_empty() || NOT_RUN.contains(&line) {
        return None;
    }
    let line = line.replacen("cargo run --release -- ", "dfq ", 1);
    Some(
        SMALLER
            .iter()
            .fold(line, |line, (large, small)| line.replace(large, small)),
    )
}

#[test]
fn commands_of_the_pages_run() {
    let folder = folder();
    let program = Path::new(env!("CARGO_BIN_EXE_dfq")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut run = 0;
    for (page, text) in pages() {
        let shell = blocks(&text, "sh").concat();
        for command in shell.lines().filter_map(command) {
            assert!(
                command.contains("dfq "),
                "{}: how is '{command}' tested?",
                page.display()
            );
            let mut child = Command::new("sh");
            child.current_dir(folder.path()).env("PATH", &path);
            let output = child
                .args(["-c", &command])
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {command}\n{said}", page.display());
            run += 1;
        }
    }
    assert!(run >= 8, "{run} commands");
}

/// A heading as the end of a link: lower case, words joined by hyphens, nothing else.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .replace(' ', "-");
    kept.chars()
        .filter(|c| c.is_alphanumeric() || "-_".contains(*c))
        .collect()
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut links = 0;
    for (page, text) in pages() {
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, end) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            if !end.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(
                    headings.any(|heading| heading == end),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
    assert!(links > 30, "{links}");
}

/// Every `--option` in a text.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words
        .filter(|word| {
            word.strip_prefix("--")
                .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        })
        .map(str::to_string)
        .collect()
}

/// The options that `dfq` lists itself.
fn existing() -> BTreeSet<String> {
    let commands: [&[&str]; 10] = [
        &[],
        &["sql"],
        &["generate"],
        &["generate", "tpch"],
        &["generate", "synthetic"],
        &["demo"],
        &["profile"],
        &["explain"],
        &["cluster"],
        &["serve"],
    ];
    listed(&commands)
}

/// The options that these commands list.
fn listed(commands: &[&[&str]]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for command in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_dfq"))
            .args(*command)
            .arg("--help")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command:?}");
        let help = String::from_utf8(output.stdout).unwrap();
        // Only the lines that declare an option: "  -c, --command <SQL>".
        let declared = help.lines().filter(|line| line.trim_start().starts_with('-'));
        all.extend(declared.flat_map(options));
    }
    assert!(all.contains("--help"), "{all:?}");
    all
}

/// The parts of a page on `dfq`: sections whose heading names it, and lines that call it.
fn on_dfq(page: &str) -> String {
    let mut level = None;
    let mut text = String::new();
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let depth = line.chars().take_while(|c| *c == '#').count();
        if depth > 0 && !in_code && level.is_none_or(|level| depth <= level) {
            level = line.contains("dfq").then_some(depth);
        }
        // Cargo has options of its own.
        if (level.is_some() || line.contains("dfq ")) && !line.contains("cargo ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_pages_mention_the_options_that_exist() {
    let text: String = pages().iter().map(|(_, text)| on_dfq(text)).collect();
    let (existing, mentioned) = (existing(), options(&text));
    let missing: Vec<_> = existing
        .difference(&mentioned)
        .filter(|option| *option != "--help")
        .collect();
    assert!(missing.is_empty(), "no page mentions {missing:?}");
    // Ballista has too many to list.
    let ballista = listed(&[&["scheduler"], &["executor"]]);
    let unknown: Vec<_> = mentioned
        .difference(&existing)
        .filter(|option| !ballista.contains(*option))
        .collect();
    assert!(unknown.is_empty(), "options that do not exist: {unknown:?}");
}

#[test]
fn options_are_found_in_text() {
    let found = options("`--file FILE`, -q,--quiet -- and --- or --x=1; a--b");
    assert_eq!(found, ["--file", "--quiet", "--x"].map(str::to_string).into());
    let page = "# A\n--one\n## The command dfq\n--two\n### More\n--three\ncargo run --release\n## Rest\n--four\ndfq sql --five\n";
    assert_eq!(
        options(&on_dfq(page)),
        ["--two", "--three", "--five"].map(str::to_string).into()
    );
    assert!(existing().contains("--spill-dir"));
}

#[test]
fn the_guide_lists_the_options_of_a_session() {
    let page = std::fs::read_to_string(root().join("docs/guide/functions.md")).unwrap();
    let listed: Vec<(String, String)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `quantiles."))
        .map(|row| {
            let mut cells = row
                .split('|')
                .map(|cell| cell.trim().trim_matches('`').to_string());
            let name = format!("quantiles.{}", cells.next().unwrap());
            (name, cells.next().unwrap())
        })
        .collect();
    let existing: Vec<(String, String)> = datafusion_quantiles::config::OPTIONS
        .iter()
        .map(|option| (option.name.to_string(), option.default.to_string()))
        .collect();
    assert_eq!(listed, existing);
}

/// The kernels that a source defines: those of `__global__`, and those that a macro of `bucket.cu` makes.
fn kernels_of(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        if let Some(arguments) = line.strip_prefix("COUNT_KERNEL(") {
            return arguments.split(',').next();
        }
        let is_kernel = line.contains("__global__") && !line.ends_with('\\');
        let head = line.split("(const __grid_constant__").next();
        head.filter(|_| is_kernel)?.rsplit(' ').next()
    })
}

/// Each kernel is in one row of the table, in a file that has it, and each function that is named there exists.
#[test]
fn the_readme_of_kernels_lists_every_kernel() {
    let root = root();
    let read = |path: String| std::fs::read_to_string(root.join(path)).unwrap();
    let mut existing = Vec::new();
    for entry in std::fs::read_dir(root.join("kernels")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if file.ends_with(".cu") || file.ends_with(".cuh") {
            let source = read(format!("kernels/{file}"));
            existing.extend(kernels_of(&source).map(|name| (name.to_owned(), file.clone())));
        }
    }
    let readme = read("kernels/README.md".to_owned());
    let mut listed = Vec::new();
    for row in readme.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, file, _, _, launched, _] = cells.as_slice() else {
            continue;
        };
        let name = name.trim_matches('`');
        listed.push((name.to_owned(), file.trim_matches('`').to_owned()));
        if launched.starts_with("as `") {
            continue;
        }
        // "`file.rs`: `Type::function`", and perhaps more.
        let mut text = String::new();
        for quoted in launched.split('`').skip(1).step_by(2) {
            if quoted.ends_with(".rs") {
                text = read(format!("src/kernel/cuda/{quoted}"));
                continue;
            }
            let function = quoted.rsplit("::").next().unwrap();
            let is_there =
                text.contains(&format!("fn {function}(")) || text.contains(&format!("fn {function}<"));
            assert!(is_there, "{name}: no function {quoted}");
        }
    }
    assert!(existing.len() > 50, "{existing:?}");
    existing.sort();
    listed.sort();
    assert_eq!(listed, existing);
}
