//! `dfq` in a terminal: a pseudo terminal of this process. The tests of one program and those of clusters use it.
#![allow(dead_code, reason = "each of the two uses a part of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

/// Longest wait for what a program is to show.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program whose input and outputs are a terminal, unless they are set.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// What stands in the place of a terminal.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Piped {
    Nothing,
    /// Standard output goes to a pipe.
    Output,
}

impl Terminal {
    /// Starts a command in a terminal of 30 lines and this number of columns.
    pub(crate) fn start(command: &mut Command, columns: u16, piped: Piped) -> Self {
        Self::start_as("xterm", command, columns, piped)
    }

    /// Starts a command in a terminal of this kind.
    pub(crate) fn start_as(kind: &str, command: &mut Command, columns: u16, piped: Piped) -> Self {
        let size = Winsize {
            ws_row: 30,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.env("TERM", kind).env_remove("NO_COLOR");
        command.stdin(end()).stderr(end()).stdout(match piped {
            Piped::Nothing => end(),
            Piped::Output => Stdio::piped(),
        });
        let child = command.spawn().unwrap();
        // The command holds copies of the other end of the terminal.
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null());
        drop(pty.slave);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, kept) = (File::from(pty.master.try_clone().unwrap()), Arc::clone(&shown));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 1 << 12];
            // The end of a terminal is an error.
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                kept.lock().unwrap().extend(&bytes[..read]);
            }
        });
        Self {
            child,
            keys: File::from(pty.master),
            shown,
            reader: Some(reader),
        }
    }

    /// Sends the signal of Ctrl-C: this terminal controls no process.
    pub(crate) fn interrupt(&self) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-INT", &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Types these keys.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// All that was written to the terminal, without the sequences that move the cursor or set colours.
    pub(crate) fn text(&self) -> String {
        without_sequences(&String::from_utf8_lossy(&self.shown.lock().unwrap()))
    }

    /// Waits until the text from the byte `from` on contains `wanted`. Returns the byte behind it: what follows may
    /// have been shown already.
    pub(crate) fn wait_for(&self, wanted: &str, from: usize) -> usize {
        let started = Instant::now();
        loop {
            let text = self.text();
            if let Some(at) = text.get(from..).and_then(|new| new.find(wanted)) {
                return from + at + wanted.len();
            }
            assert!(started.elapsed() < PATIENCE, "no '{wanted}' in:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the program. Returns its exit code, what went to the pipe, and the text of the terminal.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let stdout = self.child.stdout.take();
        let piped = std::thread::spawn(move || {
            let mut piped = String::new();
            if let Some(mut stdout) = stdout {
                stdout.read_to_string(&mut piped).unwrap();
            }
            piped
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                panic!("the program goes on:\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reader.take().unwrap().join().unwrap();
        (status.code(), piped.join().unwrap(), self.text())
    }
}

/// A text without escape sequences.
fn without_sequences(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.next() == Some('[') => {
                // Ends with a letter.
                let _ = rest.find(|c| c.is_ascii_alphabetic());
            }
            '\x1b' => {}
            c => plain.push(c),
        }
    }
    plain
}
