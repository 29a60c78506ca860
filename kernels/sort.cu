// Sorts records of 64 or 128 bits by digits of up to 8 bits, the least significant digit first (a stable radix sort). The number of passes
// follows from the bits that records use, not from the data. Then finds where groups begin, whose codes are the upper bits of records, and
// copies the records at given places.
//
//   so_clear    zeroes what the kernels below count in
//   so_count    counts how often each value of each digit occurs
//   so_scatter  moves each record to its place by one digit
//   so_search   finds, for each code from that of the first record to that of the last, the first record of its group
//   so_tally    counts, for each block, the groups that begin in its share
//   so_scan     sums of these counts over the blocks before, and over all
//   so_heads    lists the first record and the code of each group, in order
//   so_pick     copies the records at given places
//
// A share is a range of tiles, the same in so_tally and so_heads. A tile is sorted in shared memory, so that records with the same digit are
// written together. In so_scatter blocks take one tile after the other, and learn from the tiles before how many records with a digit come
// before theirs: each tile says how many it has, and how many it has with all before, as soon as it knows (a scan with decoupled look-back:
// Merrill and Garland 2016; in a radix sort: Adinets and Merrill 2022). So each digit takes one read and one write.
#include "common.cuh"

constexpr u32 DIGITS = 256;
constexpr u32 SORT_THREADS = 512;
constexpr u32 WARPS = SORT_THREADS / 32;
constexpr u32 ITEMS = 80 / sizeof(Key);
constexpr u32 PLACE_BITS = 16;  // bits of the place of a record in its tile
constexpr u32 SORT_TILE = SORT_THREADS * ITEMS;

constexpr u32 MOST_DIGITS = 16;

struct Sort {
    const Key* from;
    Key* to;
    u64 count;
    u64 tiles;     // tiles of a block's share
    u64* states;   // of so_scatter: for each tile and value of the digit a word, see records_before; of so_tally: a number for each block
    u64* totals;   // of so_count and so_scatter: for each digit and each of its values the number of records; behind them for each digit the
                   // number of tiles taken. so_scan and so_search say what they put there
    u64* starts;   // of so_heads and so_search: first record of each group; behind those of so_search, the codes
    u64* codes;    // of so_heads: code of each group
    const u64* places; // of so_pick
    Key* picked;
    u64 picks;
    u64 most_groups;  // of so_search: groups that fit
    u32 ends[MOST_DIGITS + 1];  // the first bit of each digit, and the end of the last
    u32 digits;
    u32 digit;     // of so_scatter
    u32 blocks;    // blocks of so_tally and so_heads
    u32 bits;      // bits of a record below the code of its group
};

extern "C" __constant__ u32 so_sizes[4] = {sizeof(Sort), sizeof(Key), SORT_TILE, (SORT_TILE * sizeof(Key)) + WARPS * DIGITS * 4};

__device__ __forceinline__ u32 digit_of(const Sort& sort, u32 digit, Key record) {
    return u32(shifted_down(record, sort.ends[digit])) & ((1u << (sort.ends[digit + 1] - sort.ends[digit])) - 1);
}

__device__ __forceinline__ u64 tiles_of(const Sort& sort) { return (sort.count + SORT_TILE - 1) / SORT_TILE; }

