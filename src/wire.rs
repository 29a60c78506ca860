//! Numbers and keys as bytes, for stored sketches and for messages between machines.
//!
//! Numbers are LEB128. No input is trusted: a length is compared with the number of bytes that are left before memory
//! is allocated for it, and too few or too many bytes, or numbers out of range, are errors.

use std::fmt::Display;

use datafusion::common::{Result, exec_err};

use crate::key::{Key, KeyBits};

/// The version of all bytes that machines send each other: plans, and the rows between their stages. Bytes of another
/// version are refused, so the version is raised with every change of any of them.
pub const VERSION: u8 = 12;

/// The bytes of a row behind their version.
///
/// # Errors
/// An execution error for bytes of another version, which says what to do.
pub fn versioned<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let mut reader = Reader::new(what, bytes);
    reader.version()?;
    Ok(reader.rest)
}

/// Calls `read`, by which another crate reads bytes that came from outside. Readers of expressions, types and states
/// panic for some damaged bytes: here such a panic is an error.
///
/// # Errors
/// Errors of `read`; an execution error if it panics.
pub fn foreign<T>(what: &str, read: impl FnOnce() -> Result<T>) -> Result<T> {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            exec_err!("a damaged {what}: {}", text.unwrap_or("its reader panicked"))
        }
    }
}

/// A message that is sent as bytes.
pub trait Message: Sized {
    /// Appends the message.
    fn write(&self, out: &mut Vec<u8>);

    /// # Errors
    /// An execution error for bytes that are no such message.
    fn read(input: &mut Reader<'_>) -> Result<Self>;
}

/// A reader of bytes.
pub struct Reader<'a> {
    /// The kind of bytes, for errors.
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Reads a message that takes all of the bytes.
    ///
    /// # Errors
    /// An execution error if there are too few or too many bytes, or if they are no such message.
    pub fn message<M: Message>(bytes: &'a [u8]) -> Result<M> {
        let mut reader = Reader::new("message", bytes);
        let message = M::read(&mut reader)?;
        reader.end()?;
        Ok(message)
    }

    /// # Errors
    /// Always: an execution error that says that the bytes are damaged.
    pub fn damaged<T>(&self, how: impl Display) -> Result<T> {
        exec_err!("a damaged {}: {how}", self.what)
    }

