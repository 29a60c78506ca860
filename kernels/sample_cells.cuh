// What the kernels of sample_select.cu and sample_finish.cu share: their structures, and the cells of keys.
#pragma once
#include "common.cuh"

constexpr u32 MOST_CELLS = 16384;
constexpr u32 ENTRIES = 2048;
constexpr u32 MOST_RANKS = 1024;
constexpr u32 MOST_BLOCKS = 1024;
// Sets of two slots each.
constexpr u32 HEAVY_BITS = 9;
constexpr u32 HEAVY_SETS = 1 << HEAVY_BITS;
constexpr u32 HEAVY_SLOTS = 2 * HEAVY_SETS;
[[maybe_unused]] constexpr u32 MOST_HEAVY = 512;
[[maybe_unused]] constexpr u32 HOT_CELLS = 512;
constexpr u32 HEAVY_ROUNDS = 6;
// A cell with more than 1 in HOT_SHARE of all keys beside its heavy ones is deepened, not copied: one block selects in
// it. At the end of deepening, 1 in DEEP_SHARE in all intervals together is copied.
constexpr u32 HOT_SHARE = 1024;
[[maybe_unused]] constexpr u32 DEEP_SHARE = 256;
// Of a cell, each of several devices may copy so much more, as none is deepened there.
[[maybe_unused]] constexpr u32 SPREAD_SHARE = 4;
// Finest cell of an entry: 2^-15 of it, so that a cell number fits in 27 bits before the entry's offset is added.
[[maybe_unused]] constexpr u32 MOST_SPLIT = 15;
constexpr u32 FLAG = 0x80000000u;
constexpr u32 MOST_SUBCELLS = 16384;

// How the read counts. COPY: atomics that return a counter's flag; REPEATED: neighbours fall into one cell, where these would
// serialise, so the flag is loaded. HEAVY: heavy keys are looked up besides, before cells, as many keys are heavy. SOME_HEAVY: few
// are, so keys of flagged cells alone are looked up, and all heavy keys are of such. KNOWN: there is one, and a compare finds it.
// ONE_BRACKET: a single rank, whose flagged cells are one interval: two compares tell what lies below and above it, and only what
// lies inside is looked at; with KNOWN: those that make up much of it are counted by compares too.
enum Mode : u32 {
    COUNT_ONLY,
    COUNT_COPY,
    COUNT_COPY_REPEATED,
    COUNT_COPY_HEAVY,
    COUNT_COPY_SOME_HEAVY,
    COUNT_COPY_KNOWN,
    COPY_ONLY,
    ONE_BRACKET,
    ONE_BRACKET_KNOWN,
};
constexpr u32 MOST_KNOWN = 2;
// Of all sampled keys, 1 in so many is a known one.
[[maybe_unused]] constexpr u32 KNOWN_SHARE = 256;
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

// Devices that select together, at most.
constexpr u32 MOST_DEVICES = 16;
// Keys of a rank that are put together, at most.
[[maybe_unused]] constexpr u32 MOST_FEW = 4096;
// A list that a device has no room for.
[[maybe_unused]] constexpr u64 NO_ROOM = ~0ull;

// A disjoint interval of keys that ss_deepen still counts.
// Its sub-cells: one below `low`, those between `low` and `high`, one above.
struct Piece {
    Key first, last, low, high;
    u64 count;
    u32 base, shift, cells, cell;
};

// Zeroed before ss_plan; the host sees only its size (ss_sizes) and the first three fields.
struct Control {
    u32 outcome, open, cells, mode;
    u64 second_copy;  // keys in regions by the second read
    u32 entries, shift, pre;
    Key low, least, most, bracket_first, bracket_last;
    u32 bracket_cells[2];
    Key known[MOST_KNOWN];
    u32 known_slot[MOST_KNOWN];  // where their counts go, HEAVY_SLOTS: to their cell
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
    // Of several devices together: what this one has drawn, what all have counted, and keys that are left of each rank.
    Key drawn[PLAN_SAMPLE];
    u32 drawn_keys, all_repeats, all_pairs;
    u64 all_counts[MOST_CELLS];
    u64 all_heavy_counts[HEAVY_SLOTS];
    u32 few_keys[MOST_RANKS];
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
    u64 room;            // keys in regions of all devices
    u64 tallies, few;    // of several devices: bytes from `control` to PARTS counts for each list, and to MOST_FEW keys for each rank
    const Control* controls[MOST_DEVICES];  // of all devices, in their order
    const Key* lists[MOST_DEVICES];         // `listed` of all devices
    u32 stripes;         // of the small sample
    u32 device, devices;     // 0 and 1 for a column on one device
    u32 unused;
};

// Keys of each cell, and of each heavy key, that are counted but in no cell; on all devices.
[[maybe_unused]] __device__ __forceinline__ const u64* counts_of_all(const Query& query) {
    return query.devices > 1 ? query.control->all_counts : query.control->counts;
}
[[maybe_unused]] __device__ __forceinline__ const u64* heavy_counts_of_all(const Query& query) {
    return query.devices > 1 ? query.control->all_heavy_counts : query.control->heavy_counts;
}

// For the host: how much to allocate, and whether its structures agree.
extern "C" __constant__ u32 ss_sizes[4] = {sizeof(Control), sizeof(Query), sizeof(Key), MOST_DEVICES};

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

// The places of a thread among `count` of its block.
struct OwnPlaces {
    u32 from, to;
    __device__ __forceinline__ explicit OwnPlaces(u32 count) {
        const u32 share = (count + THREADS - 1) / THREADS | 1;  // odd: no bank conflicts
        from = min(threadIdx.x * share, count);
        to = min(from + share, count);
    }
};

// Puts the sum of all numbers before it in place of each, and returns that of all. The caller synchronises, before and after.
template <class T>
__device__ __forceinline__ T sums_before(T* numbers, const OwnPlaces& places, T* partial) {
    T own = 0, total;
    for (u32 i = places.from; i < places.to; ++i) own += numbers[i];
    T next = block_scan(own, partial, total);
    for (u32 i = places.from; i < places.to; ++i) {
        const T inside = numbers[i];
        numbers[i] = next;
        next += inside;
    }
    return total;
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
