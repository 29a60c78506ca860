//! Plans: what is rewritten, how it shows, and how the extension gets along with other planners.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use datafusion::prelude::*;
use datafusion_quantiles::config::QuantilesOptions;
use datafusion_quantiles::expr_fn::exact_quantiles;
use datafusion_quantiles::{Method, QuantilesPlanner, SessionStateBuilderExt, register_all};
use insta::assert_snapshot;

use quantiles_testing::*;

async fn series(ctx: &SessionContext) {
    let sql = "CREATE TABLE t AS SELECT value AS x, value % 3 AS g, CAST(value AS DOUBLE) AS f FROM generate_series(1, 100)";
    query(ctx, sql).await.unwrap();
}

/// The operators of a plan that matter here, in order.
async fn operators(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let plan = physical_plan(ctx, sql).await;
    let lines = plan.lines().map(str::trim_start).filter(|line| {
        ["QuantilesExec", "AggregateExec", "WindowAggExec"]
            .iter()
            .any(|name| line.starts_with(name))
    });
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn an_ungrouped_call_runs_as_the_operator() {
    let ctx = session(4);
    series(&ctx).await;
    assert_snapshot!(physical_plan(&ctx, "SELECT exact_quantiles(x, 0.5) FROM t").await, @r"
    QuantilesExec: strategy=auto, columns=[x@0], calls=[exact_quantiles(x@0, 0.5, disc)]
      DataSourceExec: partitions=4, partition_sizes=[1, 0, 0, 0]
    ");
    query(&ctx, "SET quantiles.strategy = 'dibms'").await.unwrap();
    let sql = "SELECT exact_quantiles(x, [0.01, 0.5], 'linear'), exact_quantiles(0.9) WITHIN GROUP (ORDER BY x DESC), \
               exact_quantiles(f * 2, 0.1) FILTER (WHERE g = 1), exact_quantiles(f, 0.2) FILTER (WHERE g = 2), \
               sum(x) FILTER (WHERE g = 0), count(*) FROM t";
    assert_snapshot!(operators(&ctx, sql).await.join("\n"), @"QuantilesExec: strategy=dibms, columns=[x@0, f@2 * 2 FILTER (g@1 = 1), f@2 FILTER (g@1 = 2)], calls=[exact_quantiles(x@0, [0.01, 0.5], linear), exact_quantiles(x@0, 0.9, disc desc), exact_quantiles(f@2 * 2, 0.1, disc) FILTER (g@1 = 1), exact_quantiles(f@2, 0.2, disc) FILTER (g@1 = 2)], plain=[sum(t.x) FILTER (WHERE t.g = Int64(0)), count(1)]");
}

#[tokio::test]
async fn explain_shows_the_node_and_analyze_the_metrics() {
    let ctx = session(2);
    series(&ctx).await;
    let shown = rows(
        &ctx,
        "EXPLAIN SELECT exact_quantiles(x, [0.5]) FROM t WHERE x > 5",
    )
    .await
    .join("\n");
    assert_snapshot!(shown, @r"
    logical_plan | Quantiles: aggr=[[exact_quantiles(t.x, List([0.5])) AS exact_quantiles(t.x,make_array(Float64(0.5)))]]
      Filter: t.x > Int64(5)
        TableScan: t projection=[x]
    physical_plan | QuantilesExec: strategy=auto, columns=[x@0], calls=[exact_quantiles(x@0, [0.5], disc)]
      FilterExec: x@0 > 5
        DataSourceExec: partitions=2, partition_sizes=[1, 0]
    ");
    let tree = rows(
        &ctx,
        "EXPLAIN FORMAT TREE SELECT exact_quantiles(x, 0.5), count(*) FROM t",
    )
    .await
    .join("\n");
    assert!(
        tree.contains("QuantilesExec") && tree.contains("strategy: auto"),
        "{tree}"
    );
    let analyzed = rows(
        &ctx,
        "EXPLAIN ANALYZE SELECT exact_quantiles(x, 0.5) FROM t WHERE x > 5",
    )
    .await
    .join("\n");
    let line = analyzed
        .lines()
        .find(|line| line.contains("QuantilesExec"))
        .unwrap();
    for metric in [
        "output_rows=1",
        "input_rows=95",
        "values_kept=95",
        "bytes_held=",
        "rounds=",
        "scan_time=",
        "select_time=",
        "extract_time=",
        "strategy_",
        "candidates_after_round_1=",
    ] {
        assert!(line.contains(metric), "{metric} is not in {line}");
    }
}

#[tokio::test]
async fn what_is_rewritten_and_what_is_not() {
    let ctx = session(2);
    series(&ctx).await;
    for (sql, quantiles, aggregates) in [
        ("SELECT exact_quantiles(x, 0.5), count(*) FROM t", 1, 0),
        (
            "SELECT exact_quantiles(x, 0.5), exact_quantiles(DISTINCT x, 0.5) FROM t",
            1,
            0,
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t WHERE x > (SELECT exact_quantiles(x, 0.5) FROM t)",
            2,
            0,
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t WHERE x IN (SELECT exact_quantiles(x, 0.5) FROM t)",
            2,
            0,
        ),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t UNION ALL SELECT exact_quantiles(x, 0.1) FROM t",
            2,
            0,
        ),
        (
            "SELECT exact_quantiles(m, 0.5) FROM (SELECT g, max(x) AS m FROM t GROUP BY g)",
            1,
            2,
        ),
        ("SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY g", 0, 0),
        (
            "SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY ROLLUP (g)",
            0,
            2,
        ),
        ("SELECT exact_quantiles(DISTINCT x, 0.5) FROM t", 1, 0),
        ("SELECT exact_quantiles(DISTINCT x::TEXT, 0.5) FROM t", 1, 0),
        ("SELECT g, exact_quantiles(x::TEXT, 0.5) FROM t GROUP BY g", 0, 0),
        (
            "SELECT exact_quantiles(x, 0.5), array_agg(x ORDER BY f) FROM t",
            1,
            0,
        ),
        (
            "SELECT exact_quantiles(x, 0.5), string_agg(x::TEXT, ',' ORDER BY f) FROM t",
            0,
            2,
        ),
        ("SELECT sum(x) FROM t", 0, 2),
    ] {
        let found = operators(&ctx, sql).await;
        let count = |name: &str| found.iter().filter(|line| line.starts_with(name)).count();
        assert_eq!(
            (count("QuantilesExec"), count("AggregateExec")),
            (quantiles, aggregates),
            "{sql}: {found:?}"
        );
        rows(&ctx, sql).await;
    }
}

#[tokio::test]
async fn one_parquet_file_is_read_by_several_partitions() {
    let ctx = session(4);
    query(&ctx, "SET datafusion.optimizer.repartition_file_min_size = 1")
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let path = path.to_str().unwrap();
    let write =
        format!("COPY (SELECT value AS x, value % 7 AS g FROM generate_series(1, 20000)) TO '{path}'");
    query(&ctx, &write).await.unwrap();
    ctx.register_parquet("p", path, ParquetReadOptions::default())
        .await
        .unwrap();
    let sql = "SELECT exact_quantiles(x, 0.5) FROM p WHERE g = 3";
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains("4 groups"), "{plan}");
    assert!(
        !plan.contains("CoalescePartitionsExec") && !plan.contains("RoundRobin"),
        "{plan}"
    );
    assert!(plan.contains("predicate=g@1 = 3"), "{plan}");
    assert_eq!(row(&ctx, sql).await, "9999");
    let nested = format!("SELECT exact_quantiles(x, 0.5) FROM p WHERE x > ({sql})");
    assert_eq!(row(&ctx, &nested).await, "15000");
}

#[tokio::test]
async fn registering_keeps_the_session_and_twice_is_once() {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_information_schema(true));
    series(&ctx).await;
    let id = ctx.session_id();
    query(&ctx, "SET datafusion.execution.batch_size = 77")
        .await
        .unwrap();
    register_all(&ctx).unwrap();
    query(&ctx, "SET quantiles.strategy = 'dibms'").await.unwrap();
    query(&ctx, "PREPARE p AS SELECT exact_quantiles(x, $1) FROM t")
        .await
        .unwrap();
    let rules = ctx.state().analyzer().rules.len();
    register_all(&ctx).unwrap();
    assert_eq!(ctx.session_id(), id);
    assert_eq!(
        row(&ctx, "SHOW datafusion.execution.batch_size").await,
        "datafusion.execution.batch_size | 77"
    );
    assert_eq!(
        row(&ctx, "SHOW quantiles.strategy").await,
        "quantiles.strategy | dibms"
    );
    assert_eq!(row(&ctx, "EXECUTE p(0.5)").await, "50");
    assert_eq!(ctx.state().analyzer().rules.len(), rules);
    assert!(
        ctx.state()
            .config_options()
            .catalog
            .create_default_catalog_and_schema
    );
}

