//! Where the rounds of an executor run: on its own device, whatever the client's `quantiles.device` says of the client's.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use datafusion::common::{Result, config_err};
use datafusion::execution::TaskContext;
use datafusion::execution::config::SessionConfig;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
#[cfg(feature = "cuda")]
use datafusion::physical_plan::metrics::MetricBuilder;

use crate::config::DeviceChoice;
#[cfg(feature = "cuda")]
use crate::config::QuantilesOptions;
#[cfg(feature = "cuda")]
use crate::kernel::cuda::{Card, CudaBackend, DeviceColumn, OverflowBackend};
use crate::kernel::{Backend, CpuBackend, Lane};
use crate::key::KeySpec;

/// The device of a process that runs the rounds of staged plans, such as an executor of a cluster.
///
/// With cards, the keys of a partition lie on one of them while its task runs; partitions take turns. A round's reply is that of
/// the CPU. `auto` goes on with the CPU where a card has no memory left or stops working before anything is on it, with a
/// warning in the log and the metric `cuda_fallback`; `cuda` makes that the task's error. `quantiles.cuda_memory_limit` is the
/// client's.
#[derive(Debug, Clone)]
pub struct RoundDevice {
    #[cfg(feature = "cuda")]
    cards: Vec<Arc<Card>>,
    /// Whether the CPU takes over.
    #[cfg(feature = "cuda")]
    falls_back: bool,
}

impl RoundDevice {
    /// The device that `choice` names: `cuda` and `cuda:all` are all cards of this machine, `cuda:N` is one of them, `auto` all, or
    /// the CPU where there are none.
    ///
    /// # Errors
    /// For `cuda` and `cuda:N` an execution error that says why there is no such card; a configuration error where this program
    /// was built without the feature `cuda`.
    pub fn try_new(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Cpu => Ok(Self::cpu()),
            choice => Self::with_cards(choice),
        }
    }

    #[cfg(feature = "cuda")]
    fn cpu() -> Self {
        Self {
            cards: Vec::new(),
            falls_back: true,
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn cpu() -> Self {
        Self {}
    }

    #[cfg(not(feature = "cuda"))]
    fn with_cards(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Auto => Ok(Self::cpu()),
            choice => config_err!("device {choice}: this program was built without the feature 'cuda'"),
        }
    }

    #[cfg(feature = "cuda")]
    fn with_cards(choice: DeviceChoice) -> Result<Self> {
        let open = || match choice {
            DeviceChoice::Cuda(Some(number)) => Ok(vec![Card::get(number)?]),
            _ => match Card::count()? {
                0 => config_err!("device {choice}: this machine has no card"),
                count => (0..count).map(Card::get).collect(),
            },
        };
        let falls_back = choice == DeviceChoice::Auto;
        match open() {
            Err(error) if falls_back => {
                log::warn!("rounds run on the CPU: {error}");
                Ok(Self::cpu())
            }
            Err(error) => Err(error),
            Ok(cards) => Ok(Self { cards, falls_back }),
        }
    }

    /// On these cards.
    #[cfg(feature = "cuda")]
    pub fn on(cards: Vec<Arc<Card>>, falls_back: bool) -> Self {
        Self { cards, falls_back }
    }

    /// Has tasks of sessions of this configuration run on this device.
    pub fn give(self, config: &mut SessionConfig) {
        config.set_extension(std::sync::Arc::new(self));
    }
}

/// Where the lanes of one partition are.
#[derive(Debug)]
pub(super) struct RoundBackend {
    cpu: CpuBackend,
    #[cfg(feature = "cuda")]
    card: Option<OnCard>,
}

#[cfg(feature = "cuda")]
#[derive(Debug)]
enum OnCard {
    Only(CudaBackend),
    First(OverflowBackend<CpuBackend>),
}

impl RoundBackend {
    /// For a partition of a task.
    #[cfg(feature = "cuda")]
    pub(super) fn of(context: &TaskContext, partition: usize, cpu: CpuBackend) -> Self {
        let device = context.session_config().get_extension::<RoundDevice>();
        let device = device.filter(|device| !device.cards.is_empty());
        let card = device.map(|device| {
            let card = Arc::clone(&device.cards[partition % device.cards.len()]);
            let limit = QuantilesOptions::of(context.session_config().options()).cuda_memory_limit;
            let card = CudaBackend::new(card, limit);
            match device.falls_back {
                true => OnCard::First(OverflowBackend::new(card, cpu.clone())),
                false => OnCard::Only(card),
            }
        });
        Self { cpu, card }
    }

    /// Whether a partition's input may be read twice, the second time for the CPU.
    #[cfg(feature = "cuda")]
    pub(super) fn may_read_again(context: &TaskContext) -> bool {
        let device = context.session_config().get_extension::<RoundDevice>();
        device.is_some_and(|device| device.falls_back && !device.cards.is_empty())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn may_read_again(_context: &TaskContext) -> bool {
        false
    }

    /// Without a card.
    pub(super) fn cpu(cpu: CpuBackend) -> Self {
        Self {
            cpu,
            #[cfg(feature = "cuda")]
            card: None,
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_context: &TaskContext, _partition: usize, cpu: CpuBackend) -> Self {
        Self { cpu }
    }

    /// Whether values go to a card, which means calls that wait.
    #[cfg(feature = "cuda")]
    pub(super) fn has_card(&self) -> bool {
        self.card.is_some()
    }

    /// Whether a card failed whose work the CPU takes over: the input is to be read again.
    #[cfg(feature = "cuda")]
    pub(super) fn has_failed(&self) -> bool {
        matches!(&self.card, Some(OnCard::First(card)) if card.has_failed())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn has_failed(&self) -> bool {
        false
    }

    /// A lane, as [`Backend::open`].
    ///
    /// # Errors
    /// The device's own.
    pub(super) fn open(&self, spec: &KeySpec, memory: MemoryReservation) -> Result<Box<dyn Lane>> {
        #[cfg(feature = "cuda")]
        if DeviceColumn::supports(spec.data_type()) {
            match &self.card {
                Some(OnCard::Only(card)) => return card.open(spec, memory),
                Some(OnCard::First(card)) => return card.open(spec, memory),
                None => {}
            }
        }
        self.cpu.open(spec, memory)
    }

    /// What a card did, as metrics.
    #[cfg(feature = "cuda")]
    pub(super) fn record(&self, metrics: &ExecutionPlanMetricsSet) {
        let (report, fallbacks) = match &self.card {
            None => return,
            Some(OnCard::Only(card)) => (card.report(), 0),
            Some(OnCard::First(card)) => (card.report(), usize::from(card.has_overflowed())),
        };
        super::super::on_card::record(&report, metrics);
        MetricBuilder::new(metrics)
            .counter("cuda_fallback", 0)
            .add(fallbacks);
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn record(&self, _metrics: &ExecutionPlanMetricsSet) {}
}
