//! Messages of a round: a [`Request`] goes to every shard, and the [`Reply`]s are merged.
//!
//! The same messages drive threads, simulated machines, devices and cluster stages, so that one strategy serves all of
//! them.

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use crate::cells::{Brackets, Cells};
use crate::key::{KeyBits, KeyVec};
use crate::sketch::{AnySummary, Epsilon};

/// A request of the coordinator to every shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// A sample of the keys inside `within`, evenly spread over their positions.
    Sample {
        /// Number of keys wanted from all shards together. A shard with `own` keys inside `within` gives `ceil(size *
        /// own / population)`.
        size: u64,
        /// Number of keys inside `within`, in all shards together.
        population: u64,
        /// Seed of the random positions.
        seed: u64,
        /// The keys that are sampled.
        within: Brackets,
        /// Whether the smallest and the largest key are wanted too, which takes a read of all keys.
        extremes: bool,
    },
    /// The number of keys inside `within` in each cell. The keys of the cells in `keep` come back too.
    Count {
        /// The cell function.
        cells: Cells,
        /// The keys that are counted. No two brackets share a cell.
        within: Brackets,
        /// Numbers of the cells whose keys are wanted, ascending.
        keep: Vec<u32>,
    },
    /// A Greenwald-Khanna summary of all keys.
    Sketch {
        /// Error fraction of the summary.
        eps: Epsilon,
    },
    /// The keys inside each bracket.
    Extract {
        /// The brackets.
        brackets: Brackets,
    },
}

impl Request {
    /// Name of the round in traces and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Sample { .. } => "sample",
            Request::Count { .. } => "count",
            Request::Sketch { .. } => "sketch",
            Request::Extract { .. } => "extract",
        }
    }
}

/// Number of keys that a shard with `own` keys gives to a [`Request::Sample`] of `size` of `population` keys.
pub fn share(size: u64, population: u64, own: u64) -> u64 {
    (u128::from(size) * u128::from(own)).div_ceil(u128::from(population.max(1))) as u64
}

/// The answer of a shard, or the merged answer of several.
///
/// A shard that has no memory for the keys that it was to collect gives no list at all, in place of one for each cell
/// or bracket. A merged answer has no lists then either. Counts are right all the same.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Answer to [`Request::Sample`].
    Sample {
        /// The sampled keys. After a merge, one ascending run for each shard.
        keys: KeyVec,
        /// Smallest and largest key inside the brackets, if they were requested and there is a key.
        extremes: Option<(KeyBits, KeyBits)>,
    },
    /// Answer to [`Request::Count`].
    Counts {
        /// Number of keys in each cell.
        counts: Vec<u64>,
        /// The keys of each kept cell, in the order of the request.
        kept: Vec<KeyVec>,
    },
    /// Answer to [`Request::Sketch`]. `None` if some shard had no memory for it.
    Sketch(Option<AnySummary>),
    /// Answer to [`Request::Extract`]: the keys of each bracket.
    Extracted(Vec<KeyVec>),
}

impl Reply {
    /// Number of values in the message.
    pub fn values(&self) -> u64 {
        let keys = |kept: &[KeyVec]| kept.iter().map(|keys| keys.len() as u64).sum::<u64>();
        match self {
            Reply::Sample { keys, extremes } => keys.len() as u64 + if extremes.is_some() { 2 } else { 0 },
            Reply::Counts { counts, kept } => counts.len() as u64 + keys(kept),
            // Key, g and delta.
            Reply::Sketch(summary) => 3 * summary.as_ref().map_or(0, |summary| summary.len() as u64),
            Reply::Extracted(kept) => keys(kept),
        }
    }

    /// The merged answers of several shards to the same request; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`Self::merge`].
    pub fn merged(mut replies: Vec<Reply>) -> Result<Option<Reply>> {
        let others = replies.split_off(replies.len().min(1));
        let Some(mut merged) = replies.pop() else {
            return Ok(None);
        };
        if let Reply::Counts { kept, .. } | Reply::Extracted(kept) = &mut merged {
            // Room for all others at once: each merge would move the keys again.
            for (list, keys) in kept.iter_mut().enumerate() {
                let more = others.iter().filter_map(|other| other.kept()?.get(list));
                keys.reserve(more.map(KeyVec::len).sum());
            }
        }
        others.into_iter().try_for_each(|other| merged.merge(other))?;
        Ok(Some(merged))
    }

