//! PostgreSQL's variables, which its clients set and ask for: `SET datestyle`, `SHOW server_version`. Those of DataFusion and of
//! this crate, whose names have a dot, are DataFusion's own.

use std::collections::HashMap;
use std::time::Duration;

use datafusion::sql::sqlparser::ast::{ContextModifier, Expr, Ident, Set, UnaryOperator};
use pgwire::error::PgWireError;

use super::failure::{code, error};
use super::statement::VERSION;

/// What setting a variable does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is fixed.
    Fixed,
    /// It may be one of these.
    Among(&'static [&'static str]),
    /// It is kept, and shown.
    Kept,
    /// A whole number from -15 to 3.
    Digits,
    /// A time, in milliseconds if it has no unit.
    Timeout,
    /// The time zone of DataFusion's session.
    TimeZone,
    /// The first schema is DataFusion's default schema.
    SearchPath,
}

/// The variables that there are, and their values at the start.
const VARIABLES: [(&str, &str, Kind); 42] = [
    ("application_name", "", Kind::Kept),
    ("block_size", "8192", Kind::Fixed),
    ("bytea_output", "hex", Kind::Among(&["hex", "escape"])),
    ("check_function_bodies", "on", Kind::Kept),
    (
        "client_encoding",
        "UTF8",
        Kind::Among(&["utf8", "utf-8", "unicode"]),
    ),
    ("client_min_messages", "notice", Kind::Kept),
    (
        "datestyle",
        "ISO, MDY",
        Kind::Among(&["iso", "iso, mdy", "iso, dmy", "iso, ymd", "mdy", "dmy", "ymd"]),
    ),
    ("default_table_access_method", "heap", Kind::Kept),
    ("default_transaction_isolation", "read committed", Kind::Kept),
    ("default_transaction_read_only", "on", Kind::Kept),
    ("enable_seqscan", "on", Kind::Kept),
    ("escape_string_warning", "on", Kind::Kept),
    ("extra_float_digits", "1", Kind::Digits),
    ("geqo", "on", Kind::Kept),
    ("idle_in_transaction_session_timeout", "0", Kind::Kept),
    ("idle_session_timeout", "0", Kind::Kept),
    ("in_hot_standby", "off", Kind::Fixed),
    ("integer_datetimes", "on", Kind::Fixed),
    (
        "intervalstyle",
        "postgres",
        Kind::Among(&["postgres", "postgres_verbose", "iso_8601", "sql_standard"]),
    ),
    ("is_superuser", "off", Kind::Fixed),
    ("jit", "off", Kind::Kept),
    ("lc_collate", "C", Kind::Fixed),
    ("lc_ctype", "C.UTF-8", Kind::Fixed),
    ("lc_messages", "C", Kind::Kept),
    ("lc_monetary", "C", Kind::Kept),
    ("lock_timeout", "0", Kind::Kept),
    ("max_function_args", "100", Kind::Fixed),
    ("max_index_keys", "32", Kind::Fixed),
    ("max_identifier_length", "63", Kind::Fixed),
    ("row_security", "on", Kind::Kept),
    ("search_path", "\"$user\", public", Kind::SearchPath),
    ("server_encoding", "UTF8", Kind::Fixed),
    ("server_version", VERSION, Kind::Fixed),
    ("server_version_num", "160006", Kind::Fixed),
    ("session_authorization", "", Kind::Fixed),
    (
        "standard_conforming_strings",
        "on",
        Kind::Among(&["on", "true", "1", "yes"]),
    ),
    ("statement_timeout", "0", Kind::Timeout),
    ("synchronous_commit", "on", Kind::Kept),
    ("timezone", "UTC", Kind::TimeZone),
    ("transaction_isolation", "read committed", Kind::Kept),
    ("transaction_read_only", "on", Kind::Kept),
    ("xmloption", "content", Kind::Kept),
];

/// Variables of which a client is told whenever they change, and before its first statement.
const REPORTED: [&str; 6] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "standard_conforming_strings",
    "TimeZone",
];

fn variable(name: &str) -> Option<(&'static str, &'static str, Kind)> {
    VARIABLES
        .into_iter()
        .find(|(known, ..)| known.eq_ignore_ascii_case(name))
}

/// The names of the variables.
pub(super) fn names() -> Vec<&'static str> {
    VARIABLES.iter().map(|(name, ..)| *name).collect()
}

