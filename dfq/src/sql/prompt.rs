//! The interactive prompt: line editing by `rustyline`, statements and commands from here.

mod command;
mod helper;

use std::path::PathBuf;

use datafusion::config::Dialect as DialectName;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use rustyline::Editor;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;

use self::command::Command;
use self::helper::PromptHelper;
use super::execute::{Failure, Runner};
use super::script;
use super::split::{Piece, Split, split};
use crate::console::{End, say};

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
            helper.dialect = dialect_name(runner);
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
    match Command::parse(words.trim_end_matches(';').trim_end()) {
        Err(message) => say(format_args!("Error: {message}")),
        Ok(Command::Quit) => return false,
        Ok(Command::Help) => say(command::HELP),
        Ok(Command::Query(sql)) => return run_input(runner, &sql).await,
        Ok(Command::Include(path)) => return include(runner, &path).await,
        Ok(Command::Quiet(quiet)) => {
            runner.quiet = quiet.unwrap_or(runner.quiet);
            say(format_args!(
                "Quiet is {}.",
                if runner.quiet { "on" } else { "off" }
            ));
        }
        Ok(Command::Format(format)) => {
            runner.output.format = format.unwrap_or(runner.output.format);
            say(format_args!("Format is {:?}.", runner.output.format));
        }
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
