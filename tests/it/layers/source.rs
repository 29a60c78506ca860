//! Rust files as far as the tests of layers need them: modules, `use` declarations, paths and functions, by their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One file of the library.
pub(crate) struct File {
    /// From the root of the package.
    pub(crate) path: String,
    /// Without comments, contents of literals and what is compiled for tests only; every line stands where it stood.
    pub(crate) code: String,
    /// Segments of its module's path: none for `lib.rs`.
    pub(crate) module: Vec<String>,
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let name = path
            .strip_prefix("src/")
            .and_then(|name| name.strip_suffix(".rs"));
        let mut module: Vec<String> = name.expect("src/*.rs").split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        Self {
            path: path.to_owned(),
            code: without_tests(&plain(text)),
            module,
        }
    }

    /// Lines of it that are not for tests only.
    pub(crate) fn lines(&self) -> usize {
        self.code.trim_end().lines().count()
    }
}

/// All files under `src`, but those of modules that only tests have.
pub(crate) fn read(root: &Path) -> Vec<File> {
    fn walk(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, found),
                false => found.push(path),
            }
        }
    }
    let mut paths = Vec::new();
    walk(&root.join("src"), &mut paths);
    paths.sort();
    let texts: Vec<_> = paths
        .iter()
        .map(|path| {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    files(&texts)
}

/// The same of paths and texts.
pub(crate) fn files(texts: &[(String, String)]) -> Vec<File> {
    let mut files = Vec::new();
    let mut tests = BTreeSet::new();
    for (path, text) in texts {
        let file = File::new(path, text);
        for name in test_modules(&plain(text)) {
            tests.insert([&file.module[..], &[name]].concat());
        }
        files.push(file);
    }
    let of_tests = |module: &[String]| (1..=module.len()).any(|end| tests.contains(&module[..end]));
    files.retain(|file| !of_tests(&file.module));
    files
}

/// The text with spaces in place of comments and of what stands between quotes.
fn plain(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        let kept = end == at + 1 || bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_';
        for &byte in &bytes[at..end] {
            out.push(match byte {
                b'\n' => '\n',
                byte if kept && byte.is_ascii() => byte as char,
                _ => ' ',
            });
        }
        at = end;
    }
    out
}

/// Where the word, comment, literal or single byte at `at` ends.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let find = |pattern: &[u8], from: usize| {
        let found = rest[from..]
            .windows(pattern.len())
            .position(|window| window == pattern);
        found.map_or(bytes.len(), |found| at + from + found + pattern.len())
    };
    let hashes = |from: usize| rest[from..].iter().take_while(|byte| **byte == b'#').count();
    match rest {
        [b'/', b'/', ..] => find(b"\n", 0) - 1,
        [b'/', b'*', ..] => find(b"*/", 2),
        [b'r', b'"' | b'#', ..] if rest.get(1 + hashes(1)) == Some(&b'"') => {
            let close = [b"\"".as_slice(), &vec![b'#'; hashes(1)]].concat();
            find(&close, 2 + hashes(1))
        }
        [b'"', ..] => {
            let mut end = 1;
            while end < rest.len() && rest[end] != b'"' {
                end += if rest[end] == b'\\' { 2 } else { 1 };
            }
            at + end + 1
        }
        [b'\'', b'\\', ..] => find(b"'", 3),
        [b'\'', _, b'\'', ..] => at + 3,
        [first, ..] if first.is_ascii_alphanumeric() || *first == b'_' => {
            let word = rest
                .iter()
                .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
            at + word.count()
        }
        _ => at + 1,
    }
}

const FOR_TESTS: &str = "#[cfg(test)]";

/// Names of the modules in files of their own that only tests have.
fn test_modules(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(FOR_TESTS) {
        let item = &code[at..item_end(code, at)];
        let declared = item.trim_end_matches(';').split_whitespace().collect::<Vec<_>>();
        if let (true, [.., "mod", name]) = (item.ends_with(';'), &declared[..]) {
            names.push((*name).to_owned());
        }
    }
    names
}

fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(at) = code.find(FOR_TESTS) {
        let end = item_end(&code, at);
        let blank: String = code[at..end]
            .chars()
            .map(|c| if c == '\n' { '\n' } else { ' ' })
            .collect();
        code.replace_range(at..end, &blank);
    }
    code
}

/// Where the item ends that stands behind the attributes at `at`.
fn item_end(code: &str, at: usize) -> usize {
    let mut start = at;
    while code[start..].starts_with('#') {
        start += closing(&code[start..], '[', ']');
        start += code[start..].len() - code[start..].trim_start().len();
    }
    let is_use = code[start..].split_whitespace().take(2).any(|word| word == "use");
    let semicolon = code[start..].find(';').map_or(code.len(), |end| start + end + 1);
    match code[start..].find('{') {
        Some(open) if !is_use && start + open < semicolon => start + closing(&code[start..], '{', '}'),
        _ => semicolon,
    }
}

