//! `dfq profile`: what the columns of files hold, exactly, for reading, as a page and as JSON.

pub(crate) mod chart;
pub(crate) mod figures;
mod html;
mod json;
mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};

use datafusion::common::{plan_datafusion_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{DataFrame, Expr, SessionContext, ident};
use datafusion_quantiles::profile::{GroupProfile, profile as profile_rows, profile_by};

use crate::console::{End, say};
use crate::sql::{OutputFile, Progress, SessionArgs, file_table};

/// Shows what each column of a file holds.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Several files, folders or patterns are profiled as one table. Percentiles are exact, whatever the size of the files: \
        within --memory-limit too. The profile goes to standard output; errors go to standard error.\n\n\
        Examples:\n  \
        dfq profile trips.parquet\n  \
        dfq profile 'year=2024/*.parquet' --columns fare,tip --memory-limit 512MB\n  \
        dfq profile trips.parquet --by city --html trips.html\n  \
        dfq profile trips.parquet --json | jq '.columns[].percentiles[\"50\"]'"
)]
pub(crate) struct ProfileArgs {
    /// Files, folders, patterns or URLs of one table
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,

    /// Columns to profile, by name, separated by commas [default: all]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Vec<String>,

    /// Profile the rows of each value of these columns by themselves, separated by commas
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    by: Vec<String>,

    /// File for the profile as one HTML page, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print the profile as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// Runs `dfq profile`.
pub(crate) async fn run(args: ProfileArgs) -> End {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            say("Interrupted");
            End::Interrupted
        }
        result = profile(&args) => match result {
            Ok(()) => End::Success,
            Err(error) => error.into(),
        },
    }
}

/// A profile with what it is of.
struct Profile {
    /// The files as they were named.
    source: String,
    /// The columns that the rows are grouped by.
    by: Vec<String>,
    /// The profiles of groups; of one, if rows are not grouped.
    groups: Vec<GroupProfile>,
}

impl Profile {
    /// What the rows of a group have in common, such as `city = Bonn`; nothing, if rows are not grouped.
    fn heading(&self, group: &GroupProfile) -> Result<String> {
        let pairs = self.by.iter().zip(&group.group);
        let pairs = pairs.map(|(name, found)| Ok(format!("{name} = {}", figures::value(found)?)));
        Ok(pairs.collect::<Result<Vec<_>>>()?.join(", "))
    }
}

async fn profile(args: &ProfileArgs) -> Result<()> {
    let profile = Profile {
        source: args.files.join(", "),
        by: args.by.clone(),
        groups: read(args).await?,
    };
    if let Some(file) = &args.html {
        write_file(file, html::page(&profile)?.as_bytes())?;
    }
    let text = if args.json {
        json::text(&profile)?
    } else {
        terminal::text(&profile)?
    };
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader went away.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written
            .map_err(|error| DataFusionError::IoError(error).context("cannot write to standard output")),
    }
}

/// Reads the files, and shows how far that is.
async fn read(args: &ProfileArgs) -> Result<Vec<GroupProfile>> {
    let ctx = args.session.build()?;
    let progress = Progress::on();
    progress.observe(&ctx);
    let _bar = progress.start();
    let table = union(&ctx, &args.files).await?;
    let by = args.by.iter().map(|name| column(&table, name));
    let by = by.collect::<Result<Vec<_>>>()?;
    if by.is_empty() {
        let profile = profile_rows(chosen(table, &args.columns)?).await?;
        return Ok(vec![GroupProfile {
            group: Vec::new(),
            profile,
        }]);
    }
    let others = table.schema().fields().iter().map(|field| field.name());
    let others = others.filter(|name| !args.by.contains(name)).cloned();
    let columns = if args.columns.is_empty() {
        others.collect()
    } else {
        args.columns.clone()
    };
    let with_groups: Vec<_> = columns
        .iter()
        .chain(args.by.iter().filter(|name| !columns.contains(name)))
        .cloned()
        .collect();
    let mut groups = profile_by(chosen(table, &with_groups)?, by).await?;
    for group in &mut groups {
        group.profile.columns.truncate(columns.len());
    }
    Ok(groups)
}

/// The rows of all files, whose columns are told apart by name.
async fn union(ctx: &SessionContext, files: &[String]) -> Result<DataFrame> {
    let mut all: Option<DataFrame> = None;
    for file in files {
        // A path is one name, whatever its dots.
        let table = ctx.table(file_table(file)).await?;
        all = Some(match all {
            None => table,
            Some(before) => before.union_by_name(table)?,
        });
    }
    all.ok_or_else(|| plan_datafusion_err!("no file to profile"))
}

/// The columns of these names, in this order; all of them if there are none.
fn chosen(table: DataFrame, names: &[String]) -> Result<DataFrame> {
    if names.is_empty() {
        return Ok(table);
    }
    let columns = names
        .iter()
        .map(|name| column(&table, name))
        .collect::<Result<Vec<_>>>()?;
    table.select(columns)
}

/// The column of this name.
fn column(table: &DataFrame, name: &str) -> Result<Expr> {
    let fields = table.schema().fields();
    if fields.iter().any(|field| field.name() == name) {
        return Ok(ident(name));
    }
    let there: Vec<_> = fields.iter().map(|field| field.name().as_str()).collect();
    plan_err!("no column '{name}'; there are: {}", there.join(", "))
}

/// Writes a file whole: it appears under its name when it is complete.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OutputFile::create(path.to_owned())?;
    match file.write(bytes) {
        Ok(()) => file.finish(),
        Err(error) => {
            file.remove();
            Err(error)
        }
    }
}
