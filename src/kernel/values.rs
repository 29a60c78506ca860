//! Byte strings of one column, in chunks of flat memory, and the selection of ranks among a few of them.
//!
//! ```text
//! chunk   bytes  O s l o B o n n R o m e ...      at most 4 MiB, never moved
//!         ends         4       8       12         one a value
//! ```
//! A value costs its bytes and four more. Copying them out of Arrow's buffers costs less than keeping those: a string
//! view holds 16 bytes a value beside the text, and a page of text stays alive for its last view.

use std::cmp::Ordering;

use datafusion::arrow::array::{Array, BooleanArray};
use datafusion::common::{Result, internal_err, resources_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::cpu::groups::segments::select_by;
use crate::key::{ByteSpec, PrefixKey, kept};

/// Bytes of a full-grown chunk, unless one value is larger.
const CHUNK_BYTES: usize = 4 << 20;

/// Most values of a chunk.
const CHUNK_VALUES: usize = 1 << 18;

/// Where a value is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct At {
    chunk: u32,
    row: u32,
}

/// A run of values.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Where each value ends in `bytes`.
    ends: Vec<u32>,
    /// Length of the longest common prefix.
    common: usize,
    /// Length of the longest value.
    longest: usize,
}

impl Chunk {
    fn value(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[row] as usize]
    }

    fn push(&mut self, value: &[u8]) {
        if self.ends.is_empty() {
            self.common = value.len();
        } else if !value.starts_with(&self.bytes[..self.common]) {
            self.common = common_prefix(&self.bytes[..self.common], value);
        }
        self.longest = self.longest.max(value.len());
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len() as u32);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.capacity() - self.bytes.len() >= bytes && self.ends.len() < CHUNK_VALUES
    }

    fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// Length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// What some values have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// One of them.
    pub(crate) first: At,
    /// Length of their longest common prefix.
    pub(crate) common: usize,
    /// Length of the longest of them.
    pub(crate) longest: usize,
}

/// The values of a column that are not NULL, as byte strings.
#[derive(Debug, Default)]
pub(crate) struct Values {
    chunks: Vec<Chunk>,
    len: u64,
    bytes: u64,
    /// What is held is reserved here, if anywhere.
    reservation: Option<MemoryReservation>,
    /// Reservations of values that were merged into these.
    of_parts: Vec<MemoryReservation>,
}

impl Values {
    /// No values; what comes is reserved.
    pub(crate) fn reserving(reservation: MemoryReservation) -> Self {
        Self {
            reservation: Some(reservation),
            ..Self::default()
        }
    }

    /// Values held.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> usize {
        let chunks = self.chunks.iter().map(Chunk::held_bytes);
        chunks.sum::<usize>() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Copies the values of `values` that are not NULL and, where there is a `mask`, whose row is true in it. Returns
    /// how many.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the wanted bytes; an internal error if `values` is not of the type of `spec`.
    pub(crate) fn append(
        &mut self,
        spec: &ByteSpec,
        values: &dyn Array,
        mask: Option<&BooleanArray>,
    ) -> Result<usize> {
        let before = self.len;
        let kept = kept(values, mask)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        spec.each(values, kept, |value| self.push(value).map(drop))?;
        self.reserve(0)?;
        Ok((self.len - before) as usize)
    }

