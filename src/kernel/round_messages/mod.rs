//! Requests and replies as bytes, as they cross the network between the coordinator and shards.
//!
//! ```text
//! request: width of keys | kind | what it asks       brackets, edges, pieces: by the distance from the one before
//! reply:   kind | keys, counts, a sketch             keys: see `put_keys`; counts: LEB128
//! ```
//! Whatever the bytes are, a message that is read is well formed: brackets and cells are made by their own
//! constructors.

use std::sync::Arc;

use datafusion::common::Result;

use crate::cells::{Bracket, Brackets, CellTable, Cells, Edges, Linear};
use crate::kernel::round::{Reply, Request};
use crate::key::{Key, KeyBits, KeyVec, ShardKey, Width, with_key};
use crate::sketch::{AnySummary, Epsilon};
use crate::wire::{Message, Reader, put, put_ascending, put_keys, put_numbers};

/// A request as it is sent.
#[derive(Debug, Clone)]
pub struct SentRequest {
    /// Width of the keys in the request.
    pub width: Width,
    pub request: Arc<Request>,
}

const SAMPLE: u8 = 0;
const COUNT: u8 = 1;
const SKETCH: u8 = 2;
const EXTRACT: u8 = 3;

impl Message for SentRequest {
    fn write(&self, out: &mut Vec<u8>) {
        put_width(out, self.width);
        match self.request.as_ref() {
            Request::Sample {
                size,
                population,
                seed,
                within,
                extremes,
            } => {
                out.push(SAMPLE);
                [*size, *population, *seed]
                    .into_iter()
                    .for_each(|number| put(out, number));
                put_brackets(out, within);
                out.push(u8::from(*extremes));
            }
            Request::Count { cells, within, keep } => {
                out.push(COUNT);
                put_cells(out, cells);
                put_brackets(out, within);
                put_ascending(out, keep.iter().map(|cell| u128::from(*cell)));
            }
            Request::Sketch { eps } => {
                out.push(SKETCH);
                put_epsilon(out, *eps);
            }
            Request::Extract { brackets } => {
                out.push(EXTRACT);
                put_brackets(out, brackets);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let width = width(input)?;
        let request = match input.byte("kind of request")? {
            SAMPLE => Request::Sample {
                size: input.number("sample size")?,
                population: input.number("population")?,
                seed: input.number("seed")?,
                within: brackets(input, width)?,
                extremes: input.flag("extremes")?,
            },
            COUNT => {
                let cells = cells(input, width)?;
                let within = brackets(input, width)?;
                let keep: Vec<u32> = input.ascending("cells to keep")?;
                match keep.last() {
                    Some(last) if *last as usize >= cells.len() => {
                        return input.damaged(format!("cell {last} of {}", cells.len()));
                    }
                    _ => Request::Count { cells, within, keep },
                }
            }
            SKETCH => Request::Sketch { eps: epsilon(input)? },
            EXTRACT => Request::Extract {
                brackets: brackets(input, width)?,
            },
            kind => return input.damaged(format!("request of kind {kind}")),
        };
        Ok(Self {
            width,
            request: Arc::new(request),
        })
    }
}

impl Message for Reply {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Sample { keys, extremes } => {
                out.push(SAMPLE);
                put_key_vec(out, keys);
                out.push(u8::from(extremes.is_some()));
                if let Some((least, greatest)) = extremes {
                    [*least, *greatest].into_iter().for_each(|key| put(out, key));
                }
            }
            Reply::Counts { counts, kept } => {
                out.push(COUNT);
                put_numbers(out, counts);
                put_lists(out, kept);
            }
            Reply::Sketch(summary) => {
                out.push(SKETCH);
                put_summary(out, summary.as_ref());
            }
            Reply::Extracted(kept) => {
                out.push(EXTRACT);
                put_lists(out, kept);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(match input.byte("kind of reply")? {
            SAMPLE => {
                let keys = key_vec(input)?;
                let extremes = if input.flag("extremes")? {
                    Some((input.number("least key")?, input.number("greatest key")?))
                } else {
                    None
                };
                match extremes {
                    Some((least, greatest)) if least > greatest || greatest > keys.width().max_key() => {
                        return input.damaged(format!("keys from {least} to {greatest} in a sample"));
                    }
                    _ => Reply::Sample { keys, extremes },
                }
            }
            COUNT => Reply::Counts {
                counts: input.numbers("counts")?,
                kept: input.list("lists of keys", key_vec)?,
            },
            SKETCH => Reply::Sketch(summary(input)?),
            EXTRACT => Reply::Extracted(input.list("lists of keys", key_vec)?),
            kind => return input.damaged(format!("reply of kind {kind}")),
        })
    }
}

/// Appends a summary with its length in bytes before it. No summary has length 0.
pub fn put_summary(out: &mut Vec<u8>, summary: Option<&AnySummary>) {
    let bytes = summary.map(|summary| summary.write(&[])).unwrap_or_default();
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

pub fn summary(input: &mut Reader<'_>) -> Result<Option<AnySummary>> {
    let length = input.number("length of a sketch")?;
    let bytes = input.take(length, "sketch")?;
    (!bytes.is_empty())
        .then(|| AnySummary::read(bytes, &[]))
        .transpose()
}

pub fn put_epsilon(out: &mut Vec<u8>, eps: Epsilon) {
    let (numerator, denominator) = eps.fraction();
    put(out, numerator);
    put(out, denominator);
}

pub fn epsilon(input: &mut Reader<'_>) -> Result<Epsilon> {
    Epsilon::from_fraction(input.number("error fraction")?, input.number("error fraction")?)
}

pub fn put_width(out: &mut Vec<u8>, width: Width) {
    out.push(width.bytes() as u8);
}

pub fn width(input: &mut Reader<'_>) -> Result<Width> {
    match input.byte("width of keys")? {
        4 => Ok(Width::W32),
        8 => Ok(Width::W64),
        16 => Ok(Width::W128),
        bytes => input.damaged(format!("keys of {bytes} bytes")),
    }
}

pub fn put_key_vec(out: &mut Vec<u8>, keys: &KeyVec) {
    match keys {
        KeyVec::W32(keys) => put_keys_of(out, Width::W32, keys),
        KeyVec::W64(keys) => put_keys_of(out, Width::W64, keys),
        KeyVec::W128(keys) => put_keys_of(out, Width::W128, keys),
    }
}

fn put_keys_of<K: Key>(out: &mut Vec<u8>, width: Width, keys: &[K]) {
    put_width(out, width);
    put_keys(out, keys);
}

pub fn key_vec(input: &mut Reader<'_>) -> Result<KeyVec> {
    with_key!(width(input)?, K => Ok(K::vec(input.keys()?)))
}

fn put_lists(out: &mut Vec<u8>, lists: &[KeyVec]) {
    put(out, lists.len() as u64);
    lists.iter().for_each(|keys| put_key_vec(out, keys));
}

/// Appends the distances between the ends of brackets, which ascend. Neighbouring brackets may touch.
fn put_brackets(out: &mut Vec<u8>, brackets: &Brackets) {
    put(out, brackets.as_slice().len() as u64);
    let mut next = 0;
    for bracket in brackets.as_slice() {
        put_bracket(out, bracket, &mut next);
    }
}

pub fn put_bracket(out: &mut Vec<u8>, bracket: &Bracket, next: &mut KeyBits) {
    put(out, bracket.first - *next);
    put(out, bracket.last - bracket.first);
    *next = bracket.last.wrapping_add(1);
}

fn brackets(input: &mut Reader<'_>, width: Width) -> Result<Brackets> {
    let mut next = Some(0);
    Brackets::try_new(input.list("brackets", |input| bracket(input, width, &mut next))?)
}

/// Reads a bracket. `next` is the least key that it may begin with; `None` after a bracket that ends at the greatest
/// key.
pub fn bracket(input: &mut Reader<'_>, width: Width, next: &mut Option<KeyBits>) -> Result<Bracket> {
    let (gap, span): (KeyBits, KeyBits) = (input.number("bracket")?, input.number("bracket")?);
    let first = next.and_then(|next| next.checked_add(gap));
    let last = first.and_then(|first| first.checked_add(span));
    match first.zip(last) {
        Some((first, last)) if last <= width.max_key() => {
            *next = last.checked_add(1);
            Ok(Bracket { first, last })
        }
        _ => input.damaged("brackets beyond the greatest key"),
    }
}

const TABLE: u8 = 0;
const LINEAR: u8 = 1;
const EDGES: u8 = 2;

fn put_cells(out: &mut Vec<u8>, cells: &Cells) {
    match cells {
        Cells::Table(table) => {
            out.push(TABLE);
            put(out, table.base);
            put(out, table.top - table.base);
            put(out, table.entries.len() as u64);
            out.extend(table.splits().map(|split| split as u8));
            put_ascending(out, table.heavy.iter().copied());
        }
        Cells::Linear(linear) => {
            out.push(LINEAR);
            put(out, linear.pieces.len() as u64);
            let mut next = 0;
            for piece in &linear.pieces {
                let Bracket { first, last } = piece.bracket();
                put_bracket(out, &Bracket { first, last }, &mut next);
                put(out, piece.cells);
            }
        }
        Cells::Edges(edges) => {
            out.push(EDGES);
            put_ascending(out, edges.as_slice().iter().copied());
        }
    }
}

fn cells(input: &mut Reader<'_>, width: Width) -> Result<Cells> {
    Ok(match input.byte("kind of cells")? {
        TABLE => {
            let base: KeyBits = input.number("least key of a table")?;
            let top = base.checked_add(input.number("greatest key of a table")?);
            let Some(top) = top.filter(|top| *top <= width.max_key()) else {
                return input.damaged("a table beyond the greatest key");
            };
            let splits = input.list("entries", |input| input.byte("entry"))?;
            let splits: Vec<u32> = splits.into_iter().map(u32::from).collect();
            let table = CellTable::from_splits(base, top, &splits)?;
            let heavy: Vec<KeyBits> = input.ascending("heavy keys")?;
            match heavy.last() {
                Some(last) if *last > width.max_key() => {
                    return input.damaged(format!("a heavy key of more than {} bits", 8 * width.bytes()));
                }
                _ => Cells::Table(table.with_heavy(heavy)?),
            }
        }
        LINEAR => {
            let mut next = Some(0);
            let pieces = input.list("pieces", |input| {
                Ok((bracket(input, width, &mut next)?, input.number("buckets")?))
            })?;
            Cells::Linear(Linear::try_new(&pieces, width)?)
        }
        EDGES => {
            let edges: Vec<KeyBits> = input.ascending("edges")?;
            match edges.last() {
                Some(last) if *last > width.max_key() => {
                    return input.damaged(format!("an edge of more than {} bits", 8 * width.bytes()));
                }
                _ => Cells::Edges(Edges::try_new(edges)?),
            }
        }
        kind => return input.damaged(format!("cells of kind {kind}")),
    })
}

#[cfg(test)]
mod mutated;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::{AnySketch, Variant};

    fn comes_back<M: Message + Clone>(message: &M, is_same: impl Fn(&M) -> bool) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        assert!(is_same(&Reader::message(&bytes).unwrap()));
        for end in 0..bytes.len() {
            assert!(
                Reader::message::<M>(&bytes[..end]).is_err(),
                "the first {end} bytes"
            );
        }
        // Whatever is damaged, nothing panics, and what is read is well formed.
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let _ = Reader::message::<M>(&damaged);
            }
        }
    }

    fn order_comes_back(width: Width, request: Request) {
        let sent = SentRequest {
            width,
            request: Arc::new(request),
        };
        comes_back(&sent, |read| {
            (read.width, &read.request) == (sent.width, &sent.request)
        });
    }

    fn reply_comes_back(reply: Reply) {
        comes_back(&reply, |read| *read == reply);
    }

    const WIDTHS: [Width; 3] = [Width::W32, Width::W64, Width::W128];

    /// Some brackets, up to both ends of the width.
    fn some_brackets(width: Width) -> Brackets {
        let last = width.max_key();
        let bracket = |first, last| Bracket { first, last };
        Brackets::try_new(vec![
            bracket(0, 0),
            bracket(1, 300),
            bracket(1000, last / 2),
            bracket(last - 1, last),
        ])
        .unwrap()
    }

    #[test]
    fn requests_come_back() {
        for width in WIDTHS {
            let all = Brackets::all(width);
            for within in [
                all.clone(),
                some_brackets(width),
                Brackets::try_new(vec![]).unwrap(),
            ] {
                order_comes_back(
                    width,
                    Request::Sample {
                        size: 1024,
                        population: 1 << 40,
                        seed: u64::MAX,
                        within: within.clone(),
                        extremes: true,
                    },
                );
                order_comes_back(width, Request::Extract { brackets: within });
            }
            let eps = Epsilon::try_new(0.013).unwrap();
            order_comes_back(width, Request::Sketch { eps });
        }
    }

    #[test]
    fn cells_of_every_form_come_back() {
        for width in WIDTHS {
            let top = width.max_key();
            let sample: Vec<u32> = (0..200).map(|i| i * i * 90_001).collect();
            let table = CellTable::from_sample(&KeyVec::W32(sample), 300).unwrap();
            let narrow = CellTable::from_sample(&KeyVec::W32(vec![5, 5]), 10).unwrap();
            let bracket = |first, last| Bracket { first, last };
            let pieces = [
                (bracket(0, 99), 3),
                (bracket(100, top / 3), 200),
                (bracket(top, top), 7),
            ];
            for (cells, keep) in [
                (Cells::Table(table.clone()), vec![0, 7, 299]),
                (
                    Cells::Table(table.with_heavy(vec![0, 90_001, 360_004]).unwrap()),
                    vec![3],
                ),
                (Cells::Table(narrow), vec![]),
                (
                    Cells::Linear(Linear::try_new(&pieces, width).unwrap()),
                    vec![202, 203],
                ),
                (
                    Cells::Edges(Edges::try_new(vec![1, 2, 1000, top]).unwrap()),
                    vec![0, 4],
                ),
                (Cells::Edges(Edges::try_new(vec![]).unwrap()), vec![0]),
            ] {
                let within = some_brackets(width);
                order_comes_back(width, Request::Count { cells, within, keep });
            }
        }
    }

    #[test]
    fn replies_come_back() {
        let lists = || {
            vec![
                KeyVec::W32(vec![]),
                KeyVec::W32(vec![7, 7, 9, 70_000]),
                KeyVec::W64(vec![u64::MAX, 0]),
                KeyVec::W128(vec![u128::MAX, u128::MAX - 300, u128::MAX]),
                KeyVec::W128(vec![1, 1 << 100]),
            ]
        };
        reply_comes_back(Reply::Extracted(lists()));
        reply_comes_back(Reply::Extracted(vec![]));
        for (extremes, keys) in [None, Some((0, u32::MAX.into())), Some((4, 4))]
            .into_iter()
            .zip(lists())
        {
            reply_comes_back(Reply::Sample { keys, extremes });
        }
        for kept in [vec![], lists()] {
            let counts = vec![0, 1, 200, u64::MAX];
            reply_comes_back(Reply::Counts { counts, kept });
        }
        reply_comes_back(Reply::Sketch(None));
        let mut sketch = AnySketch::new(Width::W64, Epsilon::try_new(0.2).unwrap(), Variant::Modified);
        sketch.extend_keys(0..30).unwrap();
        reply_comes_back(Reply::Sketch(Some(sketch.partial().unwrap())));
    }

    #[test]
    fn what_no_request_says_is_refused() {
        let error = |bytes: &[u8]| {
            Reader::message::<SentRequest>(bytes)
                .unwrap_err()
                .strip_backtrace()
        };
        let damaged = |what: &str| format!("Execution error: a damaged message: {what}");
        assert_eq!(error(&[5]), damaged("keys of 5 bytes"));
        assert_eq!(error(&[8, 9]), damaged("request of kind 9"));
        // A bracket from 1, of 2^32 keys.
        let beyond = [4, EXTRACT, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(error(&beyond), damaged("brackets beyond the greatest key"));
        // The only cell is 0.
        let cell = [4, COUNT, EDGES, 0, 0, 1, 1];
        assert_eq!(error(&cell), damaged("cell 1 of 1"));
        let edge = [4, COUNT, EDGES, 1, 0xff, 0xff, 0xff, 0xff, 0x1f];
        assert_eq!(error(&edge), damaged("an edge of more than 32 bits"));
        assert_eq!(error(&[4, COUNT, 3]), damaged("cells of kind 3"));
        // Keys of 32 bits from 7 to 5, and to one more than they have.
        for sample in [
            &[SAMPLE, 4, 0, 1, 7, 5][..],
            &[SAMPLE, 4, 0, 1, 7, 0x80, 0x80, 0x80, 0x80, 0x10],
        ] {
            let error = Reader::message::<Reply>(sample).unwrap_err().strip_backtrace();
            assert!(error.contains("a damaged message: keys from 7 to"), "{error}");
        }
    }
}