/// Whether a `SET` is about PostgreSQL's variables. One about DataFusion's has a name with a dot.
pub(super) fn is_own(set: &Set) -> bool {
    match set {
        Set::SingleAssignment { variable, .. } => variable.0.len() == 1,
        _ => true,
    }
}

/// The variable that a `SHOW` asks for, if it is one of PostgreSQL's.
pub(super) fn shown(name: &[Ident]) -> Option<String> {
    let words: Vec<_> = name.iter().map(|word| word.value.to_ascii_lowercase()).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let name = match words.as_slice() {
        ["time", "zone"] => "timezone",
        ["transaction", "isolation", "level"] => "transaction_isolation",
        ["session", "authorization"] => "session_authorization",
        [name] => name,
        _ => return None,
    };
    known(name).map(str::to_string)
}

/// The variable of this name in any case, if there is one.
pub(super) fn known(name: &str) -> Option<&'static str> {
    variable(name).map(|(name, ..)| name)
}

/// What changes beside the value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// Seconds that a statement may take; `None`: as long as the server lets it.
    Timeout(Option<Duration>),
    /// Options of DataFusion's session, and their values.
    Option(&'static str, String),
}

/// A variable's new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assigned {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) change: Change,
}

/// The values of a connection's variables.
#[derive(Debug, Default)]
pub(super) struct Settings {
    set: HashMap<&'static str, String>,
}

impl Settings {
    pub(super) fn show(&self, name: &str) -> String {
        let start = variable(name).map(|(_, start, _)| start).unwrap_or_default();
        self.set.get(name).cloned().unwrap_or_else(|| start.to_string())
    }

    pub(super) fn assign(&mut self, assigned: &Assigned) {
        self.set.insert(assigned.name, assigned.value.clone());
    }

    /// The names and values that a client is told of: of all variables, or of the one that changed.
    pub(super) fn reported(&self, changed: Option<&str>) -> Vec<(String, String)> {
        let asked = |name: &&str| changed.is_none_or(|changed| name.eq_ignore_ascii_case(changed));
        let names = REPORTED.into_iter().filter(asked);
        names
            .map(|name| (name.to_string(), self.show(&name.to_ascii_lowercase())))
            .collect()
    }
}

/// What a `SET` of PostgreSQL's variables assigns; `None` for one that has nothing to do here.
///
/// # Errors
/// A variable that does not exist, a value that it cannot have, and forms of `SET` that are not supported.
pub(super) fn assigned(set: &Set) -> Result<Option<Assigned>, PgWireError> {
    let unsupported = || Err(error(code::NOT_SUPPORTED, format!("'{set}' is not supported")));
    match set {
        Set::SingleAssignment {
            scope: Some(ContextModifier::Local),
            ..
        }
        | Set::SetTimeZone { local: true, .. } => unsupported(),
        Set::SingleAssignment { variable, values, .. } => {
            let name = variable.to_string();
            let name = name.trim_matches('"');
            let values: Vec<_> = values.iter().map(text_of).collect();
            assign(name, &values.join(", ")).map(Some)
        }
        Set::SetTimeZone { value, .. } => assign("timezone", &text_of(value)).map(Some),
        Set::SetNames { charset_name, .. } => assign("client_encoding", &charset_name.value).map(Some),
        // Nothing here depends on how transactions are isolated: there are none.
        Set::SetTransaction { .. } | Set::SetNamesDefault {} => Ok(None),
        Set::SetRole { role_name: None, .. } => Ok(None),
        _ => unsupported(),
    }
}

/// The text of a value: `'a'`, `a` and `"a"` are the same.
fn text_of(value: &Expr) -> String {
    match value {
        Expr::Value(value) => value
            .value
            .clone()
            .into_string()
            .unwrap_or_else(|| value.to_string()),
        Expr::Identifier(name) => name.value.clone(),
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => format!("-{}", text_of(expr)),
        other => other.to_string(),
    }
}

