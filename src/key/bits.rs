//! Keys as unsigned integers of one of three widths.

use std::fmt::Debug;

/// A key of any width, as it is used outside of shards: the key's bits, zero-extended to 128.
pub type KeyBits = u128;

/// An unsigned integer that serves as a key inside a shard.
pub trait Key:
    Bits + Copy + Ord + Default + Debug + Send + Sync + bytemuck::Pod + std::hash::Hash + 'static
{
    /// Width in bits.
    const BITS: u32;
    /// Largest key.
    const MAX: Self;
    /// Zero-extends.
    fn to_bits(self) -> KeyBits;
    /// Truncates. The caller passes bits of this width only.
    fn from_bits(bits: KeyBits) -> Self;
    /// `self - other`, modulo the width.
    fn minus(self, other: Self) -> Self;
    /// The lower 32 bits of `self >> shift`; `shift < BITS`.
    fn shr32(self, shift: u32) -> u32;
    /// The upper 64 bits of `self << shift` in a field of `max(64, BITS)` bits.
    fn upper64(self, shift: u32) -> u64;
}

macro_rules! key {
    ($type:ty, $upper:expr) => {
        impl Key for $type {
            const BITS: u32 = <$type>::BITS;
            const MAX: Self = <$type>::MAX;
            #[inline(always)]
            fn to_bits(self) -> KeyBits {
                self as KeyBits
            }
            #[inline(always)]
            fn from_bits(bits: KeyBits) -> Self {
                bits as $type
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn shr32(self, shift: u32) -> u32 {
                (self >> shift) as u32
            }
            #[inline(always)]
            fn upper64(self, shift: u32) -> u64 {
                let upper: fn($type, u32) -> u64 = $upper;
                upper(self, shift)
            }
        }
    };
}
key!(u32, |key, shift| (key as u64) << shift);
key!(u64, |key, shift| key << shift);
key!(u128, |key, shift| ((key << shift) >> 64) as u64);

/// Width of a key inside a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Width {
    /// `u32`: types of at most 32 bits.
    W32,
    /// `u64`.
    W64,
    /// `u128`: Decimal128.
    W128,
}

impl Width {
    /// Bytes of one key.
    pub fn bytes(self) -> usize {
        match self {
            Width::W32 => 4,
            Width::W64 => 8,
            Width::W128 => 16,
        }
    }

    /// The largest key of this width.
    pub fn max_key(self) -> KeyBits {
        match self {
            Width::W32 => u32::MAX as KeyBits,
            Width::W64 => u64::MAX as KeyBits,
            Width::W128 => u128::MAX,
        }
    }
}

/// The integer operators that encoding needs.
pub trait Bits:
    std::ops::BitAnd<Output = Self>
    + std::ops::BitOr<Output = Self>
    + std::ops::BitXor<Output = Self>
    + std::ops::Shl<u32, Output = Self>
    + std::ops::Shr<u32, Output = Self>
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + Sized
{
    fn one() -> Self;
    /// Bits of `+inf` in the IEEE 754 format of this many bits.
    fn infinity(bits: u8) -> Self;
    /// Bits of the positive quiet NaN.
    fn nan(bits: u8) -> Self;
}

macro_rules! bits {
    ($($type:ty),*) => {$(
        impl Bits for $type {
            #[inline(always)]
            fn one() -> Self { 1 }
            fn infinity(bits: u8) -> Self {
                (match bits { 16 => 0x7c00_u64, 32 => 0x7f80_0000, _ => 0x7ff0_0000_0000_0000 }) as $type
            }
            fn nan(bits: u8) -> Self {
                (match bits { 16 => 0x7e00_u64, 32 => 0x7fc0_0000, _ => 0x7ff8_0000_0000_0000 }) as $type
            }
        }
    )*};
}
bits!(u32, u64, u128);

/// Calls `$body` with the key type of a width.
macro_rules! with_key {
    ($width:expr, $key:ident => $body:expr) => {
        match $width {
            Width::W32 => {
                type $key = u32;
                $body
            }
            Width::W64 => {
                type $key = u64;
                $body
            }
            Width::W128 => {
                type $key = u128;
                $body
            }
        }
    };
}
pub(crate) use with_key;

/// Evaluates `$body` with what an enum over the widths of keys holds: `$kind` has the variants `W32`, `W64` and `W128`.
macro_rules! on_width {
    ($kind:ident, $value:expr, $inner:ident => $body:expr) => {
        match $value {
            $kind::W32($inner) => $body,
            $kind::W64($inner) => $body,
            $kind::W128($inner) => $body,
        }
    };
}
pub(crate) use on_width;