#[tokio::test]
async fn registering_keeps_options_that_are_set_before() {
    let options = QuantilesOptions {
        strategy: "distributed_bms".parse().unwrap(),
        ..QuantilesOptions::default()
    };
    let config = SessionConfig::new()
        .with_information_schema(true)
        .with_option_extension(options.clone());
    let ctx = SessionContext::new_with_config(config.clone());
    register_all(&ctx).unwrap();
    assert_eq!(QuantilesOptions::of(ctx.state().config_options()), options);
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_quantiles()
        .with_quantiles()
        .build();
    assert_eq!(QuantilesOptions::of(state.config_options()), options);
    let ctx = SessionContext::new_with_state(state);
    register_all(&ctx).unwrap();
    series(&ctx).await;
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, 0.5, 'lower') FROM t").await,
        "50"
    );
    let found = operators(&ctx, "SELECT exact_quantiles(x, 0.5) FROM t").await;
    assert!(
        found[0].starts_with("QuantilesExec: strategy=distributed_bms"),
        "{found:?}"
    );
}

/// A node that does nothing, which only its own planner knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
struct Passing {
    input: LogicalPlan,
}

impl UserDefinedLogicalNodeCore for Passing {
    fn name(&self) -> &str {
        "Passing"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }
    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Passing")
    }
    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self {
            input: inputs.remove(0),
        })
    }
}

