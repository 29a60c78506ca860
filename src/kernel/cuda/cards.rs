//! Which cards a session uses.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::config::SessionConfig;

use super::Card;
use crate::config::DeviceChoice;

/// Cards by their numbers, or some that are open.
#[derive(Debug, Clone)]
pub(crate) enum Cards {
    /// As this machine counts them.
    Numbered(Vec<usize>),
    /// Those that the session was given.
    Given(Vec<Arc<Card>>),
}

/// Cards of a session, in place of all those of the machine.
#[derive(Debug)]
struct SessionCards(Vec<Arc<Card>>);

impl Cards {
    /// Has sessions of this configuration use `cards` alone.
    pub(crate) fn give(config: &mut SessionConfig, cards: Vec<Arc<Card>>) {
        config.set_extension(Arc::new(SessionCards(cards)));
    }

    /// All cards for `cuda:all`, the one for `cuda:N`; the first for others.
    pub(crate) fn of(device: DeviceChoice, config: &SessionConfig) -> Self {
        if let Some(given) = config.get_extension::<SessionCards>() {
            let cards = given.0.iter();
            return Self::Given(match device {
                DeviceChoice::CudaAll => cards.cloned().collect(),
                DeviceChoice::Cuda(Some(number)) => cards.skip(number).take(1).cloned().collect(),
                DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(None) => {
                    cards.take(1).cloned().collect()
                }
            });
        }
        Self::Numbered(match device {
            // Where they cannot be counted, opening the first says why.
            DeviceChoice::CudaAll => (0..Card::count().unwrap_or(1).max(1)).collect(),
            DeviceChoice::Cuda(Some(number)) => vec![number],
            DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(None) => vec![0],
        })
    }

    /// Whether these are cards that `card` is one of, which the machine counts as `ordinal`.
    pub(crate) fn has(&self, card: &Arc<Card>, ordinal: usize) -> bool {
        match self {
            Self::Numbered(_) => card.ordinal() == ordinal,
            Self::Given(cards) => cards.iter().any(|own| Arc::ptr_eq(own, card)),
        }
    }

    /// The cards, at least one.
    ///
    /// # Errors
    /// An execution error that says why one of them is not there.
    pub(crate) fn open(&self) -> Result<Vec<Arc<Card>>> {
        match self {
            Self::Numbered(numbers) => numbers.iter().map(|number| Card::get(*number)).collect(),
            Self::Given(cards) if cards.is_empty() => exec_err!("the session was given no such card"),
            Self::Given(cards) => Ok(cards.clone()),
        }
    }
}

impl Display for Cards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<usize> = match self {
            Self::Numbered(numbers) => numbers.clone(),
            Self::Given(cards) => cards.iter().map(|card| card.ordinal()).collect(),
        };
        let shown: Vec<_> = numbers.iter().map(|number| format!("cuda:{number}")).collect();
        f.write_str(&shown.join("+"))
    }
}
