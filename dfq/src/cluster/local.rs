//! `dfq cluster`: a scheduler and executors on this machine, as processes that live and end together.

use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ballista_core::serde::protobuf::ExecutorStoppedParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion_quantiles::ballista::{Identity, endpoint, http_client};
use tokio::process::{Child, Command};

use super::security::AccessArgs;
use super::work::{remove_ended, root_of};
use super::{LOOPBACK, until_ended};
use crate::args::{parse_bytes, parse_count};
use crate::console::{End, say};

/// How long the processes may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one request for a process's health may take.
const ANSWER: Duration = Duration::from_secs(2);

/// How often that is looked at.
const PAUSE: Duration = Duration::from_millis(100);

/// An executor that ends as often in a row, each time within [`SOON`], cannot run here.
const MOST_ENDS: usize = 5;

/// An executor that lives longer has started well.
const SOON: Duration = Duration::from_secs(5);

/// Starts a scheduler and executors on this machine, on the loopback address, until Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Number of executors, at least 1
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_count)]
    executors: NonZeroUsize,

    /// Port of the scheduler
    #[arg(long, value_name = "PORT", default_value_t = 50050)]
    port: u16,

    /// Tasks that each executor runs at a time [default: the cores, shared out]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    vcores: Option<NonZeroUsize>,

    /// Most memory that each executor's queries may hold, such as 512MB or 2g [default: a share of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_pool_size: Option<usize>,

    /// Folder for what executors write, a folder in it for each [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,

    /// Where executors run rounds over the values of a task: see 'dfq executor --help'
    #[arg(long, default_value = "cpu", value_parser = crate::args::parse_device)]
    device: datafusion_quantiles::config::DeviceChoice,

    /// Most memory of each device that one executor may hold, such as 20g, whatever clients allow [default: theirs alone]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    cuda_memory_limit: Option<usize>,

    #[command(flatten)]
    access: AccessArgs,

    /// What the processes log to standard error, such as info or ballista_scheduler=debug
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,

    /// Ends when standard input does: that of a process whose parent has died
    #[arg(long, hide = true)]
    attached: bool,
}

/// Runs `dfq cluster` until it is ended, its scheduler ends, or an executor does not stay.
pub(crate) async fn run_cluster(args: ClusterArgs) -> End {
    let identity = match args.access.credentials.identity() {
        Ok(identity) => identity,
        Err(error) => return error.into(),
    };
    let mut processes = Vec::new();
    let end = until_ended(args.attached, serve(&args, identity.as_ref(), &mut processes)).await;
    stop(processes).await;
    remove_ended(&root_of(args.work_dir.as_deref()));
    end
}

