// The rounds of src/kernel/round.rs over one column, each one read:
//
//   bk_present      how many rows count (bitmaps only)
//   bk_sample       one jittered row a stripe, those inside `within`
//   bk_extremes     least and greatest key inside `within`
//   bk_count_table  keys in each cell of a CellTable
//   bk_count_edges  keys between arbitrary splitters
//   bk_count_linear keys in each bucket of a linear projection inside pieces (DIBMS)
//   bk_extract      keys inside brackets, each with its bracket's number
//
// The cells are those of src/kernel/buckets.rs, to the bit: integers only.
#include "common.cuh"

constexpr u32 ENTRIES = 2048;
constexpr u32 MOST_HEAVY = 8;
constexpr u32 GUIDE_BITS = 13;
constexpr u32 GUIDES = 1 << GUIDE_BITS;
constexpr u16 NO_CELL = 0xffff;

struct Bracket {
    Key first, last;
};

// Entry of a CellTable as on the CPU.
struct Entry {
    u32 add, shift;
};

struct Piece {
    Key first, last;
    u64 slope;
    u32 base, shift;
};

// One layout for all rounds; each reads what it needs.
struct Round {
    Column column;
    const Bracket* within;   // disjoint, ascending; what is counted or extracted
    u64* counts;             // `cells`, zeroed
    u16* oracle;             // null, or the cell of each row (NO_CELL: not counted); room for a multiple of 16 rows
    const Entry* entries;
    const Key* edges;        // ascending, distinct, none 0
    const Piece* pieces;     // disjoint, ascending
    Key* out;                // extracted or sampled keys
    u16* out_lists;          // bracket of each, in bk_extract
    u64 room;
    u64* cursor;             // zeroed: keys found, also beyond `room`
    Key* extremes;           // set to the greatest key and 0
    Key base, top;
    Key heavy[MOST_HEAVY];
    u32 within_count;        // 0: all keys
    u32 cells;
    u32 shared_cells;        // counters in shared memory; more cells than that are counted in device memory
    u32 shift, entry_count, heavy_count, edge_count, piece_count, samples, seed, stage, unused;
};

extern "C" __constant__ u32 bk_sizes[4] = {sizeof(Round), sizeof(Piece), sizeof(Key), u32(TILE)};

// The last of `count` numbers at most `wanted`, or 0.
template <class At>
__device__ __forceinline__ u32 last_at_most(At at, u32 count, Key wanted) {
    u32 from = 0;
    while (count > 1) {
        const u32 half = count / 2;
        if (at(from + half) <= wanted) {
            from += half;
            count -= half;
        } else {
            count = half;
        }
    }
    return from;
}

// ---------------------------------------------------------------- cell functions

// Each is made from shared memory that it fills; the caller synchronises.

template <bool HEAVY>
struct TableCells {
    const Round& round;
    const u32* table;
    u32 pre, index_shift;

    __device__ TableCells(const Round& round, void* shared) : round(round), table((u32*)shared) {
        // A cell number has at most 15 bits inside its entry, and an entry's number 11: 26 bits of the distance tell the
        // cell, so that offset and shift fit in one word.
        pre = KEY_BITS > 32 && round.shift > 15 ? round.shift - 15 : 0;
        index_shift = round.shift - pre;
        for (u32 i = threadIdx.x; i < round.entry_count; i += THREADS)
            ((u32*)shared)[i] = round.entries[i].add << 5 | (round.entries[i].shift - pre);
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        Key above = key < round.base ? round.base : key;
        above = (above > round.top ? round.top : above) - round.base;
        const u32 moved = KEY_BITS == 32 ? u32(above) : u32(above >> pre);
        const u32 entry = table[moved >> index_shift];
        u32 cell = __funnelshift_r(moved, 0, entry) + (int(entry) >> 5) + (key > round.top) - (key < round.base);
        for (u32 h = 0; HEAVY && h < round.heavy_count; ++h) cell += u32(key >= round.heavy[h]) + u32(key > round.heavy[h]);
        return cell;
    }
};

// A guide over the keys between the outer edges says between which edges to search.
struct EdgeCells {
    const Round& round;
    const u32* guide;  // edges below the guide's first key, and edges inside it << 16
    const Key* edges;
    Key first;
    u32 guide_shift;

