//! What may stand at the cursor of a statement that is being typed, by the tokens around it.

use std::ops::Range;

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::{Keyword, RESERVED_FOR_TABLE_ALIAS};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::sql::split::{Scan, scan};

/// A table or a file of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Its name, part by part; the whole path of a file.
    pub(super) name: Vec<String>,
    /// What the statement calls it.
    pub(super) alias: Option<String>,
}

/// What may stand at the cursor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The path of a file, in quotes.
    File,
    /// A table, or a function that gives one.
    Table,
    /// The name of an option of the session.
    Setting,
    /// A value of this option.
    Value(String),
    /// A column of the sources; also a function and a keyword where no name of a table stands before.
    Expression { qualifier: Vec<String> },
    /// A keyword with which a statement begins.
    Statement,
    /// Nothing that is known, such as the text of a comment.
    Nothing,
}

/// A statement that is being typed, at its cursor.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) wanted: Wanted,
    /// Where the word at the cursor begins, in bytes of the line. Behind the quote, if there is one.
    pub(super) start: usize,
    /// The quote before the word at the cursor: of a text, or of a name.
    pub(super) quote: Option<char>,
    /// The tables and files of the statement.
    pub(super) sources: Vec<Source>,
    /// Names that the statement gives by `WITH`.
    pub(super) tables: Vec<String>,
}

/// Keywords after which a table stands.
const BEFORE_TABLE: [Keyword; 10] = [
    Keyword::FROM,
    Keyword::JOIN,
    Keyword::INTO,
    Keyword::TABLE,
    Keyword::DESCRIBE,
    Keyword::DESC,
    Keyword::UPDATE,
    Keyword::COPY,
    Keyword::VIEW,
    Keyword::ANALYZE,
];

/// Keywords that begin another part of a query.
const CLAUSES: [Keyword; 14] = [
    Keyword::SELECT,
    Keyword::FROM,
    Keyword::JOIN,
    Keyword::WHERE,
    Keyword::GROUP,
    Keyword::HAVING,
    Keyword::QUALIFY,
    Keyword::WINDOW,
    Keyword::ORDER,
    Keyword::LIMIT,
    Keyword::ON,
    Keyword::USING,
    Keyword::SET,
    Keyword::VALUES,
];

type Tokens = [(Token, Range<usize>)];

/// What may stand at the place `at` of a line, in bytes.
pub(super) fn typed(line: &str, at: usize, dialect: &dyn Dialect) -> Typed {
    let (before, after) = line.split_at_checked(at).unwrap_or((line, ""));
    let Scan { tokens, open } = scan(before, dialect);
    let first = tokens.iter().rposition(|(token, _)| *token == Token::SemiColon);
    let tokens = first.and_then(|first| tokens.get(first + 1..)).unwrap_or(&tokens);
    let behind = scan(after, dialect).tokens;
    let end = behind.iter().position(|(token, _)| *token == Token::SemiColon);
    let behind = behind.get(..end.unwrap_or(behind.len())).unwrap_or_default();
    let quote = open.and_then(|open| before.get(open..)?.chars().next());
    let (words, start, qualifier) = match open {
        Some(open) => (tokens, open + 1, Vec::new()),
        None => word_at_end(tokens, before.len()),
    };
    let wanted = match quote {
        Some('\'') => Wanted::File,
        None | Some('"' | '`') => wanted(words, qualifier),
        Some(_) => Wanted::Nothing,
    };
    let mut sources = sources(words);
    sources.extend(self::sources(behind));
    Typed {
        // An option's name has dots.
        start: match (&wanted, words.last()) {
            (Wanted::Setting, Some((_, last))) => start_after(before, last.end),
            _ => start,
        },
        wanted,
        quote,
        sources,
        tables: named_by_with(tokens),
    }
}

/// The first byte from `end` on that is no blank.
fn start_after(text: &str, end: usize) -> usize {
    let rest = text.get(end..).unwrap_or_default();
    end + (rest.len() - rest.trim_start().len())
}