    /// Copies one value; where it is.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn push(&mut self, value: &[u8]) -> Result<At> {
        if !self
            .chunks
            .last()
            .is_some_and(|chunk| chunk.has_room(value.len()))
        {
            self.grow(value.len())?;
        }
        let number = self.chunks.len() as u32;
        let Some(chunk) = self.chunks.last_mut() else {
            return internal_err!("a value has no chunk");
        };
        chunk.push(value);
        self.len += 1;
        self.bytes += value.len() as u64;
        Ok(At {
            chunk: number - 1,
            row: chunk.ends.len() as u32 - 1,
        })
    }

    /// A new chunk: as large as all before, within bounds, so that small inputs stay small.
    fn grow(&mut self, wanted: usize) -> Result<()> {
        let likely = self.bytes as usize / (self.len as usize).max(1) * CHUNK_VALUES * 5 / 4;
        let all = (self.bytes as usize).min(likely).clamp(64, CHUNK_BYTES);
        let capacity = all.max(wanted);
        if u32::try_from(capacity).is_err() {
            return Err(resources_datafusion_err!(
                "a quantile argument has a value of {wanted} bytes: at most {} are handled",
                u32::MAX
            ));
        }
        self.reserve(capacity)?;
        let mut chunk = Chunk::default();
        chunk.bytes.try_reserve_exact(capacity).map_err(|error| {
            resources_datafusion_err!("quantiles cannot allocate {capacity} more bytes: {error}")
        })?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// Reserves what is held, and `more` bytes.
    fn reserve(&self, more: usize) -> Result<()> {
        let Some(reservation) = &self.reservation else {
            return Ok(());
        };
        reservation
            .try_resize(self.held_bytes() + more)
            .map_err(|error| {
                error.context(format!(
                    "quantiles of values of variable width keep every value in memory until the answer is known, and do \
                     not spill yet: {} bytes held, {} values",
                    self.held_bytes(),
                    self.len
                ))
            })
    }

    /// The values of all `parts`, one after the other. What they reserve stays reserved.
    pub(crate) fn merged(parts: Vec<Values>) -> Self {
        let mut merged = Self::default();
        for part in parts {
            merged.len += part.len;
            merged.bytes += part.bytes;
            merged.chunks.extend(part.chunks);
            merged.of_parts.extend(part.reservation);
        }
        merged
    }

    /// The value at a place.
    pub(crate) fn value(&self, at: At) -> &[u8] {
        self.chunks[at.chunk as usize].value(at.row as usize)
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// Values of a chunk.
    pub(crate) fn chunk_len(&self, chunk: u32) -> usize {
        self.chunks[chunk as usize].ends.len()
    }

    /// The places in a chunk, with their values, in order.
    pub(crate) fn chunk(&self, number: u32) -> impl Iterator<Item = (At, &[u8])> {
        let chunk = &self.chunks[number as usize];
        let mut start = 0;
        chunk.ends.iter().enumerate().map(move |(row, end)| {
            let value = &chunk.bytes[start..*end as usize];
            start = *end as usize;
            let row = row as u32;
            (At { chunk: number, row }, value)
        })
    }

    /// All places, in the order of appending.
    pub(crate) fn places(&self) -> impl Iterator<Item = At> {
        (0..self.chunks())
            .flat_map(|chunk| (0..self.chunk_len(chunk) as u32).map(move |row| At { chunk, row }))
    }

    /// What all values have in common; `None` without values.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        let of_chunk = |(number, chunk): (usize, &Chunk)| {
            let first = At {
                chunk: number as u32,
                row: 0,
            };
            (!chunk.ends.is_empty()).then_some(Bounds {
                first,
                common: chunk.common,
                longest: chunk.longest,
            })
        };
        let all = self.chunks.iter().enumerate().filter_map(of_chunk);
        all.reduce(|a, b| self.joined(a, b))
    }

    /// What values at some places have in common, of which the first `known` bytes are equal; `None` for no places.
    pub(crate) fn bounds_of(&self, places: &[At], known: usize) -> Option<Bounds> {
        let first = *places.first()?;
        let start = self.value(first);
        let mut bounds = Bounds {
            first,
            common: start.len(),
            longest: start.len(),
        };
        for at in &places[1..] {
            let value = self.value(*at);
            if !value[known..].starts_with(&start[known..bounds.common]) {
                bounds.common = known + common_prefix(&start[known..bounds.common], &value[known..]);
            }
            bounds.longest = bounds.longest.max(value.len());
        }
        Some(bounds)
    }

    /// What the values of two sets have in common.
    pub(crate) fn joined(&self, a: Bounds, b: Bounds) -> Bounds {
        let common = a.common.min(b.common);
        let (first, second) = (self.value(a.first), self.value(b.first));
        Bounds {
            first: a.first,
            common: common_prefix(&first[..common], &second[..common]),
            longest: a.longest.max(b.longest),
        }
    }

    /// The places of ranks (1-based, ascending, distinct, at most their number) among some places. `known`: how many
    /// first bytes of all these values are equal.
    ///
    /// Compares eight bytes behind the common prefix in registers, and whole values where those are equal.
    pub(crate) fn select(&self, places: &[At], known: usize, ranks: &[u64]) -> Vec<At> {
        let (common, mut pairs) = self.keyed(places, known);
        select_by(&mut pairs, 0, ranks, &|a, b| self.compare(common, a, b));
        ranks.iter().map(|rank| pairs[*rank as usize - 1].1).collect()
    }

    /// Sorts places by their values, equal values once.
    pub(crate) fn sorted_distinct(&self, places: &[At]) -> Vec<At> {
        let (common, mut pairs) = self.keyed(places, 0);
        pairs.sort_unstable_by(|a, b| self.compare(common, a, b));
        pairs.dedup_by(|a, b| self.compare(common, a, b).is_eq());
        pairs.into_iter().map(|pair| pair.1).collect()
    }

    /// The length of the common prefix, and the key of what follows in each value.
    fn keyed(&self, places: &[At], known: usize) -> (usize, Vec<(u64, At)>) {
        let common = self.bounds_of(places, known).map_or(0, |bounds| bounds.common);
        let key = |at: &At| (u64::of(&self.value(*at)[common..]), *at);
        (common, places.iter().map(key).collect())
    }

    fn compare(&self, common: usize, a: &(u64, At), b: &(u64, At)) -> Ordering {
        a.0.cmp(&b.0).then_with(|| match u64::whole(a.0.into()) {
            Some(_) => Ordering::Equal,
            None => {
                let rest = |at: At| &self.value(at)[common + u64::BYTES..];
                rest(a.1).cmp(rest(b.1))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::StringArray;
    use datafusion::arrow::datatypes::DataType;

    use super::*;
    use crate::key::Order;

    fn spec() -> ByteSpec {
        match Order::try_new(&DataType::Utf8).unwrap() {
            Order::Bytes(spec) => spec,
            Order::Keys(_) => unreachable!("strings have no keys"),
        }
    }

    fn values_of(texts: &[&str]) -> Values {
        let mut values = Values::default();
        for text in texts {
            values.push(text.as_bytes()).unwrap();
        }
        values
    }

    #[test]
    fn values_come_back_in_order() {
        let texts: Vec<String> = (0..5000_usize)
            .map(|i| "x".repeat(i % 40) + &i.to_string())
            .collect();
        let mut values = Values::default();
        let array = StringArray::from_iter_values(&texts);
        let (head, tail) = (array.slice(0, 3), array.slice(3, 4997));
        assert_eq!(values.append(&spec(), &head, None).unwrap(), 3);
        assert_eq!(values.append(&spec(), &tail, None).unwrap(), 4997);
        assert!(values.chunks() > 1);
        let back: Vec<&[u8]> = values.places().map(|at| values.value(at)).collect();
        let chunks = (0..values.chunks()).flat_map(|chunk| values.chunk(chunk).map(|(_, value)| value));
        assert_eq!(back, chunks.collect::<Vec<_>>());
        assert_eq!(back, texts.iter().map(String::as_bytes).collect::<Vec<_>>());
        let used: usize = texts.iter().map(|text| text.len() + 4).sum();
        assert!(
            (used..4 * used).contains(&values.held_bytes()),
            "{used} {}",
            values.held_bytes()
        );
    }

    #[test]
    fn nulls_and_masked_rows_are_left_out() {
        let array = StringArray::from(vec![Some("a"), None, Some("b"), Some("c"), Some("d")]);
        let mask = BooleanArray::from(vec![Some(true), Some(true), Some(false), None, Some(true)]);
        let mut values = Values::default();
        assert_eq!(values.append(&spec(), &array, Some(&mask)).unwrap(), 2);
        let back: Vec<&[u8]> = values.places().map(|at| values.value(at)).collect();
        assert_eq!(back, [b"a", b"d"]);
    }

    #[test]
    fn bounds_are_those_of_all_values() {
        let texts = ["prefix-one", "prefix-", "prefix-two", "prefer", "prefix-one"];
        let mut values = Values::merged(vec![
            values_of(&texts[..2]),
            Values::default(),
            values_of(&texts[2..3]),
            values_of(&texts[3..]),
        ]);
        let bounds = values.bounds().unwrap();
        assert_eq!((bounds.common, bounds.longest), (4, 10));
        let places: Vec<At> = values.places().collect();
        let bounds = values.bounds_of(&places[..3], 3).unwrap();
        assert_eq!((bounds.common, bounds.longest), (7, 10));
        assert!(Values::default().bounds().is_none() && values.bounds_of(&[], 0).is_none());
        values = values_of(&["same", "same"]);
        assert_eq!(values.bounds().unwrap().common, 4);
    }

    #[test]
    fn ranks_and_distinct_values_are_those_of_a_sort() {
        let texts: Vec<String> = (0..2000_usize)
            .map(|i| match i % 5 {
                0 => format!("common prefix {}", i * 7919 % 613),
                1 => "common prefix of all sorts of texts".to_owned() + &"\0".repeat(i % 11),
                2 => "common prefix ".to_owned() + &"z".repeat(i % 17),
                3 => "common prefix".to_owned(),
                _ => format!("common prefix that goes on and on {i}"),
            })
            .collect();
        let mut sorted: Vec<&str> = texts.iter().map(String::as_str).collect();
        let values = values_of(&sorted);
        sorted.sort_unstable();
        let places: Vec<At> = values.places().collect();
        for ranks in [&[1][..], &[2000], &[1, 2, 3, 400, 401, 1000, 1999, 2000], &[]] {
            let found = values.select(&places, 6, ranks);
            let found: Vec<&[u8]> = found.into_iter().map(|at| values.value(at)).collect();
            let expected: Vec<&[u8]> = ranks
                .iter()
                .map(|rank| sorted[*rank as usize - 1].as_bytes())
                .collect();
            assert_eq!(found, expected);
        }
        sorted.dedup();
        let distinct = values.sorted_distinct(&places);
        let distinct: Vec<&[u8]> = distinct.into_iter().map(|at| values.value(at)).collect();
        assert_eq!(
            distinct,
            sorted.iter().map(|text| text.as_bytes()).collect::<Vec<_>>()
        );
    }
}
