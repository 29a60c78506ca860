// Exact selection of many ranks in one read (SampleSelect with a two-level cell table), control on the card:
//
//   ss_draw      8192 thr.   a small sample
//   ss_plan      one block   the sample -> cells: each range of keys gets a power of two of them by its mass
//   ss_sample    grid        a large sample, counted into the cells
//   ss_brackets  one block   cells that hold each rank with near certainty are flagged; heavy keys found
//   ss_count     grid        the one read: counts all cells, copies out the keys of flagged ones
//   ss_resolve   one block   exact cell of each rank; cells whose keys are still to be copied are flagged again
//   ss_extract   grid        the second read; returns at once if no cell is left over
//   ss_refine    grid        copied keys -> one list a wanted cell
//   ss_select    block/rank  the key of the rank in its list; a list that is not complete leaves the rank open
//   ss_deepen    cooperative counts narrower and narrower intervals of the open ranks until their keys fit or are alone
//
// The counts are exact, so a rank that a sample misled, or whose keys did not fit, is known to be open: never a wrong
// answer. Heavy keys are counted, never copied.
#include "common.cuh"

constexpr u32 MOST_CELLS = 16384;
constexpr u32 ENTRIES = 2048;
constexpr u32 MOST_RANKS = 1024;
constexpr u32 MOST_BLOCKS = 1024;
constexpr u32 HEAVY_BITS = 10;
constexpr u32 HEAVY_SLOTS = 1 << HEAVY_BITS;
constexpr u32 MOST_HEAVY = 512;
constexpr u32 HOT_CELLS = 512;
constexpr u32 HEAVY_ROUNDS = 6;
// A cell with more than 1 in HOT_SHARE of all keys beside its heavy ones is deepened, not copied: one block selects in
// it. At the end of deepening, 1 in DEEP_SHARE in all intervals together is copied.
constexpr u32 HOT_SHARE = 1024;
constexpr u32 DEEP_SHARE = 256;
// Finest cell of an entry: 2^-15 of it, so that a cell number fits in 27 bits before the entry's offset is added.
constexpr u32 MOST_SPLIT = 15;
constexpr u32 FLAG = 0x80000000u;
constexpr u32 MOST_SUBCELLS = 16384;

// How the read counts. REPEATED: neighbours fall into one cell, where atomics that return a value would serialise, so
// the flag is loaded; HEAVY: heavy keys are looked up besides; ONE_BRACKET: a single rank, whose flagged cells are one
// interval: two compares tell what lies below and above it, and only what lies inside has its cell counted.
enum Mode : u32 { COUNT_ONLY, COUNT_COPY, COUNT_COPY_REPEATED, COUNT_COPY_HEAVY, COPY_ONLY, ONE_BRACKET };
enum Where : u32 { OPEN, ANSWERED, LISTED };
// Bits of Control::outcome. MISMATCH: fewer or more rows than `kept`: no answer is right then. OUTSIDE: the rank of
// ONE_BRACKET lies outside of it, where nothing is known: no answer, the query is to be repeated with `counts_all`.
enum Outcome : u32 { MISSED = 1, DEEPENED = 2, MISMATCH = 4, OUTSIDE = 8 };

// A rank on its way: the keys it can be, how many there are, its place among them.
struct Target {
    Key first, last;
    u64 count, inner;
    u32 where, list, cell, unused;
};

// A disjoint interval of keys that ss_deepen still counts.
// Its sub-cells: one below `low`, those between `low` and `high`, one above.
struct Piece {
    Key first, last, low, high;
    u64 count;
    u32 base, shift, cells, cell;
};

// Zeroed before ss_plan; Python and Rust see only its size (ss_sizes) and the first fields.
struct Control {
    u32 outcome, open, deep_rounds, mode;
    u64 copied, second_copy, longest;  // keys in regions, of them by the second read, in the longest list
    u32 cells, entries, shift, pre;
    Key low, least, most, bracket_first, bracket_last;
    u32 bracket_cells[2];
    u32 samples, lists, heavies, repeats, pairs, barrier, pieces, deep_copy;
    u32 table[ENTRIES];
    u32 first_cell[ENTRIES + 1];
    u32 sampled[MOST_CELLS];
    u32 flags[MOST_CELLS];
    u64 counts[MOST_CELLS];
    u64 filled[MOST_BLOCKS];
    Key heavy[HEAVY_SLOTS];
    u32 heavy_used[HEAVY_SLOTS];
    u64 heavy_counts[HEAVY_SLOTS];
    u32 heavy_multiplier;
    Target targets[MOST_RANKS];
    u64 list_start[MOST_RANKS + 1];
    u64 list_expected[MOST_RANKS];
    u64 list_cursor[MOST_RANKS];
    u32 list_cell[MOST_RANKS];
    Piece piece[MOST_RANKS];
    u64 sub_counts[MOST_SUBCELLS];
    Key sample[PLAN_SAMPLE];
};

// The same for every kernel of a query. Ranks are 0-based among present rows, ascending.
struct Query {
    Column column;
    const u64* ranks;
    u64 kept;            // present rows
    Control* control;
    Key* copied;         // gridDim.x regions (of ss_count) of `region` keys
    u64 region;
    Key* listed;
    u64 list_room;
    Key* answers;
    u64 sample_lines;    // 128-byte lines of the large sample
    u32 rank_count;
    u32 cells;           // most cells; 4 bytes of shared memory each, 8 in ss_resolve
    u32 depth;           // keys a thread holds back before a flush; >= BATCH * VECTOR
    u32 stage;           // keys staged in shared memory by ss_refine and ss_deepen
    u32 regions;         // blocks of ss_count
    u32 seed;
    float sigmas;
    u32 counts_all;      // 1: ONE_BRACKET is not to be used
};

// For the host: how much to allocate, and whether its structures agree.
extern "C" __constant__ u32 ss_sizes[4] = {sizeof(Control), sizeof(Query), sizeof(Key), u32(TILE)};

// ---------------------------------------------------------------- cells

// The cell function with its constants in registers and its table in shared memory. As CellTable in
// src/kernel/buckets.rs, but with base and top aligned to entries, so that the outer entries take all that lies outside
// and no compare is left after the clamp. An entry packs (offset << 5 | shift): its cells number
// (above >> shift) + offset, where `above` was first moved down to 32 bits.
struct CellFunction {
    Key low, least, most;
    u32 pre, index_shift;
    const u32* table;

