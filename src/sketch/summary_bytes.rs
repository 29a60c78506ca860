//! Summaries as bytes, as they are sent and stored.
//!
//! ```text
//! "GKS" | version | bits of a key | tag: length, bytes | n | eps: numerator, denominator | tuples | form of keys
//! tuple: key - key before | 2 g + (delta != 0) | delta, if not 0
//! form 1: the zero bits at the end of that distance, then the distance without them: for keys that end intervals
//! checksum of all before: FNV-1a, 64 bits folded to 4 bytes, little endian
//! ```
//!
//! Numbers are LEB128, delta zigzag. A value of a small group takes the bytes of its key's distance and one more; a
//! tuple of 64-bit floats about 9 bytes. The tag, which says what the keys mean, is the caller's.

use datafusion::common::{Result, exec_err};

use crate::key::{Key, KeyBits};
use crate::sketch::epsilon::Epsilon;
use crate::sketch::gk::{Summary, Tuple};
use crate::wire::{Reader, put};

const MAGIC: &[u8; 3] = b"GKS";
const VERSION: u8 = 2;
const WHAT: &str = "quantile sketch";
pub(super) const CHECKSUM: usize = 4;

/// Least bytes of a tuple. A number of tuples that the input cannot hold is refused before memory is allocated for
/// them.
const LEAST_TUPLE: usize = 2;

/// The description of the keys in a stored summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header<'a> {
    /// Bits of a key.
    pub(crate) bits: u32,
    /// The tag of the writer, which says what the keys mean.
    pub(crate) tag: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header of a summary.
    ///
    /// # Errors
    /// An execution error if the bytes are no summary, of another version, or damaged.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        Ok(Self::split(bytes)?.0)
    }

    fn split(bytes: &'a [u8]) -> Result<(Self, Reader<'a>)> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return exec_err!(
                "not a quantile sketch: {} bytes that do not begin with \"GKS\"",
                bytes.len()
            );
        };
        match rest.first() {
            None => return exec_err!("a quantile sketch that ends after 3 bytes"),
            Some(&VERSION) => {}
            Some(version) => {
                return exec_err!("a quantile sketch of version {version}: this program reads {VERSION}");
            }
        }
        let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM>() else {
            return exec_err!("a quantile sketch that ends after {} bytes", bytes.len());
        };
        let (stored, own) = (u32::from_le_bytes(*stored), checksum(body));
        if stored != own {
            return exec_err!("a damaged quantile sketch: its checksum is {own:08x}, not {stored:08x}");
        }
        let mut reader = Reader::new(WHAT, body.get(MAGIC.len() + 1..).unwrap_or_default());
        let bits = reader.number("key width")?;
        let length = reader.number("tag length")?;
        let tag = reader.take(length, "tag")?;
        Ok((Self { bits, tag }, reader))
    }
}

