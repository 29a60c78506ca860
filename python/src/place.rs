//! Where the queries of a session run: in this process or, with the feature `cluster`, on a cluster.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{DataFrame, SessionContext};
use pyo3::prelude::*;

use crate::error::mistake;
use crate::progress::Watch;

/// Where queries run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// Address of the scheduler of a cluster; `None`: queries run in this process.
    scheduler: Option<Arc<str>>,
}

/// The cluster that a session asks for, and what is shown to it.
#[derive(FromPyObject)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "no cluster is asked"))]
pub(crate) struct Cluster {
    /// Address of its scheduler, such as `df://localhost:50050`.
    #[pyo3(item)]
    url: String,
    /// The secret that all of its members know.
    #[pyo3(item)]
    token: Option<String>,
    /// Certificate, key, and the authority's certificate, all in PEM.
    #[pyo3(item)]
    tls: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>,
}

impl Cluster {
    /// A session on the cluster, and the place of its queries.
    ///
    /// # Errors
    /// An address where no scheduler is ready, or one that does not know the identity.
    #[cfg(feature = "cluster")]
    pub(crate) async fn connect(self, partitions: Option<usize>) -> Result<(SessionContext, Place)> {
        use datafusion_quantiles::ballista::{Identity, connect_with_config, session_config, with_identity};

        let mut config = session_config();
        if let Some(partitions) = partitions {
            config = config.with_target_partitions(partitions);
        }
        let identity = match (&self.token, &self.tls) {
            (Some(token), _) => Some(Identity::from_token(token)?),
            (None, Some((certificate, key, authority))) => {
                Some(Identity::from_pem(certificate, key, authority)?)
            }
            (None, None) => None,
        };
        if let Some(identity) = &identity {
            config = with_identity(config, identity);
        }
        let ctx = connect_with_config(&self.url, config).await?.enable_url_table();
        let scheduler = Some(self.url.into());
        Ok((ctx, Place { scheduler }))
    }

    /// The error of a build that asks no cluster.
    #[cfg(not(feature = "cluster"))]
    pub(crate) async fn connect(self, _: Option<usize>) -> Result<(SessionContext, Place)> {
        datafusion::common::config_err!(
            "this build of dfq asks no cluster: it was built without the feature 'cluster'. From a clone: \
             pip install ./python --config-settings build-args='--features cluster'"
        )
    }
}

impl Place {
    /// Checks that data of this process can be read where the queries run.
    ///
    /// # Errors
    /// An exception if they run on a cluster.
    pub(crate) fn check_shares_memory(&self) -> PyResult<()> {
        match &self.scheduler {
            None => Ok(()),
            Some(scheduler) => Err(mistake(format!(
                "queries of this session run on the cluster of {scheduler}, which does not read the memory of this process: \
                 give a path that all of its machines see, or use a session without cluster="
            ))),
        }
    }

    /// Whether queries run on a cluster.
    pub(crate) fn is_remote(&self) -> bool {
        self.scheduler.is_some()
    }

    /// Runs a query for all of its rows.
    ///
    /// # Errors
    /// Those of running it.
    pub(crate) async fn collect(&self, frame: DataFrame, watch: Watch) -> Result<Vec<RecordBatch>> {
        #[cfg(feature = "cluster")]
        if let Some(scheduler) = &self.scheduler {
            return datafusion_quantiles::ballista::collect(scheduler, frame).await;
        }
        let (plan, context) = planned(frame).await?;
        watch.plan(&plan);
        collect(plan, context).await
    }
}

/// The plan of a frame, and what it runs in.
///
/// # Errors
/// Those of planning.
pub(crate) async fn planned(frame: DataFrame) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
    let context = Arc::new(frame.task_ctx());
    Ok((frame.create_physical_plan().await?, context))
}