    __device__ CellFunction(const Control& control, u32* shared) : table(shared) {
        low = control.low;
        least = control.least;
        most = control.most;
        pre = control.pre;
        index_shift = control.shift - control.pre;
        for (u32 i = threadIdx.x; i < control.entries; i += blockDim.x) shared[i] = control.table[i];
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        key = key < least ? least : key;
        key = key > most ? most : key;
        const u32 above = KEY_BITS == 32 ? u32(key - low) : u32((key - low) >> pre);
        const u32 entry = table[above >> index_shift];
        return __funnelshift_r(above, 0, entry) + (int(entry) >> 5);
    }
};

// The last of `count` ascending numbers that is at most `wanted`; the first one is.
template <class T>
__device__ __forceinline__ u32 last_at_most(const T* numbers, u32 count, T wanted) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        (numbers[middle] <= wanted ? low : high) = middle;
    }
    return low;
}

// Copies first_cell to shared memory for cell_range; the caller synchronises.
__device__ void load_first_cells(const Control& control, u32* first_cell) {
    for (u32 i = threadIdx.x; i <= control.entries; i += blockDim.x) first_cell[i] = control.first_cell[i];
}

// The keys of a cell, by a search of its entry.
__device__ void cell_range(const Control& control, const u32* first_cell, u32 cell, Key& first, Key& last) {
    const u32 from = last_at_most(first_cell, control.entries, cell);
    const u32 cells = first_cell[from + 1] - first_cell[from];
    const u32 shift = control.shift - (bits_of(cells) - 1);
    first = control.low + (Key(from) << control.shift) + (Key(cell - first_cell[from]) << shift);
    last = first + ((Key(1) << shift) - 1);
    if (cell == 0) first = 0;
    if (cell + 1 == control.cells) last = MAX_KEY;
}

// ---------------------------------------------------------------- plan

// PLAN_SAMPLE threads in all: one block alone would wait long for so many misses.
extern "C" __global__ void __launch_bounds__(THREADS) ss_draw(const __grid_constant__ Query query) {
    draw_sample(query.column, query.seed, query.control->sample, &query.control->samples);
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_plan(const __grid_constant__ Query query) {
    __shared__ u32 mass[ENTRIES];
    __shared__ u32 partial[33];
    __shared__ Key ends[2][32];
    Control& control = *query.control;
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    for (u32 i = threadIdx.x; i < ENTRIES; i += THREADS) mass[i] = 0;
    const u32 total = control.samples;
    Key keys[SHARE], least = MAX_KEY, most = 0;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j)
        if (j * THREADS + threadIdx.x < total) {
            keys[j] = control.sample[j * THREADS + threadIdx.x];
            least = keys[j] < least ? keys[j] : least;
            most = keys[j] > most ? keys[j] : most;
        }
    for (int step = 16; step; step >>= 1) {
        const Key lower = shuffle_xor_key(least, step), upper = shuffle_xor_key(most, step);
        least = lower < least ? lower : least;
        most = upper > most ? upper : most;
    }
    if (lane_id() == 0) {
        ends[0][threadIdx.x / 32] = least;
        ends[1][threadIdx.x / 32] = most;
    }
    __syncthreads();
    least = ends[0][0], most = ends[1][0];
    for (u32 warp = 1; warp < THREADS / 32; ++warp) {
        least = ends[0][warp] < least ? ends[0][warp] : least;
        most = ends[1][warp] > most ? ends[1][warp] : most;
    }
    // Nothing sampled: equal entries over all keys.
    if (total == 0) least = 0, most = MAX_KEY;
    // Two entries are kept for what lies outside the sample's range.
    const u32 width = key_bits(most - least);
    u32 shift = width > 11 ? width - 11 : 0;
    while (Key(most >> shift) - Key(least >> shift) > ENTRIES - 3) ++shift;
    Key low = (least >> shift) << shift;
    u32 entries = u32((most >> shift) - (least >> shift)) + 1;
    const bool below = low != 0, above = (most >> shift) != (MAX_KEY >> shift);
    if (below) low -= Key(1) << shift;
    entries += below + above;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j)
        if (j * THREADS + threadIdx.x < total) atomicAdd(&mass[u32((keys[j] - low) >> shift)], 1);
    __syncthreads();
    // The greatest power of two within an entry's share of the cells, but no cell narrower than a key. Rounding down
    // leaves cells over: shares are a little more than there are cells, unless that is too much.
    const u32 spare = query.cells - ENTRIES, pre = KEY_BITS > 32 && shift > MOST_SPLIT ? shift - MOST_SPLIT : 0;
    u32 splits[2], cells, next;
    for (u32 tenths = 14;; tenths = 10) {
        u32 own = 0;
        for (u32 j = 0; j < 2; ++j) {
            const u32 entry = threadIdx.x * 2 + j;
            const u32 share = total == 0 ? 1 : max(1u, u32(u64(mass[entry]) * spare * tenths / (10 * total)));
            splits[j] = entry < entries ? min(min(31u - __clz(share), shift), MOST_SPLIT) : 0;
            own += entry < entries ? 1u << splits[j] : 0;
        }
        next = block_scan(own, partial, cells);
        if (cells <= query.cells || tenths == 10) break;
    }
    for (u32 j = 0; j < 2; ++j) {
        const u32 entry = threadIdx.x * 2 + j;
        if (entry >= entries) break;
        control.first_cell[entry] = next;
        control.table[entry] = (next - (entry << splits[j])) << 5 | (shift - splits[j] - pre);
        next += 1u << splits[j];
    }
    if (threadIdx.x == 0) {
        control.first_cell[entries] = cells;
        control.cells = cells;
        control.entries = entries;
        control.shift = shift;
        control.pre = pre;
        control.low = low;
        control.least = low;
        control.most = low + ((Key(entries) << shift) - 1);
    }
}

// ---------------------------------------------------------------- the large sample

