//! `dfq scheduler`, `dfq executor` and `dfq cluster`: Ballista with this crate in it.

mod local;
mod logs;
mod security;
mod work;

use std::sync::Arc;

use ballista_core::error::BallistaError;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::health::spawn_health_server;
use ballista_scheduler::config::SchedulerConfig;
use clap::Command;
use clap::builder::ArgPredicate;
use datafusion_quantiles::ballista::{
    check_membership, executor_hooks_with, scheduler_hooks_with, serve_scheduler,
};
use datafusion_quantiles::config::DeviceChoice;
use datafusion_quantiles::exec::staged::RoundDevice;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::local::{ClusterArgs, run_cluster};
use self::logs::Logs;
use self::security::AccessArgs;
pub(crate) use self::security::CredentialArgs;
use self::work::WorkFolder;
use crate::args::{parse_bytes, parse_device};
use crate::console::End;

/// Machines on the same network reach no service unless it is bound to an address of theirs.
const LOOPBACK: &str = "127.0.0.1";

/// Plans queries and hands their tasks to executors; the options are Ballista's.
#[derive(Debug, clap::Args)]
pub(crate) struct SchedulerArgs {
    #[command(flatten)]
    ballista: ballista_scheduler::config::Config,

    #[command(flatten)]
    access: AccessArgs,

    /// Listens on addresses that other machines reach, although nobody is asked who they are
    #[arg(long)]
    insecure: bool,

    /// Ends when standard input does: that of a process whose parent has died
    #[arg(long, hide = true)]
    attached: bool,
}

/// Runs tasks for a scheduler; the options are Ballista's.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecutorArgs {
    #[command(flatten)]
    ballista: ballista_executor::config::Config,

    /// Where rounds over the values of a task run: cpu, cuda (all devices of this machine), cuda:N, or auto (devices, and the CPU
    /// where they fail or there are none)
    #[arg(long, default_value = "cpu", value_parser = parse_device)]
    device: DeviceChoice,

    /// Most memory of each device that this executor may hold, such as 20g, whatever clients allow [default: theirs alone,
    /// quantiles.cuda_memory_limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    cuda_memory_limit: Option<usize>,

    #[command(flatten)]
    access: AccessArgs,

    /// Listens on addresses that other machines reach, although nobody is asked who they are
    #[arg(long)]
    insecure: bool,

    /// Ends when standard input does: that of a process whose parent has died
    #[arg(long, hide = true)]
    attached: bool,
}

impl ExecutorArgs {
    /// Whether tasks are to hold so much memory at most, by an option of their own.
    pub(crate) fn limits_memory(&self) -> bool {
        self.ballista.memory_pool_size.is_some()
    }
}

/// Options of Ballista's whose defaults are others here.
///
/// Its services would listen on all addresses of the machine, and its scheduler wait three minutes for an executor that is
/// silent. Seconds are: a heartbeat each 5, silent for 20 is lost, looked at each 3.
const DEFAULTS: [(&str, &str, &str); 5] = [
    ("scheduler", "bind_host", LOOPBACK),
    ("scheduler", "executor_timeout_seconds", "20"),
    ("scheduler", "expire_dead_executor_interval_seconds", "3"),
    ("executor", "bind_host", LOOPBACK),
    ("executor", "executor_heartbeat_interval_seconds", "5"),
];

/// How the scheduler's tasks come to executors, by command. Ballista 55 serves executors that are pushed tasks itself, to
/// everybody, so that it is pull-staged where credentials are given.
const POLICIES: [(&str, &str); 2] = [
    ("scheduler", "scheduler_policy"),
    ("executor", "task_scheduling_policy"),
];

/// The command line with this program's defaults for Ballista's options.
pub(crate) fn with_own_defaults(cli: Command) -> Command {
    let cli = DEFAULTS.into_iter().fold(cli, |cli, (command, option, default)| {
        cli.mut_subcommand(command, |command| {
            command.mut_arg(option, |arg| arg.default_value(default))
        })
    });
    POLICIES.into_iter().fold(cli, |cli, (command, option)| {
        cli.mut_subcommand(command, |command| {
            command.mut_arg(option, |arg| {
                let given = |option| (option, ArgPredicate::IsPresent, Some("pull-staged"));
                arg.default_value_ifs(["tls_cert", "token_file"].map(given))
            })
        })
    })
}

/// Runs `dfq scheduler` until it is ended.
pub(crate) async fn run_scheduler(args: SchedulerArgs) -> End {
    let options = args.ballista;
    let access = match args.access.access(&options.bind_host, args.insecure) {
        Ok(access) => access,
        Err(end) => return end,
    };
    Logs {
        filter: &options.log_level_setting,
        threads: options.print_thread_info,
        folder: options.log_dir.as_deref(),
        file: format!(
            "scheduler_{}_{}_{}",
            options.namespace, options.external_host, options.bind_port
        ),
        rotation: &options.log_rotation_policy,
    }
    .start();
    let service = async {
        let address = format!("{}:{}", options.bind_host, options.bind_port);
        let address = address
            .parse()
            .map_err(|error| BallistaError::Configuration(format!("'{address}' is no address: {error}")))?;
        let (config, identity) = (SchedulerConfig::try_from(options)?, access.identity.clone());
        let config = scheduler_hooks_with(config, access);
        serve_scheduler(config, address, identity)
            .await
            .map_err(BallistaError::from)
    };
    until_ended(args.attached, end_of(service)).await
}