/// The tokens before the word at the end of a text, where that word begins, and the names before it that end in dots.
fn word_at_end(tokens: &Tokens, end: usize) -> (&Tokens, usize, Vec<String>) {
    let (mut words, mut start) = (tokens, end);
    if let Some(((Token::Word(_), at), rest)) = tokens.split_last()
        && at.end == end
    {
        (words, start) = (rest, at.start);
    }
    let mut qualifier = Vec::new();
    let mut next = start;
    while let [rest @ .., (Token::Word(word), at), (Token::Period, dot)] = words
        && at.end == dot.start
        && dot.end == next
    {
        qualifier.insert(0, word.value.clone());
        (words, next) = (rest, at.start);
    }
    (words, start, qualifier)
}

fn keyword(token: &Token) -> Keyword {
    match token {
        Token::Word(word) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// What may follow these tokens of a statement.
fn wanted(tokens: &Tokens, qualifier: Vec<String>) -> Wanted {
    let Some(((last, _), (first, _))) = tokens.last().zip(tokens.first()) else {
        return Wanted::Statement;
    };
    match (keyword(first), tokens) {
        (Keyword::SET | Keyword::SHOW | Keyword::RESET, [_]) => return Wanted::Setting,
        (Keyword::SET, [_, name @ .., (end, _)]) if *end == Token::Eq || keyword(end) == Keyword::TO => {
            let name = name.iter().map(|(token, _)| token.to_string());
            return Wanted::Value(name.collect());
        }
        _ => {}
    }
    let clause = tokens
        .iter()
        .rev()
        .map(|(token, _)| keyword(token))
        .find(|keyword| CLAUSES.contains(keyword));
    let is_listed = *last == Token::Comma && clause == Some(Keyword::FROM) && depth_since_from(tokens) == 0;
    let is_own = matches!(last, Token::Word(word) if ["summarize", "pin", "unpin"].contains(&word.value.to_lowercase().as_str()));
    if BEFORE_TABLE.contains(&keyword(last)) || is_listed || is_own {
        return Wanted::Table;
    }
    Wanted::Expression { qualifier }
}

/// How many brackets are open since the last `FROM`.
fn depth_since_from(tokens: &Tokens) -> usize {
    let from = tokens
        .iter()
        .rposition(|(token, _)| keyword(token) == Keyword::FROM);
    let mut depth = 0_usize;
    for (token, _) in tokens.iter().skip(from.unwrap_or(0)) {
        match token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth
}

/// The tables and files that stand behind `FROM`, `JOIN`, and commas between them.
fn sources(tokens: &Tokens) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut rest = tokens;
    // Whether a comma parts two tables.
    let mut is_list = false;
    while let Some(((token, _), next)) = rest.split_first() {
        rest = next;
        let found = keyword(token);
        let begins = [Keyword::FROM, Keyword::JOIN].contains(&found) || (is_list && *token == Token::Comma);
        if CLAUSES.contains(&found) {
            is_list = found == Keyword::FROM;
        }
        if begins && let Some((name, next)) = name(rest) {
            let (alias, next) = alias(next);
            sources.push(Source { name, alias });
            rest = next;
        }
    }
    sources
}

/// The name of a table or a file at the start of these tokens, and what follows it.
fn name(tokens: &Tokens) -> Option<(Vec<String>, &Tokens)> {
    let ((token, _), mut rest) = tokens.split_first()?;
    let mut name = match token {
        Token::Word(word) => vec![word.value.clone()],
        Token::SingleQuotedString(path) => return Some((vec![path.replace("''", "'")], rest)),
        _ => return None,
    };
    while let [(Token::Period, _), (Token::Word(word), _), next @ ..] = rest {
        name.push(word.value.clone());
        rest = next;
    }
    // A function's rows have no columns that are known.
    let is_call = matches!(rest.first(), Some((Token::LParen, _)));
    (!is_call).then_some((name, rest))
}

fn alias(tokens: &Tokens) -> (Option<String>, &Tokens) {
    let tokens = match tokens.split_first() {
        Some(((token, _), rest)) if keyword(token) == Keyword::AS => rest,
        _ => tokens,
    };
    match tokens.split_first() {
        Some(((token @ Token::Word(word), _), rest))
            if !RESERVED_FOR_TABLE_ALIAS.contains(&keyword(token)) =>
        {
            (Some(word.value.clone()), rest)
        }
        _ => (None, tokens),
    }
}

/// The names that `WITH` gives.
fn named_by_with(tokens: &Tokens) -> Vec<String> {
    if !tokens.iter().any(|(token, _)| keyword(token) == Keyword::WITH) {
        return Vec::new();
    }
    let named = tokens.windows(3).filter_map(|three| match three {
        [(Token::Word(word), _), (by, _), (Token::LParen, _)] if keyword(by) == Keyword::AS => {
            Some(word.value.clone())
        }
        _ => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    /// What is wanted where `|` stands, and the word that is there.
    fn at(text: &str) -> (Wanted, String, Vec<Source>) {
        let at = text.find('|').unwrap();
        let line = text.replacen('|', "", 1);
        let typed = typed(&line, at, &GenericDialect {});
        (typed.wanted, line[typed.start..at].to_owned(), typed.sources)
    }

    fn expression(qualifier: &[&str]) -> Wanted {
        let qualifier = qualifier.iter().map(ToString::to_string).collect();
        Wanted::Expression { qualifier }
    }

    #[test]
    fn what_may_stand_at_the_cursor() {
        for (text, wanted, word) in [
            ("|", Wanted::Statement, ""),
            ("SELECT 1; sel|", Wanted::Statement, "sel"),
            ("SELECT fa|", expression(&[]), "fa"),
            ("SELECT t.fa|", expression(&["t"]), "fa"),
            ("SELECT a.b.|", expression(&["a", "b"]), ""),
            ("SELECT \"Fa|", expression(&[]), "Fa"),
            ("SELECT * FROM tr|", Wanted::Table, "tr"),
            ("SELECT * FROM a, |", Wanted::Table, ""),
            ("SELECT * FROM a JOIN |", Wanted::Table, ""),
            ("SELECT * FROM a WHERE x IN (1, |", expression(&[]), ""),
            ("SELECT * FROM range(1, |", expression(&[]), ""),
            ("SELECT * FROM 'data/tr|", Wanted::File, "data/tr"),
            ("SUMMARIZE tr|", Wanted::Table, "tr"),
            ("SET quantiles.str|", Wanted::Setting, "quantiles.str"),
            ("SET |", Wanted::Setting, ""),
            (
                "SET quantiles.topk = |",
                Wanted::Value("quantiles.topk".to_owned()),
                "",
            ),
            ("SHOW data|", Wanted::Setting, "data"),
            ("SELECT 1 -- it's|", Wanted::Nothing, "- it's"),
            ("SELECT /* |", Wanted::Nothing, "* "),
        ] {
            let (found, typed, _) = at(text);
            assert_eq!((found, typed.as_str()), (wanted, word), "{text}");
        }
    }

    #[test]
    fn sources_stand_before_and_behind_the_cursor() {
        let source = |name: &[&str], alias: Option<&str>| Source {
            name: name.iter().map(ToString::to_string).collect(),
            alias: alias.map(str::to_owned),
        };
        let (_, _, sources) = at(
            "SELECT | FROM trips t, s.rides AS r JOIN 'x.parquet' ON true WHERE 1 IN (2, 3); SELECT * FROM u",
        );
        assert_eq!(
            sources,
            [
                source(&["trips"], Some("t")),
                source(&["s", "rides"], Some("r")),
                source(&["x.parquet"], None)
            ]
        );
        let (_, _, sources) = at("SELECT * FROM range(1, 2), a WHERE |");
        assert_eq!(sources, [source(&["a"], None)]);
        let typed = typed(
            "WITH w AS (SELECT 1), v AS (SELECT 2) SELECT * FROM ",
            52,
            &GenericDialect {},
        );
        assert_eq!(typed.tables, ["w", "v"]);
    }
}