extern "C" __global__ void __launch_bounds__(THREADS) ss_sample(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    u32* table = (u32*)shared_memory;
    u32* counters = table + ENTRIES;
    Control& control = *query.control;
    const SampledLines lines(query.column.rows, query.sample_lines, query.seed);
    if (lines.count == 0) return;
    const CellFunction cell_of(control, table);
    const u32 cells = control.cells;
    for (u32 i = threadIdx.x; i < cells; i += THREADS) counters[i] = 0;
    __syncthreads();
    u32 repeats = 0, pairs = 0;
    constexpr int UNROLL = 4;
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 item = u64(blockIdx.x) * THREADS + threadIdx.x; item < lines.count * 8; item += threads * UNROLL) {
        Vector vectors[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if ((item + j * threads) / 8 >= lines.count) break;
            vectors[j] = load_vector(query.column, lines.vector(item + j * threads));
        }
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if ((item + j * threads) / 8 >= lines.count) break;
            u32 last = 0;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                if (!has(vectors[j], i)) continue;
                const u32 cell = cell_of(key_of(vectors[j], i));
                atomicAdd(&counters[cell], 1);
                if (i > 0) {
                    repeats += cell == last;
                    ++pairs;
                }
                last = cell;
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < cells; i += THREADS)
        if (counters[i]) atomicAdd(&control.sampled[i], counters[i]);
    repeats = warp_sum(repeats);
    pairs = warp_sum(pairs);
    if (lane_id() == 0) {
        atomicAdd(&control.repeats, repeats);
        atomicAdd(&control.pairs, pairs);
    }
}

// ---------------------------------------------------------------- brackets

__device__ __forceinline__ u32 heavy_slot(Key key, u32 multiplier) { return fold_key(key) * multiplier >> (32 - HEAVY_BITS); }

struct HeavyScratch {
    u32 guess[HOT_CELLS], seen[HOT_CELLS], explained[HOT_CELLS];
    u32 key[MOST_HEAVY], hot[MOST_HEAVY], weight[MOST_HEAVY];  // sampled index, hot cell, repeats
    u32 taken[THREADS / 32][HEAVY_SLOTS / 32], placed[THREADS / 32];
    u32 count;
};

