//! Registers this crate in a session: its functions, options, rules and query planner.

use std::any::{Any, TypeId};
use std::sync::{Arc, LazyLock, Once};

use datafusion::catalog::TableFunction;
use datafusion::common::Result;
use datafusion::common::plan_err;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::optimizer::OptimizerRule;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::SessionContext;

#[cfg(feature = "ballista")]
use super::client::ClientPlanner;
use super::fresh_names::{FRESH_NAMES, FreshNamesRule};
use super::nearest_table::{NEAREST, NearestTable};
use super::table_names::TableNamesRule;
use super::{
    BuildSideRule, CheckQuantiles, FloatStatisticsRule, GiveWayRule, MovingQuantilesRule, NearestJoinRule,
    QuantilesPlanner, SortLimitRule,
};
use crate::config::QuantilesOptions;
use crate::functions::gk::{gk_aggregates, gk_scalars};
use crate::functions::ranks::rank_aggregates;
use crate::functions::shape::shape_aggregates;
use crate::functions::topk::topk_aggregates;
use crate::functions::{
    EXACT_QUANTILES, ExactQuantiles, PERCENTILE, QuantilesExprPlanner, all_aggregates, iqr_aggregate,
    median_aggregates, unaliased, vector_distances, widened, within_group, without_nan,
};

type SharedRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Puts this crate into an existing session: functions, `quantiles.*` options, query planner.
///
/// From then on `quantile_cont` is this crate's function; before, it is an alias of DataFusion's `percentile_cont`.
///
/// Tables, options that are set and the session's id stay; a second call does nothing. Prepared statements are lost,
/// because the session's state is rebuilt to change its query planner: call this before `PREPARE`. A query planner
/// that is not DataFusion's own stays too, with a warning in the log; functions then run as ordinary aggregates. To
/// have both, build the state with [`QuantilesPlanner::wrap`] or [`QuantilesPlanner::with_extension_planners`].
///
/// # Errors
/// DataFusion's, if it refuses to register a function.
pub fn register_all(ctx: &SessionContext) -> Result<()> {
    let shared = ctx.state_ref();
    let mut state = shared.write();
    if !is_registered(&state) {
        let creates_default = state.config_options().catalog.create_default_catalog_and_schema;
        let builder = SessionStateBuilder::new_from_existing(state.clone());
        let builder = builder.with_session_id(state.session_id().to_owned());
        *state = builder.with_quantiles().build();
        // The builder turns this option off where the catalog exists already.
        let catalog = &mut state.config_mut().options_mut().catalog;
        catalog.create_default_catalog_and_schema = creates_default;
    }
    Ok(())
}

/// Whether a session has all that [`SessionStateBuilderExt::with_quantiles`] gives it.
fn is_registered(state: &SessionState) -> bool {
    let origin = origin(state.query_planner().as_ref());
    let function = state.aggregate_functions().get(EXACT_QUANTILES);
    QuantilesOptions::are_in(state.config_options())
        && function.is_some_and(|function| ExactQuantiles::of(function).is_some())
        && !matches!(origin, Origin::DataFusion | Origin::Remote { wrapped: false })
        && state.optimizers().iter().any(|rule| rule.name() == FRESH_NAMES)
        && lacking_rules(&origin, state.physical_optimizers()).is_empty()
}

/// The physical optimizer rules that a session with this planner has and that are not among `rules`.
fn lacking_rules(origin: &Origin, rules: &[SharedRule]) -> Vec<SharedRule> {
    let floats: SharedRule = Arc::new(FloatStatisticsRule);
    let joins: [SharedRule; 2] = [Arc::new(BuildSideRule), Arc::new(GiveWayRule)];
    let mut ours = vec![floats];
    match origin {
        Origin::DataFusion | Origin::Ours | Origin::Wrapping => {
            ours.push(Arc::new(MovingQuantilesRule));
            ours.push(Arc::new(NearestJoinRule));
            ours.push(Arc::new(SortLimitRule));
            ours.extend(joins);
        }
        Origin::Staged => ours.extend(joins),
        Origin::Foreign => {}
        Origin::Remote { .. } => ours.clear(),
    }
    let is_lacking = |ours: &SharedRule| !rules.iter().any(|rule| rule.name() == ours.name());
    ours.into_iter().filter(is_lacking).collect()
}

/// The builder with the optimizer rules that it lacks.
fn with_rules(mut builder: SessionStateBuilder, origin: &Origin) -> SessionStateBuilder {
    let names: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(FreshNamesRule);
    let logical = &mut builder.optimizer().get_or_insert_default().rules;
    if !logical.iter().any(|rule| rule.name() == FRESH_NAMES) {
        logical.insert(0, names);
    }
    let built_in = builder.physical_optimizers().get_or_insert_default();
    let mut rules = built_in.rules.clone();
    rules.extend(builder.physical_optimizer_rules().iter().flatten().cloned());
    for rule in lacking_rules(origin, &rules) {
        if rule.name() == FloatStatisticsRule.name() {
            // The rule runs twice: first, before rules that answer from statistics, and last, when predicates have reached the scans.
            let built_in = &mut builder.physical_optimizers().get_or_insert_default().rules;
            built_in.insert(0, Arc::clone(&rule));
        }
        builder = builder.with_physical_optimizer_rule(rule);
    }
    builder
}

/// The kind of a session's query planner.
enum Origin {
    /// This crate's planner.
    Ours,
    /// This crate's planner around another one.
    Wrapping,
    /// This crate's planner for plans that run on many machines.
    Staged,
    /// DataFusion's own planner.
    DataFusion,
    /// A planner that sends plans to machines which plan them, with this crate if they have it. `wrapped`: it is a
    /// [`ClientPlanner`] already, whose answers have the types that were planned.
    Remote { wrapped: bool },
    /// Any other planner.
    Foreign,
}

