//! Cuts a script into statements with SQL's own tokenizer, so that semicolons in strings, quoted names
//! and comments do not cut, whatever the dialect's quoting rules.

use std::ops::Range;

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, Whitespace};

/// The text of one statement, without its semicolon, and where it starts in the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Line of the first character, from 1.
    pub(crate) line: u64,
    /// Column of the first character, in characters, from 1.
    pub(crate) column: u64,
}

/// What a script consists of so far.
#[derive(Debug)]
pub(crate) struct Split {
    /// Complete statements, in order; empty ones are left out.
    pub(crate) pieces: Vec<Piece>,
    /// What follows the last semicolon, if it is more than blanks and comments.
    pub(crate) rest: Option<Piece>,
    /// The rest holds what no SQL holds, so that more text cannot complete it. A string, a quoted name or a
    /// comment that is still open is not broken.
    pub(crate) broken: bool,
}

/// Cuts `text`, whose first character stands at `line`, into statements.
pub(crate) fn split(text: &str, line: u64, dialect: &dyn Dialect) -> Split {
    let mut tokens = Vec::new();
    // Tokens before an error count: the statements that they complete can run. Unescaping off: only the
    // borders matter here, the parser tokenizes each piece again.
    let failure = Tokenizer::new(dialect, text)
        .with_unescape(false)
        .tokenize_with_location_into_buf(&mut tokens)
        .err();
    let mut cursor = Cursor::new(text);
    let mut start = Position {
        offset: 0,
        line: 1,
        column: 1,
    };
    let mut blank = true;
    let mut pieces = Vec::new();
    for TokenWithSpan { token, span } in &tokens {
        match token {
            Token::Whitespace(_) => {}
            Token::SemiColon => {
                let end = cursor.advance(span.start);
                if !blank {
                    pieces.push(start.piece(&text[start.offset..end.offset], line));
                }
                start = cursor.advance(span.end);
                blank = true;
            }
            _ if blank => {
                start = cursor.advance(span.start);
                blank = false;
            }
            _ => {}
        }
    }
    let broken = failure.as_ref().is_some_and(|error| !is_open(&error.message));
    let rest = (!blank || failure.is_some()).then(|| start.piece(&text[start.offset..], line));
    Split { pieces, rest, broken }
}

/// The tokens of a text, and where they stand.
pub(crate) struct Scan {
    /// The tokens but those of blanks and comments, with their bytes in the text.
    pub(crate) tokens: Vec<(Token, Range<usize>)>,
    /// Where a string, a quoted name or a comment begins that does not end in the text.
    pub(crate) open: Option<usize>,
}

/// The tokens of a text that need not be complete; those before the first that SQL does not have.
pub(crate) fn scan(text: &str, dialect: &dyn Dialect) -> Scan {
    let mut found = Vec::new();
    let failure = Tokenizer::new(dialect, text)
        .with_unescape(false)
        .tokenize_with_location_into_buf(&mut found)
        .err();
    let mut cursor = Cursor::new(text);
    let mut tokens = Vec::with_capacity(found.len());
    let mut end = 0;
    let mut is_line_comment = false;
    for TokenWithSpan { token, span } in found {
        let start = cursor.advance(span.start).offset;
        end = cursor.advance(span.end).offset;
        is_line_comment = matches!(&token, Token::Whitespace(Whitespace::SingleLineComment { comment, .. }) if !comment.ends_with('\n'));
        if is_line_comment {
            end = start;
        }
        if !matches!(token, Token::Whitespace(_)) {
            tokens.push((token, start..end));
        }
    }
    let is_open = failure.is_some_and(|error| is_open(&error.message)) || is_line_comment;
    let open = is_open.then_some(end);
    Scan { tokens, open }
}

/// Whether a tokenizer's message is about text that ended too early.
fn is_open(message: &str) -> bool {
    message.contains("nterminated") || message.contains("EOF")
}

/// Tokenizes one piece, with locations as in the whole script.
///
/// # Errors
/// The tokenizer's, with its location as in the whole script.
pub(crate) fn tokenize(
    piece: &Piece,
    dialect: &dyn Dialect,
) -> Result<Vec<TokenWithSpan>, datafusion::sql::sqlparser::tokenizer::TokenizerError> {
    let place = |location: Location| Location {
        line: location.line + piece.line - 1,
        column: if location.line == 1 {
            location.column + piece.column - 1
        } else {
            location.column
        },
    };
    let mut tokens = Vec::new();
    Tokenizer::new(dialect, &piece.text)
        .tokenize_with_location_into_buf_with_mapper(&mut tokens, |mut token| {
            token.span.start = place(token.span.start);
            token.span.end = place(token.span.end);
            token
        })
        .map_err(|mut error| {
            error.location = place(error.location);
            error
        })?;
    Ok(tokens)
}