/// A new value of a variable.
///
/// # Errors
/// A variable that does not exist, and a value that it cannot have.
pub(super) fn assign(name: &str, value: &str) -> Result<Assigned, PgWireError> {
    let Some((name, start, kind)) = variable(name) else {
        return Err(error(
            code::NO_SUCH_VARIABLE,
            format!("unrecognized configuration parameter \"{name}\""),
        ));
    };
    // Some drivers quote what they start with.
    let given = value.trim_matches('\'');
    let given = if given.eq_ignore_ascii_case("default") {
        start
    } else {
        given
    };
    let (value, change) = changed(name, start, kind, given).map_err(|allowed| {
        error(
            code::INVALID_PARAMETER,
            format!("invalid value for parameter \"{name}\": \"{value}\"; {allowed}"),
        )
    })?;
    Ok(Assigned { name, value, change })
}

/// The value that a variable has after it was set, and what else changes; or what is allowed.
fn changed(name: &str, start: &str, kind: Kind, given: &str) -> Result<(String, Change), String> {
    let kept = given.to_string();
    match kind {
        Kind::Fixed if given != start => Err("it cannot be changed".to_string()),
        Kind::Fixed | Kind::Kept => Ok((kept, Change::Nothing)),
        Kind::Among(allowed) => among(name, start, allowed, given).map(|kept| (kept, Change::Nothing)),
        Kind::Digits => match given.parse::<i8>() {
            Ok(-15..=3) => Ok((kept, Change::Nothing)),
            _ => Err("it can be -15 to 3".to_string()),
        },
        Kind::Timeout => match timeout(given) {
            Some(timeout) => Ok((kept, Change::Timeout((!timeout.is_zero()).then_some(timeout)))),
            None => Err("a time is a number with ms, s, min, h or no unit, which is ms".to_string()),
        },
        Kind::TimeZone => {
            let zone = if matches!(given, "Etc/UTC" | "GMT" | "Z") {
                "UTC"
            } else {
                given
            };
            let change = Change::Option("datafusion.execution.time_zone", zone.to_string());
            Ok((zone.to_string(), change))
        }
        Kind::SearchPath => {
            let mut schemas = given.split(',').map(|schema| schema.trim().trim_matches('"'));
            let schema = schemas.find(|schema| !matches!(*schema, "$user" | "pg_catalog" | ""));
            let change =
                schema.map(|schema| Change::Option("datafusion.catalog.default_schema", schema.to_string()));
            Ok((kept, change.unwrap_or(Change::Nothing)))
        }
    }
}

/// One of the values of a variable that has a few, as it is shown.
fn among(name: &str, start: &str, allowed: &[&str], given: &str) -> Result<String, String> {
    let lower = given.to_ascii_lowercase();
    if !allowed.contains(&lower.as_str()) && given != start {
        return Err(format!("it can be {}", allowed.join(" | ")));
    }
    Ok(match (name, lower.as_str()) {
        ("client_encoding", _) => "UTF8".to_string(),
        ("standard_conforming_strings", _) => "on".to_string(),
        ("datestyle", "iso") => start.to_string(),
        ("datestyle", order @ ("mdy" | "dmy" | "ymd")) => format!("ISO, {}", order.to_ascii_uppercase()),
        ("datestyle", _) => given.to_ascii_uppercase(),
        _ => lower,
    })
}

/// Parses a time such as `500`, `500ms`, `5s`, `1min` or `2h`.
fn timeout(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    Some(Duration::from_millis(number.checked_mul(milliseconds)?))
}

