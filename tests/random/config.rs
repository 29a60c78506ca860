//! Settings that answers must not depend on, and sessions that have them.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};
use datafusion_quantiles::{QuantilesPlanner, SessionStateBuilderExt};

use crate::draw::Draw;
use crate::statement::JOINED;
use crate::table::Table;

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) partitions: usize,
    pub(crate) batch_size: usize,
    pub(crate) strategy: &'static str,
    pub(crate) read_again: &'static str,
    /// Bytes of the memory pool.
    pub(crate) memory: Option<usize>,
    pub(crate) replace_builtins: bool,
    pub(crate) topk: bool,
    /// Whether the smaller side of a join comes first.
    pub(crate) reorders: bool,
    /// Planned as a cluster's scheduler does, run in this process.
    pub(crate) staged: bool,
    pub(crate) device: Option<String>,
    /// Whether columns of the table are pinned on that device.
    pub(crate) pinned: bool,
    /// The scheduler that statements run on.
    pub(crate) cluster: Option<String>,
}

/// What the variables of the run ask for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    pub(crate) device: Option<String>,
    pub(crate) cluster: Option<String>,
}

/// DataFusion's planner under another name: the crate's functions run as ordinary aggregates.
#[derive(Debug)]
struct Ordinary;

#[async_trait]
impl QueryPlanner for Ordinary {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn datafusion::catalog::Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        DefaultPhysicalPlanner::default()
            .create_physical_plan(plan, session)
            .await
    }
}

impl Config {
    pub(crate) fn draw(draw: &mut Draw, places: &Places) -> Self {
        let staged = draw.chance(20) && places.cluster.is_none();
        let pinned = draw.chance(60) && places.device.is_some() && !staged;
        // PIN TABLE needs page-locked memory, which is reserved.
        let limits: &[usize] = match pinned {
            true => &[4_000_000, 16_000_000],
            false => &[20_000, 300_000, 4_000_000, 16_000_000],
        };
        Self {
            partitions: draw.pick(&[1, 2, 2, 3, 5]),
            batch_size: draw.pick(&[1, 7, 100, 8192, 8192, 8192]),
            strategy: draw.pick(&[
                "auto",
                "auto",
                "sample_select",
                "distributed_bms",
                "dibms",
                "gk_select",
            ]),
            read_again: draw.pick(&["auto", "never", "always", "always"]),
            memory: draw.chance(20).then(|| draw.pick(limits)),
            replace_builtins: draw.chance(50),
            topk: !draw.chance(10),
            reorders: draw.chance(50),
            staged,
            device: places.device.clone().filter(|_| !staged),
            pinned,
            cluster: places.cluster.clone(),
        }
    }

    /// The plainest settings.
    pub(crate) fn plain() -> Self {
        Self {
            partitions: 1,
            batch_size: 8192,
            strategy: "auto",
            read_again: "auto",
            memory: None,
            replace_builtins: false,
            topk: true,
            reorders: true,
            staged: false,
            device: None,
            pinned: false,
            cluster: None,
        }
    }

    /// The settings in SQL.
    pub(crate) fn sql(&self) -> Vec<String> {
        let mut all = vec![
            format!("SET quantiles.strategy = '{}'", self.strategy),
            format!("SET quantiles.read_again = '{}'", self.read_again),
            format!("SET quantiles.replace_builtins = {}", self.replace_builtins),
            format!("SET quantiles.topk = {}", self.topk),
            format!("SET datafusion.optimizer.join_reordering = {}", self.reorders),
            format!("SET datafusion.execution.target_partitions = {}", self.partitions),
            format!("SET datafusion.execution.batch_size = {}", self.batch_size),
        ];
        all.extend(
            self.device
                .iter()
                .map(|device| format!("SET quantiles.device = '{device}'")),
        );
        all
    }