#[derive(Debug, Clone, Copy)]
struct Position {
    offset: usize,
    line: u64,
    column: u64,
}

impl Position {
    fn piece(self, text: &str, first_line: u64) -> Piece {
        Piece {
            text: text.trim_end().to_string(),
            line: self.line + first_line - 1,
            column: self.column,
        }
    }
}

/// Turns the tokenizer's ascending lines and columns into byte offsets, in one walk over the text.
struct Cursor<'a> {
    text: &'a str,
    at: Position,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: Position {
                offset: 0,
                line: 1,
                column: 1,
            },
        }
    }

    fn advance(&mut self, to: Location) -> Position {
        for c in self.text[self.at.offset..].chars() {
            if (self.at.line, self.at.column) >= (to.line, to.column) {
                break;
            }
            self.at.offset += c.len_utf8();
            if c == '\n' {
                self.at.line += 1;
                self.at.column = 1;
            } else {
                self.at.column += 1;
            }
        }
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    fn texts(text: &str) -> (Vec<String>, Option<String>, bool) {
        let split = split(text, 1, &GenericDialect {});
        (
            split.pieces.into_iter().map(|p| p.text).collect(),
            split.rest.map(|p| p.text),
            split.broken,
        )
    }

    #[test]
    fn semicolons_inside_quotes_and_comments_do_not_cut() {
        let text = "SELECT ';' AS \"a;b\" -- one; two\n, 'it''s; ok' /* x; y */; SELECT 2;\n";
        let (pieces, rest, broken) = texts(text);
        assert_eq!(
            pieces,
            [
                "SELECT ';' AS \"a;b\" -- one; two\n, 'it''s; ok' /* x; y */",
                "SELECT 2"
            ]
        );
        assert_eq!((rest, broken), (None, false));
    }

    #[test]
    fn empty_statements_and_comment_lines_are_no_statements() {
        assert_eq!(texts(";; -- nothing;\n /* ; */ ;\n"), (vec![], None, false));
        assert_eq!(
            texts("-- note\nSELECT 1"),
            (vec![], Some("SELECT 1".to_string()), false)
        );
    }

    #[test]
    fn wide_characters_keep_the_offsets_right() {
        let (pieces, rest, _) = texts("SELECT 'né;é', '日本'; SELECT '…'; x");
        assert_eq!(pieces, ["SELECT 'né;é', '日本'", "SELECT '…'"]);
        assert_eq!(rest.as_deref(), Some("x"));
    }

    #[test]
    fn statements_before_an_open_string_are_complete() {
        let (pieces, rest, broken) = texts("SELECT 1; SELECT 'abc;\n def");
        assert_eq!(pieces, ["SELECT 1"]);
        assert_eq!((rest.as_deref(), broken), (Some("SELECT 'abc;\n def"), false));
        assert!(!texts("SELECT 1 /* x").2);
        assert!(!texts("SELECT \"x").2);
    }

    #[test]
    fn a_scan_tells_where_an_open_text_begins() {
        fn open(text: &str) -> Option<&str> {
            scan(text, &GenericDialect {}).open.map(|at| &text[at..])
        }
        assert_eq!(open("SELECT é FROM 'da"), Some("'da"));
        assert_eq!(open("SELECT 'a' || \"b"), Some("\"b"));
        assert_eq!(open("SELECT /* x"), Some("/* x"));
        assert_eq!(open("SELECT 1 -- it's"), Some("-- it's"));
        assert_eq!(open("SELECT 1 -- it's\n"), None);
        let text = "SELECT é.b";
        let scan = scan(text, &GenericDialect {});
        let texts: Vec<_> = scan.tokens.iter().map(|(_, at)| &text[at.clone()]).collect();
        assert_eq!(texts, ["SELECT", "é", ".", "b"]);
    }

    #[test]
    fn locations_are_those_of_the_script() {
        let split = split("SELECT 1;\n\n  SELECT\n 2; SELECT 3;", 5, &GenericDialect {});
        let places: Vec<_> = split.pieces.iter().map(|p| (p.line, p.column)).collect();
        assert_eq!(places, [(5, 1), (7, 3), (8, 5)]);
        let tokens = tokenize(&split.pieces[2], &GenericDialect {}).unwrap();
        assert_eq!(tokens[2].span.start, Location { line: 8, column: 12 });
        let bad = Piece {
            text: "SELECT 'x".to_string(),
            line: 3,
            column: 10,
        };
        let error = tokenize(&bad, &GenericDialect {}).unwrap_err();
        assert_eq!(error.location, Location { line: 3, column: 17 });
    }
}