fn passing(input: LogicalPlan) -> LogicalPlan {
    LogicalPlan::Extension(Extension {
        node: Arc::new(Passing { input }),
    })
}

#[derive(Debug)]
struct PassingPlanner;

#[async_trait]
impl ExtensionPlanner for PassingPlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        Ok((node.name() == "Passing").then(|| Arc::clone(&inputs[0])))
    }
}

/// Somebody else's query planner, which counts its calls.
#[derive(Debug, Default)]
struct ForeignPlanner {
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl QueryPlanner for ForeignPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let node_of_ours = plan.display_indent().to_string().contains("Quantiles: ");
        assert!(
            !node_of_ours,
            "a foreign planner must not see our node: {}",
            plan.display_indent()
        );
        DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(PassingPlanner)])
            .create_physical_plan(plan, session)
            .await
    }
}

/// A session with this query planner and the extension; a table `t`.
async fn session_with(planner: Arc<dyn QueryPlanner + Send + Sync>) -> SessionContext {
    let state = SessionStateBuilder::new()
        .with_config(SessionConfig::new().with_target_partitions(3))
        .with_default_features()
        .with_query_planner(planner)
        .build();
    let ctx = SessionContext::new_with_state(state);
    register_all(&ctx).unwrap();
    series(&ctx).await;
    ctx
}

/// `exact_quantiles` between two nodes of the foreign planner.
async fn sandwich(ctx: &SessionContext) -> LogicalPlan {
    let below = passing(ctx.table("t").await.unwrap().into_unoptimized_plan());
    let call = exact_quantiles(col("x"), lit(0.5), Method::Disc, false).alias("m");
    let aggregated = LogicalPlanBuilder::from(below)
        .aggregate(Vec::<Expr>::new(), vec![call])
        .unwrap()
        .build()
        .unwrap();
    passing(aggregated)
}

const QUERIES: [(&str, &str); 8] = [
    ("SELECT exact_quantiles(x, 0.5) FROM t", "50"),
    (
        "SELECT exact_quantiles(x, [0.5, 1]), count(*) + 1 FROM t",
        "[50, 100] | 101",
    ),
    (
        "SELECT exact_quantiles(x, 0.5) FROM t WHERE x > (SELECT exact_quantiles(x, 0.5) FROM t)",
        "75",
    ),
    (
        "SELECT a.m + b.m FROM (SELECT exact_quantiles(x, 0.5) AS m FROM t) a CROSS JOIN (SELECT exact_quantiles(x, 0.5) AS m FROM t) b",
        "100",
    ),
    (
        "SELECT count(*) FROM t JOIN (SELECT exact_quantiles(x, 0.5) AS m FROM t) q ON t.x < q.m",
        "49",
    ),
    (
        "SELECT exact_quantiles(m, 0.5) FROM (SELECT g, exact_quantiles(x, 0.5) AS m FROM t GROUP BY g)",
        "50",
    ),
    (
        "SELECT exact_quantiles(x, 0.5) FROM t HAVING exact_quantiles(x, 0.5) > 49",
        "50",
    ),
    (
        "SELECT exact_quantiles(x + (SELECT min(x) FROM t), 0.5) FROM t",
        "51",
    ),
];

