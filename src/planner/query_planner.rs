//! The query planner of this crate: it runs the rewrites of [`planner`](super), in order.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::approx::answer_exactly;
use super::builtins::replace_builtins;
use super::check::check_calls;
use super::distances::read_in_place;
use super::first_rows::first_rows;
use super::foreign::{SharedQueryPlanner, plan_with_inner};
use super::grouped_topk::{bind_rows, rewrite_topk};
use super::memory::with_memory_rules;
use super::ranks::bind_constants;
use super::rewrite::{host_groups, rewrite};
use super::sample_then_read::sample_then_read;
use super::staged::into_stages;
use super::windows::bind_quantiles;
use super::{BuildSideRule, FloatStatisticsRule, GiveWayRule, QuantilesExtensionPlanner};
use crate::config::QuantilesOptions;
use crate::progress::PlanObserver;

/// An extension planner that is shared.
type SharedExtensionPlanner = Arc<dyn ExtensionPlanner + Send + Sync>;

/// The query planner of this crate. It plans quantiles and best rows as operators of [`exec`](crate::exec), and everything
/// else as before.
pub struct QuantilesPlanner {
    rest: Arc<RestPlanner>,
    /// Whether plans are to be cut into stages.
    staged: bool,
}

/// The planner of a rewritten plan.
#[derive(Clone)]
enum RestPlanner {
    /// DataFusion's planner, with these extension planners for nodes that it does not know.
    Default(Vec<SharedExtensionPlanner>),
    /// Another query planner, of unknown kind.
    Inner(SharedQueryPlanner),
}

impl fmt::Debug for RestPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("QuantilesPlanner");
        match self {
            RestPlanner::Default(planners) => shown.field("extension_planners", &planners.len()),
            RestPlanner::Inner(inner) => shown.field("inner", inner),
        };
        shown.finish()
    }
}

#[async_trait]
impl QueryPlanner for RestPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self {
            RestPlanner::Inner(inner) => {
                let fallback: SharedQueryPlanner = Arc::new(self.clone());
                plan_with_inner(plan.clone(), &fallback, inner, session).await
            }
            RestPlanner::Default(others) => {
                let mut planners: Vec<SharedExtensionPlanner> = vec![Arc::new(QuantilesExtensionPlanner)];
                planners.extend(others.iter().cloned());
                DefaultPhysicalPlanner::with_extension_planners(planners)
                    .create_physical_plan(plan, session)
                    .await
            }
        }
    }
}

impl QuantilesPlanner {
    /// A planner to take the place of DataFusion's own.
    pub fn new() -> Self {
        Self::with_extension_planners(Vec::new())
    }

    /// A planner to take the place of DataFusion's own with these extension planners.
    pub fn with_extension_planners(planners: Vec<SharedExtensionPlanner>) -> Self {
        Self {
            rest: Arc::new(RestPlanner::Default(planners)),
            staged: false,
        }
    }

    /// Whether another query planner plans the rest.
    pub(super) fn wraps_another(&self) -> bool {
        matches!(*self.rest, RestPlanner::Inner(_))
    }

    /// A planner for an engine that cuts plans into stages and runs each on many machines. Quantiles become the stages of
    /// [`crate::exec::staged`] where those can answer them, and otherwise aggregates that such an engine can send to its machines.
    pub fn staged() -> Self {
        Self {
            staged: true,
            ..Self::new()
        }
    }

    /// Whether plans are for many machines.
    pub(super) fn is_staged(&self) -> bool {
        self.staged
    }

    /// A planner around any other: `inner` still plans every node but those of quantiles, and gets plans without quantiles unchanged.
    ///
    /// The input of a quantile call is then planned by `inner` on its own, and stands in the rest of the plan as a
    /// table; so a rewrite inside `inner` does not see through the call. For a planner that only adds extension nodes
    /// to DataFusion's, prefer [`Self::with_extension_planners`]. A planner that ships the whole plan to another
    /// process cannot be wrapped: the table does not travel.
    pub fn wrap(inner: SharedQueryPlanner) -> Self {
        Self {
            rest: Arc::new(RestPlanner::Inner(inner)),
            staged: false,
        }
    }

