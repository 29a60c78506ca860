// Groups whose records lie together: sorts each short one, and copies the keys at the wanted ranks of all.
//
//   sg_sort    sorts the records of each group of at most MOST_ROWS by a bitonic network in the registers of a warp; counts longer groups
//   sg_ranks   copies the keys at the wanted ranks of each group
//
// Groups of as many records have the same ranks, so that the host sends a list of ranks for each number of records that occurs. Records of
// one group differ in their keys alone. BATCH is the number of bytes that hold a key: 4, 8 or 16, of which sg_sort takes the first two.
#include "group_records.cuh"

#if BATCH == 4
typedef u32 Narrow;
#elif BATCH == 8
typedef u64 Narrow;
#else
typedef unsigned __int128 Narrow;
#endif

constexpr u32 MOST_REGISTERS = 32;
constexpr u32 MOST_ROWS = 32 * MOST_REGISTERS;

struct SortedGroups {
    Key* records;
    u64 count;           // records
    const u64* starts;   // index of the first record of each group
    u64 groups;
    u64* longer;         // of sg_sort: number of groups with more than MOST_ROWS records; zeroed
    const u64* lengths;  // of sg_ranks: the numbers of records that groups have, ascending, each once
    const u64* ranks;    // `each` ranks, from 1, for each of `lengths`
    u64 distinct;        // of `lengths`
    Narrow* keys;        // `each` for each group
    u32 each;
    u32 bits;            // bits of a record below the code of its group
};

extern "C" __constant__ u32 sg_sizes[4] = {sizeof(SortedGroups), sizeof(Key), sizeof(Narrow), MOST_ROWS};

__device__ __forceinline__ Key mask_of(const SortedGroups& sorted) {
    return sorted.bits < 8 * sizeof(Key) ? (Key(1) << sorted.bits) - 1 : MAX_KEY;
}

__device__ __forceinline__ u64 length_of(const SortedGroups& sorted, u64 group) {
    return (group + 1 < sorted.groups ? sorted.starts[group + 1] : sorted.count) - sorted.starts[group];
}

// ---------------------------------------------------------------- the sort of short groups

#if BATCH <= 8
constexpr u32 SORT_THREADS = 256;

// Registers r of all lanes form a list, item r * 32 + lane, which is sorted from the least. The networks compare each item with a later one
// alone, so that items that are not there count as greater than all others, and stay where they are.

__device__ __forceinline__ void order(Narrow& lesser, Narrow& greater) {
    const Narrow least = lesser < greater ? lesser : greater;
    greater = lesser < greater ? greater : lesser;
    lesser = least;
}

template <int R>
__device__ __forceinline__ void order_lanes(Narrow (&list)[R], u32 mask, bool keeps_lesser) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const Narrow other = __shfl_xor_sync(ALL_LANES, list[r], mask);
        list[r] = (list[r] < other) == keeps_lesser ? list[r] : other;
    }
}

// Half-cleaners between lanes, from `mask` apart down to 1.
template <int R>
__device__ __forceinline__ void clean_lanes(Narrow (&list)[R], u32 mask) {
#pragma unroll 1
    for (; mask; mask >>= 1) order_lanes(list, mask, !(lane_id() & mask));
}

// Half-cleaners between registers, from STEP apart down to 1.
template <int R, int STEP>
__device__ __forceinline__ void clean_registers(Narrow (&list)[R]) {
    if constexpr (STEP > 0) {
#pragma unroll
        for (int r = 0; r + STEP < R; ++r)
            if (!(r & STEP)) order(list[r], list[r + STEP]);
        clean_registers<R, STEP / 2>(list);
    }
}

// Merges neighbouring lists of SIZE / 2 sorted registers, then those of SIZE, and so on.
template <int R, int SIZE>
__device__ __forceinline__ void merge(Narrow (&list)[R]) {
    if constexpr (SIZE / 2 < R) {
        // The first items of the one list are compared with the last of the other.
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int across = r ^ (SIZE - 1);
            if (r < across && across < R) {
                Narrow other = __shfl_xor_sync(ALL_LANES, list[across], 31);
                order(list[r], other);
                list[across] = __shfl_xor_sync(ALL_LANES, other, 31);
            }
        }
        clean_registers<R, SIZE / 4>(list);
        clean_lanes(list, 16);
        merge<R, 2 * SIZE>(list);
    }
}

template <int R>
__device__ __forceinline__ void sort_list(Narrow (&list)[R]) {
#pragma unroll 1
    for (u32 size = 2; size <= 32; size *= 2) {
        order_lanes(list, size - 1, !(lane_id() & size / 2));
        clean_lanes(list, size / 4);
    }
    merge<R, 2>(list);
}

template <int R>
__device__ __forceinline__ void sort_group(Key* records, u32 length, Key mask) {
    const Key code = records[0] & ~mask;
    Narrow list[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const u32 i = r * 32 + lane_id();
        list[r] = i < length ? Narrow(records[i] & mask) : ~Narrow(0);
    }
    sort_list(list);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const u32 i = r * 32 + lane_id();
        if (i < length) records[i] = code | list[r];
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) sg_sort(const __grid_constant__ SortedGroups sorted) {
    const u64 warps = u64(gridDim.x) * (SORT_THREADS / 32);
    const Key mask = mask_of(sorted);
    u64 longer = 0;
    for (u64 group = u64(blockIdx.x) * (SORT_THREADS / 32) + threadIdx.x / 32; group < sorted.groups; group += warps) {
        const u64 length = length_of(sorted, group);
        Key* records = sorted.records + sorted.starts[group];
        const u32 rows = u32(min(length, u64(MOST_ROWS) + 1)), registers = (rows + 31) / 32;
        if (length > MOST_ROWS)
            ++longer;
        else if (rows <= 1)
            continue;
        else if (registers <= 1)
            sort_group<1>(records, rows, mask);
        else if (registers <= 2)
            sort_group<2>(records, rows, mask);
        else if (registers <= 4)
            sort_group<4>(records, rows, mask);
        else if (registers <= 6)
            sort_group<6>(records, rows, mask);
        else if (registers <= 8)
            sort_group<8>(records, rows, mask);
        else if (registers <= 10)
            sort_group<10>(records, rows, mask);
        else if (registers <= 12)
            sort_group<12>(records, rows, mask);
        else if (registers <= 16)
            sort_group<16>(records, rows, mask);
        else if (registers <= 24)
            sort_group<24>(records, rows, mask);
        else
            sort_group<MOST_REGISTERS>(records, rows, mask);
    }
    if (lane_id() == 0 && longer) atomicAdd(sorted.longer, longer);
}
#endif

// ---------------------------------------------------------------- ranks

extern "C" __global__ void __launch_bounds__(THREADS) sg_ranks(const __grid_constant__ SortedGroups sorted) {
    const u64 threads = u64(gridDim.x) * THREADS;
    const Key mask = mask_of(sorted);
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < sorted.groups * sorted.each; i += threads) {
        const u64 group = i / sorted.each;
        const u64 list = lower_bound(sorted.lengths, sorted.distinct, length_of(sorted, group));
        if (list == sorted.distinct) continue;
        const u64 rank = sorted.ranks[list * sorted.each + i % sorted.each];
        sorted.keys[i] = Narrow(sorted.records[sorted.starts[group] + rank - 1] & mask);
    }
}