impl<K: Key> Summary<K> {
    /// The summary as bytes. `tag` says what the keys mean: [`Self::read`] demands the same one.
    pub(crate) fn write(&self, tag: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + tag.len() + self.len() * (size_of::<K>() + 3));
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        let (numerator, denominator) = self.eps.fraction();
        put(&mut bytes, K::BITS);
        put(&mut bytes, tag.len() as u64);
        bytes.extend(tag);
        for number in [self.n, numerator, denominator, self.len() as u64] {
            put(&mut bytes, number);
        }
        let shifted = self.shortens_when_shifted();
        bytes.push(u8::from(shifted));
        let mut before = 0;
        for (key, g, delta) in self.tuples() {
            let step = key.to_bits() - std::mem::replace(&mut before, key.to_bits());
            let zeros = if shifted { zeros(step) } else { 0 };
            if shifted {
                bytes.push(zeros as u8);
            }
            put(&mut bytes, step >> zeros);
            put(&mut bytes, u128::from(g) << 1 | u128::from(delta != 0));
            if delta != 0 {
                put(&mut bytes, ((delta << 1) ^ (delta >> 63)) as u64);
            }
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Whether distances of keys take fewer bytes without the zero bits at their end, even with the number of these
    /// bits.
    fn shortens_when_shifted(&self) -> bool {
        let bytes = |number: KeyBits| i64::from((KeyBits::BITS - number.leading_zeros()).div_ceil(7).max(1));
        let mut before = 0;
        let saved = self.tuples.iter().map(|tuple| {
            let step = tuple.key.to_bits() - std::mem::replace(&mut before, tuple.key.to_bits());
            bytes(step) - bytes(step >> zeros(step)) - 1
        });
        saved.sum::<i64>() > 0
    }

    /// A summary from the bytes of [`Self::write`]. Whatever the bytes are, the summary meets the invariant.
    ///
    /// # Errors
    /// An execution error if the bytes are no summary, of another version, key width or tag, or damaged.
    pub(crate) fn read(bytes: &[u8], tag: &[u8]) -> Result<Self> {
        let (header, mut reader) = Header::split(bytes)?;
        if header.bits != K::BITS || header.tag != tag {
            return exec_err!(
                "a quantile sketch of {}-bit keys of type {:?}: expected are {}-bit keys of type {:?}",
                header.bits,
                String::from_utf8_lossy(header.tag),
                K::BITS,
                String::from_utf8_lossy(tag)
            );
        }
        let n: i64 = reader.number("number of values")?;
        let eps = Epsilon::from_fraction(reader.number("error fraction")?, reader.number("error fraction")?)?;
        let len: usize = reader.number("number of tuples")?;
        if len > reader.left() / LEAST_TUPLE || (len == 0) != (n == 0) {
            return reader.damaged(format!("{len} tuples for {n} values in {} bytes", reader.left()));
        }
        let shifted = reader.flag("form of keys")?;
        let mut summary = Self::new(eps);
        summary.n = n as u64;
        summary.tuples.reserve_exact(len);
        for _ in 0..len {
            let tuple = summary.next(&mut reader, shifted)?;
            summary.tuples.push(tuple);
        }
        match summary.tuples.last() {
            Some(last) if last.upto != summary.n => reader.damaged(format!("{} values of {n}", last.upto)),
            _ => reader.end().map(|()| summary),
        }
    }

    /// Reads the next tuple, and checks it against the one before.
    fn next(&self, reader: &mut Reader<'_>, shifted: bool) -> Result<Tuple<K>> {
        let zeros = if shifted { reader.byte("key")? } else { 0 };
        let short: KeyBits = reader.number("key")?;
        let step = short
            .checked_shl(zeros.into())
            .filter(|step| step >> zeros == short);
        let Some(step) = step else {
            return reader.damaged(format!("a key of more than {} bits", KeyBits::BITS));
        };
        let token: KeyBits = reader.number("g")?;
        let delta = match token & 1 {
            0 => 0,
            _ => unzigzag(reader.number("delta")?),
        };
        let before = self.tuples.last();
        let key = before.map_or(0, |tuple| tuple.key.to_bits()).checked_add(step);
        let Some(key) = key.filter(|key| *key <= K::MAX.to_bits() && (step > 0 || before.is_none())) else {
            return reader.damaged(format!("keys that do not ascend within {} bits", K::BITS));
        };
        let known = before.map_or(0, |tuple| tuple.upto);
        let least = before.map_or(0, |tuple| tuple.below.max(tuple.upto));
        let upto = u128::from(known) + (token >> 1);
        if upto <= known.into() || upto > self.n.into() {
            return reader.damaged(format!(
                "a tuple that ends at value {upto} of {}, after {known}",
                self.n
            ));
        }
        let below = upto as i128 + i128::from(delta) - 1;
        let most = i128::from(known) + i128::from(self.eps.budget(self.n).max(1)) - 1;
        let most = if before.is_none() {
            0
        } else {
            most.min(i128::from(self.n) - 1)
        };
        if below < i128::from(least) || below > most {
            return reader.damaged(format!(
                "{below} values below a tuple: allowed are {least} to {most}"
            ));
        }
        Ok(Tuple {
            key: K::from_bits(key),
            upto: upto as u64,
            below: below as u64,
        })
    }
}

/// The number of zero bits at the end of a number; 0 for 0.
fn zeros(number: KeyBits) -> u32 {
    match number {
        0 => 0,
        number => number.trailing_zeros(),
    }
}

fn unzigzag(bits: u64) -> i64 {
    (bits >> 1) as i64 ^ -((bits & 1) as i64)
}

/// The checksum FNV-1a of 64 bits, whose halves are combined by XOR.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (hash >> 32) as u32 ^ hash as u32
}