// Heavy keys of the hot cells, among the sampled keys: any sampled key is the guess of its cell, its repeats are
// counted, and it leaves; a key that makes up most of a cell is guessed soon. A guess that is missed costs time only.
__device__ void find_heavy(Control& control, const CellFunction& cell_of, const u16* mark, u32 hots, HeavyScratch& scratch) {
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    u32 hot[SHARE];
    Key keys[SHARE];
    if (threadIdx.x == 0) scratch.count = 0;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j) {
        const u32 i = j * THREADS + threadIdx.x;
        hot[j] = 0;
        if (i < control.samples) {
            keys[j] = control.sample[i];
            hot[j] = mark[cell_of(keys[j])];
        }
    }
    for (u32 round = 0; round < HEAVY_ROUNDS; ++round) {
        for (u32 h = threadIdx.x; h < hots; h += THREADS) scratch.seen[h] = 0;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < SHARE; ++j)
            if (hot[j] >= 2) scratch.guess[hot[j] - 2] = j * THREADS + threadIdx.x;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < SHARE; ++j)
            if (hot[j] >= 2 && keys[j] == control.sample[scratch.guess[hot[j] - 2]]) {
                atomicAdd(&scratch.seen[hot[j] - 2], 1);
                hot[j] = 0;
            }
        __syncthreads();
        bool found = false;
        for (u32 h = threadIdx.x; h < hots; h += THREADS) {
            if (scratch.seen[h] < PLAN_SAMPLE / 1000) continue;
            const u32 at = atomicAdd(&scratch.count, 1);
            if (at >= MOST_HEAVY) break;
            scratch.key[at] = scratch.guess[h];
            scratch.hot[at] = h;
            scratch.weight[at] = scratch.seen[h];
            found = true;
        }
        if (!__syncthreads_or(found) && round >= 2) break;
    }
    // One slot a key, so that a lookup is one load: of 32 hash functions, the one with the fewest clashes.
    const u32 count = min(scratch.count, MOST_HEAVY), warp = threadIdx.x / 32;
    auto multiplier = [](u32 of) { return hash32(of, 0x51ed270bu) | 0x80000001u; };
    scratch.taken[warp][lane_id()] = 0;
    __syncwarp();
    for (u32 i = lane_id(); i < count; i += 32) {
        const u32 slot = heavy_slot(control.sample[scratch.key[i]], multiplier(warp));
        atomicOr(&scratch.taken[warp][slot / 32], 1u << slot % 32);
    }
    __syncwarp();
    const u32 placed = warp_sum(__popc(scratch.taken[warp][lane_id()]));
    if (lane_id() == 0) scratch.placed[warp] = placed;
    __syncthreads();
    u32 best = 0;
    for (u32 other = 1; other < THREADS / 32; ++other)
        if (scratch.placed[other] > scratch.placed[best]) best = other;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const Key key = control.sample[scratch.key[i]];
        const u32 slot = heavy_slot(key, multiplier(best));
        if (atomicExch(&control.heavy_used[slot], 1)) continue;
        control.heavy[slot] = key;
        atomicAdd(&scratch.explained[scratch.hot[i]], scratch.weight[i]);
    }
    if (threadIdx.x == 0) {
        control.heavies = scratch.placed[best];
        control.heavy_multiplier = multiplier(best);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_brackets(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 partial[33], hot, hot_cell[HOT_CELLS], table[ENTRIES], first_cell[ENTRIES + 1];
    __shared__ u16 range[2][MOST_RANKS];
    Control& control = *query.control;
    const u32 cells = control.cells, share = (cells + THREADS - 1) / THREADS | 1;  // odd: no bank conflicts
    HeavyScratch& scratch = *(HeavyScratch*)shared_memory;
    u32* before = (u32*)(&scratch + 1);      // cells + 1: sampled keys below each cell
    u16* mark = (u16*)(before + cells + 1);  // cells: 0, 1 flagged, 2 + h: flagged and hot
    const CellFunction cell_of(control, table);
    load_first_cells(control, first_cell);
    if (threadIdx.x == 0) hot = 0;
    for (u32 h = threadIdx.x; h < HOT_CELLS; h += THREADS) scratch.explained[h] = 0;
    for (u32 c = threadIdx.x; c < cells; c += THREADS) {
        before[c] = control.sampled[c];
        mark[c] = 0;
    }
    __syncthreads();
    const u32 from = min(threadIdx.x * share, cells), to = min(from + share, cells);
    u32 own = 0, total;
    for (u32 c = from; c < to; ++c) own += before[c];
    u32 next = block_scan(own, partial, total);
    for (u32 c = from; c < to; ++c) {
        const u32 inside = before[c];
        before[c] = next;
        next += inside;
    }
    if (threadIdx.x == 0) before[cells] = total;
    __syncthreads();
    if (total == 0 || query.kept == 0) {
        if (threadIdx.x == 0) control.mode = COUNT_ONLY;
        return;
    }
    for (u32 r = threadIdx.x; r < query.rank_count; r += THREADS) {
        const double expected = (double(query.ranks[r]) + 0.5) / double(query.kept) * total;
        const double spread = query.sigmas * sqrt(fmax(expected * (1.0 - expected / total), 0.0)) + 2.0;
        const double low = expected - spread, high = expected + spread;
        range[0][r] = low <= 0.0 ? 0 : last_at_most(before, cells, u32(low));
        range[1][r] = high >= total ? cells - 1 : last_at_most(before, cells, u32(high));
    }
    __syncthreads();
    for (u32 r = threadIdx.x / 32; r < query.rank_count; r += THREADS / 32)
        for (u32 c = range[0][r] + lane_id(); c <= range[1][r]; c += 32) mark[c] = 1;
    __syncthreads();
    for (u32 c = threadIdx.x; c < cells; c += THREADS) {
        if (!mark[c]) continue;
        Key first, last;
        cell_range(control, first_cell, c, first, last);
        if (first == last)
            mark[c] = 0;
        else if (u64(before[c + 1] - before[c]) * 500 > total) {
            const u32 h = atomicAdd(&hot, 1);
            if (h < HOT_CELLS) {
                hot_cell[h] = c;
                mark[c] = u16(2 + h);
            }
        }
    }
    __syncthreads();
    const u32 hots = min(hot, HOT_CELLS);
    if (hots) find_heavy(control, cell_of, mark, hots, scratch);
    // What heavy keys do not explain would be copied; a cell with too much of it is only counted, and deepened later.
    u32 wanted = 0, all_wanted;
    for (u32 h = threadIdx.x; h < hots; h += THREADS) {
        const u32 c = hot_cell[h], inside = before[c + 1] - before[c];
        const u32 heavy = min(inside, u32(double(scratch.explained[h]) / control.samples * total));
        if (u64(inside - heavy) * HOT_SHARE > total)
            mark[c] = 0;
        else
            wanted += inside - heavy;
    }
    for (u32 c = threadIdx.x; c < cells; c += THREADS)
        if (mark[c] == 1) wanted += before[c + 1] - before[c];
    __syncthreads();
    block_scan(wanted, partial, all_wanted);
    const bool fits = double(all_wanted) / total * query.kept < 0.8 * double(query.region) * query.regions;
    for (u32 c = threadIdx.x; c < cells; c += THREADS) control.flags[c] = fits && mark[c] ? FLAG : 0;
    if (threadIdx.x == 0) {
        const bool repeated = u64(control.repeats) * 20 > control.pairs;
        const bool one = query.rank_count == 1 && !query.counts_all && fits && hots == 0 && mark[range[0][0]] && mark[range[1][0]];
        if (one) {
            Key unused;
            cell_range(control, first_cell, range[0][0], control.bracket_first, unused);
            cell_range(control, first_cell, range[1][0], unused, control.bracket_last);
            control.bracket_cells[0] = range[0][0];
            control.bracket_cells[1] = range[1][0];
        }
        control.mode = one                            ? ONE_BRACKET
                       : control.heavies              ? COUNT_COPY_HEAVY
                       : !fits || all_wanted == 0     ? COUNT_ONLY
                       : repeated                     ? COUNT_COPY_REPEATED
                                                      : COUNT_COPY;
    }
}

// ---------------------------------------------------------------- the read

// Shared memory of both reads: what has a fixed place first, then the counters and `depth` keys a thread.
struct PassMemory {
    Key heavy[HEAVY_SLOTS];
    u32 heavy_count[HEAVY_SLOTS];
    u32 table[ENTRIES];
    u32 counters[1];
};

template <u32 MODE>
struct Pass {
    CellFunction cell_of;
    PassMemory& memory;
    Key* columns;  // keys held back: of one thread THREADS apart
    u32* filled;   // shared: keys in this block's region
    Key* out;
    u32 region, limit, multiplier, held;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        u32 cell[N], flag[N], slot[N];
        bool heavy[N];
#pragma unroll
        for (int i = 0; i < N; ++i) cell[i] = cell_of(keys[i]);
        if (MODE == COUNT_COPY_HEAVY || MODE == COPY_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                slot[i] = heavy_slot(keys[i], multiplier);
                heavy[i] = memory.heavy[slot[i]] == keys[i];
            }
        }
        if (MODE == COUNT_COPY) {
#pragma unroll
            for (int i = 0; i < N; ++i) flag[i] = present >> i & 1 ? atomicAdd(&memory.counters[cell[i]], 1) : 0;
        } else if (MODE != COUNT_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) flag[i] = present >> i & 1 ? *(volatile u32*)&memory.counters[cell[i]] : 0;
        }
        if (MODE == COUNT_ONLY || MODE == COUNT_COPY_REPEATED || MODE == COUNT_COPY_HEAVY) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (present >> i & 1) {
                    u32* counter = &memory.counters[cell[i]];
                    if (MODE == COUNT_COPY_HEAVY && heavy[i]) counter = &memory.heavy_count[slot[i]];
                    atomicAdd(counter, 1);
                }
        }
        if (MODE != COUNT_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                bool wanted = int(flag[i]) < 0;
                if (MODE == COUNT_COPY_HEAVY || MODE == COPY_ONLY) wanted = wanted && !heavy[i];
                if (wanted) {
                    columns[held] = keys[i];
                    held += THREADS;
                }
            }
        }
    }
    __device__ __forceinline__ void batch() {
        if (MODE != COUNT_ONLY && __any_sync(ALL_LANES, held > limit)) flush();
    }
    // Row by row of the warp's columns, so that neighbours write neighbours.
    __device__ __forceinline__ void flush() {
        const u32 count = held / THREADS, all = warp_sum(count);
        u32 at = 0;
        if (lane_id() == 0) at = atomicAdd(filled, all);
        at = __shfl_sync(ALL_LANES, at, 0);
        for (u32 d = 0;; ++d) {
            const u32 active = __ballot_sync(ALL_LANES, d < count);
            if (!active) break;
            const u32 place = at + __popc(active & lanes_below());
            if (d < count && place < region) out[place] = columns[d * THREADS + threadIdx.x];
            at += __popc(active);
        }
        held = threadIdx.x;
    }
};

