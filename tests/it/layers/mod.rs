//! The library's modules depend on each other in one direction, its files form no circle, and no file or function is too long.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use source::{File, files, functions, paths, read};

/// Modules of the library from the bottom to the top: each uses those before it only.
const LAYERS: &[&str] = &[
    "failpoint",
    "parsing",
    "session",
    "threads",
    "config",
    "key",
    "wire",
    "quantile",
    "cells",
    "memory",
    "sketch",
    "kernel",
    "select",
    "functions",
    "compute",
    "exec",
    "progress",
    "planner",
    "pinned",
    "dataframe",
    "profile",
    "statement",
    "ballista",
];

/// Arrows back that are still there, as `from > to`.
const KNOWN_ARROWS: &[&str] = &[];

/// Folders of files that are still in a circle.
const KNOWN_CIRCLES: &[&str] = &[];

/// Files that are still too long.
const KNOWN_LONG_FILES: &[&str] = &[];

/// Functions that are still too long, as file and name.
const KNOWN_LONG_FUNCTIONS: &[&str] = &[];

/// Most lines of a file, without its unit tests.
const FILE_LINES: usize = 600;

/// Most lines of a function.
const FUNCTION_LINES: usize = 80;

/// What a file needs of another: both as indices, and the line that says so.
struct Use {
    from: usize,
    to: usize,
    line: usize,
    reexport: bool,
}

/// Follows every path of every file to the file that has the item, through re-exports.
fn uses(files: &[File]) -> Vec<Use> {
    let by_module: BTreeMap<&[String], usize> = files
        .iter()
        .enumerate()
        .map(|(index, file)| (&file.module[..], index))
        .collect();
    let read: Vec<_> = files.iter().map(paths).collect();
    let find = |path: &[String]| {
        let mut path = path.to_vec();
        // Re-exports of re-exports end soon; a circle of them would not compile.
        for _ in 0..16 {
            let end = (0..=path.len())
                .rev()
                .find(|&end| by_module.contains_key(&path[..end]))?;
            let owner = by_module[&path[..end]];
            match path.get(end).and_then(|item| read[owner].1.get(item)) {
                Some(import) if import[..] != path[..=end] => path = [import, &path[end + 1..]].concat(),
                _ => return Some(owner),
            }
        }
        None
    };
    let mut found = Vec::new();
    for (from, (named, _)) in read.iter().enumerate() {
        for named in named {
            if let Some(to) = find(&named.path).filter(|to| *to != from) {
                found.push(Use {
                    from,
                    to,
                    line: named.line,
                    reexport: named.reexport,
                });
            }
        }
    }
    found
}

/// Uses of a module by one below it, as `from > to`, each with its places.
fn arrows_back(files: &[File], uses: &[Use], layers: &[&str]) -> BTreeMap<String, Vec<String>> {
    let layer = |index: usize| {
        let name = files[index].module.first()?;
        let found = layers.iter().position(|layer| layer == name);
        Some((
            found.unwrap_or_else(|| panic!("module {name} is in no layer: add it to LAYERS")),
            name,
        ))
    };
    let mut back: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for used in uses {
        let (Some((from, from_name)), Some((to, to_name))) = (layer(used.from), layer(used.to)) else {
            // `lib.rs` names the modules.
            continue;
        };
        if to > from {
            let place = format!(
                "{}:{} uses {}",
                files[used.from].path, used.line, files[used.to].path
            );
            back.entry(format!("{from_name} > {to_name}"))
                .or_default()
                .push(place);
        }
    }
    back
}

