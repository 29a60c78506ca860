//! Registration in a session.

use std::any::{Any, TypeId};
use std::sync::{Arc, LazyLock, Once};

use datafusion::common::Result;
#[cfg(feature = "cuda")]
use datafusion::common::plan_err;
use datafusion::execution::FunctionRegistry;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::SessionContext;

use super::{CheckQuantiles, FloatStatisticsRule, QuantilesPlanner, TopKByRule};
#[cfg(feature = "ballista")]
use crate::ballista::ClientPlanner;
use crate::config::QuantilesOptions;
use crate::functions::gk::{gk_aggregates, gk_scalars};
use crate::functions::topk::topk_aggregates;
use crate::functions::{EXACT_QUANTILES, ExactQuantiles, QuantilesExprPlanner, all_aggregates, unaliased};

/// Puts this crate into an existing session: functions, `quantiles.*` options, query planner.
///
/// `quantile_cont`, an alias of DataFusion's `percentile_cont` before, is this crate's from then on.
///
/// Tables, options that are set and the session's id stay; a second call does nothing. The session's state is rebuilt
/// to change its query planner, and DataFusion gives no way to carry prepared statements over: call this before
/// `PREPARE`. A query planner that is not DataFusion's own stays too, with a warning in the log; functions then run as
/// ordinary aggregates. To have both, build the state with [`QuantilesPlanner::wrap`] or
/// [`QuantilesPlanner::with_extension_planners`].
///
/// # Errors
/// DataFusion's, if it refuses to register a function.
pub fn register_all(ctx: &SessionContext) -> Result<()> {
    let shared = ctx.state_ref();
    let mut state = shared.write();
    register_functions(&mut state)?;
    match origin(state.query_planner().as_ref()) {
        Origin::DataFusion => {
            *state = rebuilt(&state, |builder| {
                with_rules(
                    builder.with_query_planner(Arc::new(QuantilesPlanner::new())),
                    true,
                )
            });
        }
        Origin::Ours | Origin::Wrapping => add_rules(&mut state, true),
        Origin::Staged => add_rules(&mut state, false),
        #[cfg(feature = "ballista")]
        Origin::Remote if !ClientPlanner::is(state.query_planner().as_ref()) => {
            let planner = Arc::new(ClientPlanner::new(Arc::clone(state.query_planner())));
            *state = rebuilt(&state, |builder| builder.with_query_planner(planner));
        }
        Origin::Remote => {}
        Origin::Foreign => {
            warn_foreign();
            add_rules(&mut state, false);
        }
    }
    Ok(())
}

/// Functions, their planner and check, and options: what needs no rebuild.
fn register_functions(state: &mut SessionState) -> Result<()> {
    let extensions = &mut state.config_mut().options_mut().extensions;
    if extensions.get::<QuantilesOptions>().is_none() {
        extensions.insert(QuantilesOptions::default());
    }
    let registered = state.aggregate_functions().get(EXACT_QUANTILES);
    if registered.is_some_and(|function| ExactQuantiles::of(function).is_some()) {
        return Ok(());
    }
    let originals: Vec<_> = state
        .aggregate_functions()
        .values()
        .filter_map(|f| unaliased(f))
        .collect();
    let ours = all_aggregates()
        .iter()
        .chain(gk_aggregates())
        .chain(topk_aggregates());
    for function in originals.iter().chain(ours) {
        state.register_udaf(Arc::clone(function))?;
    }
    for function in gk_scalars() {
        state.register_udf(Arc::clone(function))?;
    }
    state.register_expr_planner(Arc::new(QuantilesExprPlanner))?;
    state.add_analyzer_rule(Arc::new(CheckQuantiles));
    Ok(())
}

/// Rebuilds the state with the physical optimizer rules that it lacks, `topk`: with [`TopKByRule`].
fn add_rules(state: &mut SessionState, topk: bool) {
    let rules = state.physical_optimizers();
    if !has_rule(rules, &FloatStatisticsRule) || (topk && !has_rule(rules, &TopKByRule)) {
        *state = rebuilt(state, |builder| with_rules(builder, topk));
    }
}