#[tokio::test]
async fn wrapping_a_foreign_planner() {
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = ForeignPlanner {
        calls: Arc::clone(&calls),
    };
    let ctx = session_with(Arc::new(QuantilesPlanner::wrap(Arc::new(inner)))).await;
    for (sql, expected) in QUERIES {
        assert_eq!(row(&ctx, sql).await, expected, "{sql}");
    }
    let found = operators(&ctx, QUERIES[2].0).await;
    assert_eq!(
        found
            .iter()
            .filter(|line| line.starts_with("QuantilesExec"))
            .count(),
        2
    );
    let plan = physical_plan(&ctx, "SELECT exact_quantiles(x, 0.5) FROM t").await;
    assert!(
        plan.contains("partitions=3"),
        "the scan is still read in parallel: {plan}"
    );

    let df = ctx.execute_logical_plan(sandwich(&ctx).await).await.unwrap();
    let before = calls.load(Ordering::Relaxed);
    let batches = df.collect().await.unwrap();
    assert_eq!(
        calls.load(Ordering::Relaxed) - before,
        2,
        "once for the input, once for the rest"
    );
    assert_eq!(batches[0].num_rows(), 1);
    assert_eq!(batches[0].schema().field(0).name(), "m");

    let before = calls.load(Ordering::Relaxed);
    assert_eq!(row(&ctx, "SELECT sum(x) FROM t").await, "5050");
    assert_eq!(
        calls.load(Ordering::Relaxed) - before,
        1,
        "a plan without calls goes straight through"
    );
    assert_eq!(
        error(&ctx, "SELECT exact_quantiles(x, 3) FROM t").await,
        "Error during planning: exact_quantiles: quantile 3 is out of range: allowed is a number from 0 to 1"
    );
    let explained = rows(&ctx, "EXPLAIN SELECT exact_quantiles(x, 0.5) FROM t")
        .await
        .join("\n");
    assert!(explained.contains("QuantilesExec"), "{explained}");
}

#[tokio::test]
async fn extension_planners_beside_ours() {
    let planner = QuantilesPlanner::with_extension_planners(vec![Arc::new(PassingPlanner)]);
    let ctx = session_with(Arc::new(planner)).await;
    let df = ctx.execute_logical_plan(sandwich(&ctx).await).await.unwrap();
    let plan = df.clone().create_physical_plan().await.unwrap();
    let plan = datafusion::physical_plan::displayable(plan.as_ref())
        .indent(false)
        .to_string();
    assert!(plan.contains("QuantilesExec"), "{plan}");
    ctx.register_table("s", df.into_view()).unwrap();
    assert_eq!(row(&ctx, "SELECT m FROM s").await, "50");
    for (sql, expected) in QUERIES {
        assert_eq!(row(&ctx, sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn a_foreign_planner_stays_and_functions_still_work() {
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = ForeignPlanner {
        calls: Arc::clone(&calls),
    };
    let ctx = session_with(Arc::new(inner)).await;
    register_all(&ctx).unwrap();
    let before = calls.load(Ordering::Relaxed);
    for (sql, expected) in QUERIES {
        assert_eq!(row(&ctx, sql).await, expected, "{sql}");
    }
    assert!(calls.load(Ordering::Relaxed) > before);
    assert!(!physical_plan(&ctx, QUERIES[0].0).await.contains("QuantilesExec"));
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(0.9, 'linear') WITHIN GROUP (ORDER BY x DESC) FROM t"
        )
        .await,
        "10.9"
    );
    assert_eq!(
        error(
            &ctx,
            "SELECT DISTINCT exact_quantiles(x, 0.5 + 1) OVER () FROM t WHERE false"
        )
        .await,
        "Error during planning: exact_quantiles: quantile 1.5 is out of range: allowed is a number from 0 to 1"
    );
}
