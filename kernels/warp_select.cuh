// WarpSelect: selects the k greatest of the items that the lanes of a warp offer, in registers, in one pass. It is a device function for
// other kernels; ws_runs_K of warp_select.cu shows its use.
//
// An item is a key with the complement of its index below it. So all items are different, and the greater key comes first, and among
// equal keys the smaller index. Item 0 means that there is no item.
#pragma once
#include "common.cuh"

#if KEY_BITS == 32
typedef u64 Item;
#else
typedef unsigned __int128 Item;
#endif

__device__ __forceinline__ Item item_of(Key key, u32 index) { return Item(key) << 32 | u32(~index); }
__device__ __forceinline__ Key item_key(Item item) { return Key(item >> 32); }
__device__ __forceinline__ u32 item_index(Item item) { return ~u32(item); }

__device__ __forceinline__ Item shuffle_xor(Item item, u32 mask) {
#if KEY_BITS == 32
    return __shfl_xor_sync(ALL_LANES, item, mask);
#else
    return Item(__shfl_xor_sync(ALL_LANES, u64(item >> 64), mask)) << 64 | __shfl_xor_sync(ALL_LANES, u64(item), mask);
#endif
}

__device__ __forceinline__ Item shuffle(Item item, u32 lane) {
#if KEY_BITS == 32
    return __shfl_sync(ALL_LANES, item, lane);
#else
    return Item(__shfl_sync(ALL_LANES, u64(item >> 64), lane)) << 64 | __shfl_sync(ALL_LANES, u64(item), lane);
#endif
}

// The bits that are set in some lane.
__device__ __forceinline__ u32 any_lane(u32 bits) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(ALL_LANES, bits);
#else
    for (int step = 16; step; step >>= 1) bits |= __shfl_xor_sync(ALL_LANES, bits, step);
    return bits;
#endif
}

__device__ __forceinline__ void order(Item& upper, Item& lower) {
    const Item greater = upper > lower ? upper : lower;
    lower = upper > lower ? lower : upper;
    upper = greater;
}

// Registers r of all lanes form a list, item r * 32 + lane; lists are sorted from the greatest.

// One half-cleaner between lanes.
__device__ __forceinline__ void clean_lanes(Item& item, u32 mask, bool keeps_greater) {
    const Item other = shuffle_xor(item, mask);
    item = (item > other) == keeps_greater ? item : other;
}

// Half-cleaners between registers, from STEP apart down to 1.
template <int R, int STEP>
__device__ __forceinline__ void clean_registers(Item* list) {
    if constexpr (STEP > 0) {
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (!(r & STEP)) order(list[r], list[r + STEP]);
        clean_registers<R, STEP / 2>(list);
    }
}

// Sorts a bitonic list of R registers, R a power of two.
template <int R>
__device__ __forceinline__ void sort_bitonic(Item* list) {
    clean_registers<R, R / 2>(list);
#pragma unroll
    for (u32 mask = 16; mask; mask >>= 1)
#pragma unroll
        for (int r = 0; r < R; ++r) clean_lanes(list[r], mask, !(lane_id() & mask));
}

// Merges sorted lists of A and B registers, each a power of two, A >= B: the upper A * 32 items to `upper`.
// WHOLE: the rest, sorted, to `lower`; else in any order.
template <int A, int B, bool WHOLE>
__device__ __forceinline__ void merge_lists(Item* upper, Item* lower) {
    constexpr int BOTH = A < B ? A : B;
#pragma unroll
    for (int r = 0; r < BOTH; ++r) {
        // The last items of the upper list are compared with the first of the lower.
        Item other = shuffle_xor(lower[r], 31);
        order(upper[A - 1 - r], other);
        lower[r] = WHOLE ? shuffle_xor(other, 31) : other;
    }
    sort_bitonic<A>(upper);
    if (WHOLE) sort_bitonic<B>(lower);
}

__device__ __forceinline__ void sort_register(Item& item) {
#pragma unroll
    for (u32 size = 2; size <= 32; size *= 2)
#pragma unroll
        for (u32 mask = size / 2; mask; mask >>= 1) clean_lanes(item, mask, !(lane_id() & size & 31) == !(lane_id() & mask));
}

// Sorts any number of registers: the largest power of two of them, the rest, and a merge (the odd-size network of the paper).
template <int R>
__device__ __forceinline__ void sort_list(Item* list) {
    if constexpr (R == 1) {
        sort_register(list[0]);
    } else {
        constexpr int A = R > 4 ? 4 : R > 2 ? 2 : 1, B = R - A;  // R <= 8
        sort_list<A>(list);
        sort_list<B>(list + A);
        merge_lists<A, B, true>(list, list + A);
    }
}

// The queues of one warp: 32 * QUEUE items in order, and THREAD items a lane that wait, least first.
template <int QUEUE, int THREAD>
struct WarpSelect {
    Item queue[QUEUE];
    Item waiting[THREAD];
    Item rejected; // the greatest item that a merge left out
    Item floor;    // the k-th item so far, 0 until there are k; items that are not above it are dropped
    u32 k;

    __device__ __forceinline__ explicit WarpSelect(u32 k) : rejected(0), floor(0), k(k) {
#pragma unroll
        for (int r = 0; r < QUEUE; ++r) queue[r] = 0;
#pragma unroll
        for (int r = 0; r < THREAD; ++r) waiting[r] = 0;
    }
    __device__ __forceinline__ void offer(Item item) {
        if (item <= floor || item <= waiting[0]) return;
        waiting[0] = item;
#pragma unroll
        for (int r = 0; r + 1 < THREAD; ++r)
            if (waiting[r] > waiting[r + 1]) {
                const Item greater = waiting[r];
                waiting[r] = waiting[r + 1];
                waiting[r + 1] = greater;
            }
    }
    // Whether the queue of a lane is full, so that its next item could push out one that counts.
    __device__ __forceinline__ bool must_merge() const { return __any_sync(ALL_LANES, waiting[0] != 0); }
    // Call it at one place of a kernel only: the networks are long, and copies of them do not fit in the instruction cache.
    __device__ __forceinline__ void merge() {
        sort_list<THREAD>(waiting);
        merge_lists<QUEUE, THREAD, false>(queue, waiting);
#pragma unroll
        for (int r = 0; r < THREAD; ++r) {
            rejected = waiting[r] > rejected ? waiting[r] : rejected;
            waiting[r] = 0;
        }
        Item kth = 0;
#pragma unroll
        for (int r = 0; r < QUEUE; ++r) {
            // Masked, not selected: the compiler would select the address, and keep the queue in local memory.
            kth |= queue[r] & (Item(0) - Item(r == int(k - 1) / 32));
        }
        floor = shuffle(kth, (k - 1) & 31);
    }
};