/// The kind of `planner`.
fn origin(planner: &(dyn QueryPlanner + Send + Sync)) -> Origin {
    // The type of DataFusion's planner is private: a state that is built without a planner has one.
    static DEFAULT: LazyLock<TypeId> = LazyLock::new(|| {
        let state = SessionStateBuilder::new().build();
        let planner: &dyn Any = state.query_planner().as_ref();
        planner.type_id()
    });
    let planner: &dyn Any = planner;
    if let Some(ours) = planner.downcast_ref::<QuantilesPlanner>() {
        return match (ours.is_staged(), ours.wraps_another()) {
            (true, _) => Origin::Staged,
            (false, true) => Origin::Wrapping,
            (false, false) => Origin::Ours,
        };
    }
    #[cfg(feature = "ballista")]
    if let Some(wrapped) = ClientPlanner::sends(planner) {
        return Origin::Remote { wrapped };
    }
    if planner.type_id() == *DEFAULT {
        Origin::DataFusion
    } else {
        Origin::Foreign
    }
}

/// Checks that the session's planner uses tables that are pinned in the memory of this process's devices.
///
/// # Errors
/// A planning error that says why the planner does not, and what to do instead.
#[cfg(feature = "cuda")]
pub(crate) fn check_runs_here(state: &SessionState) -> Result<()> {
    match origin(state.query_planner().as_ref()) {
        Origin::Ours => Ok(()),
        Origin::Remote { .. } | Origin::Staged => plan_err!(
            "queries of this session run on a cluster, whose executors have no pinned tables: pin tables in a session that \
             runs its queries itself"
        ),
        Origin::DataFusion => {
            plan_err!("the session uses no devices: call datafusion_quantiles::register_all first")
        }
        Origin::Wrapping | Origin::Foreign => plan_err!(
            "the session has a query planner of its own, which uses no pinned tables: build it with \
             QuantilesPlanner::with_extension_planners"
        ),
    }
}

/// Checks that the session runs its queries itself, as `what` needs.
///
/// # Errors
/// A planning error for a session whose queries run on a cluster.
pub(crate) fn check_no_cluster(state: &SessionState, what: &str) -> Result<()> {
    match origin(state.query_planner().as_ref()) {
        Origin::Remote { .. } => plan_err!(
            "queries of this session run on a cluster, which cannot run {what}: use a session that runs its queries itself"
        ),
        _ => Ok(()),
    }
}

/// Logs, once in a process, that a session's own query planner stays.
fn warn_foreign() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::warn!(
            "the session has a query planner of its own, which stays: {EXACT_QUANTILES} runs as an ordinary \
             aggregate, which is slower. QuantilesPlanner::wrap combines the two."
        );
    });
}

/// Adds this crate to a session that is being built.
pub trait SessionStateBuilderExt {
    /// Adds what [`register_all`] adds, before the session exists. Call it after `with_default_features`, and after
    /// `with_query_planner` if you call that. A query planner that was set stays.
    fn with_quantiles(self) -> Self;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_quantiles(mut self) -> Self {
        let options = self.config().get_or_insert_default().options_mut();
        if !QuantilesOptions::are_in(options) {
            options.extensions.insert(QuantilesOptions::default());
        }
        let functions = self.aggregate_functions().get_or_insert_default();
        if !functions
            .iter()
            .any(|function| ExactQuantiles::of(function).is_some())
        {
            functions.iter_mut().for_each(|function| {
                if let Some(unaliased) = unaliased(function) {
                    *function = unaliased;
                }
            });
            let ours = all_aggregates()
                .iter()
                .chain(gk_aggregates())
                .chain(topk_aggregates())
                .chain(rank_aggregates())
                .chain(shape_aggregates());
            // Another crate's function of a name that is Spark's stays.
            let is_taken = functions.iter().any(|function| {
                function.name() == PERCENTILE || function.aliases().iter().any(|alias| alias == PERCENTILE)
            });
            functions.extend(
                ours.filter(|function| !is_taken || function.name() != PERCENTILE)
                    .cloned(),
            );
            functions.push(Arc::clone(iqr_aggregate()));
            functions.extend(median_aggregates().iter().cloned());
            let scalars = self.scalar_functions().get_or_insert_default();
            scalars.extend(gk_scalars().iter().chain(vector_distances()).cloned());
            scalars.extend([within_group(), without_nan(), widened()].map(Arc::clone));
            let tables = self.table_functions().get_or_insert_default();
            // Another crate's table function of this name stays.
            let nearest = NearestTable {
                check: check_no_cluster,
            };
            let function = || Arc::new(TableFunction::new(NEAREST.to_owned(), Arc::new(nearest)));
            tables.entry(NEAREST.to_owned()).or_insert_with(function);
            let planners = self.expr_planners().get_or_insert_default();
            planners.push(Arc::new(QuantilesExprPlanner));
            self = self
                .with_analyzer_rule(Arc::new(CheckQuantiles))
                .with_analyzer_rule(Arc::new(TableNamesRule));
        }
        let planner = self.query_planner().clone();
        let origin = planner
            .as_ref()
            .map_or(Origin::DataFusion, |planner| origin(planner.as_ref()));
        match origin {
            Origin::DataFusion => self = self.with_query_planner(Arc::new(QuantilesPlanner::new())),
            Origin::Foreign => warn_foreign(),
            #[cfg(feature = "ballista")]
            Origin::Remote { wrapped: false } => {
                if let Some(planner) = planner {
                    self = self.with_query_planner(Arc::new(ClientPlanner::new(planner)));
                }
            }
            Origin::Ours | Origin::Wrapping | Origin::Staged | Origin::Remote { .. } => {}
        }
        with_rules(self, &origin)
    }
}
