//! Where the rounds of an executor run: on its own device, whatever the client's `quantiles.device` says of the client's.

#[cfg(feature = "cuda")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
/// warning in the log and the metric `cuda_fallback`; `cuda` makes that the task's error. A partition is given the card that works
/// on the fewest partitions of the process, whatever their tasks. Memory of a card is limited by the client's
/// `quantiles.cuda_memory_limit`, and by [`Self::with_memory_limit`].
#[derive(Debug, Clone)]
pub struct RoundDevice {
    #[cfg(feature = "cuda")]
    cards: Vec<Arc<Card>>,
    /// Partitions that each card works on.
    #[cfg(feature = "cuda")]
    places: Arc<Places>,
    /// Most bytes of a card's memory, whatever clients allow.
    #[cfg(feature = "cuda")]
    limit: Option<u64>,
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
        Self::on(Vec::new(), true)
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
            Ok(cards) => Ok(Self::on(cards, falls_back)),
        }
    }

    /// On these cards.
    #[cfg(feature = "cuda")]
    pub fn on(cards: Vec<Arc<Card>>, falls_back: bool) -> Self {
        Self {
            places: Arc::new(Places::new(cards.len())),
            cards,
            limit: None,
            falls_back,
        }
    }

    /// This device with a limit: the process holds `limit` bytes of each card's memory at most, also where a client allows more.
    pub fn with_memory_limit(self, limit: Option<u64>) -> Self {
        #[cfg(feature = "cuda")]
        return Self { limit, ..self };
        #[cfg(not(feature = "cuda"))]
        {
            // There are no cards.
            let _ = limit;
            self
        }
    }

    /// Has tasks of sessions of this configuration run on this device.
    pub fn give(self, config: &mut SessionConfig) {
        config.set_extension(std::sync::Arc::new(self));
    }
}

/// How many partitions each card works on.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct Places(Mutex<Vec<usize>>);

#[cfg(feature = "cuda")]
impl Places {
    fn new(cards: usize) -> Self {
        Self(Mutex::new(vec![0; cards]))
    }

    fn running(&self) -> MutexGuard<'_, Vec<usize>> {
        // A number is changed in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place on the card with the fewest partitions, of these the one with the least burden; `None`: there are no cards.
    fn take<B: Ord>(self: &Arc<Self>, burden: impl Fn(usize) -> B) -> Option<Place> {
        let mut running = self.running();
        let cards = 0..running.len();
        let card = cards.min_by_key(|card| (running[*card], burden(*card)))?;
        running[card] += 1;
        let places = Arc::clone(self);
        Some(Place { places, card })
    }
}

/// A partition's place on a card, until it is dropped.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    card: usize,
}

#[cfg(feature = "cuda")]
impl Drop for Place {
    fn drop(&mut self) {
        self.places.running()[self.card] -= 1;
    }
}

/// The less of two limits; `None`: there is none.
#[cfg(feature = "cuda")]
fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Where the lanes of one partition are.
#[derive(Debug)]
pub(super) struct RoundBackend {
    cpu: CpuBackend,
    #[cfg(feature = "cuda")]
    card: Option<OnCard>,
    #[cfg(feature = "cuda")]
    _place: Option<Place>,
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
    pub(super) fn of(context: &TaskContext, cpu: CpuBackend) -> Self {
        let placed = context.session_config().get_extension::<RoundDevice>();
        let placed = placed.and_then(|device| {
            // Numbers of partitions begin anew in each task: they say nothing of which card is free.
            let held = |card: usize| {
                (
                    device.cards[card].check().is_err(),
                    device.cards[card].held_bytes(),
                )
            };
            let place = device.places.take(held)?;
            Some((device, place))
        });
        let Some((device, place)) = placed else {
            return Self::cpu(cpu);
        };
        let client = QuantilesOptions::of(context.session_config().options()).cuda_memory_limit;
        let card = CudaBackend::new(Arc::clone(&device.cards[place.card]), least(client, device.limit));
        let card = match device.falls_back {
            true => OnCard::First(OverflowBackend::new(card, cpu.clone())),
            false => OnCard::Only(card),
        };
        Self {
            cpu,
            card: Some(card),
            _place: Some(place),
        }
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
            #[cfg(feature = "cuda")]
            _place: None,
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_context: &TaskContext, cpu: CpuBackend) -> Self {
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

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_all_tasks_are_spread_over_the_cards() {
        let places = Arc::new(Places::new(3));
        let take = || places.take(|_| 0).unwrap();
        // Tasks of one partition each.
        let mut taken: Vec<_> = (0..6).map(|_| take()).collect();
        let cards: Vec<_> = taken.iter().map(|place| place.card).collect();
        assert_eq!(cards, [0, 1, 2, 0, 1, 2]);
        // What ends makes room, wherever it was.
        drop(taken.remove(4));
        assert_eq!(take().card, 1);
        drop(taken);
        assert_eq!(*places.running(), [0, 0, 0]);
        // Of cards with nothing to do, that which holds least.
        assert_eq!(places.take(|card| [7, 5, 6][card]).unwrap().card, 1);
        assert!(Arc::new(Places::new(0)).take(|_| 0).is_none());
    }

    #[test]
    fn the_lesser_limit_counts() {
        for (client, own, expected) in [
            (None, None, None),
            (Some(5), None, Some(5)),
            (None, Some(7), Some(7)),
            (Some(5), Some(7), Some(5)),
            (Some(9), Some(7), Some(7)),
        ] {
            assert_eq!(least(client, own), expected);
        }
    }
}
