//! The strategy that a name stands for.

use datafusion::common::Result;

use super::Strategy;
use super::bms::{Dibms, DistributedBms};
use super::choose::{Choice, Form, choose};
use super::gk_select::GkSelect;
use super::sample_select::SampleSelect;
use crate::config::StrategyName;
use crate::memory::MemoryBudget;

impl StrategyName {
    /// The strategy of this name (of `auto`, the one that [`choose`] finds cheapest) for ranks (ascending) among `population` values
    /// on `threads` threads, in the memory of `budget`.
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
                form: Form::Cells,
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
