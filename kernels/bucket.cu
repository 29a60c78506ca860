// The requests of src/kernel/round.rs over one column:
//
//   bk_count_table*    counts keys in each cell of a CellTable
//   bk_count_edges*    counts keys between arbitrary splitters
//   bk_count_linear*   counts keys in each bucket of a linear projection inside pieces (DIBMS)
//   bk_collect_*       copies the keys of some cells, a list for each
//   bk_tally           counts, for each chunk, the rows whose keys lie in some cells of splitters
//   bk_compact         copies those rows, in their order
//   bk_sample          copies one key of each stripe, at a random place in it
//   bk_extremes        finds the least and the greatest key inside `within`
//   bk_keys            copies the keys of some rows
//
// The cells are exactly those of src/cells, because all functions use integers only. SampleSelect writes down the cell of each key (its
// oracles); here a column is read again, as two shifts and a load cost less than two bytes of memory for each key.
#include "bucket_cells.cuh"

// ---------------------------------------------------------------- counting

__device__ __forceinline__ bool is_within(const Round& round, Key key) {
    if (!round.within_count) return true;
    const Bracket bracket = round.within[last_at_most([&](u32 i) { return round.within[i].first; }, round.within_count, key)];
    return bracket.first <= key && key <= bracket.last;
}

// Counts keys by cells: with all counters in shared memory if PLAIN, or else wherever the round says, and only keys of some brackets.
template <class Cells, bool PLAIN>
struct Count {
    const Round& round;
    const Cells& cell_of;
    u32* counters;
    bool shared;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        // At most as many at once as registers hold.
        constexpr int FEW = N < 4 ? N : 4;
#pragma unroll
        for (int from = 0; from < N; from += FEW) {
            Key own[FEW];
#pragma unroll
            for (int i = 0; i < FEW; ++i) own[i] = keys[from + i];
            few(own, present >> from);
        }
    }
    template <int N>
    __device__ __forceinline__ void few(const Key (&keys)[N], u32 present) {
        u32 cell[N];
        if constexpr (PLAIN) {
            cell_of.of(keys, cell);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] = present >> i & 1 && is_within(round, keys[i]) ? cell_of(keys[i]) : NO_CELL;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (PLAIN && !Cells::PARTIAL ? !(present >> i & 1) : cell[i] == NO_CELL) continue;
            if (PLAIN || shared)
                atomicAdd(&counters[cell[i]], 1);
            else
                atomicAdd(&round.counts[cell[i]], 1ull);
        }
    }
    __device__ __forceinline__ void batch() {}
};

// Shared memory: first that of the cell function, then the counters.
template <class Cells, bool PLAIN, bool AHEAD>
__device__ __forceinline__ void count_round(const Round& round, uint4* shared_memory) {
    u32* counters = (u32*)shared_memory + Cells::words(round);
    const Cells cell_of(round, shared_memory);
    const bool shared = PLAIN || round.cells <= round.shared_cells;
    if (shared)
        for (u32 c = threadIdx.x; c < round.cells; c += THREADS) counters[c] = 0;
    __syncthreads();
    Count<Cells, PLAIN> count{round, cell_of, counters, shared};
    stream<AHEAD>(round.column, count);
    __syncthreads();
    if (shared)
        for (u32 c = threadIdx.x; c < round.cells; c += THREADS)
            if (counters[c]) atomicAdd(&round.counts[c], u64(counters[c]));
}

// The plain case, where all keys count and counters are in shared memory, has kernels of its own. Kernels with `_any` are for all other
// cases, with branches that all lanes take alike.
#define COUNT_KERNEL(NAME, CELLS, PLAIN, AHEAD)                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Round round) { \
        extern __shared__ uint4 shared_memory[];                                                       \
        count_round<CELLS, PLAIN, AHEAD>(round, shared_memory);                                        \
    }
using LightCells = TableCells<false, COPIES>;
using HeavyCells = TableCells<true, COPIES>;
COUNT_KERNEL(bk_count_table, LightCells, true, true)
COUNT_KERNEL(bk_count_table_heavy, HeavyCells, true, true)
COUNT_KERNEL(bk_count_table_any, OneTable, false, true)
// These cells need the registers that the vectors of the next tile would take.
COUNT_KERNEL(bk_count_edges, EdgeCells, true, false)
COUNT_KERNEL(bk_count_edges_any, EdgeCells, false, true)
COUNT_KERNEL(bk_count_linear, LinearCells, true, true)
COUNT_KERNEL(bk_count_linear_any, LinearCells, false, true)

// ---------------------------------------------------------------- lists

