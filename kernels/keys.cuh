// Words, and the keys that they become, in the order of the values.
//
// One compilation serves one column type, chosen by macros:
//   STORAGE_BITS  8, 16, 32, 64, 128: bits of a value in the Arrow buffer (128 needs NVRTC's -device-int128)
//   ENCODING      0 unsigned, 1 signed, 2 float (all NaNs one key above +inf), 3 float in totalOrder,
//                 4 float in totalOrder turned to start at -inf, so that all NaNs are the greatest
//   MASKED        1 if rows can be missing (validity or filter bitmap), else 0
//   BATCH         16-byte vectors that a thread holds at once
//   DESCENDING    1: keys complemented, so that the smallest values are the greatest keys (top-k only)
// Keys are exactly those of src/key/fixed.rs. Keys of encoding 4 have the order that src/key/sort.rs gives to values that break ties.
#pragma once

#ifndef DESCENDING
#define DESCENDING 0
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if STORAGE_BITS == 8
typedef u8 Word;
#elif STORAGE_BITS == 16
typedef u16 Word;
#elif STORAGE_BITS == 32
typedef u32 Word;
#elif STORAGE_BITS == 64
typedef u64 Word;
#else
typedef unsigned __int128 Word;
#endif

#if STORAGE_BITS <= 32
typedef u32 Key;
#define KEY_BITS 32
#else
typedef Word Key;
#define KEY_BITS STORAGE_BITS
#endif

[[maybe_unused]] constexpr Key MAX_KEY = ~Key(0);
constexpr int VECTOR = 128 / STORAGE_BITS;
constexpr u32 ALL_LANES = 0xffffffffu;
constexpr u32 THREADS = 1024;

// ---------------------------------------------------------------- keys

__device__ __forceinline__ Key encode(Word word) {
    Key key;
#if ENCODING == 0
    key = word;
#elif ENCODING == 1
#if STORAGE_BITS == 8
    key = u32(int((signed char)word)) ^ 0x80000000u;
#elif STORAGE_BITS == 16
    key = u32(int(short(word))) ^ 0x80000000u;
#else
    key = word ^ (Word(1) << (STORAGE_BITS - 1));
#endif
#else
    constexpr Word sign = Word(1) << (STORAGE_BITS - 1);
    Word negative = Word(0) - (word >> (STORAGE_BITS - 1));
    key = Word(word ^ (negative | sign));
    [[maybe_unused]] constexpr Word infinity = STORAGE_BITS == 16 ? Word(0x7c00) : STORAGE_BITS == 32 ? Word(0x7f800000) : Word(0x7ff0000000000000ull);
#if ENCODING == 4
    // The key of -inf is the complement of its word.
    key = Word(Word(key) - Word(~(infinity | sign)));
#elif ENCODING == 2
    constexpr Word nan = STORAGE_BITS == 16 ? Word(0x7e00) : STORAGE_BITS == 32 ? Word(0x7fc00000) : Word(0x7ff8000000000000ull);
#if STORAGE_BITS == 32
    key = isnan(__uint_as_float(word)) ? Key(nan ^ sign) : key;
#else
    key = Word(word & (sign - 1)) > infinity ? Key(nan ^ sign) : key;
#endif
#endif
#endif
    return DESCENDING ? Key(~key) : key;
}

// The key that the host passes as two halves, the low one first.
__device__ __forceinline__ Key key_from(const u64 (&halves)[2]) {
#if KEY_BITS == 128
    return Key(halves[1]) << 64 | Key(halves[0]);
#else
    return Key(halves[0]);
#endif
}

__device__ __forceinline__ u32 bits_of(u64 value) { return 64 - __clzll(value); }
__device__ __forceinline__ u32 key_bits(Key key) {
#if KEY_BITS == 128
    u64 upper = u64(key >> 64);
    return upper ? 64 + bits_of(upper) : bits_of(u64(key));
#else
    return bits_of(key);
#endif
}

// The key shifted down; a shift by its width or more gives 0.
template <class T>
__device__ __forceinline__ T shifted_down(T key, u32 bits) {
    return bits >= 8 * sizeof(T) ? T(0) : T(key >> bits);
}

// 32 bits that depend on all bits of a key, for a multiplicative hash.
__device__ __forceinline__ u32 fold_key(Key key) {
#if KEY_BITS == 32
    return key;
#elif KEY_BITS == 64
    return u32(key) ^ u32(key >> 32) * 0x85ebca6bu;
#else
    return u32(key) ^ u32(key >> 32) * 0x85ebca6bu ^ u32(key >> 64) * 0xc2b2ae35u ^ u32(key >> 96) * 0x27d4eb2fu;
#endif
}

__device__ __forceinline__ u32 hash32(u32 x, u32 seed) {
    x ^= seed;
    x *= 0x9e3779b1u;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}