/// The assignments among the parameters with which a client starts: its own, and those of `options`, such as
/// `-c statement_timeout=5s`. Parameters that are no variables are left out.
///
/// # Errors
/// A value that a variable cannot have, and options of another form.
pub(super) fn of_startup(parameters: &HashMap<String, String>) -> Result<Vec<Assigned>, PgWireError> {
    let given = parameters
        .iter()
        .filter(|(name, _)| variable(name).is_some())
        .map(|(name, value)| (name.clone(), value.clone()));
    let options = parameters.get("options").map(String::as_str).unwrap_or_default();
    let options = options
        .split_whitespace()
        .filter(|word| *word != "-c")
        .map(|word| {
            let word = word.trim_start_matches("-c").trim_start_matches("--");
            let split = word
                .split_once('=')
                .map(|(name, value)| (name.to_string(), value.to_string()));
            split.ok_or_else(|| {
                error(
                    code::INVALID_PARAMETER,
                    format!("option '{word}' is not of the form -c name=value"),
                )
            })
        });
    given
        .map(Ok)
        .chain(options)
        .map(|pair| pair.and_then(|(name, value)| assign(&name, &value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::ast::Statement;
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn set(text: &str) -> Result<Option<Assigned>, String> {
        let statements = Parser::parse_sql(&PostgreSqlDialect {}, text).unwrap();
        match statements.as_slice() {
            [Statement::Set(set)] => assigned(set).map_err(|error| error.to_string()),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Statements, with the variable, the value and the change of each.
    fn assignments() -> Vec<(&'static str, &'static str, &'static str, Change)> {
        vec![
            (
                "SET application_name = 'a b'",
                "application_name",
                "a b",
                Change::Nothing,
            ),
            ("SET DateStyle TO iso", "datestyle", "ISO, MDY", Change::Nothing),
            (
                "SET datestyle = 'ISO, DMY'",
                "datestyle",
                "ISO, DMY",
                Change::Nothing,
            ),
            (
                "SET extra_float_digits = 3",
                "extra_float_digits",
                "3",
                Change::Nothing,
            ),
            (
                "SET extra_float_digits = -5",
                "extra_float_digits",
                "-5",
                Change::Nothing,
            ),
            (
                "SET client_encoding TO 'utf-8'",
                "client_encoding",
                "UTF8",
                Change::Nothing,
            ),
            (
                "SET client_encoding TO \"'utf-8'\"",
                "client_encoding",
                "UTF8",
                Change::Nothing,
            ),
            ("SET NAMES 'UTF8'", "client_encoding", "UTF8", Change::Nothing),
            (
                "SET statement_timeout = 0",
                "statement_timeout",
                "0",
                Change::Timeout(None),
            ),
            (
                "SET SESSION statement_timeout = '2min'",
                "statement_timeout",
                "2min",
                Change::Timeout(Some(Duration::from_secs(120))),
            ),
            (
                "SET TIME ZONE 'Europe/Berlin'",
                "timezone",
                "Europe/Berlin",
                Change::Option("datafusion.execution.time_zone", "Europe/Berlin".to_string()),
            ),
            (
                "SET search_path = \"$user\", s, public",
                "search_path",
                "$user, s, public",
                Change::Option("datafusion.catalog.default_schema", "s".to_string()),
            ),
        ]
    }

    #[test]
    fn variables_take_their_values() {
        for (text, name, value, change) in assignments() {
            let expected = Assigned {
                name,
                value: value.to_string(),
                change,
            };
            assert_eq!(set(text), Ok(Some(expected)), "{text}");
        }
        assert_eq!(
            set("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
            Ok(None)
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            (
                "SET nothing = 1",
                "unrecognized configuration parameter \"nothing\"",
            ),
            (
                "SET client_encoding = 'LATIN1'",
                "it can be utf8 | utf-8 | unicode",
            ),
            ("SET extra_float_digits = 9", "it can be -15 to 3"),
            ("SET statement_timeout = 'soon'", "a time is a number"),
            (
                "SET statement_timeout = '99999999999999999999h'",
                "a time is a number",
            ),
            ("SET server_version = '9'", "it cannot be changed"),
            ("SET LOCAL statement_timeout = 1", "is not supported"),
            ("SET ROLE admin", "is not supported"),
        ] {
            let error = set(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_client_starts_with_values() {
        let parameters = |pairs: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
            of_startup(&pairs.iter().map(pair).collect()).map(|mut all| {
                all.sort_by_key(|assigned| assigned.name);
                all.into_iter().map(|assigned| assigned.name).collect::<Vec<_>>()
            })
        };
        let names = parameters(&[
            ("user", "a"),
            ("TimeZone", "UTC"),
            ("options", "-c statement_timeout=5s --geqo=off -cjit=on"),
        ]);
        assert_eq!(names.unwrap(), ["geqo", "jit", "statement_timeout", "timezone"]);
        assert!(parameters(&[("options", "-x")]).is_err());
        assert!(parameters(&[("options", "-c nothing=1")]).is_err());
    }

    #[test]
    fn shown_variables_have_names_of_words() {
        let words = |text: &str| text.split(' ').map(Ident::new).collect::<Vec<_>>();
        assert_eq!(shown(&words("TIME ZONE")), Some("timezone".to_string()));
        assert_eq!(
            shown(&words("transaction isolation level")),
            Some("transaction_isolation".to_string())
        );
        assert_eq!(
            shown(&words("server_version")),
            Some("server_version".to_string())
        );
        assert_eq!(shown(&words("all")), None);
        assert_eq!(shown(&words("quantiles device")), None);
    }
}
