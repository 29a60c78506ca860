//! Spill files that a disk changes: a read gives the bytes that were written, or an error.

use datafusion::common::exec_err;
use rand::Rng;

use super::*;
use crate::mutated::{Decoder, SLACK, overwrite, uncounted};

/// The ends of pieces that are written and read one behind the other: small ones, and one that is read directly.
const ENDS: [usize; 8] = [
    7,
    1000,
    1001,
    MOST - 1,
    MOST,
    MOST + 40,
    NEAR + 3 * MOST + 1000,
    NEAR + 3 * MOST + 1010,
];

fn pieces(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    ENDS.into_iter().map(move |end| {
        let from = std::mem::replace(&mut start, end);
        (from, &bytes[from..end])
    })
}

#[test]
fn mutated_spill_files_do_no_harm() {
    let spiller = Spiller::new(&RuntimeEnv::default());
    let mut random = <rand::rngs::SmallRng as rand::SeedableRng>::seed_from_u64(3);
    let written: Vec<u8> = (0..ENDS[ENDS.len() - 1]).map(|_| random.random()).collect();
    let file = || {
        let mut file = spiller.create("keys").unwrap();
        pieces(&written).for_each(|(start, piece)| {
            assert_eq!(file.append(piece).unwrap(), start as u64);
        });
        file
    };
    let file = file();
    let path = file.file.path().unwrap().to_owned();
    Decoder {
        slack: SLACK,
        name: "spill files",
        test: (module_path!(), "mutated_spill_files_do_no_harm"),
        valid: &|_| vec![written.clone()],
        seal: &|_| {},
        decode: &|bytes| {
            uncounted(|| overwrite(&path, bytes));
            let mut read = 0;
            for (start, piece) in pieces(&written).chain([
                (0, &written[..]),
                (3, &written[3..MOST + 9]),
                (MOST, &written[MOST..NEAR + 2 * MOST]),
            ]) {
                let mut back = vec![0; piece.len()];
                if file.read_at(start as u64, &mut back).is_ok() {
                    assert!(back == piece, "{} bytes at {start}", piece.len());
                    read += 1;
                }
            }
            match read {
                0 => exec_err!("nothing is left of the file"),
                read => Ok(read),
            }
        },
        apply: &|_| Ok(()),
    }
    .check();
}