// Copies the keys of some cells to lists. Keys wait in shared memory, so that there is one global atomic operation for each list and flush,
// not one for each key.
template <class Cells>
struct Collect {
    const Round& round;
    const Cells& cell_of;
    const u16* map;
    Key* keys;      // shared: `stage` keys and as many lists, and a tally and an origin for each list
    u16* lists;
    u32* tally;     // zero between flushes
    u64* origin;
    u32* staged;

    __device__ __forceinline__ void write(u64 at, Key key) {
        if (round.words)
            ((Word*)round.out)[at] = decode(key);
        else
            ((Key*)round.out)[at] = key;
    }
    template <int N>
    __device__ __forceinline__ void some(const Key (&key)[N], u32 present, u64) {
        u32 list[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const u32 cell = present >> i & 1 && is_within(round, key[i]) ? cell_of(key[i]) : NO_CELL;
            list[i] = cell == NO_CELL ? NO_LIST : map[cell];
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (list[i] == NO_LIST) continue;
            const u32 at = round.stage ? atomicAdd(staged, 1) : 0;
            if (at < round.stage) {
                keys[at] = key[i];
                lists[at] = u16(list[i]);
            } else {
                write(round.starts[list[i]] + atomicAdd(&round.cursors[list[i]], 1ull), key[i]);
            }
        }
    }
    __device__ __forceinline__ void batch() {
        if (round.stage) flush_if(round.stage / 2);
    }
    // By all threads of the block.
    __device__ void flush_if(u32 limit) {
        if (!__syncthreads_or(*(volatile u32*)staged > limit)) return;
        const u32 count = min(*staged, round.stage);
        u32 place[STAGE_SHARE];
#pragma unroll
        for (u32 j = 0; j < STAGE_SHARE; ++j) {
            const u32 i = j * THREADS + threadIdx.x;
            if (i < count) place[j] = atomicAdd(&tally[lists[i]], 1);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < round.list_count; i += THREADS)
            if (tally[i]) {
                origin[i] = round.starts[i] + atomicAdd(&round.cursors[i], u64(tally[i]));
                tally[i] = 0;
            }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < STAGE_SHARE; ++j) {
            const u32 i = j * THREADS + threadIdx.x;
            if (i < count) write(origin[lists[i]] + place[j], keys[i]);
        }
        if (threadIdx.x == 0) *staged = 0;
        __syncthreads();
    }
};

