//! Sketches over keys of any width, for callers that learn the type of values only at run time.

use std::fmt::{self, Debug};

use datafusion::arrow::array::Array;
use datafusion::arrow::buffer::Buffer;
use datafusion::common::{Result, exec_err, internal_err};

use super::dyadic::Interval;
use super::tree::FAST_KEYS;
use super::{Epsilon, Header, Sketch, Summary, Variant};
use crate::key::{Encoding, Key, KeyBits, KeySpec, Width, dense, on_width, words};

/// Number of keys that are encoded at a time: they stay in the first-level cache.
const BLOCK: usize = 2048;

/// A sketch that is being filled with keys of one width, which is given when it is made.
pub struct AnySketch(SketchByWidth);

/// A [`Sketch`] of keys of one of the widths.
enum SketchByWidth {
    W32(Sketch<u32>),
    W64(Sketch<u64>),
    W128(Sketch<u128>),
}

/// The summary of a sketch's values, of keys of any width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnySummary(SummaryByWidth);

/// A [`Summary`] of keys of one of the widths.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SummaryByWidth {
    W32(Summary<u32>),
    W64(Summary<u64>),
    W128(Summary<u128>),
}

impl Debug for AnySketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnySketch").field("n", &self.n()).finish()
    }
}

impl AnySketch {
    /// An empty sketch.
    pub fn new(width: Width, eps: Epsilon, variant: Variant) -> Self {
        Self(match width {
            Width::W32 => SketchByWidth::W32(Sketch::new(eps, variant)),
            Width::W64 => SketchByWidth::W64(Sketch::new(eps, variant)),
            Width::W128 => SketchByWidth::W128(Sketch::new(eps, variant)),
        })
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        on_width!(SketchByWidth, &self.0, sketch => sketch.n())
    }

    /// Bytes of memory held, those of the sketch itself included.
    pub fn size(&self) -> usize {
        size_of::<Self>() + on_width!(SketchByWidth, &self.0, sketch => sketch.size())
    }

    /// Adds the values of an array. It must have the type of `spec`, whose keys have the width of the sketch. NULLs are
    /// skipped.
    ///
    /// # Errors
    /// An execution error if there are more than 2^63 - 1 values in all.
    pub fn extend(&mut self, spec: &KeySpec, values: &dyn Array) -> Result<()> {
        let dense = dense(values, None)?;
        let raw = spec.raw(dense.as_deref().unwrap_or(values))?;
        on_width!(SketchByWidth, &mut self.0, sketch => extend(sketch, spec.encoding(), &raw))
    }

    /// Adds keys of the sketch's width, given by their bits.
    ///
    /// # Errors
    /// Errors of [`Self::extend`].
    pub fn extend_keys(&mut self, keys: impl Iterator<Item = KeyBits>) -> Result<()> {
        on_width!(SketchByWidth, &mut self.0, sketch => {
            let keys: Vec<_> = keys.map(Key::from_bits).collect();
            sketch.extend(&keys)
        })
    }

    /// Adds keys of the sketch's width.
    ///
    /// # Errors
    /// Errors of [`Self::extend`]; an internal error for keys of another width.
    pub fn extend_slice<K: Key>(&mut self, keys: &[K]) -> Result<()> {
        let same = on_width!(SketchByWidth, &mut self.0, sketch => {
            bytemuck::try_cast_slice(keys).map(|keys| sketch.extend(keys))
        });
        same.unwrap_or_else(|_| internal_err!("{}-bit keys for a sketch of another width", K::BITS))
    }

    /// Most bytes of memory that a sketch of `n` values may hold.
    pub(crate) fn most_bytes(width: Width, eps: Epsilon, n: u64) -> usize {
        let (numerator, denominator) = eps.fraction();
        let tuples = |multiple: u64| {
            let quotient = multiple.saturating_mul(denominator).checked_div(numerator);
            quotient.unwrap_or(u64::MAX).min(n) as usize
        };
        // A buffer, which is never small; as much again to partition it; then cells or levels.
        let buffered = tuples(32).max(FAST_KEYS).min(n as usize).min(1 << 20);
        2 * width.bytes() * buffered + (16 + width.bytes()).next_multiple_of(16) * tuples(8) + 4096
    }

    /// Adds the values of a summary of the same width.
    ///
    /// # Errors
    /// Errors of [`Self::extend`].
    pub fn merge(&mut self, summary: AnySummary) -> Result<()> {
        match (&mut self.0, summary.0) {
            (SketchByWidth::W32(sketch), SummaryByWidth::W32(summary)) => sketch.merge(summary),
            (SketchByWidth::W64(sketch), SummaryByWidth::W64(summary)) => sketch.merge(summary),
            (SketchByWidth::W128(sketch), SummaryByWidth::W128(summary)) => sketch.merge(summary),
            _ => internal_err!("quantile sketches of two key widths"),
        }
    }

    /// The summary of all values, as small as the error fraction allows: for answers.
    ///
    /// # Errors
    /// Errors of [`Self::extend`].
    pub fn finish(self) -> Result<AnySummary> {
        Ok(AnySummary(match self.0 {
            SketchByWidth::W32(sketch) => SummaryByWidth::W32(sketch.finish()?),
            SketchByWidth::W64(sketch) => SummaryByWidth::W64(sketch.finish()?),
            SketchByWidth::W128(sketch) => SummaryByWidth::W128(sketch.finish()?),
        }))
    }