// The visitor of ONE_BRACKET.
struct OneBracket {
    Pass<COUNT_COPY> pass;
    Key first, width;
    u32 below, above;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        bool inside[N], any = false;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            inside[i] = present >> i & 1 && Key(keys[i] - first) <= width;
            any |= inside[i];
            below += present >> i & 1 && keys[i] < first;
            above += present >> i & 1 && keys[i] >= first && !inside[i];
        }
        if (any)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (inside[i]) {
                    atomicAdd(&pass.memory.counters[pass.cell_of(keys[i])], 1);
                    pass.columns[pass.held] = keys[i];
                    pass.held += THREADS;
                }
    }
    __device__ __forceinline__ void batch() { pass.batch(); }
};

template <u32 MODE>
__device__ __forceinline__ void run_pass(const Query& query, const CellFunction& cell_of, PassMemory& memory, u32* filled) {
    Key* columns = (Key*)(memory.counters + query.cells);
    Pass<MODE> pass{cell_of, memory, columns, filled, query.copied + query.region * blockIdx.x, u32(query.region),
                    (query.depth - BATCH * VECTOR) * THREADS + threadIdx.x, query.control->heavy_multiplier, threadIdx.x};
    if constexpr (MODE == ONE_BRACKET) {
        const Control& control = *query.control;
        OneBracket one{{cell_of, memory, columns, filled, pass.out, pass.region, pass.limit, 0, threadIdx.x},
                       control.bracket_first, control.bracket_last - control.bracket_first, 0, 0};
        stream(query.column, one);
        one.pass.flush();
        one.below = warp_sum(one.below);
        one.above = warp_sum(one.above);
        // All keys outside are put into the cells beside the bracket: only the sums matter.
        if (lane_id() == 0 && one.below) atomicAdd(&memory.counters[control.bracket_cells[0] - 1], one.below);
        if (lane_id() == 0 && one.above) atomicAdd(&memory.counters[control.bracket_cells[1] + 1], one.above);
    } else {
        stream(query.column, pass);
        if (MODE != COUNT_ONLY) pass.flush();
    }
}

