// Sorts records of 64 or 128 bits by digits of up to 8 bits, the least significant digit first (a stable radix sort). The number of passes
// follows from the bits that records use, not from the data. Then finds where groups begin, whose codes are the upper bits of records, and
// copies the records at given places.
//
//   so_count    counts, for each block, how often each value of the digit occurs in its share
//   so_scan     for each value of the digit: sums of the counts over the blocks before, and over all
//   so_scatter  moves each record to its place
//   so_tally    counts, for each block, the groups that begin in its share; so_scan adds up
//   so_heads    lists the first record and the code of each group, in order
//   so_pick     copies the records at given places
//
// A share is a range of tiles, the same in so_count and so_scatter, and in so_tally and so_heads. A tile is sorted in shared memory, so
// that records with the same digit are written together.
#include "common.cuh"

constexpr u32 DIGITS = 256;
constexpr u32 SORT_THREADS = 512;
constexpr u32 WARPS = SORT_THREADS / 32;
constexpr u32 ITEMS = 80 / sizeof(Key);
constexpr u32 PLACE_BITS = 16;  // bits of the place of a record in its tile
constexpr u32 SORT_TILE = SORT_THREADS * ITEMS;

struct Sort {
    const Key* from;
    Key* to;
    u64 count;
    u64 tiles;     // tiles of a block's share
    u64* counters; // a row for each value of the digit, with a number for each block
    u64* totals;   // the sum of each row
    u64* starts;   // of so_heads: first record of each group
    u64* codes;    // of so_heads: code of each group
    const u64* places; // of so_pick
    Key* picked;
    u64 picks;
    u32 shift, digit_bits;
    u32 blocks;    // blocks of so_count and so_scatter, or of so_tally and so_heads: the length of a row
    u32 bits;      // bits of a record below the code of its group
};

extern "C" __constant__ u32 so_sizes[4] = {sizeof(Sort), sizeof(Key), SORT_TILE, (SORT_TILE * sizeof(Key)) + WARPS * DIGITS * 4};

__device__ __forceinline__ u32 digit_of(const Sort& sort, Key record) {
    return u32(shifted_down(record, sort.shift)) & ((1u << sort.digit_bits) - 1);
}

__device__ __forceinline__ void share_of(const Sort& sort, u64& from, u64& end) {
    from = u64(blockIdx.x) * sort.tiles * SORT_TILE;
    end = min(from + sort.tiles * SORT_TILE, sort.count);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_count(const __grid_constant__ Sort sort) {
    __shared__ u32 bins[DIGITS];
    for (u32 bin = threadIdx.x; bin < DIGITS; bin += SORT_THREADS) bins[bin] = 0;
    __syncthreads();
    u64 from, end;
    share_of(sort, from, end);
    for (u64 base = from; base < end; base += SORT_TILE) {
        Key records[ITEMS];
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u64 at = base + j * SORT_THREADS + threadIdx.x;
            records[j] = at < end ? sort.from[at] : Key(0);
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j)
            if (base + j * SORT_THREADS + threadIdx.x < end) atomicAdd(&bins[digit_of(sort, records[j])], 1);
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < DIGITS; bin += SORT_THREADS) sort.counters[u64(bin) * sort.blocks + blockIdx.x] = bins[bin];
}

// One block for each row.
extern "C" __global__ void __launch_bounds__(THREADS) so_scan(const __grid_constant__ Sort sort) {
    __shared__ u64 partial[33];
    u64* row = sort.counters + u64(blockIdx.x) * sort.blocks;
    u64 before = 0;
    for (u32 base = 0; base < sort.blocks; base += THREADS) {
        const u32 at = base + threadIdx.x;
        u64 total;
        const u64 sum = block_scan(at < sort.blocks ? row[at] : 0ull, partial, total);
        if (at < sort.blocks) row[at] = before + sum;
        before += total;
    }
    if (threadIdx.x == 0) sort.totals[blockIdx.x] = before;
}

// Lanes of the warp with the same digit.
__device__ __forceinline__ u32 peers_of(u32 digit, u32 digit_bits) {
    u32 peers = ALL_LANES;
    for (u32 bit = 0; bit < digit_bits; ++bit) {
        const u32 set = digit >> bit & 1, vote = __ballot_sync(ALL_LANES, set);
        peers &= set ? vote : ~vote;
    }
    return peers;
}

