//! Sort and choose, distributed (DIBMS, section II): every shard sorts, the sorted lists are merged pair by pair
//! up a tree, and the host reads off any order statistic. Or without the tree: the host merges all lists.

use datafusion::common::Result;

use super::local_sort::{LocalSort, Sorters};
use crate::cluster::{Cluster, Gather};
use datafusion_quantiles::key::Key;

/// The keys of the ranks (from 1, ascending, distinct, at most the number of keys).
///
/// # Errors
/// Internal errors only: a message that cannot be read from its bytes.
pub(super) fn sort_and_choose<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    gather: Gather,
    sort: LocalSort,
) -> Result<Vec<K>> {
    let sorters = Sorters::new(sort);
    let sorted = cluster.local("sort", shards, |_, mut keys| {
        sorters.sort(&mut keys);
        Ok(keys)
    })?;
    let all = match gather {
        Gather::Tree => cluster.gather("merge", gather, sorted, |_, lower, upper| {
            Ok(sorters.merge(vec![lower, upper]))
        })?,
        Gather::Flat => {
            let lists = cluster.collect("lists", sorted)?;
            cluster.host("merge", || sorters.merge(lists))
        }
    };
    Ok(ranks.iter().map(|rank| all[*rank as usize - 1]).collect())
}
