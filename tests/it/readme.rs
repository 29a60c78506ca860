//! The README mentions every option of `dfq`, and none that does not exist.
#![cfg(feature = "ballista")]

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::root;

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
    let commands: [&[&str]; 7] = [
        &[],
        &["sql"],
        &["generate"],
        &["generate", "tpch"],
        &["generate", "synthetic"],
        &["demo"],
        &["cluster"],
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

/// The README's parts on `dfq`: sections whose heading names it, and lines that call it.
fn on_dfq(readme: &str) -> String {
    let mut level = None;
    let mut text = String::new();
    let mut in_code = false;
    for line in readme.lines() {
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
fn the_readme_mentions_the_options_that_exist() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (existing, mentioned) = (existing(), options(&on_dfq(&readme)));
    let missing: Vec<_> = existing
        .difference(&mentioned)
        .filter(|option| *option != "--help")
        .collect();
    assert!(missing.is_empty(), "README.md does not mention {missing:?}");
    // Ballista has too many to list.
    let ballista = listed(&[&["scheduler"], &["executor"]]);
    let unknown: Vec<_> = mentioned
        .difference(&existing)
        .filter(|option| !ballista.contains(*option))
        .collect();
    assert!(
        unknown.is_empty(),
        "README.md mentions options that do not exist: {unknown:?}"
    );
}

#[test]
fn options_are_found_in_text() {
    let found = options("`--file FILE`, -q,--quiet -- and --- or --x=1; a--b");
    assert_eq!(found, ["--file", "--quiet", "--x"].map(str::to_string).into());
    let readme = "# A\n--one\n## The command dfq\n--two\n### More\n--three\ncargo run --release\n## Rest\n--four\ndfq sql --five\n";
    assert_eq!(
        options(&on_dfq(readme)),
        ["--two", "--three", "--five"].map(str::to_string).into()
    );
    assert!(existing().contains("--spill-dir"));
}

#[test]
fn the_readme_lists_the_options_of_a_session() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let listed: Vec<(String, String)> = readme
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
