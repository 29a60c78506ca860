// The structures and the cell function that the kernels of sample_select.cu and sample_finish.cu share.
#pragma once
#include "common.cuh"

constexpr u32 MOST_CELLS = 16384;
constexpr u32 ENTRIES = 2048;
constexpr u32 MOST_RANKS = 1024;
constexpr u32 MOST_BLOCKS = 1024;
// Sets for heavy keys, of two slots each.
constexpr u32 HEAVY_BITS = 9;
constexpr u32 HEAVY_SETS = 1 << HEAVY_BITS;
constexpr u32 HEAVY_SLOTS = 2 * HEAVY_SETS;
[[maybe_unused]] constexpr u32 MOST_HEAVY = 512;
[[maybe_unused]] constexpr u32 HOT_CELLS = 512;
constexpr u32 HEAVY_ROUNDS = 6;
// A cell with more than 1 in HOT_SHARE of all keys, without its heavy ones, is not copied, because one block selects in it: ss_deepen
// counts narrower intervals. At its end at most 1 in DEEP_SHARE of all keys is copied.
constexpr u32 HOT_SHARE = 1024;
[[maybe_unused]] constexpr u32 DEEP_SHARE = 256;
// With several devices each may copy so many times more keys of a cell, because ss_deepen does not run.
[[maybe_unused]] constexpr u32 SPREAD_SHARE = 4;
// The finest cell of an entry is 2^-15 of it, so that a cell number fits in 27 bits before the offset of the entry is added.
[[maybe_unused]] constexpr u32 MOST_SPLIT = 15;
constexpr u32 FLAG = 0x80000000u;
constexpr u32 MOST_SUBCELLS = 16384;

// How the read counts.
//   COPY         atomic operations return the counter with its flag
//   REPEATED     neighbours fall into one cell, where such operations would wait for each other; so the flag is loaded
//   HEAVY        many keys are heavy; they are looked up before cells
//   SOME_HEAVY   few keys are heavy, and all are in flagged cells; so only keys of flagged cells are looked up
//   KNOWN        there is one heavy key, and a comparison finds it
//   ONE_BRACKET  there is one rank, whose flagged cells are one interval: two comparisons tell the keys below and above it, and only keys
//                inside have a cell; with KNOWN, comparisons also find the keys that are much of it
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
// A known key is more than 1 in so many of all sampled keys.
[[maybe_unused]] constexpr u32 KNOWN_SHARE = 256;
enum Where : u32 { OPEN, ANSWERED, LISTED };
// Bits of Control::outcome.
//   MISSED    a cell had to be read again
//   DEEPENED  ss_deepen counted narrower intervals
//   MISMATCH  there are not `kept` rows, so no answer is right
//   OUTSIDE   the rank of ONE_BRACKET lies outside of the bracket; the query has no answer and is repeated with `counts_all`
enum Outcome : u32 { MISSED = 1, DEEPENED = 2, MISMATCH = 4, OUTSIDE = 8 };

// What is known of a rank: the range of its key, the number of keys in that range, and its place among them.
struct Target {
    Key first, last;
    u64 count, inner;
    u32 where, list, cell, unused;
};

// Most devices that select together.
constexpr u32 MOST_DEVICES = 16;
// Most keys of a rank that a device puts together.
[[maybe_unused]] constexpr u32 MOST_FEW = 4096;
// Length of a list that a device has no room for.
[[maybe_unused]] constexpr u64 NO_ROOM = ~0ull;

// An interval of keys that ss_deepen counts; intervals are disjoint. Its sub-cells are one below `low`, those from `low` to `high`, and one
// above.
struct Piece {
    Key first, last, low, high;
    u64 count;
    u32 base, shift, cells, cell;
};

// Zeroed before ss_draw. The host knows only its size (ss_sizes) and the first three fields.
struct Control {
    u32 outcome, open, cells, mode;
    u64 second_copy;  // keys in regions by the second read
    u32 entries, shift, pre;
    Key low, least, most, bracket_first, bracket_last;
    u32 bracket_cells[2];
    Key known[MOST_KNOWN];
    u32 known_slot[MOST_KNOWN];  // slots of their counts; HEAVY_SLOTS: they count in their cell
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
    // With several devices: the keys that this one has drawn, the counts of all, and the keys that are left of each rank.
    Key drawn[PLAN_SAMPLE];
    u32 drawn_keys, all_repeats, all_pairs;
    u64 all_counts[MOST_CELLS];
    u64 all_heavy_counts[HEAVY_SLOTS];
    u32 few_keys[MOST_RANKS];
};