/// Runs `dfq executor` until it is ended.
pub(crate) async fn run_executor(args: ExecutorArgs) -> End {
    // Points where tests stop a stage: without the tests' features nothing is compiled of them.
    let _points = fail::FailScenario::setup();
    let options = args.ballista;
    let access = match args.access.access(&options.bind_host, args.insecure) {
        Ok(access) => access,
        Err(end) => return end,
    };
    Logs {
        filter: &options.log_level_setting,
        threads: options.print_thread_info,
        folder: options.log_dir.as_deref(),
        file: format!("executor_{}", options.bind_port),
        rotation: &options.log_rotation_policy,
    }
    .start();
    let folder = match WorkFolder::make(options.work_dir.as_deref()) {
        Ok(folder) => folder,
        Err(end) => return end,
    };
    let health = format!("{}:{}", options.bind_host, options.bind_health_port);
    let service = async {
        let health = health
            .parse()
            .map_err(|error| BallistaError::Configuration(format!("'{health}' is no address: {error}")))?;
        let mut config = ExecutorProcessConfig::try_from(options)?;
        config.work_dir = Some(folder.path().to_string_lossy().into_owned());
        let scheduler = format!("{}:{}", config.scheduler_host, config.scheduler_port);
        check_membership(&format!("df://{scheduler}"), access.identity.as_ref()).await?;
        let limit = args.cuda_memory_limit.map(|bytes| bytes as u64);
        let config = executor_hooks_with(
            config,
            RoundDevice::try_new(args.device)?.with_memory_limit(limit),
            access,
        )?;
        let (_ended, ends) = tokio::sync::oneshot::channel();
        let _health = spawn_health_server(health, config.health.clone(), ends);
        let served = start_executor_process(Arc::new(config)).await;
        served.map_err(|error| match error {
            BallistaError::GrpcConnectionError(error) => BallistaError::GrpcConnectionError(format!(
                "{error} at {scheduler}: start one with 'dfq scheduler', or name it by --scheduler-host and \
                 --scheduler-port"
            )),
            other => other,
        })
    };
    let end = until_ended(args.attached, end_of(service)).await;
    folder.close();
    end
}

async fn end_of(service: impl Future<Output = Result<(), BallistaError>>) -> End {
    match service.await {
        Ok(()) => End::Success,
        Err(BallistaError::DataFusionError(error)) => (*error).into(),
        Err(error) => End::error(error.to_string()),
    }
}

/// Runs a service until it ends, the process is told to end, or, if it is attached, its parent is gone.
async fn until_ended(attached: bool, service: impl Future<Output = End>) -> End {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return End::error("cannot listen to signals".to_string());
    };
    tokio::select! {
        // Polled first, so that the signal is caught before the service says that it is there.
        biased;
        _ = tokio::signal::ctrl_c() => End::Interrupted,
        _ = terminated.recv() => End::Success,
        () = parent_gone(attached) => End::Success,
        end = service => end,
    }
}

/// Waits for the end of standard input; without end if the process has no parent to look after.
async fn parent_gone(attached: bool) {
    if !attached {
        return std::future::pending().await;
    }
    let (mut input, mut bytes) = (tokio::io::stdin(), [0; 64]);
    while matches!(input.read(&mut bytes).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use ballista_core::config::TaskSchedulingPolicy;

    #[test]
    fn tasks_are_pulled_by_executors_that_ask_who_calls() {
        for (command, option) in super::POLICIES {
            let policy = |options: &[&str]| {
                let args = [&["dfq", command], options].concat();
                let matches = crate::command().get_matches_from(args);
                let (_, matches) = matches.subcommand().unwrap();
                format!("{:?}", matches.get_one::<TaskSchedulingPolicy>(option).unwrap())
            };
            let certificates = ["--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"];
            assert_eq!(policy(&[]), "PushStaged");
            assert_eq!(policy(&["--token-file", "t"]), "PullStaged");
            assert_eq!(policy(&certificates), "PullStaged");
        }
    }

    /// An executor may miss two heartbeats, and its loss is noticed within 23 seconds.
    #[test]
    fn a_silent_executor_is_soon_lost_by_default() {
        let seconds = |command: &str, option: &str| {
            let matches = crate::command().get_matches_from(["dfq", command]);
            *matches.subcommand().unwrap().1.get_one::<u64>(option).unwrap()
        };
        let lost = seconds("scheduler", "executor_timeout_seconds");
        let looked = seconds("scheduler", "expire_dead_executor_interval_seconds");
        let heartbeat = seconds("executor", "executor_heartbeat_interval_seconds");
        assert_eq!(lost, 20);
        assert!(
            3 * heartbeat < lost && looked <= heartbeat,
            "{heartbeat}, {looked}"
        );
        let asked = crate::command().get_matches_from([
            "dfq",
            "scheduler",
            "--executor-timeout-seconds",
            "180",
            "--bind-host",
            "0.0.0.0",
        ]);
        let (_, asked) = asked.subcommand().unwrap();
        assert_eq!(asked.get_one::<u64>("executor_timeout_seconds"), Some(&180));
        assert_eq!(asked.get_one::<String>("bind_host").unwrap(), "0.0.0.0");
    }
}