// A tile takes 40 KB and the counters of warps 16 KB, which is all that a block has on the smallest device. With a third block on a
// multiprocessor, registers spill.
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 2) so_scatter(const __grid_constant__ Sort sort) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u64 target[DIGITS];   // of each digit: place of its first record among all, less that in the tile
    __shared__ u64 wide[33];
    __shared__ u32 partial[33];
    Key* ordered = (Key*)shared_memory;
    u32* counters = (u32*)(ordered + SORT_TILE);  // of each warp
    const u32 warp = threadIdx.x / 32;
    u32* own = counters + warp * DIGITS;
    u64 from, end;
    share_of(sort, from, end);
    // Records with lower digits come before, and of the same digit those of the blocks before.
    u64 all;
    const u64 first = block_scan(threadIdx.x < DIGITS ? sort.totals[threadIdx.x] : 0ull, wide, all);
    u64 next = threadIdx.x < DIGITS ? first + sort.counters[u64(threadIdx.x) * sort.blocks + blockIdx.x] : 0;
    for (u64 base = from; base < end; base += SORT_TILE) {
        const u32 here = u32(min(u64(SORT_TILE), end - base));
        Key records[ITEMS];
        u32 ranks[(ITEMS + 1) / 2];  // two in each, because a thread has few registers
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 i = warp * (32 * ITEMS) + j * 32 + lane_id();
            records[j] = i < here ? sort.from[base + i] : MAX_KEY;
        }
        for (u32 bin = lane_id(); bin < DIGITS; bin += 32) own[bin] = 0;
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            // Records beyond the end come last, with the greatest digit.
            const u32 digit = digit_of(sort, records[j]);
            const u32 peers = peers_of(digit, sort.digit_bits), below = __popc(peers & lanes_below());
            const u32 seen = own[digit];
            __syncwarp();
            if (below == 0) own[digit] = seen + __popc(peers);
            __syncwarp();
            const u32 rank = seen + below;
            ranks[j / 2] = j % 2 ? ranks[j / 2] | rank << PLACE_BITS : rank;
        }
        __syncthreads();
        // For each digit: the number of records of the warps before, and of lower digits.
        u32 mine = 0;
        if (threadIdx.x < DIGITS)
            for (u32 w = 0; w < WARPS; ++w) {
                const u32 count = counters[w * DIGITS + threadIdx.x];
                counters[w * DIGITS + threadIdx.x] = mine;
                mine += count;
            }
        u32 total;
        const u32 start = block_scan(mine, partial, total);
        if (threadIdx.x < DIGITS) {
            for (u32 w = 0; w < WARPS; ++w) counters[w * DIGITS + threadIdx.x] += start;
            target[threadIdx.x] = next - start;
            next += mine;
        }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 rank = ranks[j / 2] >> j % 2 * PLACE_BITS & ((1u << PLACE_BITS) - 1);
            ordered[own[digit_of(sort, records[j])] + rank] = records[j];
        }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 i = j * SORT_THREADS + threadIdx.x;
            if (i >= here) break;
            const Key record = ordered[i];
            sort.to[target[digit_of(sort, record)] + i] = record;
        }
        __syncthreads();
    }
}

__device__ __forceinline__ bool is_head(const Sort& sort, u64 at) {
    return at == 0 || shifted_down(sort.from[at], sort.bits) != shifted_down(sort.from[at - 1], sort.bits);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_tally(const __grid_constant__ Sort sort) {
    __shared__ u32 heads;
    if (threadIdx.x == 0) heads = 0;
    __syncthreads();
    u64 from, end;
    share_of(sort, from, end);
    u32 own = 0;
#pragma unroll 4
    for (u64 at = from + threadIdx.x; at < end; at += SORT_THREADS) own += is_head(sort, at);
    own = warp_sum(own);
    if (lane_id() == 0 && own) atomicAdd(&heads, own);
    __syncthreads();
    if (threadIdx.x == 0) sort.counters[blockIdx.x] = heads;
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_heads(const __grid_constant__ Sort sort) {
    __shared__ u32 partial[33];
    u64 from, end;
    share_of(sort, from, end);
    u64 next = sort.counters[blockIdx.x];
    for (u64 base = from; base < end; base += SORT_THREADS) {
        const u64 at = base + threadIdx.x;
        const bool head = at < end && is_head(sort, at);
        // If groups are long, no group begins in most shares.
        if (!__syncthreads_or(head)) continue;
        u32 total;
        const u32 before = block_scan(u32(head), partial, total);
        if (head) {
            sort.starts[next + before] = at;
            sort.codes[next + before] = u64(shifted_down(sort.from[at], sort.bits));
        }
        next += total;
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_pick(const __grid_constant__ Sort sort) {
    const u64 threads = u64(gridDim.x) * SORT_THREADS;
    for (u64 i = u64(blockIdx.x) * SORT_THREADS + threadIdx.x; i < sort.picks; i += threads) sort.picked[i] = sort.from[sort.places[i]];
}
