//! The interactive prompt: line editing by `rustyline`, statements and commands from here.

mod command;
mod context;
mod helper;
mod names;

use std::path::{Path, PathBuf};

use datafusion::config::Dialect as DialectName;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor};

use self::command::Command;
use self::helper::PromptHelper;
use super::execute::{Failure, Runner};
use super::script;
use super::split::{Piece, Split, split};
use crate::console::{End, say};

/// The editor of lines.
type Lines = Editor<PromptHelper, DefaultHistory>;

/// Most statements that are kept for the next runs.
const HISTORY: usize = 10_000;

/// Reads and runs statements until the user quits. A failed statement does not end the prompt.
pub(crate) async fn run(runner: &mut Runner) -> End {
    let mut editor = match editor() {
        Ok(editor) => editor,
        Err(error) => return End::error(format!("cannot edit lines on this terminal: {error}")),
    };
    editor.set_helper(Some(PromptHelper::new(runner.ctx.clone(), dialect_name(runner))));
    let history = History::open(&mut editor);
    say(format_args!(
        "dfq {} (\\? for help, \\q to quit)",
        env!("CARGO_PKG_VERSION")
    ));
    read_lines(runner, &mut editor, history).await
}

fn editor() -> rustyline::Result<Lines> {
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY)?
        .history_ignore_dups(true)?
        .build();
    Editor::with_config(config)
}

async fn read_lines(runner: &mut Runner, editor: &mut Lines, mut history: History) -> End {
    loop {
        if let Some(helper) = editor.helper_mut() {
            helper.dialect = dialect_name(runner);
        }
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                history.add(editor, line.trim_end());
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
        Ok(Command::Timing(timing)) => {
            runner.timing = timing.unwrap_or(runner.timing);
            say(format_args!(
                "Timing is {}.",
                if runner.timing { "on" } else { "off" }
            ));
        }
        Ok(Command::Format(Some(format))) if format.is_binary() && runner.output.file.is_none() => {
            say(format_args!(
                "Error: a terminal cannot show the format {format:?}"
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

/// The file of what was typed, in the user's folder for state or data, which only the user can read.
struct History {
    /// `None`: nothing is kept.
    path: Option<PathBuf>,
}

impl History {
    /// Reads the file, which the first run makes. The editor has no history where there is no folder for it.
    fn open(editor: &mut Lines) -> Self {
        let folder = dirs::state_dir().or_else(dirs::data_local_dir);
        let mut history = Self {
            path: folder.map(|folder| folder.join("dfq").join("history")),
        };
        if let Some(path) = history.path.as_deref() {
            let opened = make_private(path).and_then(|()| editor.load_history(path));
            history.check(opened);
        }
        history
    }

    /// Adds what was typed, at once: other prompts may be open, and this one may end by a signal.
    fn add(&mut self, editor: &mut Lines, text: &str) {
        // Without an entry there is nothing to write.
        if let (Ok(true), Some(path)) = (editor.add_history_entry(text), self.path.as_deref()) {
            let added = editor.append_history(path);
            self.check(added);
        }
    }

    /// Tells of a file that cannot be used, once.
    fn check(&mut self, result: rustyline::Result<()>) {
        if let (Err(error), Some(path)) = (result, &self.path) {
            say(format_args!(
                "Warning: cannot keep the history in {}: {error}",
                path.display()
            ));
            self.path = None;
        }
    }
}

/// Makes a file if it is missing, with its folder. Nobody else can read it.
fn make_private(path: &Path) -> rustyline::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    drop(file);
    Ok(())
}