    /// A session with the table `t` and what it is joined with; `ours` is false for the second opinion.
    pub(crate) async fn session(&self, table: &Table, folder: &Path, ours: bool) -> Result<SessionContext> {
        let ctx = match (&self.cluster, ours) {
            (Some(url), true) => remote(url).await?,
            _ => self.local(ours)?,
        };
        if ours {
            for sql in self.sql() {
                ctx.sql(&sql).await?.collect().await?;
            }
        }
        table.register(&ctx, folder).await?;
        match (&self.cluster, ours) {
            (Some(_), true) => {
                let file = folder.with_extension("joined.csv");
                std::fs::write(&file, joined_csv())?;
                let options = CsvReadOptions::new().schema_infer_max_records(10);
                ctx.register_csv("d", file.to_str().unwrap(), options).await?;
            }
            _ => drop(ctx.register_table("d", Arc::new(joined()?))?),
        }
        if self.pinned && ours {
            pin(&ctx).await?;
        }
        Ok(ctx)
    }

    /// A session in this process.
    fn local(&self, ours: bool) -> Result<SessionContext> {
        // For each batch, DataFusion's merge of sorted ones copies the dictionaries of all: 20 GB of short batches.
        let batch_size = if ours { self.batch_size } else { 8192 };
        let config = SessionConfig::new()
            .with_target_partitions(self.partitions)
            .with_batch_size(batch_size)
            .with_round_robin_repartition(!(ours && self.staged));
        let mut state = SessionStateBuilder::new()
            .with_config(config)
            .with_default_features();
        if let (Some(bytes), true) = (self.memory, ours) {
            let runtime = RuntimeEnvBuilder::new()
                .with_memory_pool(Arc::new(FairSpillPool::new(bytes)))
                .build_arc()?;
            state = state.with_runtime_env(runtime);
        }
        if !ours {
            state = state.with_query_planner(Arc::new(Ordinary));
        } else if self.staged {
            state = state.with_query_planner(Arc::new(QuantilesPlanner::staged()));
        }
        Ok(SessionContext::new_with_state(state.with_quantiles().build()))
    }
}

#[cfg(feature = "ballista")]
async fn remote(url: &str) -> Result<SessionContext> {
    use datafusion_quantiles::ballista::{Identity, connect_with_config, session_config, with_identity};

    let adaptive = std::env::var("QUANTILES_RANDOM_ADAPTIVE").unwrap_or_else(|_| "false".to_string());
    let mut config = session_config().set_str("ballista.planner.adaptive.enabled", &adaptive);
    if let Ok(file) = std::env::var("QUANTILES_RANDOM_TOKEN_FILE") {
        config = with_identity(config, &Identity::from_token(&std::fs::read_to_string(file)?)?);
    }
    connect_with_config(url, config).await
}

#[cfg(not(feature = "ballista"))]
async fn remote(url: &str) -> Result<SessionContext> {
    datafusion::common::plan_err!("no cluster {url}: the tests are built without the feature ballista")
}

/// Pins the columns that can be pinned.
#[cfg(feature = "cuda")]
async fn pin(ctx: &SessionContext) -> Result<()> {
    datafusion_quantiles::pinned::pin_all_columns(ctx, "t")
        .await
        .map(drop)
}

#[cfg(not(feature = "cuda"))]
async fn pin(_: &SessionContext) -> Result<()> {
    datafusion::common::plan_err!("the tests are built without the feature cuda")
}

/// The joined table as a file.
fn joined_csv() -> String {
    let number = |v: &Option<i64>| v.map_or(String::new(), |v| v.to_string());
    let lines = JOINED
        .iter()
        .map(|(h, w)| format!("{},{}\n", number(h), number(w)));
    format!("h,w\n{}", lines.collect::<String>())
}

fn joined() -> Result<MemTable> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("h", DataType::Int64, true),
        Field::new("w", DataType::Int64, true),
    ]));
    let h: ArrayRef = Arc::new(JOINED.iter().map(|(h, _)| *h).collect::<Int64Array>());
    let w: ArrayRef = Arc::new(JOINED.iter().map(|(_, w)| *w).collect::<Int64Array>());
    let rows = RecordBatch::try_new(schema.clone(), vec![h, w])?;
    MemTable::try_new(schema, vec![vec![rows]])
}

/// The joined table as a statement.
pub(crate) fn joined_sql() -> String {
    let number = |v: &Option<i64>| v.map_or("NULL".into(), |v| v.to_string());
    let rows: Vec<_> = JOINED
        .iter()
        .map(|(h, w)| format!("({}, {})", number(h), number(w)))
        .collect();
    format!(
        "CREATE TABLE d AS SELECT * FROM (VALUES {}) AS d(h, w);",
        rows.join(", ")
    )
}