    __device__ EdgeCells(const Round& round, void* shared) : round(round), edges(round.edges) {
        const u32 count = round.edge_count;
        if (!count) return;
        u32* filled = (u32*)shared;
        // Edges in shared memory where the host found room for them.
        if (round.stage >= count) {
            Key* own = (Key*)((u32*)shared + GUIDES + 4);
            for (u32 i = threadIdx.x; i < count; i += THREADS) own[i] = round.edges[i];
            edges = own;
        }
        first = round.edges[0];
        const u32 width = key_bits(round.edges[count - 1] - first);
        guide_shift = width > GUIDE_BITS ? width - GUIDE_BITS : 0;
        for (u32 g = threadIdx.x; g <= GUIDES; g += THREADS) {
            // Edges below the guide's first key; all of them after the last.
            const Key from = first + (Key(g) << guide_shift);
            u32 below = 0, rest = count;
            while (rest) {
                const u32 half = rest / 2;
                if (round.edges[below + half] < from && from >= first) {
                    below += half + 1;
                    rest -= half + 1;
                } else {
                    rest = half;
                }
            }
            filled[g] = g == GUIDES || from < first ? count : below;
        }
        __syncthreads();
        u32 inside[GUIDES / THREADS];
#pragma unroll
        for (u32 j = 0; j < GUIDES / THREADS; ++j) inside[j] = filled[j * THREADS + threadIdx.x + 1] - filled[j * THREADS + threadIdx.x];
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < GUIDES / THREADS; ++j) filled[j * THREADS + threadIdx.x] |= inside[j] << 16;
        guide = filled;
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        if (!round.edge_count || key < first) return 0;
        const Key place = (key - first) >> guide_shift;
        if (place >= GUIDES) return round.edge_count;
        const u32 found = guide[u32(place)];
        u32 low = found & 0xffff, rest = found >> 16;
        while (rest) {
            const u32 half = rest / 2;
            if (edges[low + half] <= key) {
                low += half + 1;
                rest -= half + 1;
            } else {
                rest = half;
            }
        }
        return low;
    }
};

struct LinearCells {
    const Round& round;
    const Piece* pieces;

    __device__ LinearCells(const Round& round, void* shared) : round(round), pieces((Piece*)shared) {
        for (u32 i = threadIdx.x; i < round.piece_count; i += THREADS) ((Piece*)shared)[i] = round.pieces[i];
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        const Piece& piece = pieces[last_at_most([&](u32 i) { return pieces[i].first; }, round.piece_count, key)];
        if (key < piece.first || key > piece.last) return NO_CELL;
#if KEY_BITS == 32
        const u64 distance = u64(key - piece.first) << piece.shift;
#elif KEY_BITS == 64
        const u64 distance = (key - piece.first) << piece.shift;
#else
        const u64 distance = u64(((key - piece.first) << piece.shift) >> 64);
#endif
        return piece.base + u32(__umul64hi(distance, piece.slope));
    }
};

// ---------------------------------------------------------------- counting

__device__ __forceinline__ bool is_within(const Round& round, Key key) {
    if (!round.within_count) return true;
    const Bracket bracket = round.within[last_at_most([&](u32 i) { return round.within[i].first; }, round.within_count, key)];
    return bracket.first <= key && key <= bracket.last;
}

struct alignas(2 * VECTOR > 16 ? 16 : 2 * VECTOR) VectorCells {
    u16 cells[VECTOR];
};

template <class Cells, bool PLAIN>
struct Count {
    const Round& round;
    const Cells& cell_of;
    u32* counters;
    bool shared;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64 row) {
        u32 cell[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const bool counts = present >> i & 1 && (PLAIN || is_within(round, keys[i]));
            cell[i] = counts ? cell_of(keys[i]) : NO_CELL;
        }
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (cell[i] != NO_CELL) {
                if (PLAIN || shared)
                    atomicAdd(&counters[cell[i]], 1);
                else
                    atomicAdd(&round.counts[cell[i]], 1ull);
            }
        if (PLAIN || !round.oracle) return;
        if constexpr (N < VECTOR) {
            round.oracle[row] = u16(cell[0]);
        } else {
#pragma unroll
            for (int v = 0; v < N / VECTOR; ++v) {
                VectorCells packed;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) packed.cells[i] = u16(cell[v * VECTOR + i]);
                *(VectorCells*)&round.oracle[group_row(row, v * VECTOR)] = packed;
            }
        }
    }
    __device__ __forceinline__ void batch() {}
};

