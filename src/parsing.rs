//! What parsers of this crate's own statements share.

use datafusion::common::{DataFusionError, Result};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// The word of a token in lower case, if it is a word without quotes.
pub(crate) fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_lowercase()),
        _ => None,
    }
}

/// The first two tokens of a statement, each if it is a word without quotes.
pub(crate) fn first_words(tokens: &[TokenWithSpan]) -> (Option<String>, Option<String>) {
    let words = tokens
        .iter()
        .filter(|token| !matches!(token.token, Token::Whitespace(_)));
    let mut words = words.map(|token| word(&token.token));
    (words.next().flatten(), words.next().flatten())
}

/// Takes this word, which is in lower case.
///
/// # Errors
/// A syntax error if another token comes next.
pub(crate) fn expect_word(parser: &mut Parser<'_>, wanted: &str) -> Result<()> {
    let found = parser.next_token();
    if word(&found.token).as_deref() == Some(wanted) {
        Ok(())
    } else {
        expected(&wanted.to_ascii_uppercase(), &found)
    }
}

/// Takes the end of the statement, with semicolons before it.
///
/// # Errors
/// A syntax error if anything else comes next.
pub(crate) fn expect_end(parser: &mut Parser<'_>) -> Result<()> {
    while parser.consume_token(&Token::SemiColon) {}
    match parser.peek_token().token {
        Token::EOF => Ok(()),
        _ => expected("the end of the statement", &parser.peek_token()),
    }
}

/// The error for a token where something else was expected.
///
/// # Errors
/// Always.
pub(crate) fn expected<T>(what: &str, found: &TokenWithSpan) -> Result<T> {
    let at = found.span.start;
    Err(syntax(ParserError::ParserError(format!(
        "Expected: {what}, found: {found}{at}"
    ))))
}

/// A parser's error as DataFusion's.
pub(crate) fn syntax(error: ParserError) -> DataFusionError {
    DataFusionError::SQL(Box::new(error), None)
}