    /// Number of bytes that are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// # Errors
    /// An execution error if bytes are left.
    pub fn end(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => self.damaged(format!("{left} bytes after its end")),
        }
    }

    pub fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return self.damaged(format!("{what} of {length} bytes, {} are left", self.left()));
        };
        self.rest = rest;
        Ok(taken)
    }

    /// The next byte, if one is left. It is not taken.
    #[cfg(feature = "ballista")]
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Takes the version byte.
    ///
    /// # Errors
    /// An execution error if it is another version than this program's.
    pub fn version(&mut self) -> Result<()> {
        match self.byte("version")? {
            VERSION => Ok(()),
            other => exec_err!(
                "a {} of version {other} where this machine knows version {VERSION}: run the same version of \
                 datafusion-quantiles on scheduler, executors and client",
                self.what
            ),
        }
    }

    pub fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    pub fn flag(&mut self, what: &str) -> Result<bool> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => self.damaged(format!("{what} {other}")),
        }
    }

    pub fn number<T: TryFrom<u128>>(&mut self, what: &str) -> Result<T> {
        let mut number = 0_u128;
        for index in 0.. {
            let Some((byte, rest)) = self.rest.split_first() else {
                return self.damaged(format!("it ends inside a {what}"));
            };
            self.rest = rest;
            let (part, shift) = (u128::from(byte & 0x7f), 7 * index);
            let fits = shift < u128::BITS && (part << shift) >> shift == part;
            if !fits {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return match T::try_from(number) {
                    Ok(number) => Ok(number),
                    Err(_) => self.damaged(format!("{what} {number} is out of range")),
                };
            }
        }
        self.damaged(format!("{what} of more than 128 bits"))
    }

    /// Reads a list, each item of which takes at least one byte.
    pub fn list<T>(&mut self, what: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let length: usize = self.number(what)?;
        if length > self.left() {
            return self.damaged(format!("{length} of {what} in {} bytes", self.left()));
        }
        // Memory for all items at once, unless it is much more than the bytes.
        let room = length.min(8 * self.left() / size_of::<T>().max(1));
        let mut list = Vec::with_capacity(room);
        for _ in 0..length {
            list.push(item(self)?);
        }
        Ok(list)
    }

    pub fn numbers(&mut self, what: &str) -> Result<Vec<u64>> {
        self.list(what, |reader| reader.number(what))
    }

    /// Reads ascending and distinct numbers, as [`put_ascending`] writes them.
    pub fn ascending<T: TryFrom<u128>>(&mut self, what: &str) -> Result<Vec<T>> {
        let mut next = Some(0_u128);
        self.list(what, |reader| {
            let number = reader.number::<u128>(what)?;
            let number = next.and_then(|next| next.checked_add(number));
            next = number.and_then(|number| number.checked_add(1));
            match number.and_then(|number| T::try_from(number).ok()) {
                Some(number) => Ok(number),
                None => reader.damaged(format!("{what} out of range")),
            }
        })
    }

    pub fn key<K: Key>(&mut self) -> Result<K> {
        Ok(K::from_bits(word(self.take(size_of::<K>(), "key")?)))
    }

    /// Reads keys, as [`put_keys`] writes them.
    pub fn keys<K: Key>(&mut self) -> Result<Vec<K>> {
        let length: usize = self.number("number of keys")?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let width = usize::from(self.byte("width of keys")?);
        let least: KeyBits = self.number("least key")?;
        let bytes = length.checked_mul(width);
        let Some(bytes) = bytes.filter(|_| (1..=size_of::<K>()).contains(&width)) else {
            return self.damaged(format!("{length} keys of {width} bytes"));
        };
        let bytes = self.take(bytes, "keys")?;
        let (keys, greatest) = match width {
            1 => offsets::<K, 1>(bytes, least),
            2 => offsets::<K, 2>(bytes, least),
            3 => offsets::<K, 3>(bytes, least),
            4 => offsets::<K, 4>(bytes, least),
            5 => offsets::<K, 5>(bytes, least),
            6 => offsets::<K, 6>(bytes, least),
            7 => offsets::<K, 7>(bytes, least),
            8 => offsets::<K, 8>(bytes, least),
            16 => offsets::<K, 16>(bytes, least),
            _ => return self.damaged(format!("keys of {width} bytes")),
        };
        match least.checked_add(greatest) {
            Some(greatest) if greatest <= K::MAX.to_bits() => Ok(keys),
            _ => self.damaged(format!("keys of more than {} bits", K::BITS)),
        }
    }
}

/// The keys at distances above `least`, and the greatest distance. Distances past the width wrap around.
fn offsets<K: Key, const BYTES: usize>(bytes: &[u8], least: KeyBits) -> (Vec<K>, KeyBits) {
    let mut greatest = 0;
    let keys = bytes.chunks_exact(BYTES).map(|bytes| {
        let offset = word(bytes);
        greatest = offset.max(greatest);
        K::from_bits(least.wrapping_add(offset))
    });
    (keys.collect(), greatest)
}

/// Number of bytes in which distances of `bits` bits are written.
fn width_for(bits: u32) -> usize {
    match bits.div_ceil(8).max(1) as usize {
        bytes @ ..=8 => bytes,
        _ => 16,
    }
}

#[inline(always)]
fn word(bytes: &[u8]) -> u128 {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(word)
}

/// Appends a number in LEB128: seven bits a byte, the lowest first; the top bit is set on all bytes but the last.
pub fn put(out: &mut Vec<u8>, number: impl Into<u128>) {
    let mut number = number.into();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a list of numbers.
pub fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    put(out, numbers.len() as u64);
    numbers.iter().for_each(|number| put(out, *number));
}

/// Appends a list of ascending and distinct numbers, by the distances between them.
pub fn put_ascending(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u128>) {
    put(out, numbers.len() as u64);
    let mut next = 0;
    for number in numbers {
        put(out, number - next);
        next = number.wrapping_add(1);
    }
}

