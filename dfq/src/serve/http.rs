//! `/metrics` and `/healthz` over HTTP.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

use super::{Server, metrics};

/// The version of Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>) -> std::io::Result<()> {
    let text = move || {
        let text = metrics::text(&server);
        async move { ([(CONTENT_TYPE, FORMAT)], text) }
    };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(|| async { "ok\n" }));
    axum::serve(listener, router).await
}
