//! Stores of clouds, with the options and the credentials that `datafusion-cli` knows.

use std::sync::Arc;

use datafusion::common::config_datafusion_err;
use datafusion::config::{ConfigExtension, TableOptions};
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::object_storage::{
    AwsOptions, GcpOptions, get_cos_object_store_builder, get_gcs_object_store_builder,
    get_oss_object_store_builder, get_s3_object_store_builder,
};
use object_store::ObjectStore;
use url::Url;

use super::Region;

/// Lets `CREATE EXTERNAL TABLE` and `COPY` of this session name the options of a scheme's store.
pub(super) fn register_options(ctx: &SessionContext, scheme: &str) {
    ctx.register_table_options_extension_from_scheme(scheme);
}

/// These options and those of a scheme's store, as the environment sets them.
pub(super) fn with_options(mut options: TableOptions, scheme: &str) -> TableOptions {
    match scheme {
        "s3" | "oss" | "cos" => options.extensions.insert(AwsOptions::default()),
        "gs" | "gcs" => options.extensions.insert(GcpOptions::default()),
        _ => {}
    }
    options
}

/// Makes the store of a scheme; `None` if it is none of these clouds.
///
/// # Errors
/// Options that do not fit together, or credentials that cannot be loaded.
pub(super) async fn open(
    scheme: &str,
    url: &Url,
    options: &TableOptions,
    region: Region,
) -> Result<Option<Arc<dyn ObjectStore>>> {
    let store: Arc<dyn ObjectStore> = match scheme {
        "s3" => {
            let look_up = region == Region::LookedUp;
            Arc::new(
                get_s3_object_store_builder(url, of(options, url)?, look_up)
                    .await?
                    .build()?,
            )
        }
        "oss" => Arc::new(get_oss_object_store_builder(url, of(options, url)?)?.build()?),
        "cos" => Arc::new(get_cos_object_store_builder(url, of(options, url)?)?.build()?),
        "gs" | "gcs" => Arc::new(get_gcs_object_store_builder(url, of(options, url)?)?.build()?),
        _ => return Ok(None),
    };
    Ok(Some(store))
}

/// The options of one kind of store.
fn of<'a, T: ConfigExtension>(options: &'a TableOptions, url: &Url) -> Result<&'a T> {
    options
        .extensions
        .get::<T>()
        .ok_or_else(|| config_datafusion_err!("no {} options for {url}", T::PREFIX))
}
