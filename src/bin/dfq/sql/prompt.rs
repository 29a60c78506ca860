//! The interactive prompt: line editing from `datafusion-cli`, statements and commands from here.

use std::borrow::Cow;
use std::path::PathBuf;

use datafusion::config::Dialect as DialectName;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::helper::CliHelper;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};

use super::execute::{Failure, Runner};
use super::output::Format;
use super::script;
use super::split::{Piece, Split, split};
use crate::console::{End, say};

const COMMANDS: &str = "\
\\q                  quit (also Ctrl-D)
\\?                  this list
\\d                  list tables
\\d NAME             columns of a table
\\h                  list functions
\\h NAME             describe a function
\\i FILE             run the statements of a file
\\pset format NAME   table, csv, tsv, json or nd-json
\\quiet on|off       whether times are printed
Statements end with a semicolon. Ctrl-C cancels a running one.";

/// Reads and runs statements until the user quits. A failed statement does not end the prompt.
pub(crate) async fn run(runner: &mut Runner) -> End {
    let mut editor = match Editor::<PromptHelper, DefaultHistory>::new() {
        Ok(editor) => editor,
        Err(error) => return End::error(format!("cannot edit lines on this terminal: {error}")),
    };
    editor.set_helper(Some(PromptHelper::new(dialect_name(runner))));
    let history = history_file();
    if let Some(path) = &history {
        // The first run has no history yet.
        let _ = editor.load_history(path);
    }
    say(format_args!(
        "dfq {} (\\? for help, \\q to quit)",
        env!("CARGO_PKG_VERSION")
    ));
    let end = read_lines(runner, &mut editor).await;
    if let Some(path) = &history
        && let Err(error) = save(&mut editor, path)
    {
        say(format_args!(
            "Warning: cannot keep the history in {}: {error}",
            path.display()
        ));
    }
    end
}

async fn read_lines(runner: &mut Runner, editor: &mut Editor<PromptHelper, DefaultHistory>) -> End {
    loop {
        if let Some(helper) = editor.helper_mut() {
            helper.set_dialect(dialect_name(runner));
        }
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                let _ = editor.add_history_entry(line.trim_end());
                let go_on = match line.trim().strip_prefix('\\') {
                    Some(command) => run_command(runner, command).await,
                    None => run_input(runner, &line).await,
                };
                if !go_on {
                    return End::Success;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return End::Success,
            Err(error) => return End::error(format!("cannot read the terminal: {error}")),
        }
    }
}

/// Runs the statements of one input. Returns whether to go on reading.
async fn run_input(runner: &mut Runner, text: &str) -> bool {
    let Split { mut pieces, rest, .. } = split_in(dialect_name(runner), text);
    pieces.extend(rest);
    for piece in &pieces {
        match run_piece(runner, piece).await {
            Ok(true) => {}
            Ok(false) => return true,
            Err(()) => return false,
        }
    }
    true
}

/// Runs one statement: `Ok(false)` if it failed or was cancelled, an error if the output is closed.
async fn run_piece(runner: &mut Runner, piece: &Piece) -> Result<bool, ()> {
    let result = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            say("Cancelled");
            Ok(false)
        }
        result = runner.run(piece) => match result {
            Ok(()) => Ok(true),
            Err(Failure::Closed) => Err(()),
            Err(Failure::Error(message)) => {
                say(format_args!("Error: {message}"));
                Ok(false)
            }
        },
    };
    runner.cancel().await;
    result
}

