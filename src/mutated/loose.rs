//! Inputs of decoders that read more than one piece of bytes: rows, columns.

use crate::wire::put;

/// Bytes from which anything can be read: missing bytes are 0.
pub(crate) struct Loose<'a>(pub(crate) &'a [u8]);

impl<'a> Loose<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    pub(crate) fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        while shift < 64 {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// Takes eight bytes as a number.
    pub(crate) fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.take(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// Takes a piece that stands behind its length.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = self.number();
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }
}

/// Writes what [`Loose::piece`] reads.
pub(crate) fn put_piece(out: &mut Vec<u8>, piece: &[u8]) {
    put(out, piece.len() as u64);
    out.extend(piece);
}