__device__ __forceinline__ void share_of(const Sort& sort, u64& from, u64& end) {
    from = u64(blockIdx.x) * sort.tiles * SORT_TILE;
    end = min(from + sort.tiles * SORT_TILE, sort.count);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_clear(const __grid_constant__ Sort sort) {
    const u64 states = tiles_of(sort) * DIGITS, totals = MOST_DIGITS * (DIGITS + 1), threads = u64(gridDim.x) * SORT_THREADS;
    for (u64 i = u64(blockIdx.x) * SORT_THREADS + threadIdx.x; i < states + totals; i += threads) {
        if (i < states)
            sort.states[i] = 0;
        else
            sort.totals[i - states] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_count(const __grid_constant__ Sort sort) {
    __shared__ u32 bins[MOST_DIGITS * DIGITS];
    for (u32 bin = threadIdx.x; bin < sort.digits * DIGITS; bin += SORT_THREADS) bins[bin] = 0;
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
        for (u32 digit = 0; digit < sort.digits; ++digit)
#pragma unroll
            for (u32 j = 0; j < ITEMS; ++j)
                if (base + j * SORT_THREADS + threadIdx.x < end) atomicAdd(&bins[digit * DIGITS + digit_of(sort, digit, records[j])], 1u);
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < sort.digits * DIGITS; bin += SORT_THREADS)
        if (bins[bin]) atomicAdd(sort.totals + bin, u64(bins[bin]));
}

// so_scan replaces the count that so_tally made for each block by the sum of those of the blocks before. totals[0] becomes the sum of all.
extern "C" __global__ void __launch_bounds__(THREADS) so_scan(const __grid_constant__ Sort sort) {
    __shared__ u64 partial[33];
    u64 before = 0;
    for (u32 base = 0; base < sort.blocks; base += THREADS) {
        const u32 at = base + threadIdx.x;
        u64 total;
        const u64 sum = block_scan(at < sort.blocks ? sort.states[at] : 0ull, partial, total);
        if (at < sort.blocks) sort.states[at] = before + sum;
        before += total;
    }
    if (threadIdx.x == 0) sort.totals[0] = before;
}

// A state is the word in which a tile says how many records have one value of the digit: the number of the pass from 1, whether the count is of
// the tile or of the tile and all before it, and the count.
constexpr u32 PASS_AT = 58, KIND_AT = 56;
constexpr u64 OF_TILE = 1, OF_ALL = 2;  // of the tile; of the tile and all before it

__device__ __forceinline__ u64 state_of(const Sort& sort, u64 kind, u64 count) {
    return u64(sort.digit + 1) << PASS_AT | kind << KIND_AT | count;
}

__device__ __forceinline__ volatile u64* state_at(const Sort& sort, u64 tile, u32 value) { return sort.states + tile * DIGITS + value; }

__device__ __forceinline__ void say_own(const Sort& sort, u64 tile, u32 value, u32 own) {
    *state_at(sort, tile, value) = state_of(sort, tile ? OF_TILE : OF_ALL, own);
}

// The number of records with a value of the digit in the tiles before `tile`, which has `own` such records. Blocks take tiles in order, and say
// what a tile has before they wait for the tiles before it, so that no block waits for ever.
__device__ __forceinline__ u64 records_before(const Sort& sort, u64 tile, u32 value, u32 own) {
    if (tile == 0) return 0;
    u64 before = 0, kind = OF_TILE;
    for (u64 other = tile - 1; kind == OF_TILE; --other) {
        u64 state;
        do state = *state_at(sort, other, value);
        while (state >> PASS_AT != sort.digit + 1);
        before += state & ((1ull << KIND_AT) - 1);
        kind = state >> KIND_AT & (OF_TILE | OF_ALL);
    }
    *state_at(sort, tile, value) = state_of(sort, OF_ALL, before + own);
    return before;
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
    __shared__ u64 target[DIGITS];   // of each value: place of its first record among all, less that in the tile
    __shared__ u64 wide[33];
    __shared__ u32 partial[33];
    __shared__ u64 taken;
    Key* ordered = (Key*)shared_memory;
    u32* counters = (u32*)(ordered + SORT_TILE);  // of each warp
    const u32 warp = threadIdx.x / 32, value = threadIdx.x, width = sort.ends[sort.digit + 1] - sort.ends[sort.digit];
    u32* own = counters + warp * DIGITS;
    // Records with lower values come before.
    u64 all;
    const u64 lower = block_scan(value < DIGITS ? sort.totals[sort.digit * DIGITS + value] : 0ull, wide, all);
    for (;;) {
        if (threadIdx.x == 0) taken = atomicAdd(sort.totals + MOST_DIGITS * DIGITS + sort.digit, 1ull);
        __syncthreads();
        const u64 tile = taken, base = tile * SORT_TILE;
        if (base >= sort.count) return;
        const u32 here = u32(min(u64(SORT_TILE), sort.count - base));
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
            const u32 digit = digit_of(sort, sort.digit, records[j]);
            const u32 peers = peers_of(digit, width), below = __popc(peers & lanes_below());
            const u32 seen = own[digit];
            __syncwarp();
            if (below == 0) own[digit] = seen + __popc(peers);
            __syncwarp();
            const u32 rank = seen + below;
            ranks[j / 2] = j % 2 ? ranks[j / 2] | rank << PLACE_BITS : rank;
        }
        __syncthreads();
        // For each value: the number of records of the warps before, and of lower values.
        u32 mine = 0;
        if (value < DIGITS) {
            for (u32 w = 0; w < WARPS; ++w) {
                const u32 count = counters[w * DIGITS + value];
                counters[w * DIGITS + value] = mine;
                mine += count;
            }
            say_own(sort, tile, value, mine);
        }
        u32 total;
        const u32 start = block_scan(mine, partial, total);
        if (value < DIGITS)
            for (u32 w = 0; w < WARPS; ++w) counters[w * DIGITS + value] += start;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 rank = ranks[j / 2] >> j % 2 * PLACE_BITS & ((1u << PLACE_BITS) - 1);
            ordered[own[digit_of(sort, sort.digit, records[j])] + rank] = records[j];
        }
        if (value < DIGITS) target[value] = lower + records_before(sort, tile, value, mine) - start;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 i = j * SORT_THREADS + threadIdx.x;
            if (i >= here) break;
            const Key record = ordered[i];
            sort.to[target[digit_of(sort, sort.digit, record)] + i] = record;
        }
        __syncthreads();
    }
}

__device__ __forceinline__ u64 code_at(const Sort& sort, u64 at) { return u64(shifted_down(sort.from[at], sort.bits)); }

// so_search adds the number of groups that it finds to totals[0], which is zeroed. totals[1] becomes the number of codes from the first record's
// to the last one's, and totals[2] the first of them.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_search(const __grid_constant__ Sort sort) {
    const u64 first = code_at(sort, 0), codes = code_at(sort, sort.count - 1) - first + 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        sort.totals[1] = codes;
        sort.totals[2] = first;
    }
    if (codes > sort.most_groups) return;
    const u64 threads = u64(gridDim.x) * SORT_THREADS;
    u64 found = 0;
    for (u64 i = u64(blockIdx.x) * SORT_THREADS + threadIdx.x; i < codes; i += threads) {
        // The last record's code is not below any of these.
        u64 from = 0, count = sort.count - 1;
        while (count) {
            const u64 half = count / 2;
            if (code_at(sort, from + half) < first + i) {
                from += half + 1;
                count -= half + 1;
            } else {
                count = half;
            }
        }
        sort.starts[i] = from;
        sort.starts[codes + i] = first + i;
        found += code_at(sort, from) == first + i;
    }
    found = warp_sum(found);
    if (lane_id() == 0 && found) atomicAdd(sort.totals, found);
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
    if (threadIdx.x == 0) sort.states[blockIdx.x] = heads;
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) so_heads(const __grid_constant__ Sort sort) {
    __shared__ u32 partial[33];
    u64 from, end;
    share_of(sort, from, end);
    u64 next = sort.states[blockIdx.x];
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