/// The builder with the physical optimizer rules that it lacks, `topk`: with [`TopKByRule`].
fn with_rules(mut builder: SessionStateBuilder, topk: bool) -> SessionStateBuilder {
    let mut rules = builder
        .physical_optimizers()
        .get_or_insert_default()
        .rules
        .clone();
    rules.extend(builder.physical_optimizer_rules().iter().flatten().cloned());
    if !has_rule(&rules, &FloatStatisticsRule) {
        // First, before rules that answer from statistics, and last, when predicates have reached the scans.
        let built_in = &mut builder.physical_optimizers().get_or_insert_default().rules;
        built_in.insert(0, Arc::new(FloatStatisticsRule));
        builder = builder.with_physical_optimizer_rule(Arc::new(FloatStatisticsRule));
    }
    match topk && !has_rule(&rules, &TopKByRule) {
        true => builder.with_physical_optimizer_rule(Arc::new(TopKByRule)),
        false => builder,
    }
}

fn rebuilt(
    state: &SessionState,
    change: impl FnOnce(SessionStateBuilder) -> SessionStateBuilder,
) -> SessionState {
    let creates_default = state.config_options().catalog.create_default_catalog_and_schema;
    let builder =
        SessionStateBuilder::new_from_existing(state.clone()).with_session_id(state.session_id().to_owned());
    let mut rebuilt = change(builder).build();
    // The builder turns it off where the catalog exists already.
    let catalog = &mut rebuilt.config_mut().options_mut().catalog;
    catalog.create_default_catalog_and_schema = creates_default;
    rebuilt
}

/// Whether a rule of this name is among these.
fn has_rule(
    rules: &[Arc<dyn PhysicalOptimizerRule + Send + Sync>],
    wanted: &dyn PhysicalOptimizerRule,
) -> bool {
    rules.iter().any(|rule| rule.name() == wanted.name())
}

/// Whose query planner it is.
enum Origin {
    Ours,
    /// Ours, around another one that plans the rest.
    Wrapping,
    /// Ours, for plans that run on many machines.
    Staged,
    DataFusion,
    /// It sends plans to machines that plan them: with this crate, if they have it.
    Remote,
    Foreign,
}

fn origin(planner: &(dyn QueryPlanner + Send + Sync)) -> Origin {
    // DataFusion's planner type is private: a state built without one shows it.
    static DEFAULT: LazyLock<TypeId> = LazyLock::new(|| {
        let state = SessionStateBuilder::new().build();
        let planner: &dyn Any = state.query_planner().as_ref();
        planner.type_id()
    });
    #[cfg(feature = "ballista")]
    let is_remote = ClientPlanner::sends(planner);
    #[cfg(not(feature = "ballista"))]
    let is_remote = false;
    let planner: &dyn Any = planner;
    if let Some(ours) = planner.downcast_ref::<QuantilesPlanner>() {
        match (ours.is_staged(), ours.wraps_another()) {
            (true, _) => Origin::Staged,
            (false, true) => Origin::Wrapping,
            (false, false) => Origin::Ours,
        }
    } else if is_remote {
        Origin::Remote
    } else if planner.type_id() == *DEFAULT {
        Origin::DataFusion
    } else {
        Origin::Foreign
    }
}

/// That the session's planner uses tables in the memory of devices of this process.
///
/// # Errors
/// A planning error that says why it does not, and what to do instead.
#[cfg(feature = "cuda")]
pub(crate) fn check_runs_here(state: &SessionState) -> Result<()> {
    match origin(state.query_planner().as_ref()) {
        Origin::Ours => Ok(()),
        Origin::Remote | Origin::Staged => plan_err!(
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
    /// As [`register_all`], before the session exists: call it after `with_default_features` and after
    /// `with_query_planner`, if that is called. A query planner that was set stays.
    fn with_quantiles(self) -> Self;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_quantiles(mut self) -> Self {
        let extensions = &mut self.config().get_or_insert_default().options_mut().extensions;
        if extensions.get::<QuantilesOptions>().is_none() {
            extensions.insert(QuantilesOptions::default());
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
                .chain(topk_aggregates());
            functions.extend(ours.cloned());
            let scalars = self.scalar_functions().get_or_insert_default();
            scalars.extend(gk_scalars().iter().cloned());
            let planners = self.expr_planners().get_or_insert_default();
            planners.push(Arc::new(QuantilesExprPlanner));
            self = self.with_analyzer_rule(Arc::new(CheckQuantiles));
        }
        match self
            .query_planner()
            .as_ref()
            .map(|planner| origin(planner.as_ref()))
        {
            None | Some(Origin::DataFusion) => {
                with_rules(self.with_query_planner(Arc::new(QuantilesPlanner::new())), true)
            }
            Some(Origin::Ours | Origin::Wrapping) => with_rules(self, true),
            Some(Origin::Staged) => with_rules(self, false),
            Some(Origin::Remote) => self,
            Some(Origin::Foreign) => {
                warn_foreign();
                with_rules(self, false)
            }
        }
    }
}