/// Appends one key, in as many bytes as its type has.
pub fn put_key<K: Key>(out: &mut Vec<u8>, key: K) {
    out.extend_from_slice(&key.to_bits().to_le_bytes()[..size_of::<K>()]);
}

/// Appends a list of keys in any order: the least key, and the distance of each key above it, in as many bytes as the
/// greatest distance needs.
pub fn put_keys<K: Key>(out: &mut Vec<u8>, keys: &[K]) {
    put(out, keys.len() as u64);
    let (Some(least), Some(greatest)) = (keys.iter().min(), keys.iter().max()) else {
        return;
    };
    let (mut least, greatest) = (least.to_bits(), greatest.to_bits());
    let bits = KeyBits::BITS - (greatest - least).leading_zeros();
    let width = width_for(bits);
    if width == size_of::<K>() {
        least = 0;
    }
    out.push(width as u8);
    put(out, least);
    let start = out.len();
    out.resize(start + keys.len() * width, 0);
    if width == size_of::<K>() && cfg!(target_endian = "little") {
        out[start..].copy_from_slice(bytemuck::cast_slice(keys));
        return;
    }
    for (bytes, key) in out[start..].chunks_exact_mut(width).zip(keys) {
        bytes.copy_from_slice(&(key.to_bits() - least).to_le_bytes()[..width]);
    }
}

/// A list of keys is a message.
impl<K: Key> Message for Vec<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put_keys(out, self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        input.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<K: Key>(keys: Vec<K>, bytes: usize) {
        let mut out = Vec::new();
        keys.write(&mut out);
        assert_eq!(out.len(), bytes, "{keys:?}");
        assert_eq!(Reader::message::<Vec<K>>(&out).unwrap(), keys);
        // A shorter or a longer message is refused.
        for end in 0..out.len() {
            assert!(
                Reader::message::<Vec<K>>(&out[..end]).is_err(),
                "{end} bytes of {keys:?}"
            );
        }
        out.push(0);
        assert!(Reader::message::<Vec<K>>(&out).is_err());
    }

    #[test]
    fn keys_take_the_bytes_of_their_distance() {
        round_trip::<u64>(vec![], 1);
        round_trip::<u64>(vec![7; 3], 3 + 3);
        round_trip::<u64>(vec![1 << 60, (1 << 60) + 255, 1 << 60], 1 + 1 + 9 + 3);
        round_trip::<u64>(vec![0, u64::MAX], 3 + 16);
        round_trip::<u32>(vec![1, u32::MAX, 7], 3 + 12);
        round_trip::<u128>(vec![u128::MAX, u128::MAX - 65_536], 2 + 19 + 6);
        round_trip::<u128>(vec![0, u128::MAX], 3 + 32);
    }

    #[test]
    fn damaged_messages_are_errors() {
        let error = |bytes: &[u8]| Reader::message::<Vec<u32>>(bytes).unwrap_err().strip_backtrace();
        assert_eq!(
            error(&[3, 4, 0, 1]),
            "Execution error: a damaged message: keys of 12 bytes, 1 are left"
        );
        assert_eq!(
            error(&[1, 5, 0, 1]),
            "Execution error: a damaged message: 1 keys of 5 bytes"
        );
        // 2^32 - 1, and one more.
        assert_eq!(
            error(&[1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]),
            "Execution error: a damaged message: keys of more than 32 bits"
        );
        let mut reader = Reader::new("message", &[2, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(reader.ascending::<u32>("cells").is_err());
        let mut reader = Reader::new("message", &[2, 1]);
        assert!(reader.numbers("counts").is_err());
    }

    #[test]
    fn ascending_numbers_come_back() {
        for numbers in [vec![], vec![0_u128], vec![0, 1, 2], vec![5, 1000, u128::MAX]] {
            let mut out = Vec::new();
            put_ascending(&mut out, numbers.iter().copied());
            let mut reader = Reader::new("message", &out);
            assert_eq!(reader.ascending::<u128>("numbers").unwrap(), numbers);
            reader.end().unwrap();
        }
    }
}