/// Where the first pair of brackets of this kind is closed.
fn closing(code: &str, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        depth += i32::from(c == open) - i32::from(c == close);
        if c == close && depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// A path that a file names, and where.
pub(crate) struct Named {
    /// Absolute, from the crate's root.
    pub(crate) path: Vec<String>,
    /// From 1.
    pub(crate) line: usize,
    /// By `pub use`: names what lies elsewhere, and needs none of it.
    pub(crate) reexport: bool,
}

/// Paths into the crate that the file names, and what it calls those that it imports.
pub(crate) fn paths(file: &File) -> (Vec<Named>, BTreeMap<String, Vec<String>>) {
    let (mut named, mut imports) = (Vec::new(), BTreeMap::new());
    let children = children(&file.code);
    let mut code = file.code.clone();
    for (at, _) in file.code.match_indices("use ") {
        let before = file.code[..at].trim_end_matches(' ');
        let visibility = before.rsplit(['\n', ';', '}']).next().unwrap_or_default();
        if file.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let end = at + file.code[at..].find(';').unwrap_or_default();
        for leaf in leaves(&file.code[at + "use ".len()..end]) {
            let (path, name) = leaf.split_once(" as ").unwrap_or((&leaf, ""));
            let Some(path) = absolute(path.trim(), file, &children) else {
                continue;
            };
            let name = if name.is_empty() {
                path.last().cloned().unwrap_or_default()
            } else {
                name.trim().to_owned()
            };
            imports.insert(name, path.clone());
            named.push(Named {
                path,
                line: line(&file.code, at),
                reexport: visibility.trim_start().starts_with("pub"),
            });
        }
        code.replace_range(at..end, &" ".repeat(end - at));
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut at = 0;
    while let Some(found) = code[at..].find("::") {
        let start = code[..at + found]
            .rfind(|c| !is_path(c))
            .map_or(0, |start| start + 1);
        let end = at
            + found
            + code[at + found..]
                .find(|c| !is_path(c))
                .unwrap_or(code.len() - at - found);
        if let Some(path) = absolute(code[start..end].trim_end_matches(':'), file, &children) {
            named.push(Named {
                path,
                line: line(&file.code, start),
                reexport: false,
            });
        }
        at = end;
    }
    (named, imports)
}

fn line(code: &str, at: usize) -> usize {
    1 + code[..at].matches('\n').count()
}

/// Names of the modules that a file declares.
fn children(code: &str) -> BTreeSet<String> {
    let words: Vec<_> = code.split_whitespace().collect();
    let declared = words.windows(2).filter(|pair| pair[0] == "mod");
    declared
        .filter_map(|pair| pair[1].strip_suffix(';').map(str::to_owned))
        .collect()
}

/// The paths of a tree of imports: of `a::{b, c::{d}}` those are `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        return vec![tree.split_whitespace().collect::<Vec<_>>().join(" ")];
    };
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            let part = inner[start..at].trim();
            start = at + 1;
            if !part.is_empty() {
                found.extend(
                    leaves(part)
                        .into_iter()
                        .map(|leaf| format!("{}{leaf}", tree[..open].trim())),
                );
            }
        }
    }
    found
}

/// From the crate's root; `None` for another crate's.
fn absolute(path: &str, file: &File, children: &BTreeSet<String>) -> Option<Vec<String>> {
    let mut segments: Vec<String> = path
        .split("::")
        .map(|segment| segment.trim().to_owned())
        .collect();
    let mut module = file.module.clone();
    match segments[0].as_str() {
        "crate" => module.clear(),
        "self" => {}
        "super" => {
            while segments.get(1).is_some_and(|next| next == "super") {
                segments.remove(0);
                module.pop();
            }
            module.pop();
        }
        child if children.contains(child) && segments.len() > 1 => {
            module.push(child.to_owned());
        }
        _ => return None,
    }
    module.extend(segments.into_iter().skip(1));
    module.retain(|segment| !segment.is_empty() && segment != "self");
    Some(module)
}

/// A function: its name, its first line and how many lines it has.
pub(crate) fn functions(file: &File) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in file.code.match_indices("fn ") {
        let rest = &file.code[at..];
        let name: String = rest["fn ".len()..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let starts_word = !file.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if name.is_empty() || !starts_word {
            continue;
        }
        let body = rest.find('{').unwrap_or(rest.len());
        // A declaration ends with a semicolon; those inside brackets are of arrays.
        let signature = &rest[..body];
        let open = |text: &str| text.matches('[').count() > text.matches(']').count();
        if signature
            .match_indices(';')
            .any(|(end, _)| !open(&signature[..end]))
        {
            continue;
        }
        let lines = rest[..closing(rest, '{', '}')].matches('\n').count() + 1;
        found.push((name, line(&file.code, at), lines));
    }
    found
}
