//! The coordinator's state between two stages: for each key column what is known of its ranks, and what is asked next.

use std::sync::Arc;

use datafusion::common::Result;

use super::fingerprint::{ColumnFingerprint, compare};
use super::rounds::Rounds;
use crate::kernel::round::Reply;
use crate::kernel::round_messages::Order;
use crate::key::Width;
use crate::quantile::QuantileSpec;
use crate::select::progress::Progress;
use crate::select::{Step, countable, wanted_ranks};
use crate::wire::{Message, Reader, put};

/// The read in which all columns are read again, those that are done too: what the first read missed, or saw twice, differs from it.
pub(super) const COMPARING_READ: usize = 1;

/// Of one key column.
#[derive(Debug, Clone)]
pub(super) struct ColumnState {
    /// What all scans must see.
    pub(super) fingerprint: ColumnFingerprint,
    pub(super) progress: Progress,
    /// What shards are asked next; `None`: every rank has its key.
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
        quantile_specs: &[&QuantileSpec],
        rounds: &Rounds,
        (fingerprint, reply): (ColumnFingerprint, Reply),
    ) -> Result<Self> {
        let progress = Progress::try_new(width, fingerprint.n, wanted_ranks(quantile_specs, fingerprint.n))?;
        if progress.is_done() {
            return Ok(Self {
                fingerprint,
                progress,
                order: None,
            });
        }
        let request = rounds.first_request(fingerprint.n, width);
        let strategy = rounds.strategy(0, progress.ranks().len());
        let step = strategy.step(progress, &request, reply)?;
        Self::after(width, fingerprint, rounds.next(0, step)?)
    }

    /// After the round that this state asked for, which was read `read`.
    ///
    /// # Errors
    /// An execution error if the shards did not read what those of earlier rounds read.
    pub(super) fn next(
        self,
        rounds: &Rounds,
        read: usize,
        (fingerprint, reply): (ColumnFingerprint, Reply),
    ) -> Result<Self> {
        compare(&self.fingerprint, &fingerprint)?;
        match self.order {
            Some(order) => {
                let strategy = rounds.strategy(read, self.progress.ranks().len());
                let step = strategy.step(self.progress, &order.request, reply)?;
                Self::after(order.width, fingerprint, rounds.next(read, step)?)
            }
            None => Ok(self),
        }
    }

    fn after(width: Width, fingerprint: ColumnFingerprint, step: Step) -> Result<Self> {
        let (progress, order) = match step {
            Step::Round(progress, request) => {
                let request = Arc::new(request);
                (progress, Some(Order { width, request }))
            }
            Step::Done(progress) => (progress, None),
        };
        Ok(Self {
            fingerprint,
            progress,
            order,
        })
    }
}

impl Message for State {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        for column in &self.0 {
            column.fingerprint.write(out);
            column.progress.write(out);
            out.push(u8::from(column.order.is_some()));
            if let Some(order) = &column.order {
                order.write(out);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let column = |input: &mut Reader<'_>| {
            let fingerprint = ColumnFingerprint::read(input)?;
            countable(fingerprint.n)?;
            Ok(ColumnState {
                fingerprint,
                progress: Progress::read(input)?,
                order: if input.flag("order")? {
                    Some(Order::read(input)?)
                } else {
                    None
                },
            })
        };
        input.list("columns", column).map(State)
    }
}
