//! Commands of the prompt, such as `\\d`.

use clap::ValueEnum;

use crate::sql::output::Format;

/// The commands, one a line.
pub(super) const HELP: &str = "\
\\q                  quit (also Ctrl-D)
\\?                  this list
\\d                  list tables
\\d NAME             columns of a table
\\h                  list functions
\\h NAME             describe a function
\\i FILE             run the statements of a file
\\pset format NAME   table, csv, tsv, json, nd-json, markdown or line
\\timing on|off      whether the time is printed after each statement
Statements end with a semicolon, and may have many lines. Tab completes names,
Ctrl-R searches what was typed before, Ctrl-C cancels a running statement.";

/// The commands by their names.
pub(super) const COMMANDS: [&str; 7] = ["\\?", "\\d", "\\h", "\\i", "\\pset", "\\q", "\\timing"];

/// What a line that begins with a backslash asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Help,
    /// SQL that gives the answer.
    Query(String),
    /// Runs the statements of a file.
    Include(String),
    /// Whether times are printed; `None` asks for it.
    Timing(Option<bool>),
    /// The format of answers; `None` asks for it.
    Format(Option<Format>),
}

impl Command {
    /// The command of a line without its backslash, words apart by one space.
    ///
    /// # Errors
    /// A message about a name, or a value, that there is not.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let (name, value) = match line.split_once(' ') {
            Some((name, value)) => (name, Some(value)),
            None => (line, None),
        };
        Ok(match (name, value) {
            ("q", None) => Self::Quit,
            ("?", None) => Self::Help,
            ("d", None) => Self::Query("SHOW TABLES".to_owned()),
            ("d", Some(table)) => Self::Query(format!("DESCRIBE {table}")),
            ("h", None) => Self::Query(
                "SELECT DISTINCT routine_name, function_type FROM information_schema.routines ORDER BY 1"
                    .to_owned(),
            ),
            ("h", Some(function)) => {
                let function = function.replace('\'', "''").to_lowercase();
                Self::Query(format!("SHOW FUNCTIONS LIKE '{function}'"))
            }
            ("i", Some(path)) => Self::Include(path.to_owned()),
            ("i", None) => return Err("\\i needs the name of a file".to_owned()),
            ("timing", None) => Self::Timing(None),
            ("timing", Some(value)) => Self::Timing(Some(on_or_off(value)?)),
            ("pset", None) => Self::Format(None),
            ("pset", Some(setting)) => match setting.split_once(' ') {
                Some(("format", name)) => Self::Format(Some(format(name)?)),
                _ => return Err(format!("no setting '{setting}'; there is: format NAME")),
            },
            _ => return Err(format!("no command '\\{line}'; \\? lists them")),
        })
    }
}

fn on_or_off(value: &str) -> Result<bool, String> {
    match value {
        "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(format!("\\timing is on or off, not '{value}'")),
    }
}

fn format(name: &str) -> Result<Format, String> {
    Format::from_str(name, true).map_err(|_| {
        format!(
            "no format '{name}'; there are: {}",
            formats().collect::<Vec<_>>().join(", ")
        )
    })
}

/// The names of formats.
pub(super) fn formats() -> impl Iterator<Item = String> {
    let values = Format::value_variants()
        .iter()
        .filter_map(Format::to_possible_value);
    values.map(|value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands_or_say_what_there_is() {
        for (line, command) in [
            ("q", Command::Quit),
            ("d t", Command::Query("DESCRIBE t".to_owned())),
            ("h it's", Command::Query("SHOW FUNCTIONS LIKE 'it''s'".to_owned())),
            ("i a b.sql", Command::Include("a b.sql".to_owned())),
            ("timing", Command::Timing(None)),
            ("timing off", Command::Timing(Some(false))),
            ("pset", Command::Format(None)),
            ("pset format CSV", Command::Format(Some(Format::Csv))),
        ] {
            assert_eq!(Command::parse(line), Ok(command), "{line}");
        }
        for (line, said) in [
            ("x", "no command '\\x'"),
            ("q now", "no command"),
            ("i", "needs the name"),
            ("timing maybe", "'maybe'"),
            ("pset color on", "there is: format NAME"),
            ("pset format xml", "no format 'xml'"),
        ] {
            let message = Command::parse(line).unwrap_err();
            assert!(message.contains(said), "{line}: {message}");
        }
    }
}
