//! The slow shard: plain loops over 128-bit keys, by the definitions of [`datafusion_quantiles::kernel::round`] and
//! [`datafusion_quantiles::cells`].
//!
//! It is obviously right. Tests run every request on it and on the fast shards, and compare the replies.

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use datafusion_quantiles::cells::{Bracket, Brackets};
use datafusion_quantiles::kernel::round::{Reply, Request, share};
use datafusion_quantiles::kernel::{Backend, Shard};
use datafusion_quantiles::key::KeyVec;
use datafusion_quantiles::key::{KeyBits, KeySpec, Width, dense};
use datafusion_quantiles::sketch::{AnySketch, Variant};
use datafusion_quantiles::threads::Stop;

/// The backend that opens [`NaiveShard`]s.
#[derive(Debug, Default)]
pub struct NaiveBackend;

impl Backend for NaiveBackend {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>> {
        Ok(Box::new(NaiveShard {
            spec: spec.clone(),
            keys: Vec::new(),
            reservation,
        }))
    }
}

/// A shard that keeps all keys in one vector, and reads all of them for every request.
#[derive(Debug)]
pub struct NaiveShard {
    spec: KeySpec,
    keys: Vec<KeyBits>,
    reservation: MemoryReservation,
}

impl NaiveShard {
    fn inside<'a>(&'a self, within: &'a Brackets) -> impl Iterator<Item = KeyBits> + 'a {
        let contains = |key: &KeyBits| within.as_slice().iter().any(|bracket| bracket.contains(*key));
        self.keys.iter().copied().filter(contains)
    }

    fn narrow(&self, keys: Vec<KeyBits>) -> KeyVec {
        match self.spec.width() {
            Width::W32 => KeyVec::W32(keys.into_iter().map(|key| key as u32).collect()),
            Width::W64 => KeyVec::W64(keys.into_iter().map(|key| key as u64).collect()),
            Width::W128 => KeyVec::W128(keys),
        }
    }
}

impl Shard for NaiveShard {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        let kept = dense(values.as_ref(), filter)?;
        let keys = self.spec.keys(kept.as_ref().unwrap_or(values))?;
        self.reservation.try_grow(keys.len() * size_of::<KeyBits>())?;
        self.keys.extend(keys);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    fn held_bytes(&self) -> usize {
        self.reservation.size()
    }

    fn split(&mut self, _values: u64) -> Option<Box<dyn Shard>> {
        None
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        stop.check()?;
        Ok(match request {
            Request::Sample {
                size,
                population,
                within,
                extremes,
                ..
            } => {
                let inside: Vec<KeyBits> = self.inside(within).collect();
                let (least, greatest) = (inside.iter().min().copied(), inside.iter().max().copied());
                let share = share(*size, *population, inside.len() as u64);
                let step = (inside.len() / (share as usize).max(1)).max(1);
                let mut keys: Vec<KeyBits> = inside.into_iter().step_by(step).take(share as usize).collect();
                keys.sort_unstable();
                Reply::Sample {
                    keys: self.narrow(keys),
                    extremes: least.zip(greatest).filter(|_| *extremes),
                }
            }
            Request::Count { cells, within, keep } => {
                let mut counts = vec![0; cells.len()];
                let mut kept = vec![Vec::new(); keep.len()];
                for key in self.inside(within) {
                    let Some(cell) = cells.cell(key) else { continue };
                    counts[cell as usize] += 1;
                    if let Ok(at) = keep.binary_search(&cell) {
                        kept[at].push(key);
                    }
                }
                Reply::Counts {
                    counts,
                    kept: kept.into_iter().map(|keys| self.narrow(keys)).collect(),
                }
            }
            Request::Sketch { eps } => {
                let mut sketch = AnySketch::new(self.spec.width(), *eps, Variant::Classical);
                sketch.extend_keys(self.keys.iter().copied())?;
                Reply::Sketch(Some(sketch.partial()?))
            }
            Request::Extract { brackets } => {
                let inside = |bracket: &Bracket| {
                    self.keys
                        .iter()
                        .copied()
                        .filter(|key| bracket.contains(*key))
                        .collect()
                };
                Reply::Extracted(
                    brackets
                        .as_slice()
                        .iter()
                        .map(|bracket| self.narrow(inside(bracket)))
                        .collect(),
                )
            }
        })
    }
}
