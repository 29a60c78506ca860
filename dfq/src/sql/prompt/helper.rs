//! What the prompt does while a line is typed: completion of paths, colours, and when an input is complete.

use std::borrow::Cow;
use std::fmt::Write;

use datafusion::config::Dialect as DialectName;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::split_in;

/// Colours of a terminal (ANSI), by their codes.
const KEYWORD: u8 = 91;
const TEXT: u8 = 92;

/// Completes paths inside quotes, colours keywords and texts, and goes on reading until the splitter that runs statements finds
/// the end of the last one.
pub(super) struct PromptHelper {
    files: FilenameCompleter,
    has_color: bool,
    pub(super) dialect: DialectName,
}

impl PromptHelper {
    pub(super) fn new(dialect: DialectName) -> Self {
        Self {
            files: FilenameCompleter::new(),
            has_color: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            dialect,
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

/// Whether a line ends inside of a quoted text.
fn is_in_quotes(line: &str) -> bool {
    line.matches('\'').count() % 2 == 1
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
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let is_path = is_in_quotes(&line[..pos]) || line.starts_with("\\i ");
        match is_path {
            true => self.files.complete(line, pos, context),
            false => Ok((pos, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_complete_when_its_last_statement_is() {
        let helper = PromptHelper::new(DialectName::Generic);
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
        let helper = PromptHelper::new(DialectName::Generic);
        let colored = helper.colored("SElect x FROM 'a''b'").unwrap();
        assert_eq!(
            colored,
            "\x1b[91mSElect\x1b[0m x \x1b[91mFROM\x1b[0m \x1b[92m'a''b'\x1b[0m"
        );
        assert_eq!(helper.colored("SELECT 'a"), None);
        assert!(is_in_quotes("FROM 'da") && !is_in_quotes("FROM 'a' W"));
    }
}
