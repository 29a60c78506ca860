//! Sketches from damaged bytes, with a checksum that fits and without: a sketch that can be read works.

use datafusion::common::{Result, internal_err};
use rand::Rng;
use rand::rngs::SmallRng;

use super::eps;
use super::stored::sealed;
use crate::key::{KeyBits, Width};
use crate::mutated::{Decoder, SLACK};
use crate::sketch::{AnySketch, AnySummary, Header, Variant};

const TAGS: [&[u8]; 3] = [b"", b"Float64", b"Timestamp(us, \"+01:00\")"];

fn stored(random: &mut SmallRng) -> Vec<u8> {
    let width = [Width::W32, Width::W64, Width::W128][random.random_range(0..3)];
    let variant = [Variant::Classical, Variant::Spark, Variant::Modified][random.random_range(0..3)];
    let mut sketch = AnySketch::new(width, eps(random.random_range(2.0..40.0)), variant);
    let (n, shift) = (
        random.random_range(0..400),
        random.random_range(0..8 * width.bytes() as u32),
    );
    let key = |_| (random.random::<KeyBits>() & width.max_key()) >> shift;
    sketch.extend_keys((0..n).map(key)).unwrap();
    let summary = match n % 2 {
        0 => sketch.partial(),
        _ => sketch.finish(),
    };
    summary.unwrap().write(TAGS[n % 3])
}

/// Uses a sketch as the functions of sketches do.
fn works((tag, summary): (Vec<u8>, AnySummary)) -> Result<()> {
    let n = summary.n();
    for rank in [1, 2, n / 2, n.saturating_sub(1), n] {
        if (1..=n).contains(&rank) {
            let (key, least, most) = summary.value_at(rank)?;
            assert!(
                1 <= least && least <= most && most <= n,
                "rank {rank}: {least} to {most} of {n}"
            );
            let (below, above) = summary.rank(key);
            assert!(below <= above && above <= n, "{below} to {above} of {n}");
            summary.brackets(&[rank])?;
        }
    }
    assert!(summary.value_at(n.saturating_add(1)).is_err());
    assert_eq!(AnySummary::read(&summary.write(&tag), &tag)?, summary);
    let mut sketch = AnySketch::new(summary.width(), summary.epsilon(), Variant::Modified);
    sketch.extend_keys([0, 1, 7].into_iter())?;
    sketch.merge(summary.clone())?;
    sketch.merge(summary)?;
    let merged = sketch.partial()?;
    if AnySummary::read(&merged.write(&tag), &tag)? == merged {
        Ok(())
    } else {
        internal_err!("another sketch")
    }
}

#[test]
fn mutated_sketches_do_no_harm() {
    Decoder {
        slack: SLACK,
        name: "sketches",
        test: (module_path!(), "mutated_sketches_do_no_harm"),
        valid: &|random| (0..200).map(|_| stored(random)).collect(),
        seal: &|bytes| *bytes = sealed(std::mem::take(bytes)),
        decode: &|bytes| {
            let tag = Header::read(bytes)?.tag;
            Ok((tag.to_vec(), AnySummary::read(bytes, tag)?))
        },
        apply: &works,
    }
    .check();
}
