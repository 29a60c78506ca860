//! What the prompt does while a line is typed: completion, colours, and when an input is complete.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use datafusion::config::Dialect as DialectName;
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::command::{COMMANDS, formats};
use super::context::{Wanted, typed};
use super::names::{self, Names};
use super::split_in;

/// Colours of a terminal (ANSI), by their codes.
const KEYWORD: u8 = 91;
const TEXT: u8 = 92;

/// Completes names and paths, colours keywords and texts, and goes on reading until the splitter that runs statements finds the end
/// of the last one.
pub(super) struct PromptHelper {
    ctx: SessionContext,
    files: FilenameCompleter,
    has_color: bool,
    patience: Duration,
    pub(super) dialect: DialectName,
}

impl PromptHelper {
    /// For statements of a session in this dialect.
    pub(super) fn new(ctx: SessionContext, dialect: DialectName) -> Self {
        Self {
            ctx,
            files: FilenameCompleter::new(),
            has_color: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            patience: names::PATIENCE,
            dialect,
        }
    }

    fn names(&self) -> Names<'_> {
        Names {
            ctx: &self.ctx,
            patience: self.patience,
        }
    }

    fn is_complete(&self, input: &str) -> bool {
        if input.trim().is_empty() || input.trim_start().starts_with('\\') {
            return true;
        }
        let split = split_in(self.dialect, input);
        // A text that no more input can mend is complete: running it shows the error.
        split.rest.is_none() || split.broken
    }

    /// The line with its colours; `None` if it is no sequence of tokens yet.
    fn colored(&self, line: &str) -> Option<String> {
        let dialect = dialect_from_str(self.dialect).unwrap_or_else(|| Box::new(GenericDialect {}));
        // Escapes stay as they were typed.
        let mut tokenizer = Tokenizer::new(dialect.as_ref(), line).with_unescape(false);
        let mut colored = String::new();
        for token in tokenizer.tokenize().ok()? {
            let color = match &token {
                Token::Word(word) if word.keyword != Keyword::NoKeyword => Some(KEYWORD),
                Token::SingleQuotedString(_) => Some(TEXT),
                _ => None,
            };
            match color {
                Some(color) => write!(colored, "\x1b[{color}m{token}\x1b[0m").ok()?,
                None => write!(colored, "{token}").ok()?,
            }
        }
        Some(colored)
    }
}

impl Helper for PromptHelper {}

impl Validator for PromptHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match self.is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Highlighter for PromptHelper {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        match self.has_color.then(|| self.colored(line)).flatten() {
            Some(colored) => Cow::Owned(colored),
            None => Cow::Borrowed(line),
        }
    }

    fn highlight_char(&self, line: &str, _pos: usize, _kind: CmdKind) -> bool {
        self.has_color && !line.is_empty()
    }
}

impl Hinter for PromptHelper {
    type Hint = String;
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        match line.strip_prefix('\\') {
            Some(_) => self.complete_command(line, pos),
            None => self.complete_statement(line, pos),
        }
    }
}