/// Files that need each other, directly or through others, as one list each.
fn circles(files: &[File], uses: &[Use]) -> Vec<Vec<usize>> {
    let mut next = vec![BTreeSet::new(); files.len()];
    for used in uses.iter().filter(|used| !used.reexport) {
        next[used.from].insert(used.to);
    }
    let reached = |start: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(at) = open.pop() {
            open.extend(next[at].iter().filter(|to| seen.insert(**to)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(reached).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for start in 0..files.len() {
        let circle: Vec<usize> = reached[start]
            .iter()
            .copied()
            .filter(|to| reached[*to].contains(&start))
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn library() -> Vec<File> {
    read(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// Fails for what is found and not known, and for what is known and no longer found.
fn check(what: &str, found: &BTreeMap<String, Vec<String>>, known: &[&str]) {
    let new: Vec<_> = found
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .map(|(name, places)| format!("{name}\n    {}", places.join("\n    ")))
        .collect();
    assert!(new.is_empty(), "{what}:\n{}", new.join("\n"));
    let gone: Vec<_> = known.iter().filter(|name| !found.contains_key(**name)).collect();
    assert!(
        gone.is_empty(),
        "{what}: no longer true, so take them off the list of known ones: {gone:?}"
    );
}

#[test]
fn modules_use_those_below_them_only() {
    let files = library();
    let back = arrows_back(&files, &uses(&files), LAYERS);
    check("modules that use a module above them", &back, KNOWN_ARROWS);
}

#[test]
fn files_form_no_circle() {
    let files = library();
    let uses = uses(&files);
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for circle in circles(&files, &uses) {
        for used in uses.iter().filter(|used| !used.reexport) {
            if circle.contains(&used.from) && circle.contains(&used.to) {
                let (path, to) = (&files[used.from].path, &files[used.to].path);
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let place = format!("{path}:{} uses {to}", used.line);
                found.entry(folder.to_owned()).or_default().push(place);
            }
        }
    }
    check("folders with files in a circle", &found, KNOWN_CIRCLES);
}

#[test]
fn files_and_functions_are_short() {
    let files = library();
    let long = |file: &&File| file.lines() > FILE_LINES;
    let size = |file: &File| (file.path.clone(), vec![format!("{} lines", file.lines())]);
    let found = files.iter().filter(long).map(size).collect();
    check(
        &format!("files of more than {FILE_LINES} lines"),
        &found,
        KNOWN_LONG_FILES,
    );
    let mut found = BTreeMap::new();
    for file in &files {
        for (name, line, lines) in functions(file) {
            if lines > FUNCTION_LINES {
                found.insert(
                    format!("{} {name}", file.path),
                    vec![format!("line {line}, {lines} lines")],
                );
            }
        }
    }
    check(
        &format!("functions of more than {FUNCTION_LINES} lines"),
        &found,
        KNOWN_LONG_FUNCTIONS,
    );
}

/// What the tests above find in a library of these files.
fn sample(texts: &[(&str, &str)]) -> (Vec<File>, Vec<Use>) {
    let texts: Vec<_> = texts
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    let files = files(&texts);
    let uses = uses(&files);
    (files, uses)
}

#[test]
fn an_arrow_back_is_found_by_line_and_names() {
    let (files, uses) = sample(&[
        ("src/lib.rs", "mod low;\nmod high;"),
        (
            "src/low.rs",
            "// use crate::high::No;\nuse crate::{\n    high::{Item as Other},\n};\n#[cfg(test)]\nmod tests { use crate::high::Item; }",
        ),
        (
            "src/high/mod.rs",
            "mod inner;\npub use inner::Item;\nfn f() { crate::low::g(\"crate::top::x\") }",
        ),
        ("src/high/inner.rs", "pub struct Item;"),
    ]);
    let back = arrows_back(&files, &uses, &["low", "high"]);
    assert_eq!(back.keys().collect::<Vec<_>>(), ["low > high"]);
    assert_eq!(back["low > high"], ["src/low.rs:2 uses src/high/inner.rs"]);
    assert!(circles(&files, &uses).is_empty());
    assert!(arrows_back(&files, &uses, &["high", "low"]).contains_key("high > low"));
}

#[test]
fn a_circle_through_a_reexport_is_found() {
    let texts = [
        ("src/lib.rs", "mod a;"),
        (
            "src/a/mod.rs",
            "mod one;\nmod two;\n#[cfg(test)]\nmod tests;\npub(crate) use one::One;\nuse two::Two;",
        ),
        ("src/a/one.rs", "struct One(super::Two);"),
        (
            "src/a/two.rs",
            "use super::One;\npub struct Two(Box<One>, char, &'static str);\nconst C: char = '{';",
        ),
        ("src/a/tests.rs", "use super::one::One;"),
    ];
    let (files, uses) = sample(&texts);
    let names: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        names,
        ["src/lib.rs", "src/a/mod.rs", "src/a/one.rs", "src/a/two.rs"]
    );
    assert_eq!(circles(&files, &uses), [vec![2, 3]]);
}

#[test]
fn long_functions_are_counted_without_what_tests_have() {
    let text = "trait T {\n    fn declared(&self, of: [u8; 4]);\n}\nfn long() {\n    let s = \"}\";\n\n}\n#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\n";
    let file = File::new("src/x.rs", text);
    assert_eq!(functions(&file), [("long".to_owned(), 4, 4)]);
    assert_eq!(file.lines(), 7);
}
