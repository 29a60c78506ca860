//! Runs scripts: text, files and standard input. The first failure ends a script.

use tokio::io::{AsyncBufReadExt, BufReader};

use super::execute::{Failure, Runner};
use super::split::{Piece, split};
use super::statement::dialect;
use crate::console::End;

/// Runs all statements of `text`; errors name `origin` and the statement's line.
pub(crate) async fn run_text(runner: &mut Runner, text: &str, origin: Option<&str>) -> End {
    let mut script = Script::new(origin);
    script.buffer.push_str(text);
    script.run(runner, true).await
}

/// Runs a file of statements.
pub(crate) async fn run_file(runner: &mut Runner, path: &str) -> End {
    match tokio::fs::read_to_string(path).await {
        Ok(text) => run_text(runner, &text, Some(path)).await,
        Err(error) => End::error(format!("cannot read the file '{path}': {error}")),
    }
}

/// Runs standard input, each statement as soon as it is complete.
pub(crate) async fn run_stdin(runner: &mut Runner) -> End {
    const ORIGIN: &str = "standard input";
    let mut script = Script::new(Some(ORIGIN));
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        let length = script.buffer.len();
        match input.read_line(&mut script.buffer).await {
            Ok(0) => return script.run(runner, true).await,
            // Only a semicolon can complete a statement.
            Ok(_) if !script.buffer[length..].contains(';') => {}
            Ok(_) => {
                let end = script.run(runner, false).await;
                if !matches!(end, End::Success) || runner.output.closed {
                    return end;
                }
            }
            Err(error) => return End::error(format!("cannot read {ORIGIN}: {error}")),
        }
    }
}

/// Text that waits to be run.
struct Script<'a> {
    origin: Option<&'a str>,
    buffer: String,
    /// Line of the script at which `buffer` starts, from 1.
    line: u64,
}

impl<'a> Script<'a> {
    fn new(origin: Option<&'a str>) -> Self {
        Self {
            origin,
            buffer: String::new(),
            line: 1,
        }
    }

    /// Runs what is complete; at the end of the input the rest too.
    async fn run(&mut self, runner: &mut Runner, at_end: bool) -> End {
        if self.line == 1 {
            self.skip_what_is_no_sql();
        }
        let dialect = match dialect(&runner.config_options()) {
            Ok(dialect) => dialect,
            Err(error) => return error.into(),
        };
        let mut split = split(&self.buffer, self.line, dialect.as_ref());
        let lines = self.buffer.matches('\n').count() as u64;
        match split.rest.take() {
            Some(rest) if at_end => split.pieces.push(rest),
            Some(rest) => {
                // Blanks in front keep the column that errors name.
                let start = self.buffer.trim_end().len() - rest.text.len();
                self.buffer
                    .replace_range(..start, &" ".repeat(rest.column as usize - 1));
                self.line = rest.line;
            }
            None => {
                self.buffer.clear();
                self.line += lines;
            }
        }
        for piece in &split.pieces {
            match runner.run(piece).await {
                Ok(()) => {}
                Err(Failure::Closed) => return End::Success,
                Err(Failure::Error(message)) => return End::error(self.locate(piece, &message)),
            }
        }
        End::Success
    }

    /// A script may start with the byte order mark of editors on Windows, and a line such as `#!/usr/bin/env -S dfq sql -f`.
    fn skip_what_is_no_sql(&mut self) {
        if self.buffer.starts_with('\u{feff}') {
            self.buffer.remove(0);
        }
        if self.buffer.starts_with("#!") {
            let end = self.buffer.find('\n').unwrap_or(self.buffer.len());
            self.buffer.replace_range(..end, "");
        }
    }

    fn locate(&self, piece: &Piece, message: &str) -> String {
        match self.origin {
            Some(origin) => format!("{origin}, line {}: {message}", piece.line),
            None => message.to_string(),
        }
    }
}