// `words` of shared memory for the cell function, then the counters.
template <class Cells>
__device__ __forceinline__ void count_round(const Round& round, u32 words, uint4* shared_memory) {
    u32* counters = (u32*)shared_memory + words;
    const Cells cell_of(round, shared_memory);
    const bool shared = round.cells <= round.shared_cells;
    if (shared)
        for (u32 c = threadIdx.x; c < round.cells; c += THREADS) counters[c] = 0;
    __syncthreads();
    // The plain case has a loop of its own; the others share one, with branches that all lanes take alike.
    if (shared && !round.oracle && !round.within_count) {
        Count<Cells, true> count{round, cell_of, counters, shared};
        stream(round.column, count);
    } else {
        Count<Cells, false> count{round, cell_of, counters, shared};
        stream(round.column, count);
    }
    __syncthreads();
    if (shared)
        for (u32 c = threadIdx.x; c < round.cells; c += THREADS)
            if (counters[c]) atomicAdd(&round.counts[c], u64(counters[c]));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_count_table(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    if (round.heavy_count)
        count_round<TableCells<true>>(round, ENTRIES, shared_memory);
    else
        count_round<TableCells<false>>(round, ENTRIES, shared_memory);
}

// Shared memory: the guide, `stage` edges (all or none), counters.
extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_count_edges(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    count_round<EdgeCells>(round, GUIDES + 4 + round.stage * u32(sizeof(Key) / 4), shared_memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_count_linear(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    count_round<LinearCells>(round, round.piece_count * u32(sizeof(Piece) / 4), shared_memory);
}

// ---------------------------------------------------------------- extraction

// Keys of brackets, staged in shared memory: `stage` keys and their brackets; one global atomic a flush.
struct Extract {
    const Round& round;
    const Bracket* brackets;
    Key* keys;
    u16* lists;
    u32* staged;
    u64* origin;

    template <int N>
    __device__ __forceinline__ void some(const Key (&key)[N], u32 present, u64) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!(present >> i & 1)) continue;
            const u32 b = last_at_most([&](u32 j) { return brackets[j].first; }, round.within_count, key[i]);
            if (key[i] < brackets[b].first || key[i] > brackets[b].last) continue;
            const u32 at = atomicAdd(staged, 1);
            if (at < round.stage) {
                keys[at] = key[i];
                lists[at] = u16(b);
            } else {
                write(atomicAdd(round.cursor, 1ull), key[i], u16(b));
            }
        }
    }
    __device__ __forceinline__ void write(u64 at, Key key, u16 list) {
        if (at >= round.room) return;
        round.out[at] = key;
        round.out_lists[at] = list;
    }
    __device__ __forceinline__ void batch() { flush_if(round.stage / 2); }
    __device__ void flush_if(u32 limit) {
        if (!__syncthreads_or(*(volatile u32*)staged > limit)) return;
        const u32 count = min(*staged, round.stage);
        if (threadIdx.x == 0) *origin = atomicAdd(round.cursor, u64(count));
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += THREADS) write(*origin + i, keys[i], lists[i]);
        __syncthreads();
        if (threadIdx.x == 0) *staged = 0;
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) bk_extract(const __grid_constant__ Round round) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 staged;
    __shared__ u64 origin;
    Bracket* brackets = (Bracket*)shared_memory;
    Key* keys = (Key*)(brackets + round.within_count);
    for (u32 i = threadIdx.x; i < round.within_count; i += THREADS) brackets[i] = round.within[i];
    if (threadIdx.x == 0) staged = 0;
    __syncthreads();
    Extract extract{round, brackets, keys, (u16*)(keys + round.stage), &staged, &origin};
    stream(round.column, extract);
    extract.flush_if(0);
}

// ---------------------------------------------------------------- the small rounds

extern "C" __global__ void __launch_bounds__(THREADS) bk_present(const __grid_constant__ Round round) {
    const u64 bytes = (round.column.rows + 7) / 8;
    u64 own = 0;
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i * 8 < bytes; i += u64(gridDim.x) * THREADS) {
        u64 bits = ~0ull;
        if (round.column.validity) bits &= ((const u64*)round.column.validity)[i];
        if (round.column.mask) bits &= ((const u64*)round.column.mask)[i];
        const u64 rest = round.column.rows - i * 64;
        if (rest < 64) bits &= (1ull << rest) - 1;
        own += __popcll(bits);
    }
    own = warp_sum(own);
    if (lane_id() == 0 && own) atomicAdd(round.cursor, own);
}

extern "C" __global__ void __launch_bounds__(THREADS) bk_sample(const __grid_constant__ Round round) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    bool held = false;
    Key key = 0;
    if (index < round.samples && round.column.rows) {
        // (index + jitter) / samples, as a fraction of 2^64.
        const u64 stripe = ~0ull / round.samples;
        const u64 fraction = stripe * index + __umul64hi(stripe, u64(hash32(index, round.seed)) << 32);
        const u64 row = __umul64hi(round.column.rows, fraction);
        held = is_present(round.column, row);
        key = encode(round.column.values[row]);
        held = held && is_within(round, key);
    }
    const u32 all = __ballot_sync(ALL_LANES, held);
    u64 at = 0;
    if (lane_id() == 0 && all) at = atomicAdd(round.cursor, u64(__popc(all)));
    at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
    if (held && at < round.room) round.out[at] = key;
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
    for (int step = 16; step; step >>= 1) {
        const Key lower = shuffle_xor_key(ends.least, step), upper = shuffle_xor_key(ends.most, step);
        ends.least = lower < ends.least ? lower : ends.least;
        ends.most = upper > ends.most ? upper : ends.most;
    }
#if KEY_BITS <= 64
    if (lane_id() == 0) {
        atomicMin(&round.extremes[0], ends.least);
        atomicMax(&round.extremes[1], ends.most);
    }
#else
    // No atomics of 128 bits: a spin lock, once a warp.
    if (lane_id() == 0) {
        while (atomicExch((u32*)round.cursor, 1)) __nanosleep(64);
        __threadfence();
        volatile Key* extremes = round.extremes;
        if (ends.least < extremes[0]) extremes[0] = ends.least;
        if (ends.most > extremes[1]) extremes[1] = ends.most;
        __threadfence();
        atomicExch((u32*)round.cursor, 0);
    }
#endif
}
