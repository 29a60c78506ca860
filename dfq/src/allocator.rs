//! A process whose memory is limited gives back what it does not use.

/// What the allocator is to do: no huge pages, of which all is resident once a byte is touched, and freed pages go back to
/// the system after 10 ms, not after a second. It reads this once, when the process starts.
#[cfg(unix)]
const SETTINGS: [(&str, &str); 2] = [("MIMALLOC_ALLOW_THP", "0"), ("MIMALLOC_PURGE_DELAY", "10")];

/// Starts the program once more in this process, with an allocator that holds little beyond what is in use: what queries
/// reserve to the byte would else take a good deal more. Who has set any of this in the environment has it so.
#[cfg(unix)]
pub(crate) fn hold_little() {
    use std::os::unix::process::CommandExt;

    if SETTINGS.iter().any(|(name, _)| std::env::var_os(name).is_some()) {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // It returns only if it fails, and then queries run all the same.
    drop(command.args(arguments).envs(SETTINGS).exec());
}

#[cfg(not(unix))]
pub(crate) fn hold_little() {}