/// Runs a command such as `\d`. Returns whether to go on reading.
async fn run_command(runner: &mut Runner, text: &str) -> bool {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let Ok(command) = words.trim_end_matches(';').trim_end().parse::<Command>() else {
        say(format_args!("Error: no command '\\{text}'; \\? lists them"));
        return true;
    };
    match command {
        Command::Quit => return false,
        Command::Help => say(COMMANDS),
        Command::ListTables => return run_input(runner, "SHOW TABLES").await,
        Command::DescribeTableStmt(name) => return run_input(runner, &format!("DESCRIBE {name}")).await,
        Command::ListFunctions => {
            let sql =
                "SELECT DISTINCT routine_name, function_type FROM information_schema.routines ORDER BY 1";
            return run_input(runner, sql).await;
        }
        Command::SearchFunctions(name) => {
            let name = name.replace('\'', "''").to_lowercase();
            return run_input(runner, &format!("SHOW FUNCTIONS LIKE '{name}'")).await;
        }
        Command::Include(Some(path)) => return include(runner, &path).await,
        Command::Include(None) => say("Error: \\i needs the name of a file"),
        Command::QuietMode(quiet) => {
            runner.quiet = quiet.unwrap_or(runner.quiet);
            say(format_args!(
                "Quiet is {}.",
                if runner.quiet { "on" } else { "off" }
            ));
        }
        Command::OutputFormat(setting) => set_format(runner, setting.as_deref()),
        Command::ObjectStoreProfileMode(_) => say("Error: dfq does not profile object stores"),
    }
    true
}

async fn include(runner: &mut Runner, path: &str) -> bool {
    let end = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => End::error("cancelled".to_string()),
        end = script::run_file(runner, path) => end,
    };
    // A failure is told, and the prompt goes on.
    end.report();
    !runner.output.closed
}

fn set_format(runner: &mut Runner, setting: Option<&str>) {
    if let Some(setting) = setting {
        let name = match setting.parse::<OutputFormat>() {
            Ok(OutputFormat::ChangeFormat(name)) => name,
            Err(()) => {
                return say(format_args!(
                    "Error: no setting '{setting}'; there is: format NAME"
                ));
            }
        };
        match clap::ValueEnum::from_str(&name, true) {
            Ok(format) => runner.output.format = format,
            Err(_) => {
                return say(format_args!(
                    "Error: no format '{name}'; there are: table, csv, tsv, json, nd-json"
                ));
            }
        }
    }
    let format: Format = runner.output.format;
    say(format_args!("Format is {format:?}."));
}

fn dialect_name(runner: &Runner) -> DialectName {
    runner.config_options().sql_parser.dialect
}

fn split_in(name: DialectName, text: &str) -> Split {
    let dialect = dialect_from_str(name).unwrap_or_else(|| Box::new(GenericDialect {}));
    split(text, 1, dialect.as_ref())
}

/// In the user's folder for state or data, never the current one.
fn history_file() -> Option<PathBuf> {
    dirs::state_dir()
        .or_else(dirs::data_local_dir)
        .map(|folder| folder.join("dfq").join("history"))
}

fn save(editor: &mut Editor<PromptHelper, DefaultHistory>, path: &PathBuf) -> rustyline::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    editor.save_history(path)
}

/// `datafusion-cli`'s helper, except that our own splitter decides when an input is complete, so that it
/// agrees with what then runs.
struct PromptHelper {
    inner: CliHelper,
    dialect: DialectName,
}

impl PromptHelper {
    fn new(dialect: DialectName) -> Self {
        let color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            inner: CliHelper::new(&dialect, color),
            dialect,
        }
    }

    fn set_dialect(&mut self, dialect: DialectName) {
        self.dialect = dialect;
        self.inner.set_dialect(&dialect);
    }

    fn is_complete(&self, input: &str) -> bool {
        if input.trim().is_empty() || input.trim_start().starts_with('\\') {
            return true;
        }
        let split = split_in(self.dialect, input);
        // A text that no more input can mend is complete: running it shows the error.
        split.rest.is_none() || split.broken
    }
}

impl Helper for PromptHelper {}

impl Validator for PromptHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        self.inner.reset_hint();
        Ok(match self.is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Highlighter for PromptHelper {
    fn highlight<'l>(&self, line: &'l str, pos: usize) -> Cow<'l, str> {
        self.inner.highlight(line, pos)
    }

    fn highlight_char(&self, line: &str, pos: usize, kind: CmdKind) -> bool {
        self.inner.highlight_char(line, pos, kind)
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        self.inner.highlight_hint(hint)
    }
}

impl Hinter for PromptHelper {
    type Hint = String;

    fn hint(&self, line: &str, pos: usize, context: &Context<'_>) -> Option<String> {
        self.inner.hint(line, pos, context)
    }
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        self.inner.complete(line, pos, context)
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
}
