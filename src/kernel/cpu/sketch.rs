//! The round `sketch`, a summary of all keys: counts of dyadic intervals where a cell table can tell enough of them
//! apart, else a sketch that is filled with the keys.

use datafusion::common::Result;

use super::{CpuShard, Stop};
use crate::failpoint::may_fail;
use crate::kernel::intervals::{LEAST_SHARE, intervals};
use crate::kernel::round::Reply;
use crate::key::ShardKey;
use crate::sketch::{AnySketch, AnySummary, Epsilon, Variant};

impl<K: ShardKey> CpuShard<K> {
    pub(super) fn sketch(&mut self, eps: Epsilon, stop: &Stop) -> Result<Reply> {
        may_fail!("sketch");
        let width = self.spec.width();
        let most = eps.budget(self.store.len()).saturating_sub(1);
        if most >= LEAST_SHARE
            && let Some((ends, intervals)) = intervals::<K>(self, width, most, false, stop)?
        {
            let summary = AnySummary::from_intervals(width, eps, ends, &intervals)?;
            return Ok(Reply::Sketch(Some(summary)));
        }
        let bytes = AnySketch::most_bytes(width, eps, self.store.len());
        let Ok(_held) = self.round_memory().hold(bytes, "a quantile sketch") else {
            return Ok(Reply::Sketch(None));
        };
        let mut sketch = AnySketch::new(width, eps, Variant::Modified);
        self.store
            .each_block(stop, |block, _| sketch.extend_slice(block))?;
        Ok(Reply::Sketch(Some(sketch.partial()?)))
    }
}
