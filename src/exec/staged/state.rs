//! The coordinator's state between two stages: for each key column the progress of its ranks, and the next request.

use std::sync::Arc;

use datafusion::common::Result;

use super::fingerprint::{ColumnFingerprint, compare};
use super::rounds::Rounds;
use crate::kernel::round::Reply;
use crate::kernel::round_messages::SentRequest;
use crate::key::Width;
use crate::quantile::QuantileSpec;
use crate::select::progress::Progress;
use crate::select::{NextStep, countable, wanted_ranks};
use crate::wire::{Message, Reader, put};

/// The read in which every column is read again, even if it is done, to detect rows that the first read missed or saw twice.
pub(super) const COMPARING_READ: usize = 1;

/// The state of one key column.
#[derive(Debug, Clone)]
pub(super) struct ColumnState {
    /// The fingerprint that all reads must have.
    pub(super) fingerprint: ColumnFingerprint,
    pub(super) progress: Progress,
    /// The next request to the shards; `None` if every rank has its key.
    pub(super) sent: Option<SentRequest>,
}

/// The state of all key columns.
#[derive(Debug, Clone, Default)]
pub(super) struct State(pub(super) Vec<ColumnState>);

impl State {
    /// The state as a message.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// The state that a message holds.
    ///
    /// # Errors
    /// An execution error for bytes that are no state.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Reader::message(bytes)
    }
}

impl ColumnState {
    /// The state after the first round.
    pub(super) fn first(
        width: Width,
        quantile_specs: &[&QuantileSpec],
        rounds: &Rounds,
        (fingerprint, reply): (ColumnFingerprint, Reply),
    ) -> Result<Self> {
        let progress = Progress::try_new(width, fingerprint.n, wanted_ranks(quantile_specs, fingerprint.n))?;
        let sent = (!progress.is_done()).then(|| SentRequest {
            width,
            request: Arc::new(rounds.first_request(fingerprint.n, width)),
        });
        let asked = Self {
            fingerprint,
            progress,
            sent,
        };
        asked.next(rounds, 0, (fingerprint, reply))
    }

    /// The state after the round that this state asked for, which was read `read`.
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
        let Some(SentRequest { width, request }) = self.sent else {
            return Ok(self);
        };
        let strategy = rounds.strategy(read, self.progress.ranks().len());
        let step = strategy.step(self.progress, &request, reply)?;
        let (progress, sent) = match rounds.next(read, step)? {
            NextStep::Round(progress, request) => {
                let request = Arc::new(request);
                (progress, Some(SentRequest { width, request }))
            }
            NextStep::Done(progress) => (progress, None),
        };
        Ok(Self {
            fingerprint,
            progress,
            sent,
        })
    }
}

impl Message for State {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        for column in &self.0 {
            column.fingerprint.write(out);
            column.progress.write(out);
            out.push(u8::from(column.sent.is_some()));
            if let Some(sent) = &column.sent {
                sent.write(out);
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
                sent: if input.flag("sent")? {
                    Some(SentRequest::read(input)?)
                } else {
                    None
                },
            })
        };
        input.list("columns", column).map(State)
    }
}