    /// The summary of all values, with a part of the error fraction left for merges.
    ///
    /// # Errors
    /// Errors of [`Self::extend`].
    pub fn partial(self) -> Result<AnySummary> {
        Ok(AnySummary(match self.0 {
            SketchByWidth::W32(sketch) => SummaryByWidth::W32(sketch.partial()?),
            SketchByWidth::W64(sketch) => SummaryByWidth::W64(sketch.partial()?),
            SketchByWidth::W128(sketch) => SummaryByWidth::W128(sketch.partial()?),
        }))
    }
}

fn extend<K: Key>(sketch: &mut Sketch<K>, encoding: Encoding, raw: &Buffer) -> Result<()> {
    let mut keys = [K::default(); BLOCK];
    for block in words::<K>(raw).chunks(BLOCK) {
        let keys = &mut keys[..block.len()];
        encoding.encode(block, keys);
        sketch.extend(keys)?;
    }
    Ok(())
}

impl AnySummary {
    /// A summary from intervals that hold all values: see [`super::dyadic`].
    ///
    /// # Errors
    /// An internal error if the intervals are too coarse for the error fraction, or not ascending and disjoint.
    pub(crate) fn from_intervals(
        width: Width,
        eps: Epsilon,
        ends: (KeyBits, KeyBits),
        intervals: &[Interval],
    ) -> Result<Self> {
        Ok(Self(match width {
            Width::W32 => SummaryByWidth::W32(Summary::from_intervals(eps, ends, intervals)?),
            Width::W64 => SummaryByWidth::W64(Summary::from_intervals(eps, ends, intervals)?),
            Width::W128 => SummaryByWidth::W128(Summary::from_intervals(eps, ends, intervals)?),
        }))
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        on_width!(SummaryByWidth, &self.0, summary => summary.n())
    }

    /// The error fraction.
    pub fn epsilon(&self) -> Epsilon {
        on_width!(SummaryByWidth, &self.0, summary => summary.epsilon())
    }

    /// Width of the keys.
    pub fn width(&self) -> Width {
        match self.0 {
            SummaryByWidth::W32(_) => Width::W32,
            SummaryByWidth::W64(_) => Width::W64,
            SummaryByWidth::W128(_) => Width::W128,
        }
    }

    /// A key near a rank from 1, and the least and the greatest rank that its value may have.
    ///
    /// # Errors
    /// An internal error unless `1 <= rank <= n`.
    pub fn value_at(&self, rank: u64) -> Result<(KeyBits, u64, u64)> {
        let found = on_width!(SummaryByWidth, &self.0, summary => summary.value_at(rank).map(|estimate| {
            (estimate.key.to_bits(), estimate.rank_min, estimate.rank_max)
        }));
        match found {
            Some(found) => Ok(found),
            None => internal_err!("rank {rank} of a sketch of {} values", self.n()),
        }
    }

    /// For each rank two keys between which its key lies, both included. Strictly between them lie less than `4 eps n`
    /// values.
    ///
    /// # Errors
    /// An execution error unless `1 <= rank <= n`.
    pub fn brackets(&self, ranks: &[u64]) -> Result<Vec<(KeyBits, KeyBits)>> {
        on_width!(SummaryByWidth, &self.0, summary => {
            let brackets = summary.brackets(ranks)?.into_iter();
            Ok(brackets.map(|bracket| (bracket.lo.to_bits(), bracket.hi.to_bits())).collect())
        })
    }

    /// The summary of the values of both sides.
    ///
    /// # Errors
    /// An internal error for two key widths; if the sides have more than 2^63 - 1 values together.
    pub fn merge(self, other: Self) -> Result<Self> {
        Ok(Self(match (self.0, other.0) {
            (SummaryByWidth::W32(own), SummaryByWidth::W32(other)) => SummaryByWidth::W32(own.merge(other)?),
            (SummaryByWidth::W64(own), SummaryByWidth::W64(other)) => SummaryByWidth::W64(own.merge(other)?),
            (SummaryByWidth::W128(own), SummaryByWidth::W128(other)) => {
                SummaryByWidth::W128(own.merge(other)?)
            }
            _ => return internal_err!("quantile sketches of two key widths"),
        }))
    }

    /// Number of tuples.
    pub fn len(&self) -> usize {
        on_width!(SummaryByWidth, &self.0, summary => summary.len())
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The least and the greatest number of values that may be at or below a key.
    pub fn rank(&self, key: KeyBits) -> (u64, u64) {
        on_width!(SummaryByWidth, &self.0, summary => summary.rank(Key::from_bits(key)))
    }

    /// The summary as bytes. `tag` says what the keys mean: [`Self::read`] demands the same one.
    pub fn write(&self, tag: &[u8]) -> Vec<u8> {
        on_width!(SummaryByWidth, &self.0, summary => summary.write(tag))
    }

    /// A summary from the bytes of [`Self::write`].
    ///
    /// # Errors
    /// An execution error if the bytes are no summary, of another version or tag, or damaged.
    pub fn read(bytes: &[u8], tag: &[u8]) -> Result<Self> {
        Ok(Self(match Header::read(bytes)?.bits {
            32 => SummaryByWidth::W32(Summary::read(bytes, tag)?),
            64 => SummaryByWidth::W64(Summary::read(bytes, tag)?),
            128 => SummaryByWidth::W128(Summary::read(bytes, tag)?),
            bits => return exec_err!("a quantile sketch of {bits}-bit keys: allowed are 32, 64 and 128"),
        }))
    }
}