    /// The keys of each kept cell or bracket.
    fn kept(&self) -> Option<&[KeyVec]> {
        match self {
            Reply::Counts { kept, .. } | Reply::Extracted(kept) => Some(kept),
            Reply::Sample { .. } | Reply::Sketch(_) => None,
        }
    }

    /// Adds another shard's answer to the same request.
    ///
    /// # Errors
    /// An internal error if the answers are of different shapes.
    pub fn merge(&mut self, other: Reply) -> Result<()> {
        match (self, other) {
            (
                Reply::Sample { keys, extremes },
                Reply::Sample {
                    keys: more,
                    extremes: others,
                },
            ) => {
                keys.append(more)?;
                *extremes = match (*extremes, others) {
                    (Some(own), Some(other)) => Some((own.0.min(other.0), own.1.max(other.1))),
                    (own, other) => own.or(other),
                };
            }
            (
                Reply::Counts { counts, kept },
                Reply::Counts {
                    counts: more,
                    kept: others,
                },
            ) if counts.len() == more.len() => {
                for (count, more) in counts.iter_mut().zip(more) {
                    let sum = count.checked_add(more);
                    *count =
                        sum.ok_or_else(|| internal_datafusion_err!("more than 2^64 - 1 keys in a cell"))?;
                }
                append_each(kept, others)?;
            }
            (Reply::Sketch(own), Reply::Sketch(other)) => {
                *own = match (own.take(), other) {
                    (Some(own), Some(other)) => Some(own.merge(other)?),
                    _ => None,
                };
            }
            (Reply::Extracted(kept), Reply::Extracted(others)) => append_each(kept, others)?,
            _ => return internal_err!("replies to one request have different shapes"),
        }
        Ok(())
    }
}

fn append_each(kept: &mut Vec<KeyVec>, others: Vec<KeyVec>) -> Result<()> {
    if kept.is_empty() || others.is_empty() {
        kept.clear();
        return Ok(());
    }
    if kept.len() != others.len() {
        return internal_err!("{} lists of keys to merge with {}", kept.len(), others.len());
    }
    kept.iter_mut()
        .zip(others)
        .try_for_each(|(keys, more)| keys.append(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_different_shapes_do_not_merge() {
        let mut counts = Reply::Counts {
            counts: vec![1, 2],
            kept: vec![],
        };
        counts
            .merge(Reply::Counts {
                counts: vec![3, 4],
                kept: vec![],
            })
            .unwrap();
        assert_eq!(
            counts,
            Reply::Counts {
                counts: vec![4, 6],
                kept: vec![]
            }
        );
        assert!(
            counts
                .merge(Reply::Counts {
                    counts: vec![1],
                    kept: vec![]
                })
                .is_err()
        );
        assert!(counts.merge(Reply::Extracted(vec![])).is_err());
        let one = |keys| Reply::Extracted(vec![keys]);
        let mut keys = one(KeyVec::W32(vec![1]));
        assert!(keys.merge(one(KeyVec::W64(vec![1]))).is_err());
        let two = Reply::Extracted(vec![KeyVec::W32(vec![]), KeyVec::W32(vec![])]);
        assert!(one(KeyVec::W32(vec![1])).merge(two).is_err());
    }

    #[test]
    fn keys_that_one_shard_left_out_are_missing_in_the_merged_reply() {
        let reply = |kept: Vec<KeyVec>| Reply::Counts {
            counts: vec![1],
            kept,
        };
        let kept = || vec![KeyVec::W32(vec![1])];
        for (own, other) in [(kept(), vec![]), (vec![], kept())] {
            let mut merged = reply(own);
            merged.merge(reply(other)).unwrap();
            let expected = Reply::Counts {
                counts: vec![2],
                kept: vec![],
            };
            assert_eq!(merged, expected);
        }
    }
}