    /// The plan, with nodes for all parts that the devices of the session's pinned tables can compute. `timed`: whether to measure the time
    /// of each kernel.
    async fn on_devices(&self, plan: LogicalPlan, timed: bool, session: &dyn Session) -> Result<LogicalPlan> {
        #[cfg(feature = "cuda")]
        let plan = {
            let fallback: SharedQueryPlanner = Arc::clone(&self.rest) as _;
            super::pinned::mark_pinned(plan, &fallback, timed, session).await?
        };
        #[cfg(not(feature = "cuda"))]
        let _ = (timed, session);
        Ok(plan)
    }

    /// The physical plan for many machines, of a plan whose quantiles are in stages.
    async fn staged_plan(&self, plan: LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let options = session.config_options();
        let plan = if QuantilesOptions::of(options).topk {
            rewrite_topk(plan, true)?
                .transform_data(|plan| first_rows(plan, session))?
                .data
        } else {
            plan
        };
        let plan = self.rest.create_physical_plan(&plan, session).await?;
        // An engine that plans in stages may run optimizer rules of its own instead of the session's.
        let plan = FloatStatisticsRule.optimize(plan, options)?;
        #[cfg(feature = "ballista")]
        let plan = super::boundaries::with_boundaries(plan, options)?;
        let plan = BuildSideRule.optimize(plan, options)?;
        GiveWayRule.optimize(plan, options)
    }
}

impl Default for QuantilesPlanner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QuantilesPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rest.fmt(f)
    }
}

#[async_trait]
impl QueryPlanner for QuantilesPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.planned(logical_plan, session).await?;
        PlanObserver::tell(session.config(), &plan);
        Ok(plan)
    }
}

impl QuantilesPlanner {
    /// The physical plan, of which no observer has been told.
    async fn planned(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        check_calls(logical_plan)?;
        #[cfg(feature = "ballista")]
        if self.staged {
            super::boundaries::check_windows(logical_plan, session.config_options())?;
        }
        let options = QuantilesOptions::of(session.config_options());
        let replaced = if options.replace_builtins {
            replace_builtins(logical_plan.clone())?
        } else {
            Transformed::no(logical_plan.clone())
        };
        // A planner of another kind may send its plans to machines without these functions.
        let replaced = if options.topk && !self.wraps_another() {
            replaced.transform_data(read_in_place)?
        } else {
            replaced
        };
        let mut rewritten = replaced
            .transform_data(answer_exactly)?
            .transform_data(bind_constants)?;
        if !self.staged && !self.wraps_another() {
            let (plan, before) = (rewritten.data, rewritten.transformed);
            rewritten = sample_then_read(plan, session).await?;
            rewritten.transformed |= before;
        }
        rewritten = rewritten
            .transform_data(bind_quantiles)?
            .transform_data(rewrite)?
            .transform_data(bind_rows)?;
        if self.staged {
            rewritten = rewritten.transform_data(|plan| into_stages(plan, options.strategy))?;
        }
        let plan = match self.rest.as_ref() {
            RestPlanner::Inner(inner) if !rewritten.transformed => {
                return inner.create_physical_plan(logical_plan, session).await;
            }
            RestPlanner::Inner(_) => rewritten.data,
            RestPlanner::Default(_) if self.staged => {
                return self.staged_plan(rewritten.data, session).await;
            }
            RestPlanner::Default(_) => {
                let plan = rewritten.data;
                // Sorts with a limit are left to a physical optimizer rule, which keeps the dynamic filter that scans read.
                let plan = if options.topk {
                    rewrite_topk(plan, false)?.data
                } else {
                    plan
                };
                let timed = matches!(logical_plan, LogicalPlan::Analyze(_));
                let plan = self.on_devices(plan, timed, session).await?;
                let plan = host_groups(plan)?.data;
                if let Some(limited) = with_memory_rules(&plan, session)? {
                    return self.rest.create_physical_plan(&plan, &limited).await;
                }
                plan
            }
        };
        self.rest.create_physical_plan(&plan, session).await
    }
}
