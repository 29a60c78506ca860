//! The query planner that puts [`QuantilesExec`](crate::exec::QuantilesExec) into plans.

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
use super::first_rows::first_rows;
use super::foreign::{SharedQueryPlanner, plan_with_inner};
use super::grouped_topk::{bind_rows, rewrite_topk};
use super::memory::with_memory_rules;
use super::rewrite::rewrite;
use super::staged::into_stages;
use super::windows::bind_quantiles;
use super::{FloatStatisticsRule, QuantilesExtensionPlanner};
use crate::config::QuantilesOptions;

/// A shareable extension planner.
type SharedExtensionPlanner = Arc<dyn ExtensionPlanner + Send + Sync>;

/// Plans ungrouped exact quantiles as [`QuantilesExec`](crate::exec::QuantilesExec), and everything else as before.
pub struct QuantilesPlanner {
    rest: Arc<Rest>,
    /// Whether plans are to be cut into stages.
    staged: bool,
}

/// Who plans what was rewritten.
#[derive(Clone)]
enum Rest {
    /// DataFusion, which asks these about nodes that it does not know.
    Default(Vec<SharedExtensionPlanner>),
    /// Another query planner, of which nothing is known.
    Inner(SharedQueryPlanner),
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("QuantilesPlanner");
        match self {
            Rest::Default(planners) => shown.field("extension_planners", &planners.len()),
            Rest::Inner(inner) => shown.field("inner", inner),
        };
        shown.finish()
    }
}

#[async_trait]
impl QueryPlanner for Rest {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self {
            Rest::Inner(inner) => {
                let fallback: SharedQueryPlanner = Arc::new(self.clone());
                plan_with_inner(plan.clone(), &fallback, inner, session).await
            }
            Rest::Default(others) => {
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
    /// In place of DataFusion's own planner.
    pub fn new() -> Self {
        Self::with_extension_planners(Vec::new())
    }

    /// In place of a planner that is DataFusion's own with these extension planners.
    pub fn with_extension_planners(planners: Vec<SharedExtensionPlanner>) -> Self {
        Self {
            rest: Arc::new(Rest::Default(planners)),
            staged: false,
        }
    }

    /// Whether another query planner plans the rest.
    pub(super) fn wraps_another(&self) -> bool {
        matches!(*self.rest, Rest::Inner(_))
    }

    /// For an engine that cuts plans into stages and runs each on many machines: ungrouped quantiles become the stages of
    /// [`crate::exec::staged`], everything else aggregates that such an engine can send.
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

    /// Around any other planner: it still plans every node but the quantiles, and gets plans without them untouched.
    ///
    /// The input of a quantile call is then planned by `inner` on its own, and stands in the rest of the plan as a
    /// table; so a rewrite inside `inner` does not see through the call. For a planner that only adds extension nodes
    /// to DataFusion's, prefer [`Self::with_extension_planners`]. A planner that ships the whole plan to another
    /// process cannot be wrapped: the table does not travel.
    pub fn wrap(inner: SharedQueryPlanner) -> Self {
        Self {
            rest: Arc::new(Rest::Inner(inner)),
            staged: false,
        }
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
        check_calls(logical_plan)?;
        #[cfg(feature = "ballista")]
        if self.staged {
            super::boundaries::check_windows(logical_plan, session.config_options())?;
        }
        let replaced = match QuantilesOptions::of(session.config_options()).replace_builtins {
            true => replace_builtins(logical_plan.clone())?,
            false => Transformed::no(logical_plan.clone()),
        };
        let rewritten = replaced
            .transform_data(answer_exactly)?
            .transform_data(rewrite)?
            .transform_data(bind_quantiles)?
            .transform_data(bind_rows)?;
        let rewritten = match self.staged {
            true => {
                let strategy = QuantilesOptions::of(session.config_options()).strategy;
                rewritten.transform_data(|plan| into_stages(plan, strategy))?
            }
            false => rewritten,
        };
        let plan = match self.rest.as_ref() {
            Rest::Inner(inner) if !rewritten.transformed => {
                inner.create_physical_plan(logical_plan, session).await
            }
            Rest::Inner(_) => self.rest.create_physical_plan(&rewritten.data, session).await,
            Rest::Default(_) => {
                let plan = rewritten.data;
                #[cfg(feature = "cuda")]
                let plan = match self.staged {
                    true => plan,
                    false => {
                        let fallback: SharedQueryPlanner = Arc::clone(&self.rest) as _;
                        let timed = matches!(logical_plan, LogicalPlan::Analyze(_));
                        super::pinned::mark_pinned(plan, &fallback, timed, session).await?
                    }
                };
                let topk = QuantilesOptions::of(session.config_options()).topk;
                let plan = match (topk, self.staged) {
                    (false, _) => plan,
                    // Sorts with a limit are a rule's: they keep the filter that scans are told of.
                    (true, false) => rewrite_topk(plan, false)?.data,
                    (true, true) => {
                        rewrite_topk(plan, true)?
                            .transform_data(|plan| first_rows(plan, session))?
                            .data
                    }
                };
                let limited = match self.staged {
                    true => None,
                    false => with_memory_rules(&plan, session)?,
                };
                let session = limited.as_ref().map_or(session, |state| state as &dyn Session);
                self.rest.create_physical_plan(&plan, session).await
            }
        }?;
        // An engine that plans in stages may have optimizer rules of its own in place of the session's.
        let plan = match self.staged {
            true => FloatStatisticsRule.optimize(plan, session.config_options())?,
            false => plan,
        };
        #[cfg(feature = "ballista")]
        let plan = match self.staged {
            true => super::boundaries::with_boundaries(plan, session.config_options())?,
            false => plan,
        };
        Ok(plan)
    }
}