async fn serve(args: &ClusterArgs, identity: Option<&Identity>, processes: &mut Vec<Process>) -> End {
    if let Err(end) = start(args, identity, processes).await {
        return end;
    }
    let credentials = args.access.credentials.to_args();
    say(format_args!(
        "A cluster of {} executors is ready; Ctrl-C ends it. In another terminal: dfq sql --cluster {}{}",
        args.executors,
        url(args),
        credentials
            .iter()
            .map(|option| format!(" {option}"))
            .collect::<String>()
    ));
    loop {
        if let Err(end) = replace_ended(args, identity, processes).await {
            return end;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A process of the cluster.
struct Process {
    /// As messages say it.
    name: String,
    /// What the scheduler knows it by, or is known by: no other process of any cluster has it.
    id: String,
    /// The number of an executor, from 1; `None` for the scheduler.
    executor: Option<usize>,
    child: Child,
    started: Instant,
    /// How many executors of this number ended soon, one after the other.
    ends: usize,
}

impl Process {
    fn start(args: &ClusterArgs, executor: Option<usize>) -> Result<Self, End> {
        let (port, random) = (args.port.to_string(), rand::random::<u128>());
        let (name, id, options) = match executor {
            None => {
                let id = format!("scheduler-{random:032x}");
                (
                    "the scheduler".to_string(),
                    id.clone(),
                    scheduler(args, &port, &id),
                )
            }
            Some(number) => {
                let id = format!("executor-{number}-{random:032x}");
                let options = self::executor(args, &port, &id)?;
                (format!("executor {number}"), id, options)
            }
        };
        Ok(Self {
            child: spawn(&name, &[options, args.access.to_args()].concat())?,
            name,
            id,
            executor,
            started: Instant::now(),
            ends: 0,
        })
    }

    /// How many executors of this number ended soon, one after the other, this one now.
    fn ends_soon(&self) -> usize {
        match self.started.elapsed() < SOON {
            true => self.ends + 1,
            false => 0,
        }
    }
}

/// Starts an executor in the place of each that has ended, and has the scheduler run its tasks elsewhere at once.
///
/// # Errors
/// Where the scheduler has ended, or executors of one number end again and again.
async fn replace_ended(
    args: &ClusterArgs,
    identity: Option<&Identity>,
    processes: &mut [Process],
) -> Result<(), End> {
    for process in processes {
        let Some(status) = process.child.try_wait().ok().flatten() else {
            continue;
        };
        let (name, ends) = (process.name.clone(), process.ends_soon());
        if process.executor.is_none() || ends >= MOST_ENDS {
            return Err(has_ended(&name, status));
        }
        say(format_args!(
            "Warning: {name} ended with {status}; another one takes its place"
        ));
        let lost = process.id.clone();
        *process = Process {
            ends,
            ..Process::start(args, process.executor)?
        };
        // If the scheduler is not told, it misses the heartbeats.
        let _ = tokio::time::timeout(ANSWER, tell_lost(&url(args), identity, lost, status.to_string())).await;
    }
    Ok(())
}

/// The address of the scheduler.
fn url(args: &ClusterArgs) -> String {
    format!("df://{LOOPBACK}:{}", args.port)
}

/// Tells the scheduler that an executor has ended.
async fn tell_lost(
    url: &str,
    identity: Option<&Identity>,
    executor_id: String,
    reason: String,
) -> Option<()> {
    let scheduler = endpoint(url, identity).ok()?.connect().await.ok()?;
    let params = ExecutorStoppedParams { executor_id, reason };
    let told = SchedulerGrpcClient::new(scheduler).executor_stopped(params).await;
    told.ok().map(drop)
}

async fn start(
    args: &ClusterArgs,
    identity: Option<&Identity>,
    processes: &mut Vec<Process>,
) -> Result<(), End> {
    let executors = args.executors.get();
    let services = endpoint(&url(args), identity)?.uri().to_string();
    let client = http_client(identity)?;
    let scheduler = Process::start(args, None)?;
    let id = scheduler.id.clone();
    processes.push(scheduler);
    // Another scheduler may own the port: executors are for the one that has the id of ours.
    answers(&client, processes, &format!("{services}api/state"), &id).await?;
    for number in 1..=executors {
        processes.push(Process::start(args, Some(number))?);
    }
    answers(&client, processes, &format!("{services}readyz"), "").await
}

fn scheduler(args: &ClusterArgs, port: &str, id: &str) -> Vec<String> {
    let executors = args.executors.to_string();
    let options = [
        "scheduler",
        "--attached",
        "--id",
        id,
        "--bind-host",
        LOOPBACK,
        "--bind-port",
        port,
        "--external-host",
        LOOPBACK,
        // They end by themselves only with the cluster: one that has ended runs nothing more.
        "--executor-termination-grace-period",
        "0",
        "--min-ready-executors",
        &executors,
        "--log-level-setting",
        &args.log,
    ];
    options.map(str::to_string).to_vec()
}

fn executor(args: &ClusterArgs, port: &str, id: &str) -> Result<Vec<String>, End> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let vcores = args
        .vcores
        .map_or(cores.div_ceil(args.executors.get()), NonZeroUsize::get);
    let [flight, grpc, health] = free_ports()?.map(|port| port.to_string());
    let (vcores, device) = (vcores.to_string(), args.device.to_string());
    let options = [
        "executor",
        "--attached",
        "--id",
        id,
        "--bind-host",
        LOOPBACK,
        "--external-host",
        LOOPBACK,
        "--scheduler-host",
        LOOPBACK,
        "--scheduler-port",
        port,
        "--bind-port",
        &flight,
        "--bind-grpc-port",
        &grpc,
        "--bind-health-port",
        &health,
        "--vcores",
        &vcores,
        "--device",
        &device,
        "--log-level-setting",
        &args.log,
    ];
    let mut options = options.map(str::to_string).to_vec();
    if let Some(bytes) = args.memory_pool_size {
        options.extend(["--memory-pool-size".to_string(), bytes.to_string()]);
    }
    if let Some(bytes) = args.cuda_memory_limit {
        options.extend(["--cuda-memory-limit".to_string(), bytes.to_string()]);
    }
    if let Some(folder) = &args.work_dir {
        options.extend(["--work-dir".to_string(), folder.to_string_lossy().into_owned()]);
    }
    Ok(options)
}

/// Ports of this machine that nobody listens on.
fn free_ports() -> Result<[u16; 3], End> {
    let found = || -> std::io::Result<[u16; 3]> {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let held = [listen()?, listen()?, listen()?];
        Ok([
            held[0].local_addr()?.port(),
            held[1].local_addr()?.port(),
            held[2].local_addr()?.port(),
        ])
    };
    found().map_err(|error| End::error(format!("no free port on this machine: {error}")))
}

fn spawn(name: &str, options: &[String]) -> Result<Child, End> {
    let started = std::env::current_exe().and_then(|program| {
        // It holds the other end of their standard input, so they end when this process does, however it ends.
        Command::new(program)
            .args(options)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    });
    started.map_err(|error| End::error(format!("cannot start {name}: {error}")))
}

/// Waits for an address to say that all is well, with this text in what it says.
async fn answers(
    client: &reqwest::Client,
    processes: &mut [Process],
    url: &str,
    text: &str,
) -> Result<(), End> {
    let started = Instant::now();
    loop {
        if let Some(end) = ended(processes) {
            return Err(end);
        }
        // What else owns the port may accept and never answer.
        if let Ok(response) = client.get(url).timeout(ANSWER).send().await
            && response.status().is_success()
            && response.text().await.is_ok_and(|said| said.contains(text))
        {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(End::error(format!(
                "the cluster was not ready after {} seconds ({url}): --log info shows more",
                PATIENCE.as_secs()
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// That a process has ended, if one has: none should before the cluster is ready.
fn ended(processes: &mut [Process]) -> Option<End> {
    processes.iter_mut().find_map(|process| {
        let status = process.child.try_wait().ok().flatten()?;
        Some(has_ended(&process.name, status))
    })
}

/// What ends the cluster where a process of it has ended.
fn has_ended(name: &str, status: ExitStatus) -> End {
    End::error(format!("{name} ended with {status}: --log info shows more"))
}

/// Ends the executors first, so that they can say goodbye.
async fn stop(mut processes: Vec<Process>) {
    while let Some(mut process) = processes.pop() {
        drop(process.child.stdin.take());
        let ended = tokio::time::timeout(Duration::from_secs(5), process.child.wait()).await;
        if ended.is_err() {
            let _ = process.child.kill().await;
        }
    }
}
