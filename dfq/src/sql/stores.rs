//! Object stores for the locations that tables, `CREATE EXTERNAL TABLE` and `COPY` name.
//!
//! A store is made when a statement names its scheme, never before: looking for credentials takes time.

#[cfg(feature = "cloud")]
mod cloud;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::exec_err;
use datafusion::config::{ConfigFileType, TableOptions};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::SessionContext;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use url::Url;

/// The schemes of the stores that there are.
#[cfg(feature = "cloud")]
const SCHEMES: &str = "there are: file, s3, oss, cos, gs, gcs, http, https";
#[cfg(not(feature = "cloud"))]
const SCHEMES: &str = "there are: file, http, https; with the feature `cloud` also s3, oss, cos, gs, gcs";

/// Whether an S3 bucket's region is looked up (a request more) or taken from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    Configured,
    LookedUp,
}

/// Registers the stores that `plan` reads or writes by location.
///
/// # Errors
/// A location or an option that cannot be understood, or credentials that cannot be loaded.
pub(crate) async fn register(ctx: &SessionContext, plan: &LogicalPlan, region: Region) -> Result<()> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)) => {
            let format = file_type(&create.file_type);
            for location in &create.locations {
                register_location(ctx, location, &create.options, format.clone(), region).await?;
            }
            Ok(())
        }
        LogicalPlan::Copy(copy) => {
            let format = file_type(&copy.file_type.get_ext());
            register_location(ctx, &copy.output_url, &copy.options, format, Region::Configured).await
        }
        _ => Ok(()),
    }
}

/// Whether a failure may come from an S3 region that is wrong or missing.
pub(crate) fn is_region_failure(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::ObjectStore(error) => {
            matches!(error.as_ref(), object_store::Error::Generic { store, .. } if store.eq_ignore_ascii_case("s3"))
        }
        _ => false,
    }
}

fn file_type(extension: &str) -> Option<ConfigFileType> {
    match extension.to_ascii_lowercase().as_str() {
        "csv" => Some(ConfigFileType::CSV),
        "json" => Some(ConfigFileType::JSON),
        "parquet" => Some(ConfigFileType::PARQUET),
        _ => None,
    }
}

/// Registers the store of a table that is named by its location, if the session has none for it.
///
/// # Errors
/// A scheme without a store, or credentials that cannot be loaded.
pub(crate) async fn reach(runtime: &RuntimeEnv, options: TableOptions, location: &str) -> Result<()> {
    let path = ListingTableUrl::parse(location)?;
    if runtime.object_store(path.object_store()).is_ok() {
        return Ok(());
    }
    #[cfg(feature = "cloud")]
    let options = cloud::with_options(options, path.scheme());
    if let Some(store) = open(path.scheme(), path.as_ref(), &options, Region::Configured).await? {
        runtime.register_object_store(path.as_ref(), store);
        return Ok(());
    }
    no_store(path.scheme(), path.as_ref())
}

async fn register_location(
    ctx: &SessionContext,
    location: &str,
    options: &HashMap<String, String>,
    format: Option<ConfigFileType>,
    region: Region,
) -> Result<()> {
    let path = ListingTableUrl::parse(location)?;
    let (scheme, url) = (path.scheme(), path.as_ref());
    if scheme == "file" {
        return Ok(());
    }
    #[cfg(feature = "cloud")]
    cloud::register_options(ctx, scheme);
    let mut table_options = ctx.state().default_table_options();
    if let Some(format) = format {
        table_options.set_config_format(format);
    }
    table_options.alter_with_string_hash_map(options)?;
    if let Some(store) = open(scheme, url, &table_options, region).await? {
        ctx.register_object_store(url, store);
        return Ok(());
    }
    match ctx.runtime_env().object_store(path.object_store()) {
        Ok(_) => Ok(()),
        Err(_) => no_store(scheme, url),
    }
}

/// Makes the store of a scheme; `None` if this program knows none.
async fn open(
    scheme: &str,
    url: &Url,
    #[cfg_attr(
        not(feature = "cloud"),
        expect(unused_variables, reason = "only clouds have options")
    )]
    options: &TableOptions,
    #[cfg_attr(
        not(feature = "cloud"),
        expect(unused_variables, reason = "only clouds have regions")
    )]
    region: Region,
) -> Result<Option<Arc<dyn ObjectStore>>> {
    match scheme {
        "http" | "https" => {
            let builder = HttpBuilder::new()
                .with_client_options(ClientOptions::new().with_allow_http(true))
                .with_url(url.origin().ascii_serialization());
            Ok(Some(Arc::new(builder.build()?)))
        }
        #[cfg(feature = "cloud")]
        _ => cloud::open(scheme, url, options, region).await,
        #[cfg(not(feature = "cloud"))]
        _ => Ok(None),
    }
}

fn no_store(scheme: &str, url: &Url) -> Result<()> {
    exec_err!("no object store for the scheme '{scheme}' of {url}; {SCHEMES}")
}
