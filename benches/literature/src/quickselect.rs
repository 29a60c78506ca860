//! Quickselect in one partition: the host collects all keys and selects. It takes the fewest rounds and the most bytes.

use datafusion::common::Result;

use super::partition::select;
use super::samplesort::Random;
use crate::cluster::Cluster;
use datafusion_quantiles::key::Key;

/// The keys of the ranks (from 1, ascending, distinct, at most the number of keys).
///
/// # Errors
/// Internal errors only: a message that cannot be read from its bytes.
pub(super) fn quickselect<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    seed: u64,
) -> Result<Vec<K>> {
    let shards = cluster.collect("keys", shards)?;
    let at: Vec<usize> = ranks.iter().map(|rank| *rank as usize - 1).collect();
    Ok(cluster.host("select", || {
        let mut keys: Vec<K> = Vec::with_capacity(shards.iter().map(Vec::len).sum());
        shards.into_iter().for_each(|shard| keys.extend(shard));
        select(&mut keys, &at, &mut Random::new(seed))
    }))
}