// Counters begin with their flags; a free slot of the heavy keys holds a key of another slot: no key at all could mark it.
__device__ __forceinline__ void load_pass(const Query& query, PassMemory& memory, u32* filled) {
    const Control& control = *query.control;
    for (u32 i = threadIdx.x; i < control.cells; i += THREADS) memory.counters[i] = control.flags[i];
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS) {
        memory.heavy[i] = control.heavy_used[i] ? control.heavy[i] : Key(i == 0);
        memory.heavy_count[i] = 0;
    }
    if (threadIdx.x == 0) *filled = u32(control.filled[blockIdx.x]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_count(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 filled;
    Control& control = *query.control;
    PassMemory& memory = *(PassMemory*)shared_memory;
    const CellFunction cell_of(control, memory.table);
    load_pass(query, memory, &filled);
    const u32 mode = control.mode;
    if (mode == COUNT_COPY)
        run_pass<COUNT_COPY>(query, cell_of, memory, &filled);
    else if (mode == COUNT_ONLY)
        run_pass<COUNT_ONLY>(query, cell_of, memory, &filled);
    else if (mode == ONE_BRACKET)
        run_pass<ONE_BRACKET>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_REPEATED)
        run_pass<COUNT_COPY_REPEATED>(query, cell_of, memory, &filled);
    else
        run_pass<COUNT_COPY_HEAVY>(query, cell_of, memory, &filled);
    __syncthreads();
    const u32 cells = control.cells;
    for (u32 i = threadIdx.x; i < cells; i += THREADS)
        if (const u32 count = memory.counters[i] & ~FLAG) atomicAdd(&control.counts[i], u64(count));
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
        if (memory.heavy_count[i]) atomicAdd(&control.heavy_counts[i], u64(memory.heavy_count[i]));
    if (threadIdx.x == 0) control.filled[blockIdx.x] = filled;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_extract(const __grid_constant__ Query query) {
    if (query.control->second_copy == 0) return;
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 filled;
    Control& control = *query.control;
    PassMemory& memory = *(PassMemory*)shared_memory;
    const CellFunction cell_of(control, memory.table);
    load_pass(query, memory, &filled);
    run_pass<COPY_ONLY>(query, cell_of, memory, &filled);
    __syncthreads();
    if (threadIdx.x == 0) control.filled[blockIdx.x] = filled;
}

// ---------------------------------------------------------------- exact cells

extern "C" __global__ void __launch_bounds__(THREADS) ss_resolve(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u64 partial[33], copied;
    __shared__ u32 table[ENTRIES], first_cell[ENTRIES + 1], rank_cell[MOST_RANKS];
    __shared__ u16 head_list[MOST_RANKS];
    Control& control = *query.control;
    u64* before = (u64*)shared_memory;  // cells: keys below each cell
    const CellFunction cell_of(control, table);
    load_first_cells(control, first_cell);
    const u32 cells = control.cells, share = (cells + THREADS - 1) / THREADS | 1;  // odd: no bank conflicts
    if (threadIdx.x == 0) copied = 0;
    for (u32 c = threadIdx.x; c < cells; c += THREADS) before[c] = control.counts[c];
    __syncthreads();
    for (u32 b = threadIdx.x; b < query.regions; b += THREADS) atomicAdd(&copied, control.filled[b]);
    if (control.heavies)
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
            if (control.heavy_counts[i]) atomicAdd(&before[cell_of(control.heavy[i])], control.heavy_counts[i]);
    __syncthreads();
    const u32 from = min(threadIdx.x * share, cells), to = min(from + share, cells);
    u64 own = 0, total;
    for (u32 c = from; c < to; ++c) own += before[c];
    u64 next = block_scan(own, partial, total);
    for (u32 c = from; c < to; ++c) {
        const u64 inside = before[c];
        before[c] = next;
        next += inside;
    }
    if (total != query.kept) {
        if (threadIdx.x == 0) control.outcome = MISMATCH;
        return;
    }
    __syncthreads();
    if (control.mode == ONE_BRACKET) {
        // Of what lies beside the bracket only the sums are right.
        const u32 cell = last_at_most(before, cells, query.ranks[0]);
        if (cell < control.bracket_cells[0] || cell > control.bracket_cells[1]) {
            if (threadIdx.x == 0) control.outcome = OUTSIDE;
            return;
        }
    }
    // A thread a rank; ranks are ascending, so those of one cell are neighbours and share a list.
    const u32 r = threadIdx.x;
    const bool is_rank = r < query.rank_count;
    Target target = {};
    bool flagged = false;
    if (is_rank) {
        const u64 rank = query.ranks[r];
        const u32 cell = last_at_most(before, cells, rank);
        target.cell = cell;
        target.inner = rank - before[cell];
        target.count = (cell + 1 < cells ? before[cell + 1] : total) - before[cell];
        cell_range(control, first_cell, cell, target.first, target.last);
        target.where = target.first == target.last ? ANSWERED : OPEN;
        flagged = control.flags[cell] != 0;
        rank_cell[r] = cell;
        if (target.where == ANSWERED) query.answers[r] = target.first;
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < cells; c += THREADS) control.flags[c] = 0;
    const bool head = is_rank && target.where == OPEN && (r == 0 || rank_cell[r - 1] != target.cell);
    // Keys to be copied: heavy ones are not in `counts`. A cell too full for one block is left to ss_deepen.
    const u64 expected = head ? control.counts[target.cell] : 0;
    const bool fine = head && expected <= max(query.kept / HOT_SHARE, u64(1 << 16));
    u64 second;
    const u64 second_before = block_scan(fine && !flagged ? expected : 0ull, partial, second);
    const u64 room = query.region * query.regions, free = room > copied ? room - copied : 0;
    const bool candidate = fine && (flagged || second_before + expected <= free / 4 * 3);
    const u64 start = block_scan(candidate ? expected : 0ull, partial, second);
    const bool listed = candidate && start + expected <= query.list_room;
    // Heads before this one, and lists before this one, in one scan.
    u64 numbers;
    const u64 number = block_scan(u64(head) << 32 | u64(listed), partial, numbers);
    const u32 list = u32(number), list_head = u32(number >> 32) + head - 1;
    if (head) head_list[list_head] = u16(listed ? list : NO_LIST);
    if (listed) {
        control.list_start[list] = start;
        control.list_expected[list] = expected;
        control.list_cell[list] = target.cell;
        atomicMax(&control.longest, expected);
        // The second read copies the cells that the first one did not.
        if (!flagged && expected) {
            control.flags[target.cell] = FLAG;
            atomicAdd(&control.second_copy, expected);
            atomicOr(&control.outcome, MISSED);
        }
    }
    __syncthreads();
    if (is_rank) {
        if (target.where == OPEN) {
            target.list = head_list[list_head];
            if (target.list != NO_LIST)
                target.where = LISTED;
            else
                atomicAdd(&control.open, 1);
        }
        control.targets[r] = target;
    }
    if (threadIdx.x == 0) {
        control.lists = u32(numbers);
        control.copied = copied;
    }
}

// ---------------------------------------------------------------- lists

// One block a region.
extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_refine(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 staged, tally[MOST_RANKS];
    __shared__ u64 origin[MOST_RANKS];
    Control& control = *query.control;
    const u32 cells = control.cells, lists = control.lists;
    const u64 filled = min(control.filled[blockIdx.x], query.region);
    if (lists == 0 || filled == 0) return;
    constexpr u32 WIDE = sizeof(uint4) / sizeof(Key), UNROLL = 4;
    const u64 vectors = (filled + WIDE - 1) / WIDE;
    const uint4* source = (const uint4*)(query.copied + query.region * blockIdx.x);
    uint4 next[UNROLL];
    auto load = [&](u64 base) {
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (base + j * THREADS + threadIdx.x < vectors) next[j] = __ldcs(source + base + j * THREADS + threadIdx.x);
    };
    load(0);
    Key* keys = (Key*)shared_memory;
    u32* table = (u32*)(keys + query.stage);
    u16* list_of = (u16*)(table + ENTRIES);
    u16* staged_lists = list_of + query.cells;
    const CellFunction cell_of(control, table);
    for (u32 c = threadIdx.x; c < cells; c += THREADS) list_of[c] = u16(NO_LIST);
    Staging staging{keys, staged_lists, tally, origin, &staged, query.stage, lists, control.list_start, control.list_cursor, query.listed};
    staging.begin();
    for (u32 i = threadIdx.x; i < lists; i += THREADS) list_of[control.list_cell[i]] = u16(i);
    __syncthreads();
    for (u64 base = 0; base < vectors; base += THREADS * UNROLL) {
        uint4 now[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) now[j] = next[j];
        load(base + THREADS * UNROLL);
        // At most 8 keys a thread between flushes, so that what is staged finds room even where all keys are wanted.
        constexpr u32 JOINED = WIDE >= 4 ? 2 : 4;
#pragma unroll
        for (u32 j = 0; j < UNROLL; j += JOINED) {
            Key values[JOINED * WIDE];
            u32 list[JOINED * WIDE];
#pragma unroll
            for (u32 i = 0; i < JOINED * WIDE; ++i) {
                values[i] = raw_key(now[j + i / WIDE], i % WIDE);
                list[i] = list_of[cell_of(values[i])];
            }
#pragma unroll
            for (u32 i = 0; i < JOINED * WIDE; ++i)
                if ((base + (j + i / WIDE) * THREADS + threadIdx.x) * WIDE + i % WIDE >= filled) list[i] = NO_LIST;
            staging.push(values, list);
            staging.flush_if(false);
        }
    }
    staging.flush_if(true);
}

// ---------------------------------------------------------------- answers

// The rank's key among the keys of its list and the heavy keys of its cell, which are counted but not listed.
__device__ Key select_target(const Query& query, const Target& target, const Key* list, u32 count, SelectScratch<Key>& scratch) {
    __shared__ Key heavy[HEAVY_ROUNDS];
    __shared__ u64 heavy_count[HEAVY_ROUNDS];
    __shared__ u32 heavies, less[HEAVY_ROUNDS];
    const Control& control = *query.control;
    u64 inner = target.inner;
    __syncthreads();
    if (threadIdx.x == 0) heavies = 0;
    __syncthreads();
    if (control.heavies) {
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += blockDim.x)
            if (control.heavy_counts[i] && target.first <= control.heavy[i] && control.heavy[i] <= target.last) {
                const u32 h = atomicAdd(&heavies, 1);
                heavy[h] = control.heavy[i];
                heavy_count[h] = control.heavy_counts[i];
            }
        if (threadIdx.x < HEAVY_ROUNDS) less[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x == 0)
            for (u32 i = 1; i < heavies; ++i)
                for (u32 j = i; j > 0 && heavy[j - 1] > heavy[j]; --j) {
                    const Key key = heavy[j];
                    const u64 number = heavy_count[j];
                    heavy[j] = heavy[j - 1], heavy_count[j] = heavy_count[j - 1];
                    heavy[j - 1] = key, heavy_count[j - 1] = number;
                }
        __syncthreads();
        for (u32 h = 0; h < heavies; ++h) {
            u32 own = 0;
            for (u32 i = threadIdx.x; i < count; i += blockDim.x) own += list[i] < heavy[h];
            own = warp_sum(own);
            if (lane_id() == 0 && own) atomicAdd(&less[h], own);
        }
        __syncthreads();
        // inner counts listed and heavy keys; take off the heavy ones that lie below.
        u64 below = 0;
        for (u32 h = 0; h < heavies; ++h) {
            if (inner < below + less[h]) break;
            if (inner < below + less[h] + heavy_count[h]) return heavy[h];
            below += heavy_count[h];
        }
        inner -= below;
    }
    return block_select([&](u32 i) { return list[i]; }, count, u32(inner), target.first, key_bits(target.last - target.first), scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_select(const __grid_constant__ Query query) {
    __shared__ SelectScratch<Key> scratch;
    Control& control = *query.control;
    if (control.outcome & MISMATCH) return;
    const Target target = control.targets[blockIdx.x];
    if (target.where != LISTED) return;
    const u64 expected = control.list_expected[target.list];
    if (control.list_cursor[target.list] != expected) {
        // Keys were dropped for want of room.
        if (threadIdx.x == 0) {
            control.targets[blockIdx.x].where = OPEN;
            atomicAdd(&control.open, 1);
        }
        return;
    }
    const Key key = select_target(query, target, query.listed + control.list_start[target.list], u32(expected), scratch);
    if (threadIdx.x == 0) query.answers[blockIdx.x] = key;
}

// ---------------------------------------------------------------- deeper levels

// What a lane needs of a piece, in 16-byte words.
struct alignas(16) Span {
    Key first, last, low, high;
    u32 base, shift, cells, unused;
};

// Shared memory of ss_deepen, sized by the number of ranks and cells.
struct DeepMemory {
    Span* spans;
    u64* origin;
    u32 *tally, *table, *counters;
    u32* guide;  // of each cell: its first piece, and how many pieces << 16
    __device__ DeepMemory(void* shared, u32 ranks, u32 most_cells) {
        const u32 even = (ranks + 3) & ~3u;
        spans = (Span*)shared;
        origin = (u64*)(spans + even);
        tally = (u32*)(origin + even);
        table = tally + even;
        counters = table + ENTRIES;
        guide = counters + most_cells;
    }
    // The last of `count` pieces from `from` on that begins at or below the key.
    __device__ __forceinline__ u32 find(u32 from, u32 count, Key key) const {
        while (count > 1) {
            const u32 half = count / 2;
            if (spans[from + half].first <= key) {
                from += half;
                count -= half;
            } else {
                count = half;
            }
        }
        return from;
    }
};

template <bool COPY>
struct Deep {
    CellFunction cell_of;
    const DeepMemory& memory;
    Staging& staging;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        u32 guide[N], list[N];
#pragma unroll
        for (int i = 0; i < N; ++i) guide[i] = present >> i & 1 ? memory.guide[cell_of(keys[i])] : 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            list[i] = NO_LIST;
            if (guide[i]) {
                const u32 p = memory.find(guide[i] & 0xffff, guide[i] >> 16, keys[i]);
                const Span span = memory.spans[p];
                const Key key = keys[i];
                if (span.first <= key && key <= span.last) {
                    list[i] = p;
                    const u32 inner = key < span.low ? 0 : key > span.high ? span.cells - 1 : 1 + u32((key - span.low) >> span.shift);
                    if (!COPY) atomicAdd(&memory.counters[span.base + inner], 1);
                }
            }
        }
        if (COPY && N > 1) staging.push(keys, list);
        if (COPY && N == 1) push_alone(keys[0], list[0]);
    }
    // The last rows come without the whole warp.
    __device__ void push_alone(Key key, u32 list) {
        if (list != NO_LIST) staging.out[staging.starts[list] + atomicAdd(&staging.cursors[list], 1ull)] = key;
    }
    __device__ __forceinline__ void batch() {
        if (COPY) staging.flush_if(false);
    }
};

