//! Strategies by name.

use datafusion::common::Result;

use super::Strategy;
use super::bms::{Dibms, DistributedBms};
use super::choose::{Choice, SampleSelectVariant, choose};
use super::gk_select::GkSelect;
use super::sample_select::SampleSelect;
use crate::config::StrategyName;
use crate::memory::MemoryBudget;

impl StrategyName {
    /// The strategy of this name for `ranks` (ascending) among `population` values, on `threads` threads, within `budget`. For
    /// `auto` it is the one that [`choose`] finds cheapest.
    ///
    /// # Errors
    /// Internal errors only.
    #[doc(hidden)]
    pub fn strategy(
        self,
        population: u64,
        ranks: &[u64],
        threads: usize,
        budget: &MemoryBudget,
    ) -> Result<Box<dyn Strategy>> {
        Ok(match self {
            StrategyName::Auto => Box::new(SampleSelect::new(choose(population, ranks, threads, budget))),
            StrategyName::SampleSelect => Box::new(SampleSelect::new(Choice {
                variant: SampleSelectVariant::Cells,
                sample: Choice::default().sample.min(budget.sample),
            })),
            StrategyName::DistributedBms => Box::new(DistributedBms::default()),
            StrategyName::Dibms => Box::new(Dibms::default()),
            StrategyName::GkSelect => {
                Box::new(GkSelect::try_new(population, threads, ranks.len(), budget.keys)?)
            }
        })
    }
}