// The parameter of all kernels of a query. Ranks count from 0 among present rows, ascending.
struct Query {
    Column column;
    const u64* ranks;
    u64 kept;            // number of present rows
    Control* control;
    Key* copied;         // gridDim.x regions (of ss_count) of `region` keys
    u64 region;
    Key* listed;
    u64 list_room;
    Key* answers;
    u64 sample_lines;    // 128-byte lines of the large sample
    u32 rank_count;
    u32 cells;           // most cells; each takes 4 bytes of shared memory, and 8 in ss_resolve
    u32 depth;           // keys a thread holds back before a flush; >= BATCH * VECTOR
    u32 stage;           // keys staged in shared memory by ss_refine and ss_deepen
    u32 regions;         // blocks of ss_count
    u32 seed;
    float sigmas;
    u32 counts_all;      // 1: ONE_BRACKET is not allowed
    u64 room;            // keys that the regions of all devices have room for
    u64 tallies, few;    // with several devices: bytes from `control` to PARTS counts for each list, and to MOST_FEW keys for each rank
    const Control* controls[MOST_DEVICES];  // `control` of all devices, in their order
    const Key* lists[MOST_DEVICES];         // `listed` of all devices
    u32 stripes;         // stripes of the small sample
    u32 device, devices;     // index of this device, and number of devices: 0 and 1 for a column on one device
    u32 unused;
};

// Counts of all devices: of each cell, and below of each heavy key, which is counted in no cell.
[[maybe_unused]] __device__ __forceinline__ const u64* counts_of_all(const Query& query) {
    return query.devices > 1 ? query.control->all_counts : query.control->counts;
}
[[maybe_unused]] __device__ __forceinline__ const u64* heavy_counts_of_all(const Query& query) {
    return query.devices > 1 ? query.control->all_heavy_counts : query.control->heavy_counts;
}

// For the host, which allocates memory by these sizes and compares them with its structures.
extern "C" __constant__ u32 ss_sizes[4] = {sizeof(Control), sizeof(Query), sizeof(Key), MOST_DEVICES};

// ---------------------------------------------------------------- cells

// The cell function, with its constants in registers and its table in shared memory. It is the CellTable of src/cells/table.rs with base
// and top aligned to entries, so that the outer entries take all keys outside of the sample, and no comparison follows the clamp. An entry
// packs (offset << 5 | shift): a cell has the number (above >> shift) + offset, where `above` was first shifted down to 32 bits.
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

// Index of the last of `count` ascending numbers that is at most `wanted`. The first number is.
template <class T>
__device__ __forceinline__ u32 last_at_most(const T* numbers, u32 count, T wanted) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        (numbers[middle] <= wanted ? low : high) = middle;
    }
    return low;
}

// The range of a thread when `count` places are divided among the threads of a block.
struct OwnPlaces {
    u32 from, to;
    __device__ __forceinline__ explicit OwnPlaces(u32 count) {
        const u32 share = (count + THREADS - 1) / THREADS | 1;  // odd: no bank conflicts
        from = min(threadIdx.x * share, count);
        to = min(from + share, count);
    }
};

// Replaces each number by the sum of the numbers before it, and returns the sum of all. The caller synchronises before and after.
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

// Copies the first cells of entries to shared memory for cell_range. The caller synchronises.
__device__ void load_first_cells(const Control& control, u32* first_cell) {
    for (u32 i = threadIdx.x; i <= control.entries; i += blockDim.x) first_cell[i] = control.first_cell[i];
}

// The first and the last key of a cell, whose entry is searched for.
__device__ void cell_range(const Control& control, const u32* first_cell, u32 cell, Key& first, Key& last) {
    const u32 from = last_at_most(first_cell, control.entries, cell);
    const u32 cells = first_cell[from + 1] - first_cell[from];
    const u32 shift = control.shift - (bits_of(cells) - 1);
    first = control.low + (Key(from) << control.shift) + (Key(cell - first_cell[from]) << shift);
    last = first + ((Key(1) << shift) - 1);
    if (cell == 0) first = 0;
    if (cell + 1 == control.cells) last = MAX_KEY;
}
