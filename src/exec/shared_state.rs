//! A value that the partitions of an operator share.

use std::fmt::{self, Debug};
use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

type Made<T> = Result<Arc<T>, Arc<DataFusionError>>;

/// A value that is made once for all partitions in this process, or the error of making it. Whichever partition waits for it drives what
/// makes it: if the first one ends early, the others go on where it stopped.
pub(super) struct SharedState<T>(OnceLock<Shared<BoxFuture<'static, Made<T>>>>);

impl<T> Default for SharedState<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Debug for SharedState<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_begun = self.0.get().is_some();
        f.debug_struct("SharedState")
            .field("is_begun", &is_begun)
            .finish()
    }
}

impl<T: Send + Sync + 'static> SharedState<T> {
    /// The value. What the first caller gives makes it.
    ///
    /// # Errors
    /// The error of `make`, for every caller.
    pub(super) async fn get(&self, make: impl Future<Output = Result<T>> + Send + 'static) -> Result<Arc<T>> {
        let begin = || {
            async { make.await.map(Arc::new).map_err(Arc::new) }
                .boxed()
                .shared()
        };
        let made = self.0.get_or_init(begin).clone();
        made.await.map_err(DataFusionError::Shared)
    }
}
