//! What parsers of this crate's own statements share.

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::sql::sqlparser::keywords::Keyword;
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

/// Most operators and keywords of a statement that can hold each other, as those of `a OR b OR c` do.
const MOST_NESTED: usize = 10_000;

/// A part of a statement between parentheses, or between `CASE` and `END`.
#[derive(Default)]
struct Nested {
    /// Operators and keywords since the last comma.
    operators: usize,
    /// The deepest part between parentheses since the last comma.
    inner: usize,
    /// The deepest part before the last comma.
    before: usize,
}

impl Nested {
    /// Ends what a comma ends.
    fn comma(&mut self) {
        self.before = self.depth();
        (self.operators, self.inner) = (0, 0);
    }

    /// Most operators that can hold each other.
    fn depth(&self) -> usize {
        self.before.max(self.operators + self.inner)
    }
}

/// Refuses a statement so deep that planning it may need more stack than a thread has, which would end the process. DataFusion plans some
/// expressions recursively, such as names of columns, and looks for the places of `UNION`s in the text so.
///
/// # Errors
/// A [`depth`] of more than 10 000.
pub(crate) fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    let depth = depth(tokens);
    if depth > MOST_NESTED {
        return plan_err!(
            "{depth} operators in one expression or query may hold each other, such as those of 'a OR b OR c' or of UNION; at most \
             {MOST_NESTED} can be planned: write IN (..), a join with VALUES, or several statements"
        );
    }
    Ok(())
}

/// Most operators, keywords and parentheses of a statement that may hold each other: `a + b + c` and `a UNION b UNION c` are trees as deep as
/// they are long. The statement may be less deep, but no deeper. What stands between commas, and the arms of a `CASE`, lie beside each other.
pub fn depth(tokens: &[TokenWithSpan]) -> usize {
    let mut parts = vec![Nested::default()];
    let mut most = 0;
    for token in tokens {
        let opens = matches!(token.token, Token::LParen | Token::LBracket | Token::LBrace);
        let closes = matches!(token.token, Token::RParen | Token::RBracket | Token::RBrace);
        let keyword = match &token.token {
            Token::Word(word) => word.keyword,
            _ => Keyword::NoKeyword,
        };
        let Some(part) = parts.last_mut() else { break };
        match &token.token {
            _ if opens || keyword == Keyword::CASE => parts.push(Nested::default()),
            _ if closes || keyword == Keyword::END => {
                part.comma();
                let depth = part.before + 1;
                if parts.len() > 1 {
                    parts.pop();
                }
                let outer = parts.last_mut().into_iter();
                outer.for_each(|outer| outer.inner = outer.inner.max(depth));
            }
            Token::Comma => part.comma(),
            // Those of a list that is no deeper for being longer.
            _ if matches!(keyword, Keyword::WHEN | Keyword::THEN | Keyword::ELSE) => part.comma(),
            token if is_leaf(token) => {}
            _ => part.operators += 1,
        }
        most = parts.last().map_or(most, |part| most.max(part.depth()));
    }
    most
}

/// Whether a token holds no other: a name, a value, what separates them.
fn is_leaf(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::NoKeyword | Keyword::AS | Keyword::NULL | Keyword::TRUE | Keyword::FALSE
        ),
        Token::Whitespace(_)
        | Token::Period
        | Token::SemiColon
        | Token::EOF
        | Token::Number(..)
        | Token::Placeholder(_)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::NationalStringLiteral(_)
        | Token::HexStringLiteral(_) => true,
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;

    fn refusal(sql: &str) -> Option<String> {
        let tokens = Tokenizer::new(&GenericDialect {}, sql)
            .tokenize_with_location()
            .unwrap();
        check_depth(&tokens).err().map(|error| error.to_string())
    }

    #[test]
    fn statements_that_are_too_deep_are_refused() {
        let chain = |link: &str, links: usize| vec!["1"; links + 1].join(link);
        for (sql, operators) in [
            (format!("SELECT {}", chain(" + ", MOST_NESTED)), MOST_NESTED + 1),
            (
                format!("SELECT foo, 2 WHERE {}", chain(" OR ", MOST_NESTED)),
                MOST_NESTED + 1,
            ),
            // The first of two equal halves is the deeper one: the chain hangs on its left.
            (
                format!("SELECT ({}) + {}", chain("||", 6000), chain("*", 6000)),
                12_003,
            ),
            (
                format!("SELECT CASE WHEN foo THEN {} END", chain("-", MOST_NESTED)),
                MOST_NESTED + 2,
            ),
            (
                format!("SELECT {}1{}", "foo(".repeat(20_000), ")".repeat(20_000)),
                20_001,
            ),
            (vec!["SELECT 1"; 4000].join(" UNION ALL "), 11_998),
            // IS and OR, but not NULL.
            (
                format!("SELECT foo WHERE {}", vec!["foo IS NULL"; 6000].join(" OR ")),
                12_001,
            ),
        ] {
            let refused = refusal(&sql).unwrap_or_default();
            assert!(
                refused.contains(&format!("{operators} operators")) && refused.contains("at most 10000"),
                "{refused}"
            );
        }
    }

    #[test]
    fn long_statements_are_not_deep() {
        for sql in [
            format!("SELECT {}", vec!["1 + 2"; 50_000].join(", ")),
            format!("INSERT INTO t VALUES {}", vec!["(-1, 'a')"; 50_000].join(", ")),
            format!("SELECT x IN ({})", vec!["-1"; 50_000].join(",")),
            format!("SELECT {}", vec!["foo AS bar"; 50_000].join(" ")),
            format!(
                "SELECT {}",
                vec!["NULL TRUE FALSE E'a' N'a' X'ab' 'a' $1"; 10_000].join(" ")
            ),
            format!(
                "SELECT CASE {} ELSE 3 END",
                vec!["WHEN x > 1 THEN 2"; 50_000].join(" ")
            ),
            format!("SELECT 1 {}", vec!["+ 1"; 9000].join(" ")),
            "SELECT 1) + 2".to_owned(),
        ] {
            assert_eq!(refusal(&sql), None);
        }
    }
}