// Shared memory: that of the cell function; the waiting keys, aligned to 16 bytes; the map.
template <class Cells>
__device__ __forceinline__ void collect_round(const Round& round, uint4* shared_memory) {
    __shared__ u32 staged;
    const Cells cell_of(round, shared_memory);
    Key* keys = (Key*)(shared_memory + (Cells::words(round) + 3) / 4);
    u64* origin = (u64*)(keys + round.stage);
    u32* tally = (u32*)(origin + (round.stage ? round.list_count : 0));
    u16* lists = (u16*)(tally + (round.stage ? round.list_count : 0));
    const u16* map = round.map;
    if (round.shared_map) {
        u16* own = lists + round.stage;
        for (u32 c = threadIdx.x; c < round.cells; c += THREADS) own[c] = map[c];
        map = own;
    }
    for (u32 i = threadIdx.x; round.stage && i < round.list_count; i += THREADS) tally[i] = 0;
    if (threadIdx.x == 0) staged = 0;
    __syncthreads();
    Collect<Cells> collect{round, cell_of, map, keys, lists, tally, origin, &staged};
    stream(round.column, collect);
    if (round.stage) collect.flush_if(0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_collect_table(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    if (round.heavy_count)
        collect_round<OneTable>(round, shared_memory);
    else
        collect_round<TableCells<false, 1>>(round, shared_memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_collect_edges(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    collect_round<EdgeCells>(round, shared_memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_collect_linear(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    collect_round<LinearCells>(round, shared_memory);
}

// ---------------------------------------------------------------- rows in their order

// CHUNK: rows of a chunk, which one block reads in order. STEP: rows that a thread looks at in a step.
constexpr u32 CHUNK = 1 << 16;
constexpr u32 STEP = 8;

// Calls step(word, wanted) for the rows of a chunk. A warp has 32 * STEP neighbouring rows, of which a thread has every 32nd.
template <class Step>
__device__ __forceinline__ void wanted_rows(const Round& round, const EdgeCells& cell_of, u64 chunk, Step step) {
    for (u32 from = 0; from < CHUNK; from += THREADS * STEP) {
        const u64 first = chunk * CHUNK + from + (threadIdx.x / 32) * (32 * STEP) + lane_id();
        Word word[STEP];
        bool wanted[STEP];
#pragma unroll
        for (u32 j = 0; j < STEP; ++j) {
            const u64 row = first + j * 32;
            wanted[j] = row < round.column.rows;
            word[j] = wanted[j] ? round.column.values[row] : Word(0);
        }
#pragma unroll
        for (u32 j = 0; j < STEP; ++j)
            if (wanted[j]) wanted[j] = is_present(round.column, first + j * 32) && round.map[cell_of(encode(word[j]))] != NO_LIST;
        step(word, wanted);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bk_tally(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 total;
    const EdgeCells cell_of(round, shared_memory);
    const u64 chunks = (round.column.rows + CHUNK - 1) / CHUNK;
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        u32 own = 0;
        wanted_rows(round, cell_of, chunk, [&](const Word (&)[STEP], const bool (&wanted)[STEP]) {
#pragma unroll
            for (u32 j = 0; j < STEP; ++j) own += wanted[j];
        });
        own = warp_sum(own);
        if (lane_id() == 0) atomicAdd(&total, own);
        __syncthreads();
        if (threadIdx.x == 0) round.counts[chunk] = total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bk_compact(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 partial[33];
    const EdgeCells cell_of(round, shared_memory);
    __syncthreads();
    const u64 chunks = (round.column.rows + CHUNK - 1) / CHUNK;
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        u64 at = round.starts[chunk];
        wanted_rows(round, cell_of, chunk, [&](const Word (&word)[STEP], const bool (&wanted)[STEP]) {
            u32 lanes[STEP], own = 0;
#pragma unroll
            for (u32 j = 0; j < STEP; ++j) {
                lanes[j] = __ballot_sync(ALL_LANES, wanted[j]);
                own += __popc(lanes[j]);
            }
            // The sum over the warps before, once for each warp.
            u32 total;
            const u32 before = block_scan(lane_id() == 0 ? own : 0u, partial, total);
            u64 place = at + __shfl_sync(ALL_LANES, before, 0);
#pragma unroll
            for (u32 j = 0; j < STEP; ++j) {
                if (wanted[j]) ((Word*)round.out)[place + __popc(lanes[j] & lanes_below())] = word[j];
                place += __popc(lanes[j]);
            }
            at += total;
        });
    }
}

// ---------------------------------------------------------------- the small rounds

__device__ __forceinline__ u64 finalised(u64 bits) {
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    return bits ^ (bits >> 31);
}

// The same positions as `positions` in src/kernel/cpu/sample.rs gives.
extern "C" __global__ void __launch_bounds__(THREADS) bk_sample(const __grid_constant__ Round round) {
    const u64 stripe = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (stripe >= round.samples) return;
    auto start = [&](u64 of) { return u64((unsigned __int128)(round.population) * of / round.samples); };
    const u64 from = start(stripe), to = start(stripe + 1);
    const u64 position = from + finalised((round.seed + stripe) * 0x9e3779b97f4a7c15ull) % (to - from);
    if (position < round.offset || position - round.offset >= round.column.rows) return;
    ((Key*)round.out)[stripe] = encode(round.column.values[position - round.offset]);
}

extern "C" __global__ void __launch_bounds__(THREADS) bk_keys(const __grid_constant__ Round round) {
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < round.samples; i += u64(gridDim.x) * THREADS)
        ((Key*)round.out)[i] = encode(round.column.values[round.offset + i]);
}

struct Extremes {
    const Round& round;
    Key least, most;
    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!(present >> i & 1) || !is_within(round, keys[i])) continue;
            least = keys[i] < least ? keys[i] : least;
            most = keys[i] > most ? keys[i] : most;
        }
    }
    __device__ __forceinline__ void batch() {}
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_extremes(const __grid_constant__ Round round) {
    Extremes ends{round, MAX_KEY, 0};
    stream(round.column, ends);
    warp_range(ends.least, ends.most);
#if KEY_BITS <= 64
    if (lane_id() == 0) {
        atomicMin(&round.extremes[0], ends.least);
        atomicMax(&round.extremes[1], ends.most);
    }
#else
    // There are no atomic operations of 128 bits, so each warp takes a spin lock once.
    if (lane_id() == 0) {
        while (atomicExch(round.lock, 1)) __nanosleep(64);
        __threadfence();
        volatile Key* extremes = round.extremes;
        if (ends.least < extremes[0]) extremes[0] = ends.least;
        if (ends.most > extremes[1]) extremes[1] = ends.most;
        __threadfence();
        atomicExch(round.lock, 0);
    }
#endif
}
