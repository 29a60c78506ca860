//! Object stores for the locations that `CREATE EXTERNAL TABLE` and `COPY` name.
//!
//! A store is made when a statement names its scheme, never before: looking for credentials takes time.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{config_datafusion_err, exec_err};
use datafusion::config::{ConfigFileType, TableOptions};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::SessionContext;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::object_storage::{
    AwsOptions, GcpOptions, get_cos_object_store_builder, get_gcs_object_store_builder,
    get_oss_object_store_builder, get_s3_object_store_builder,
};
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use url::Url;

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
    ctx.register_table_options_extension_from_scheme(scheme);
    let mut table_options = ctx.state().default_table_options();
    if let Some(format) = format {
        table_options.set_config_format(format);
    }
    table_options.alter_with_string_hash_map(options)?;
    if let Some(store) = open(ctx, scheme, url, &table_options, region).await? {
        ctx.register_object_store(url, store);
    }
    Ok(())
}

/// Makes the store of a scheme; `None` if the session has one already.
async fn open(
    ctx: &SessionContext,
    scheme: &str,
    url: &Url,
    options: &TableOptions,
    region: Region,
) -> Result<Option<Arc<dyn ObjectStore>>> {
    let aws = || {
        options
            .extensions
            .get::<AwsOptions>()
            .ok_or_else(|| config_datafusion_err!("no aws options for {url}"))
    };
    let gcp = || {
        options
            .extensions
            .get::<GcpOptions>()
            .ok_or_else(|| config_datafusion_err!("no gcp options for {url}"))
    };
    let store: Arc<dyn ObjectStore> = match scheme {
        "s3" => Arc::new(
            get_s3_object_store_builder(url, aws()?, region == Region::LookedUp)
                .await?
                .build()?,
        ),
        "oss" => Arc::new(get_oss_object_store_builder(url, aws()?)?.build()?),
        "cos" => Arc::new(get_cos_object_store_builder(url, aws()?)?.build()?),
        "gs" | "gcs" => Arc::new(get_gcs_object_store_builder(url, gcp()?)?.build()?),
        "http" | "https" => Arc::new(
            HttpBuilder::new()
                .with_client_options(ClientOptions::new().with_allow_http(true))
                .with_url(url.origin().ascii_serialization())
                .build()?,
        ),
        _ if ctx
            .runtime_env()
            .object_store(ListingTableUrl::parse(url.as_str())?)
            .is_ok() =>
        {
            return Ok(None);
        }
        _ => {
            return exec_err!(
                "no object store for the scheme '{scheme}' of {url}; there are: file, s3, oss, cos, gs, gcs, http, https"
            );
        }
    };
    Ok(Some(store))
}