// By one block: the distinct intervals of the open ranks, their sub-cells by count, or, if they are few, their lists.
// Sub-cells lie between the least and the greatest sampled key of an interval, so that a cluster far narrower than its
// cell is resolved at once.
__device__ void plan_pieces(const Query& query, Control& control, const DeepMemory& memory) {
    __shared__ u64 partial[33];
    const u32 r = threadIdx.x;
    const bool open = r < query.rank_count && control.targets[r].where == OPEN;
    const Target target = open ? control.targets[r] : Target{};
    const bool head = open && !(r > 0 && control.targets[r - 1].where == OPEN && control.targets[r - 1].first == target.first);
    u64 pieces, all;
    const u64 p = block_scan(u64(head), partial, pieces) - (head ? 0 : 1);
    const u64 start = block_scan(head ? target.count : 0ull, partial, all);
    const bool copy = all <= query.list_room && (all <= query.kept / DEEP_SHARE || all <= 65536);
    if (head) {
        memory.spans[p] = Span{target.first, target.last, MAX_KEY, 0, 0, 0, 0, 0};
    }
    __syncthreads();
#if KEY_BITS <= 64
    if (pieces)
        for (u32 i = r; i < control.samples; i += THREADS) {
            const Key key = control.sample[i];
            Span& span = memory.spans[memory.find(0, u32(pieces), key)];
            if (key < span.first || key > span.last) continue;
            atomicMin(&span.low, key);
            atomicMax(&span.high, key);
        }
    __syncthreads();
#endif
    u32 cells = 0, shift = 0;
    Key low = target.first, high = target.last;
    if (head) {
        if (memory.spans[p].low <= memory.spans[p].high) low = memory.spans[p].low, high = memory.spans[p].high;
        const u32 share = max(u32(double(target.count) / double(all) * (query.cells / 2)), 2u), width = key_bits(high - low);
        shift = width - min(bits_of(share) - 1, width);
        cells = u32((high - low) >> shift) + 3;
    }
    u64 unused;
    const u64 base = block_scan(u64(cells), partial, unused);
    if (head) {
        control.piece[p] = Piece{target.first, target.last, low, high, target.count, u32(base), shift, cells, target.cell};
        control.list_start[p] = start;
        control.list_cursor[p] = 0;
    }
    if (open) control.targets[r].list = u32(p);
    for (u32 i = threadIdx.x; i < MOST_SUBCELLS; i += THREADS) control.sub_counts[i] = 0;
    if (r == 0) {
        control.pieces = u32(pieces);
        control.deep_copy = copy;
        control.deep_rounds += pieces > 0;
        control.outcome |= DEEPENED;
    }
}

