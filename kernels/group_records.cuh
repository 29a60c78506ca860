// Rows as records, the code of a row's group above its key: for group.cu, group_brackets.cu and sort_groups.cu.
#pragma once
#include "common.cuh"

// Rows that a thread reads at once.
[[maybe_unused]] constexpr u32 UNROLL = 4;

template <class Record>
__device__ __forceinline__ Record record_of(u64 code, Key key, u32 bits) {
    return bits < 8 * sizeof(Record) ? Record(code) << bits | Record(key) : Record(key);
}

// Index of the first of `count` ascending numbers that is not below `number`.
__device__ __forceinline__ u64 lower_bound(const u64* numbers, u64 count, u64 number) {
    u64 from = 0;
    while (count) {
        const u64 half = count / 2;
        if (numbers[from + half] < number) {
            from += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return from;
}

// Writes what `keep` makes of some of `rows` rows, in any order, and adds their number to *cursor; what lies beyond `room` is not written.
// `load(row)` reads a row; `keep(row, loaded, made)` says whether it counts.
template <class Made, class Load, class Keep>
__device__ __forceinline__ void write_some(u64 rows, Made* out, u64 room, u64* cursor, Load load, Keep keep) {
    __shared__ u32 partial[33];
    __shared__ u64 base;
    constexpr u64 TOGETHER = u64(THREADS) * UNROLL;
    for (u64 tile = blockIdx.x; tile * TOGETHER < rows; tile += gridDim.x) {
        const u64 first = tile * TOGETHER + threadIdx.x;
        decltype(load(first)) loaded[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = first + j * THREADS;
            if (row < rows) loaded[j] = load(row);
        }
        Made made[UNROLL];
        u32 kept = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = first + j * THREADS;
            if (row < rows && keep(row, loaded[j], made[j])) kept |= 1u << j;
        }
        u32 total;
        const u32 before = block_scan(u32(__popc(kept)), partial, total);
        if (threadIdx.x == 0) base = atomicAdd(cursor, u64(total));
        __syncthreads();
        u64 at = base + before;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (kept >> j & 1) {
                if (at < room) out[at] = made[j];
                ++at;
            }
    }
}
