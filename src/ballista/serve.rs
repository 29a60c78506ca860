//! Ballista's services, for members of the cluster only.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::flight_proxy_service::BallistaFlightProxyService;
use ballista_core::serde::protobuf::executor_grpc_server::ExecutorGrpcServer;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_executor::ArrowFlightServerProvider;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_scheduler::api::get_routes;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_server};
use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion::common::{Result, config_err, exec_datafusion_err};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tonic::service::RoutesBuilder;

use super::identity::Identity;
use super::listener::Listener;
use super::tasks::{CancelCalls, Tasks};

/// Ballista's scheduler, for plans in DataFusion's protobuf form.
type Scheduler = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;

/// Checks that the scheduler does not push tasks to executors: Ballista 55 serves such calls itself, and to every caller.
///
/// # Errors
/// A configuration error for `push-staged` scheduling.
pub(super) fn check_policy(policy: TaskSchedulingPolicy) -> Result<()> {
    match policy {
        TaskSchedulingPolicy::PullStaged => Ok(()),
        TaskSchedulingPolicy::PushStaged => config_err!(
            "with push-staged scheduling executors of Ballista 55 take tasks from everybody who reaches their port, \
             certificates and tokens or not: allowed with them is pull-staged"
        ),
    }
}

/// Runs a scheduler at an address until the process ends. The configuration is one of [`super::scheduler_hooks`]. With an identity the
/// scheduler serves only members of the cluster.
///
/// # Errors
/// An error for a configuration that contradicts itself, and for an address that the process cannot listen at.
pub async fn serve_scheduler(
    config: SchedulerConfig,
    address: SocketAddr,
    identity: Option<Identity>,
) -> Result<()> {
    let failed = |error: BallistaError| exec_datafusion_err!("the scheduler: {error}");
    config.validate().map_err(failed)?;
    let cluster = BallistaCluster::new_from_config(&config).await.map_err(failed)?;
    let config = Arc::new(config);
    let Some(identity) = identity else {
        return start_server(cluster, address, config).await.map_err(failed);
    };
    check_policy(config.scheduling_policy)?;
    let unbound = |error| exec_datafusion_err!("cannot listen at {address}: {error}");
    let listener = Listener::bind(address, &identity).await.map_err(unbound)?;
    let scheduler = create_scheduler(cluster, config).await.map_err(failed)?;
    let served = listener.serve(routes(scheduler), std::future::pending()).await;
    served.map_err(|error| exec_datafusion_err!("the scheduler: {error}"))
}

/// The routes of Ballista's scheduler, as its own start function puts them together.
fn routes(scheduler: Scheduler) -> Router {
    let config = Arc::clone(&scheduler.state.config);
    let (most_in, most_out) = (
        config.grpc_server_max_decoding_message_size as usize,
        config.grpc_server_max_encoding_message_size as usize,
    );
    let mut services = RoutesBuilder::default();
    services.add_service(
        SchedulerGrpcServer::new(scheduler.clone())
            .max_decoding_message_size(most_in)
            .max_encoding_message_size(most_out),
    );
    if config.enable_embedded_flight_proxy {
        let endpoints = config.override_create_grpc_client_endpoint.clone();
        let endpoints = endpoints.map(|endpoints| Arc::new(BallistaConfigGrpcEndpoint::new(endpoints)));
        let proxy = BallistaFlightProxyService::new(most_in, most_out, config.use_tls, endpoints);
        services.add_service(
            FlightServiceServer::new(proxy)
                .max_decoding_message_size(most_in)
                .max_encoding_message_size(most_out),
        );
    }
    let services = services
        .routes()
        .into_axum_router()
        .fallback(|| async { StatusCode::NOT_FOUND });
    let scheduler = Arc::new(scheduler);
    let health = Router::new().route("/healthz", get(|| async { "ok" })).route(
        "/readyz",
        get({
            let scheduler = Arc::clone(&scheduler);
            move || async move { readiness(&scheduler) }
        }),
    );
    if config.disable_rest_api {
        services.merge(health)
    } else {
        get_routes(scheduler).merge(services).merge(health)
    }
}

/// The answer to `/readyz`: whether the scheduler has as many executors as it was started for.
fn readiness(scheduler: &Scheduler) -> Response {
    if scheduler.is_ready() {
        "ready\n".into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: executors are missing\n",
        )
            .into_response()
    }
}

/// The server of an executor with an identity, at its only port. It serves the results of tasks, in messages up to these numbers of
/// bytes, and the scheduler's calls that cancel tasks.
pub(super) fn results(
    identity: Identity,
    tasks: Tasks,
    (most_in, most_out): (u32, u32),
) -> Arc<ArrowFlightServerProvider> {
    Arc::new(move |folder, address, mut ended, _| {
        let identity = identity.clone();
        let flight = FlightServiceServer::new(BallistaFlightService::new(folder))
            .max_decoding_message_size(most_in as usize)
            .max_encoding_message_size(most_out as usize);
        let mut services = RoutesBuilder::default();
        services.add_service(flight);
        services.add_service(ExecutorGrpcServer::new(CancelCalls(tasks.clone())));
        tokio::spawn(async move {
            let listener = Listener::bind(address, &identity).await;
            let listener = listener
                .map_err(|error| BallistaError::General(format!("cannot listen at {address}: {error}")))?;
            let routes = services.routes().into_axum_router();
            let served = listener.serve(routes, async move { ended.recv().await }).await;
            served.map_err(BallistaError::IoError)
        })
    })
}