// By one block: each open rank moves to the sub-cell that holds it.
__device__ void narrow_targets(const Query& query, Control& control, u64* before) {
    __shared__ u64 partial[33];
    const u32 share = query.cells / THREADS, from = threadIdx.x * share;
    for (u32 c = threadIdx.x; c < query.cells; c += THREADS) before[c] = control.sub_counts[c];
    __syncthreads();
    u64 own = 0, total;
    for (u32 c = from; c < from + share; ++c) own += before[c];
    u64 next = block_scan(own, partial, total);
    for (u32 c = from; c < from + share; ++c) {
        const u64 inside = before[c];
        before[c] = next;
        next += inside;
    }
    __syncthreads();
    const u32 r = threadIdx.x;
    if (r >= query.rank_count || control.targets[r].where != OPEN) return;
    Target target = control.targets[r];
    const Piece piece = control.piece[target.list];
    const u64 rank = before[piece.base] + target.inner;
    const u32 at = piece.base + last_at_most(before + piece.base, piece.cells, rank), inner = at - piece.base;
    target.inner = rank - before[at];
    target.count = control.sub_counts[at];
    if (inner == 0) {
        target.last = piece.low - 1;
    } else if (inner + 1 == piece.cells) {
        target.first = piece.high + 1;
    } else {
        target.first = piece.low + (Key(inner - 1) << piece.shift);
        const Key last = target.first + ((Key(1) << piece.shift) - 1);
        target.last = last < target.first || last > piece.high ? piece.high : last;
    }
    if (target.first == target.last) {
        target.where = ANSWERED;
        query.answers[r] = target.first;
    }
    control.targets[r] = target;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_deepen(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 staged;
    Control& control = *query.control;
    if (control.open == 0 || control.outcome & MISMATCH) return;
    GridBarrier barrier(&control.barrier);
    const u32 cells = control.cells;
    const DeepMemory memory(shared_memory, query.rank_count, query.cells);
    for (;;) {
        if (blockIdx.x == 0) plan_pieces(query, control, memory);
        barrier.wait();
        const u32 pieces = control.pieces;
        if (pieces == 0) break;
        const CellFunction cell_of(control, memory.table);
        for (u32 c = threadIdx.x; c < cells; c += THREADS) memory.guide[c] = 0;
        for (u32 c = threadIdx.x; c < query.cells; c += THREADS) memory.counters[c] = 0;
        __syncthreads();
        for (u32 p = threadIdx.x; p < pieces; p += THREADS) {
            const Piece piece = control.piece[p];
            memory.spans[p] = Span{piece.first, piece.last, piece.low, piece.high, piece.base, piece.shift, piece.cells, 0};
            const bool leads = p == 0 || control.piece[p - 1].cell != piece.cell;
            atomicAdd(&memory.guide[piece.cell], (1u << 16) + (leads ? p : 0));
        }
        // The sub-cells' counters, unused while copying, hold the staged keys.
        const u32 room = min(query.cells * 4 / u32(sizeof(Key) + sizeof(u16)), STAGE_SHARE * THREADS) & ~7u;
        Staging staging{(Key*)memory.counters, (u16*)((Key*)memory.counters + room), memory.tally, memory.origin, &staged, room,
                        pieces, control.list_start, control.list_cursor, query.listed};
        staging.begin();
        if (control.deep_copy) {
            Deep<true> deep{cell_of, memory, staging};
            stream(query.column, deep);
            staging.flush_if(true);
            barrier.wait();
            for (u32 r = blockIdx.x; r < query.rank_count; r += gridDim.x) {
                const Target target = control.targets[r];
                if (target.where != OPEN) continue;
                const Key* list = query.listed + control.list_start[target.list];
                const Key key = block_select([&](u32 i) { return list[i]; }, u32(target.count), u32(target.inner), target.first,
                                             key_bits(target.last - target.first), *(SelectScratch<Key>*)shared_memory);
                if (threadIdx.x == 0) query.answers[r] = key;
            }
            break;
        }
        Deep<false> deep{cell_of, memory, staging};
        stream(query.column, deep);
        __syncthreads();
        for (u32 c = threadIdx.x; c < query.cells; c += THREADS)
            if (memory.counters[c]) atomicAdd(&control.sub_counts[c], u64(memory.counters[c]));
        barrier.wait();
        if (blockIdx.x == 0) narrow_targets(query, control, (u64*)shared_memory);
        __syncthreads();
    }
}
