//! Tests of summaries as bytes: no byte string does harm.

use super::message;
use super::{eps, sketch};
use crate::sketch::summary_bytes::{CHECKSUM, Header, checksum};
use crate::sketch::tests::patterns::{generate, mix};
use crate::sketch::{Summary, Variant};

fn stored() -> Vec<u8> {
    sketch(&generate("lognormal", 3000, 1), eps(20.0), Variant::Modified).write(b"f64")
}

/// The bytes with the checksum that fits them.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len().saturating_sub(CHECKSUM);
    let sum = checksum(&bytes[..body]).to_le_bytes();
    bytes.splice(body.., sum);
    bytes
}

fn error(bytes: &[u8]) -> String {
    message(Summary::<u64>::read(bytes, b"f64").unwrap_err())
}

#[test]
fn errors_say_what_is_wrong() {
    let good = stored();
    assert!(Summary::<u64>::read(&good, b"f64").is_ok());
    assert_eq!(
        Header::read(&good).unwrap(),
        Header {
            bits: 64,
            tag: b"f64"
        }
    );
    assert_eq!(
        error(b"GK"),
        "not a quantile sketch: 2 bytes that do not begin with \"GKS\""
    );
    assert_eq!(error(b"GKS"), "a quantile sketch that ends after 3 bytes");
    assert_eq!(
        error(b"GKS\x03...."),
        "a quantile sketch of version 3: this program reads 2"
    );
    assert_eq!(
        message(Summary::<u32>::read(&good, b"f64").unwrap_err()),
        "a quantile sketch of 64-bit keys of type \"f64\": expected are 32-bit keys of type \"f64\""
    );
    assert_eq!(
        message(Summary::<u64>::read(&good, b"date").unwrap_err()),
        "a quantile sketch of 64-bit keys of type \"f64\": expected are 64-bit keys of type \"date\""
    );
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    assert!(error(&flipped).starts_with("a damaged quantile sketch: its checksum is "));
}

#[test]
fn truncated_and_flipped_bytes_are_errors() {
    let good = stored();
    for length in 0..good.len() {
        error(&good[..length]);
    }
    for bit in 0..8 * good.len() {
        let mut flipped = good.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        error(&flipped);
    }
}

/// With a checksum that fits, a summary that can be read must work, if it is not the true one.
#[test]
fn forged_summaries_are_errors_or_work() {
    let (good, mut read) = (stored(), 0);
    for case in 0..60_000_u64 {
        let mut forged = good.clone();
        for change in 0..=case % 3 {
            let random = mix(case * 3 + change) as usize;
            let at = random % forged.len();
            match random >> 32 & 7 {
                0 => forged[at] = 0xff,
                1 => forged.truncate(at),
                2 => forged.insert(at, (random >> 40) as u8),
                _ => forged[at] ^= 1 << (random >> 40 & 7),
            }
            if forged.is_empty() {
                break;
            }
        }
        let Ok(summary) = Summary::<u64>::read(&sealed(forged), b"f64") else {
            continue;
        };
        read += 1;
        works(&summary);
        let other = sketch(&generate("random", 500, case), eps(20.0), Variant::Spark);
        if let Ok(both) = summary.merge(other) {
            works(&both);
        }
    }
    assert!(read > 100, "{read}");
}

fn works(summary: &Summary<u64>) {
    assert!(summary.widest() <= summary.epsilon().budget(summary.n()).max(1));
    for rank in [1, 2, summary.n() / 2, summary.n()] {
        if (1..=summary.n()).contains(&rank) {
            assert!(summary.value_at(rank).is_some() && summary.bracket(rank).is_some());
        }
    }
    summary.rank(7);
    assert_eq!(&Summary::read(&summary.write(b"f64"), b"f64").unwrap(), summary);
}

#[test]
fn huge_counts_are_errors_not_allocations() {
    // n, eps 1/2, and far more tuples than bytes.
    let mut bytes = b"GKS\x02\x40\x03f64".to_vec();
    bytes.extend([
        0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2, 0xff, 0xff, 0xff, 0xff, 0x7f, 9, 9, 9, 9,
    ]);
    assert_eq!(
        error(&sealed(bytes)),
        "a damaged quantile sketch: 34359738367 tuples for 34359738367 values in 0 bytes"
    );
}

#[test]
fn counts_beyond_2_to_63_are_errors() {
    let n = i64::MAX as u64;
    let mut bytes = b"GKS\x02\x40\x03f64".to_vec();
    // n = 2^63 - 1, eps 1/2, one tuple, keys as they are: key 5, g = n, delta = 1 - n.
    bytes.extend([0xff; 8]);
    bytes.extend([0x7f, 1, 2, 1, 0, 5]);
    bytes.extend([0xff; 9]);
    bytes.extend([1]);
    bytes.extend([0xfb]);
    bytes.extend([0xff; 8]);
    bytes.extend([1, 0, 0, 0, 0]);
    let summary = Summary::<u64>::read(&sealed(bytes), b"f64").unwrap();
    assert_eq!(summary.tuples().collect::<Vec<_>>(), [(5, n, 1 - n as i64)]);
    assert_eq!(
        message(summary.clone().merge(summary).unwrap_err()),
        format!("{n} and {n} values are more than 2^63 - 1")
    );
}
