//! The number of distinct values: `count_distinct_exact(x)`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::common::Result;

use super::asked::Asked;
use super::sorted::Sorted;
use crate::functions::collected::InOrder;

/// The number of values of a group, whose distinct values count once each.
#[derive(Debug)]
pub(super) struct DistinctCount;

impl<C: InOrder> Asked<C> for DistinctCount {
    type Answers = Vec<i64>;

    fn answer(&self, _: &C::Spec, sorted: &Sorted<'_, C>, answers: &mut Self::Answers) -> Result<()> {
        answers.push(sorted.n() as i64);
        Ok(())
    }

    fn finish(&self, _: &C::Spec, _: &C, answers: Self::Answers) -> Result<ArrayRef> {
        Ok(Arc::new(Int64Array::from(answers)))
    }
}
