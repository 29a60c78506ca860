//! Changes of valid encodings: of bytes, of numbers, and of lengths with the bytes that they are the lengths of.

use std::ops::Range;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::wire::put;

/// Greatest depth of parts within parts that are changed.
const DEPTH: u32 = 8;

/// Most bytes of an input, unless it is made of a longer one.
const MOST: usize = 1 << 12;

/// One of `pool` after a few changes.
pub(super) fn changed(pool: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = one_of(pool, random).clone();
    let most = bytes.len().max(MOST);
    // One change is accepted more often, several reach deeper.
    let changes = random.random_range(1..=3) * random.random_range(0..=1) + 1;
    for _ in 0..changes {
        change(&mut bytes, pool, random, 0);
        bytes.truncate(most);
    }
    bytes
}

fn one_of<'a, T>(list: &'a [T], random: &mut SmallRng) -> &'a T {
    &list[random.random_range(0..list.len())]
}

/// A random part, which may be empty.
fn part(bytes: &[u8], random: &mut SmallRng) -> Range<usize> {
    let start = random.random_range(0..=bytes.len());
    let most = match random.random_range(0..3) {
        0 => 4,
        1 => 32,
        _ => bytes.len(),
    };
    start..(start + random.random_range(0..=most)).min(bytes.len())
}

/// A number that is likely to cause harm, where `left` bytes follow a number that was `old`.
fn number(old: u128, left: usize, random: &mut SmallRng) -> u128 {
    let near = random.random_range(0..3_u128);
    let base = match random.random_range(0..10) {
        0 => return random.random_range(0..4),
        1 => left as u128,
        2 => old,
        3 => 1 << random.random_range(0..128),
        4 => {
            return u128::from(*one_of(
                &[u64::MAX, i64::MAX as u64, u32::MAX.into(), i32::MAX as u64],
                random,
            ));
        }
        5 => return u128::MAX,
        6 => old << 1,
        7 => return random.random_range(0..=left as u128 + 1),
        8 => left as u128 / 2,
        _ => return u128::from(random.random::<u64>()) >> random.random_range(0..64),
    };
    base.wrapping_add(near).wrapping_sub(1)
}

/// The LEB128 number at the beginning of `bytes`, and how many bytes it takes.
fn leb(bytes: &[u8]) -> Option<(u128, usize)> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(19) {
        number |= u128::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

/// The range of a random number, and of the bytes behind it that it may be the length of.
fn lengthy(bytes: &[u8], random: &mut SmallRng) -> Option<(Range<usize>, Range<usize>)> {
    (0..32).find_map(|_| {
        let at = random.random_range(0..bytes.len().max(1));
        let (length, digits) = leb(bytes.get(at..)?)?;
        let start = at + digits;
        let length = usize::try_from(length).ok()?;
        let fits = length > 1 && length <= bytes.len() - start;
        fits.then(|| (at..start, start..start + length))
    })
}

fn change(bytes: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut SmallRng, depth: u32) {
    if bytes.is_empty() {
        bytes.extend((0..random.random_range(0..8)).map(|_| random.random::<u8>()));
        return;
    }
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..18) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = *one_of(&[0, 1, 2, 3, 4, 0x7f, 0x80, 0xff], random),
        2 => bytes[at] = bytes[at].wrapping_add(*one_of(&[1, 0xff], random)),
        3 | 4 => {
            let width = *one_of(&[2, 4, 8, 16], random);
            let new = number(0, bytes.len() - at, random).to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
            if random.random() {
                bytes[at..end].reverse();
            }
        }
        5..=8 => {
            if let Some((old, digits)) = leb(&bytes[at..]) {
                let mut new = Vec::new();
                put(&mut new, number(old, bytes.len() - at - digits, random));
                bytes.splice(at..at + digits, new);
            }
        }
        9 => bytes.truncate(at),
        10 => {
            let byte = *one_of(&[0, 1, 0xff, 0x80], random);
            bytes.extend(std::iter::repeat_n(byte, random.random_range(1..40)));
        }
        11 => {
            let copy = bytes[part(bytes, random)].to_vec();
            bytes.splice(at..at, copy);
        }
        12 => drop(bytes.drain(part(bytes, random))),
        13 => swap(bytes, random),
        14 => {
            let other = one_of(pool, random);
            let from = random.random_range(0..=other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
        15 => {
            let copy = bytes[at..(at + random.random_range(1..8)).min(bytes.len())].to_vec();
            bytes.splice(at..at, copy.repeat(1 << random.random_range(0..10)));
        }
        16 => nest(bytes, random),
        _ if depth < DEPTH => inside(bytes, pool, random, depth),
        _ => {}
    }
}

/// Changes bytes whose length stands before them, and the length.
fn inside(bytes: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut SmallRng, depth: u32) {
    if let Some((length, body)) = lengthy(bytes, random) {
        let mut new = bytes[body.clone()].to_vec();
        for _ in 0..random.random_range(1..=2) {
            let one = random.random_range(0..3) > 0;
            if depth + 1 < DEPTH && one {
                inside(&mut new, pool, random, depth + 1)
            } else {
                change(&mut new, pool, random, DEPTH)
            }
        }
        new.truncate(MOST);
        let mut both = Vec::new();
        put(&mut both, new.len() as u64);
        both.extend(new);
        bytes.splice(length.start..body.end, both);
    } else {
        change(bytes, pool, random, DEPTH);
    }
}

/// Puts bytes whose length stands before them into themselves, many times, with their tag.
fn nest(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let Some((length, body)) = lengthy(bytes, random) else {
        return;
    };
    let tag = bytes[length.start.saturating_sub(1)];
    let mut inner = bytes[body.clone()].to_vec();
    for _ in 0..1 << random.random_range(0..10) {
        let mut outer = vec![tag];
        put(&mut outer, inner.len() as u64);
        outer.append(&mut inner);
        inner = outer;
    }
    let mut both = Vec::new();
    put(&mut both, inner.len() as u64);
    both.extend(inner);
    bytes.splice(length.start..body.end, both);
}

fn swap(bytes: &mut [u8], random: &mut SmallRng) {
    let length = random.random_range(1..=(bytes.len() / 2).clamp(1, 16));
    let most = bytes.len() - length;
    let (one, other) = (random.random_range(0..=most), random.random_range(0..=most));
    for index in 0..length {
        bytes.swap(one + index, other + index);
    }
}