impl PromptHelper {
    /// Completes a command such as `\\d`, or what stands behind it.
    fn complete_command(&self, line: &str, pos: usize) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..pos).unwrap_or(line);
        let start = before.rfind(' ').map_or(0, |blank| blank + 1);
        let word = before.get(start..).unwrap_or_default();
        let names = |names: Vec<String>| Ok((start, matching(word, names)));
        let written: Vec<_> = before
            .get(..start)
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        match written.as_slice() {
            [] => names(COMMANDS.iter().map(|name| (*name).to_owned()).collect()),
            ["\\i", ..] => self.files.complete_path(line, pos),
            ["\\d"] => names(self.names().tables()),
            ["\\h"] => names(self.names().functions()),
            ["\\timing"] => names(["on", "off"].map(str::to_owned).into()),
            ["\\pset"] => names(vec!["format".to_owned()]),
            ["\\pset", "format"] => names(formats().collect()),
            _ => Ok((pos, Vec::new())),
        }
    }

    fn complete_statement(&self, line: &str, pos: usize) -> rustyline::Result<(usize, Vec<Pair>)> {
        let dialect = dialect_from_str(self.dialect).unwrap_or_else(|| Box::new(GenericDialect {}));
        let typed = typed(line, pos, dialect.as_ref());
        let word = line.get(typed.start..pos).unwrap_or_default();
        let names = self.names();
        let candidates = match &typed.wanted {
            Wanted::Nothing => Vec::new(),
            Wanted::File => return self.complete_path(line, pos, typed.start),
            Wanted::Statement => matching(word, names::statements(word)),
            Wanted::Setting => matching(word, names.settings()),
            Wanted::Value(setting) => matching(word, names.values(setting)),
            Wanted::Table => {
                let mut tables = names.tables();
                tables.extend(typed.tables.iter().cloned());
                tables.extend(calls(names.table_functions()));
                matching(word, tables)
            }
            Wanted::Expression { qualifier } => {
                let columns = block_on(names.columns(&typed.sources, qualifier));
                let mut all = columns;
                if qualifier.is_empty() {
                    all.extend(typed.sources.iter().filter_map(|source| source.alias.clone()));
                    if !word.is_empty() && typed.quote.is_none() {
                        all.extend(calls(names.functions()));
                        all.extend(names::keywords(word));
                    }
                }
                matching(word, all)
            }
        };
        // A quoted name begins with its quote.
        let start = typed.start - usize::from(typed.quote.is_some());
        let candidates = match typed.quote {
            None => candidates,
            Some(quote) => candidates
                .into_iter()
                .map(|pair| Pair {
                    replacement: format!("{quote}{}{quote}", pair.replacement.trim_matches(quote)),
                    ..pair
                })
                .collect(),
        };
        Ok((start, candidates))
    }

    /// Completes a path in quotes that begin before `start`, and closes them behind a file.
    fn complete_path(&self, line: &str, pos: usize, start: usize) -> rustyline::Result<(usize, Vec<Pair>)> {
        let path = format!("'{}", line.get(start..pos).unwrap_or_default());
        let (at, mut candidates) = self.files.complete_path(&path, path.len())?;
        let is_closed = line.get(pos..).is_some_and(|rest| rest.starts_with('\''));
        for candidate in &mut candidates {
            if !candidate.replacement.ends_with(std::path::MAIN_SEPARATOR) && !is_closed {
                candidate.replacement.push('\'');
            }
        }
        Ok((start + at - 1, candidates))
    }
}

/// Calls of functions, whose arguments are still to come.
fn calls(functions: Vec<String>) -> impl Iterator<Item = String> {
    functions.into_iter().map(|name| name + "(")
}

/// The names that begin with a word in any case, in order.
fn matching(word: &str, mut names: Vec<String>) -> Vec<Pair> {
    names.retain(|name| {
        let start = name.trim_start_matches('"').get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word))
    });
    names.sort_unstable_by_key(|name| name.to_lowercase());
    names.dedup();
    let pair = |name: String| Pair {
        display: name.clone(),
        replacement: name,
    };
    names.into_iter().map(pair).collect()
}

