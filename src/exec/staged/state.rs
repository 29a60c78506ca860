//! The coordinator's state between two stages: for each key column what is known of its ranks, and what is asked next.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};

use super::READ_DIFFERENTLY;
use super::Rounds;
use super::rows::Seen;
use crate::kernel::round::Reply;
use crate::kernel::round_messages::Order;
use crate::key::Width;
use crate::quantile::Ask;
use crate::select::progress::Progress;
use crate::select::{Step, countable, wanted_ranks};
use crate::wire::{Message, Reader, put};

/// The read in which all columns are read again, those that are done too: what the first read missed, or saw twice, differs from it.
pub(super) const COMPARING_READ: usize = 1;

/// Of one key column.
#[derive(Debug, Clone)]
pub(super) struct ColumnState {
    /// What all scans must see.
    pub(super) seen: Seen,
    pub(super) progress: Progress,
    /// What lanes are asked next; `None`: every rank has its key.
    pub(super) order: Option<Order>,
}

/// Of all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct State(pub(super) Vec<ColumnState>);

impl State {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// # Errors
    /// An execution error for bytes that are no state.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Reader::message(bytes)
    }
}

impl ColumnState {
    /// After the first round.
    pub(super) fn first(
        width: Width,
        asks: &[&Ask],
        rounds: &Rounds,
        (seen, reply): (Seen, Reply),
    ) -> Result<Self> {
        let progress = Progress::try_new(width, seen.n, wanted_ranks(asks, seen.n))?;
        if progress.is_done() {
            return Ok(Self {
                seen,
                progress,
                order: None,
            });
        }
        let request = rounds.first_request(seen.n, width);
        let strategy = rounds.strategy(0, progress.ranks().len());
        let step = strategy.step(progress, &request, reply)?;
        Self::after(width, seen, rounds.next(0, step)?)
    }

    /// After the round that this state asked for, which was read `read`.
    ///
    /// # Errors
    /// An execution error if the lanes did not read what those of earlier rounds read.
    pub(super) fn next(self, rounds: &Rounds, read: usize, (seen, reply): (Seen, Reply)) -> Result<Self> {
        self.compare(seen)?;
        match self.order {
            Some(order) => {
                let strategy = rounds.strategy(read, self.progress.ranks().len());
                let step = strategy.step(self.progress, &order.request, reply)?;
                Self::after(order.width, seen, rounds.next(read, step)?)
            }
            None => Ok(self),
        }
    }

    /// That a read saw what the first one did.
    fn compare(&self, seen: Seen) -> Result<()> {
        if seen == self.seen {
            return Ok(());
        }
        exec_err!(
            "{READ_DIFFERENTLY}: {} values with checksum {:016x} \
             were read first, {} with {:016x} later",
            self.seen.n,
            self.seen.check,
            seen.n,
            seen.check
        )
    }

    fn after(width: Width, seen: Seen, step: Step) -> Result<Self> {
        let (progress, order) = match step {
            Step::Ask(progress, request) => {
                let request = Arc::new(request);
                (progress, Some(Order { width, request }))
            }
            Step::Done(progress) => (progress, None),
        };
        Ok(Self {
            seen,
            progress,
            order,
        })
    }
}

impl Message for State {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        for column in &self.0 {
            put(out, column.seen.n);
            out.extend(column.seen.check.to_le_bytes());
            column.progress.write(out);
            out.push(u8::from(column.order.is_some()));
            if let Some(order) = &column.order {
                order.write(out);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let column = |input: &mut Reader<'_>| {
            Ok(ColumnState {
                seen: Seen {
                    n: countable(input.number("number of values")?)?,
                    check: input.key::<u64>()?,
                },
                progress: Progress::read(input)?,
                order: match input.flag("order")? {
                    true => Some(Order::read(input)?),
                    false => None,
                },
            })
        };
        input.list("columns", column).map(State)
    }

    fn values(&self) -> u64 {
        let orders = self.0.iter().filter_map(|column| column.order.as_ref());
        orders.map(Message::values).sum()
    }
}
