// Bitmaps of the rows where a comparison is true, their combinations by AND and OR, and the number of their rows.
//
//   fl_within   rows whose key lies in [first, last], or outside of it; a missing row is in neither
//   fl_null     rows that are missing
//   fl_combine  one bitmap AND, or OR, another one
//   fl_count    number of rows of a bitmap that are not missing
//
// Bitmaps are as in Arrow: bit i of byte i / 8, from row 0 on, in words of 32 bits. Bits beyond the last row are 0.
#include "common.cuh"

// How new bits change the words of a bitmap.
enum Update : u32 { SET, AND, OR };

struct Filter {
    Column column;    // `mask` is ignored
    u32* words;       // one bit for each row
    const u32* other; // of fl_combine: the other bitmap
    u64* count;       // of fl_count: the number of rows; zeroed
    u64 first[2], last[2];  // keys, low half first
    u32 update, outside;
};

extern "C" __constant__ u32 fl_sizes[4] = {sizeof(Filter), 0, sizeof(Key), 0};

__device__ __forceinline__ void put(u32* word, u32 bits, u32 update) { *word = update == SET ? bits : update == AND ? *word & bits : *word | bits; }

// A warp makes 8 words at a time, so that each thread has 8 loads in flight.
constexpr u32 WORDS = 8;

extern "C" __global__ void __launch_bounds__(THREADS) fl_within(const __grid_constant__ Filter filter) {
    const u64 rows = filter.column.rows, words = (rows + 31) / 32, groups = (words + WORDS - 1) / WORDS;
    const Key first = key_from(filter.first), last = key_from(filter.last);
    const u64 warps = u64(gridDim.x) * (THREADS / 32);
    for (u64 group = (u64(blockIdx.x) * THREADS + threadIdx.x) / 32; group < groups; group += warps) {
        Word values[WORDS];
        u32 valid[WORDS];
#pragma unroll
        for (u32 j = 0; j < WORDS; ++j) {
            const u64 word = group * WORDS + j, row = word * 32 + lane_id();
            values[j] = row < rows ? filter.column.values[row] : Word(0);
            valid[j] = word < words ? (filter.column.validity ? ((const u32*)filter.column.validity)[word] : ALL_LANES) : 0;
        }
#pragma unroll
        for (u32 j = 0; j < WORDS; ++j) {
            const u64 word = group * WORDS + j, row = word * 32 + lane_id();
            const Key key = encode(values[j]);
            const bool inside = first <= key && key <= last;
            const u32 bits = __ballot_sync(ALL_LANES, row < rows && inside != bool(filter.outside)) & valid[j];
            if (lane_id() == j && word < words) put(filter.words + word, bits, filter.update);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fl_null(const __grid_constant__ Filter filter) {
    const u64 rows = filter.column.rows, words = (rows + 31) / 32;
    for (u64 word = u64(blockIdx.x) * THREADS + threadIdx.x; word < words; word += u64(gridDim.x) * THREADS) {
        const u32 rest = rows - word * 32 < 32 ? (1u << u32(rows - word * 32)) - 1 : ALL_LANES;
        const u32 bits = filter.column.validity ? ~((const u32*)filter.column.validity)[word] & rest : 0;
        put(filter.words + word, bits, filter.update);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fl_combine(const __grid_constant__ Filter filter) {
    const u64 words = (filter.column.rows + 31) / 32;
    for (u64 word = u64(blockIdx.x) * THREADS + threadIdx.x; word < words; word += u64(gridDim.x) * THREADS)
        put(filter.words + word, filter.other[word], filter.update);
}

extern "C" __global__ void __launch_bounds__(THREADS) fl_count(const __grid_constant__ Filter filter) {
    const u64 words = (filter.column.rows + 31) / 32;
    u64 own = 0;
    for (u64 word = u64(blockIdx.x) * THREADS + threadIdx.x; word < words; word += u64(gridDim.x) * THREADS) {
        const u32 bits = filter.words[word];
        own += __popc(filter.column.validity ? bits & ((const u32*)filter.column.validity)[word] : bits);
    }
    own = warp_sum(own);
    if (lane_id() == 0 && own) atomicAdd(filter.count, own);
}
