//! Where the files of a cluster's tables are: each machine finds the store of a URL by itself, from its environment.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use url::Url;

/// Stores by URL: `s3://` with region, endpoint and credentials of the environment (`AWS_*`, or the machine's role),
/// `http://` and `https://`, and local files. A store that was registered comes first.
#[derive(Debug, Default)]
pub struct EnvironmentStores {
    known: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for EnvironmentStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.known.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.known.get_store(url) {
            return Ok(store);
        }
        let store = store_for(url)?;
        self.known.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

fn store_for(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    let failed = |error| DataFusionError::ObjectStore(Box::new(error));
    match (url.scheme(), url.host_str()) {
        ("s3" | "s3a", Some(bucket)) => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            Ok(Arc::new(builder.build().map_err(failed)?))
        }
        ("http" | "https", Some(_)) => {
            let options = ClientOptions::new().with_allow_http(true);
            let builder = HttpBuilder::new().with_client_options(options);
            let store = builder.with_url(url.origin().ascii_serialization()).build();
            Ok(Arc::new(store.map_err(failed)?))
        }
        _ => plan_err!(
            "no store for {url}: allowed are s3://bucket/, http:// and https:// with a host, and local files"
        ),
    }
}