/// Waits for a lookup in the session. Lines are edited on a thread of the runtime.
fn block_on<T>(lookup: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(lookup))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_complete_when_its_last_statement_is() {
        let helper = PromptHelper::new(SessionContext::new(), DialectName::Generic);
        for complete in [
            "SELECT 1;",
            "SELECT ';';",
            "\\d",
            "",
            "SELECT 1; -- done",
            "SELECT 1; SELECT 2;",
        ] {
            assert!(helper.is_complete(complete), "{complete}");
        }
        for open in [
            "SELECT 1",
            "SELECT ';",
            "SELECT 1; SELECT",
            "SELECT 1 /* ;",
            "SELECT 1 -- ;",
        ] {
            assert!(!helper.is_complete(open), "{open}");
        }
    }

    #[test]
    fn keywords_and_texts_have_colours() {
        let helper = PromptHelper::new(SessionContext::new(), DialectName::Generic);
        let colored = helper.colored("SElect x FROM 'a''b'").unwrap();
        assert_eq!(
            colored,
            "\x1b[91mSElect\x1b[0m x \x1b[91mFROM\x1b[0m \x1b[92m'a''b'\x1b[0m"
        );
        assert_eq!(helper.colored("SELECT 'a"), None);
    }

    /// The word that is completed where `|` stands, and what there is for it.
    fn completions(helper: &PromptHelper, text: &str) -> (String, Vec<String>) {
        let at = text.find('|').unwrap();
        let line = text.replacen('|', "", 1);
        let history = rustyline::history::MemHistory::new();
        let (start, pairs) = helper.complete(&line, at, &Context::new(&history)).unwrap();
        let replacements = pairs.into_iter().map(|pair| pair.replacement);
        (line[start..at].to_owned(), replacements.collect())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn names_are_completed_where_they_may_stand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trips.csv");
        std::fs::write(&path, "fare,tip\n1,2\n").unwrap();
        let ctx = crate::sql::SessionArgs::default().build().unwrap();
        for statement in [
            "CREATE TABLE trips AS SELECT 1 AS fare, 2 AS \"Fare of all\", 3 AS tip",
            "CREATE TABLE rides AS SELECT 1 AS far",
            "CREATE SCHEMA s",
            "CREATE TABLE s.other AS SELECT 1 AS deep",
        ] {
            ctx.sql(statement).await.unwrap().collect().await.unwrap();
        }
        let helper = PromptHelper {
            // A machine that is busy with other tests may take longer than a user waits.
            patience: Duration::from_mins(1),
            ..PromptHelper::new(ctx, DialectName::Generic)
        };
        let path = path.display();
        for (text, word, expected) in [
            ("sel|", "sel", vec!["select"]),
            ("SELECT 1; SUM|", "SUM", vec!["SUMMARIZE"]),
            // Columns of the statement's own tables, wherever they stand.
            ("SELECT far| FROM rides", "far", vec!["far"]),
            (
                "SELECT FA| FROM trips",
                "FA",
                vec!["\"Fare of all\"", "fare", "FALSE", "factorial("],
            ),
            (
                "SELECT t.| FROM trips t",
                "",
                vec!["\"Fare of all\"", "fare", "tip"],
            ),
            ("SELECT r.f| FROM trips t JOIN rides r", "f", vec!["far"]),
            (
                "SELECT \"Fa| FROM trips",
                "\"Fa",
                vec!["\"Fare of all\"", "\"fare\""],
            ),
            ("SELECT o.d| FROM s.other AS o", "d", vec!["deep"]),
            // No table is named yet.
            ("SELECT ti|", "ti", vec!["timestamp", "tinyint", "tip"]),
            ("SELECT exact_q|", "exact_q", vec!["exact_quantiles("]),
            ("SELECT topk|", "topk", vec!["topk_by("]),
            ("SELECT histo|", "histo", vec!["histogram("]),
            ("SELECT EXACT_C|", "EXACT_C", vec!["exact_cdf("]),
            (
                "SELECT * FROM |",
                "",
                vec![
                    "generate_series(",
                    "nearest(",
                    "range(",
                    "rides",
                    "s.other",
                    "trips",
                ],
            ),
            ("WITH top AS (SELECT 1) SELECT * FROM to|", "to", vec!["top"]),
            ("SUMMARIZE tr|", "tr", vec!["trips"]),
            ("SET quantiles.to|", "quantiles.to", vec!["quantiles.topk"]),
            ("SHOW quantiles.str|", "quantiles.str", vec!["quantiles.strategy"]),
            ("SET quantiles.topk = |", "", vec!["true", "false"]),
            ("SET quantiles.strategy = |", "", vec!["'auto'"]),
            ("SELECT 1 -- it's sel|", "-- it's sel", vec![]),
            ("\\t|", "\\t", vec!["\\timing"]),
            ("\\timing o|", "o", vec!["off", "on"]),
            ("\\d tr|", "tr", vec!["trips"]),
            ("\\h exact_c|", "exact_c", vec!["exact_cdf"]),
            ("\\pset format ma|", "ma", vec!["markdown"]),
            ("\\pset format table |", "", vec![]),
        ] {
            let (found, mut candidates) = completions(&helper, text);
            if text.ends_with("FROM |") {
                candidates.retain(|name| !name.contains("information_schema"));
            }
            let expected = expected.into_iter().map(str::to_owned).collect::<Vec<_>>();
            let mut sorted = (candidates.clone(), expected.clone());
            sorted.0.sort();
            sorted.1.sort();
            assert_eq!((found.as_str(), sorted.0), (word, sorted.1), "{text}");
        }
        let start = path.to_string();
        let start = start.strip_suffix("ips.csv").unwrap();
        let (_, files) = completions(&helper, &format!("SELECT * FROM '{start}|"));
        assert_eq!(files, [format!("{path}'")]);
        let (_, columns) = completions(&helper, &format!("SELECT far| FROM '{path}' WHERE true"));
        assert_eq!(columns, ["fare"]);
        let (_, files) = completions(&helper, &format!("\\i {start}|"));
        assert_eq!(files, [path.to_string()]);
    }
}
