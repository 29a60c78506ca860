// The cell functions of kernels/bucket.cu. They give exactly the cells of src/cells, because they use integers only.
#pragma once
#include "common.cuh"

static_assert(ENCODING != 4, "decode has no way back from encoding 4, which starts at -inf: words would be of other values than their keys");

constexpr u32 ENTRIES = 2048;
constexpr u32 MOST_HEAVY = 8;
constexpr u32 NO_CELL = 0xffff;

struct Bracket {
    Key first, last;
};

// Entry of a CellTable, as on the CPU.
struct Entry {
    u32 add, shift;
};

struct Piece {
    Key first, last;
    u64 slope;
    u32 base, shift;
};

// The parameter of all kernels; each reads the fields that it needs.
struct Round {
    Column column;
    const Bracket* within;   // disjoint, ascending: only keys inside count
    u64* counts;             // of each cell, or of each chunk; zeroed
    const Entry* entries;    // entries of the table, or of the guide to edges
    const Key* edges;        // ascending, distinct, none 0
    const Piece* pieces;     // disjoint, ascending
    const u16* map;          // list of each cell, or NO_LIST
    const u64* starts;       // first places of lists, or of the rows of chunks
    u64* cursors;            // number of keys in each list; zeroed
    void* out;               // keys, or words, that are copied
    Key* extremes;           // least and greatest key; set to the greatest possible key and 0
    u32* lock;               // zeroed
    u64 population, offset;  // bk_sample: number of keys of all columns, and of the columns before; bk_keys: `offset` is the first row
    u64 samples, seed;       // bk_keys: `samples` is the number of rows
    u64 base[2], top[2];     // keys, low half first
    u64 heavy[MOST_HEAVY][2];
    u32 within_count;        // 0: all keys
    u32 cells;
    u32 shared_cells;        // counters in shared memory; if there are more cells, they are counted in device memory
    u32 shift, entry_count, heavy_count, edge_count, piece_count;
    u32 shared_edges;        // 1: edges, or pieces, lie in shared memory
    u32 shared_map;          // 1: the map lies in shared memory
    u32 list_count;
    u32 stage;               // keys that may wait in shared memory for their lists
    u32 words;               // 1: words of the column are copied in place of keys
    u32 guide_cells;         // cells of the guide to edges
};

// Copies of a table for plain counts. Keys of 64 bits come half as fast, so that one is enough.
constexpr u32 COPIES = KEY_BITS == 32 ? 16 : 1;

extern "C" __constant__ u32 bk_sizes[4] = {sizeof(Round), sizeof(Piece), sizeof(Key), COPIES};

// The word that has this key.
__device__ __forceinline__ Word decode(Key key) {
#if ENCODING == 0
    return Word(key);
#elif ENCODING == 1
#if STORAGE_BITS < 32
    return Word(key ^ 0x80000000u);
#else
    return key ^ (Word(1) << (STORAGE_BITS - 1));
#endif
#else
    constexpr Word sign = Word(1) << (STORAGE_BITS - 1);
    const Word word = Word(key);
    return word & sign ? Word(word ^ sign) : Word(~word);
#endif
}

// Index of the last of `count` ascending numbers at(i) that is at most `wanted`, or 0.
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

// A constructor fills the shared memory of the function; the caller synchronises. `of` gives the cells of several keys at once, so that
// their loads overlap.

// The place of a key in a table: the upper bits of its distance from the base, its entry and its cell.
struct Place {
    u32 moved, entry, cell;
    // The bits of `moved` below those that tell the cell, from the top.
    __device__ __forceinline__ u32 rest() const { return __funnelshift_r(0, moved, entry); }
};

// A cell table with COPIES copies in shared memory, each in banks of its own and for some of the lanes. With one copy, lanes wait for each
// other three times or more; with 16 copies, at most twice. These waits limit the speed of counts of 32-bit keys.
template <bool HEAVY, u32 COPIES>
struct TableCells {
    static constexpr bool PARTIAL = false;
    const Round& round;
    const u32* table;
    Key base, top, span;
    u32 pre, index_shift, last;

    static __device__ u32 words(const Round&) { return ENTRIES * COPIES; }
    // `cells`: number of cells, without those of heavy keys.
    __device__ TableCells(const Round& round, void* shared, u32 cells)
        : round(round),
          table((u32*)shared + threadIdx.x % COPIES),
          base(key_from(round.base)),
          top(key_from(round.top)),
          span(top - base),
          last(cells - 1) {
        // The number of an entry has 11 bits, and that of a cell in its entry at most 15. So 32 bits of the distance tell the cell, and
        // offset and shift fit in one word.
        pre = KEY_BITS > 32 && round.shift > 21 ? round.shift - 21 : 0;
        index_shift = round.shift - pre;
        for (u32 i = threadIdx.x; i < round.entry_count; i += THREADS) {
            const u32 word = round.entries[i].add << 5 | (round.entries[i].shift - pre);
            if constexpr (COPIES == 1) {
                ((u32*)shared)[i] = word;
            } else {
                // Neighbouring threads start with different parts, so that they write to different banks.
                constexpr u32 PARTS = COPIES / 4;
#pragma unroll
                for (u32 j = 0; j < PARTS; ++j) ((uint4*)shared)[i * PARTS + (j + threadIdx.x / (32 / COPIES)) % PARTS] = make_uint4(word, word, word, word);
            }
        }
    }
    __device__ TableCells(const Round& round, void* shared) : TableCells(round, shared, round.cells - 2 * round.heavy_count) {}
    // The place of a key, without regard to heavy keys. Keys outside of the table have the cell of its top.
    __device__ __forceinline__ Place place(Key key) const {
        // A key below the base is far above it, as the subtraction wraps around.
        const Key above = key - base, near = above < span ? above : span;
        Place place;
        place.moved = KEY_BITS == 32 ? u32(near) : u32(near >> pre);
        place.entry = table[(place.moved >> index_shift) * COPIES];
        place.cell = __funnelshift_r(place.moved, 0, place.entry) + (int(place.entry) >> 5);
        return place;
    }
    // Whether one of the keys lies outside of the table.
    template <int N>
    __device__ __forceinline__ bool any_outside(const Key (&keys)[N]) const {
        bool outside = false;
        Key far = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Key above = keys[i] - base;
            if (KEY_BITS == 32)
                far = above > far ? above : far;
            else
                outside |= above > span;
        }
        return KEY_BITS == 32 ? far > span : outside;
    }
    __device__ __forceinline__ u32 outer(Key key, u32 cell) const { return key < base ? 0 : key > top ? last : cell; }
    template <int N>
    __device__ __forceinline__ void of(const Key (&keys)[N], u32 (&cell)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) cell[i] = place(keys[i]).cell;
        if (any_outside(keys)) {
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] = outer(keys[i], cell[i]);
        }
        for (u32 h = 0; HEAVY && h < round.heavy_count; ++h) {
            const Key heavy = key_from(round.heavy[h]);
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] += u32(keys[i] >= heavy) + u32(keys[i] > heavy);
        }
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        const Key keys[1] = {key};
        u32 cell[1];
        of(keys, cell);
        return cell[0];
    }
};

using OneTable = TableCells<true, 1>;

// Makes the guide to edges: the words of a table whose cells are so narrow that few hold more than two edges. The lower half of the word of
// a cell is the number of edges before it. Bits 16 to 23 are the upper 8 bits of the position of its first edge in the cell, bits 24 to 31
// those of the second; 0xff where there is no edge. A key with the same 8 bits as an edge is compared with that edge. If a cell has more
// than two edges, or two with the same 8 bits (the word has 0x00 above 0xff), edges are searched.
struct EdgeGuide {
    static constexpr u32 NONE = 0xffff0000, SEVERAL = 0x00ff0000;
    const TableCells<false, 1>& table;
    const Key* edges;
    u32 count;

    // The word of `cell`, whose first edge has the index `first`.
    __device__ u32 word_of(u32 first, u32 cell) const {
        u32 word = NONE, before = first;
        for (u32 i = first, found = 0; i < count; ++i) {
            const Place place = table.place(edges[i]);
            if (place.cell != cell) break;
            // If an edge has no bits below its 8 bits, no key with these 8 bits is below it. So every key above the 8 bits before reaches
            // it, and no comparison is needed: edges are values, and values of few digits occur often.
            const u32 rest = place.rest();
            const bool whole = !(rest << 8) && !(edges[i] - table.base & ((Key(1) << table.pre) - 1));
            if (whole && !rest) {
                before += 1;
                continue;
            }
            const u32 bits = (rest >> 24) - whole;
            if (found == 2 || (found == 1 && bits == (word >> 16 & 0xff))) {
                word = SEVERAL;
                break;
            }
            word = found == 0 ? (word & 0xff000000) | bits << 16 : (word & 0x00ff0000) | bits << 24;
            ++found;
        }
        return word | before;
    }
    // Fills the words of all `cells` cells, and one word more; by all threads of a block.
    __device__ __forceinline__ void fill(u32* filled, u32 cells) const {
        // Each edge fills its cell, if it is the first one there, and the cells without edges before it. The last turn fills the cells
        // after all edges.
        for (u32 from = 0; from <= count; from += THREADS) {
            const u32 i = from + threadIdx.x;
            u32 first = 0, end = 0;
            if (i <= count) {
                first = i ? table.place(edges[i - 1]).cell + 1 : 0;
                end = cells + 1;
                if (i < count) {
                    end = table.place(edges[i]).cell;
                    if (first <= end) filled[end] = word_of(i, end);
                }
            }
            // The whole warp fills a long gap.
            constexpr u32 SHORT = 16;
            for (u32 c = first; c < end && c < first + SHORT; ++c) filled[c] = NONE | i;
            for (u32 wide = __ballot_sync(ALL_LANES, first + SHORT < end); wide; wide &= wide - 1) {
                const int lane = __ffs(wide) - 1;
                const u32 last = __shfl_sync(ALL_LANES, end, lane), word = __shfl_sync(ALL_LANES, NONE | i, lane);
                for (u32 c = __shfl_sync(ALL_LANES, first, lane) + SHORT + lane_id(); c < last; c += 32) filled[c] = word;
            }
        }
    }
};

// Cells between edges, found by the guide.
struct EdgeCells {
    static constexpr bool PARTIAL = false;
    const TableCells<false, 1> table;
    const u32* guide;
    const Key* edges;
    u32 count;

    static __device__ u32 guide_words(const Round& round) { return (round.guide_cells + 4) / 4 * 4; }
    static __device__ u32 words(const Round& round) {
        if (!round.edge_count) return 0;
        return ENTRIES + guide_words(round) + (round.shared_edges ? round.edge_count * u32(sizeof(Key) / 4) : 0);
    }
    __device__ EdgeCells(const Round& round, void* shared)
        : table(round, shared, round.guide_cells), guide((u32*)shared + ENTRIES), edges(round.edges), count(round.edge_count) {
        if (!count) return;
        u32* filled = (u32*)shared + ENTRIES;
        if (round.shared_edges) {
            Key* own = (Key*)(filled + guide_words(round));
            for (u32 i = threadIdx.x; i < count; i += THREADS) own[i] = round.edges[i];
            edges = own;
        }
        __syncthreads();
        EdgeGuide{table, edges, count}.fill(filled, round.guide_cells);
    }
    __device__ __forceinline__ u32 searched(Key key, u32 cell) const {
        u32 low = guide[cell] & 0xffff, rest = (guide[cell + 1] & 0xffff) - low;
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
    template <int N>
    __device__ __forceinline__ void of(const Key (&keys)[N], u32 (&cell)[N]) const {
        if (!count) {
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] = 0;
            return;
        }
        u32 at[N], rest[N], word[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Place place = table.place(keys[i]);
            at[i] = place.cell;
            rest[i] = place.rest();
        }
        bool search = false;
        u32 apart[N], least = ~0u;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            word[i] = guide[at[i]];
            const u32 moved = word[i] << 8;
            cell[i] = (word[i] & 0xffff) + u32(rest[i] > word[i]) + u32(rest[i] > moved);
            apart[i] = min(rest[i] ^ word[i], rest[i] ^ moved);
            least = min(least, apart[i]);
            search |= word[i] < moved;
        }
        if (least < 1 << 24) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (apart[i] < 1 << 24) {
                    // The edges before the one with the same 8 bits, and that one if the key reaches it.
                    const u32 bits = rest[i] >> 24, next = (word[i] & 0xffff) + u32(bits > word[i] >> 24) + u32(bits > (word[i] >> 16 & 0xff));
                    cell[i] = next + u32(next < count && edges[next] <= keys[i]);
                }
        }
        // One search for the keys of all lanes in each turn, so that lanes wait together.
        u32 open = 0;
        if (search) {
#pragma unroll
            for (int i = 0; i < N; ++i) open |= u32(word[i] < word[i] << 8) << i;
        }
        for (; open; open &= open - 1) {
            Key key = keys[0];
            u32 found = at[0];
#pragma unroll
            for (int i = 1; i < N; ++i)
                if ((open & ((2u << i) - 1)) == 1u << i) {
                    key = keys[i];
                    found = at[i];
                }
            found = searched(key, found);
#pragma unroll
            for (int i = 0; i < N; ++i)
                if ((open & ((2u << i) - 1)) == 1u << i) cell[i] = found;
        }
        if (table.any_outside(keys)) {
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] = keys[i] < table.base ? 0 : keys[i] > table.top ? count : cell[i];
        }
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        const Key keys[1] = {key};
        u32 cell[1];
        of(keys, cell);
        return cell[0];
    }
};

// A guide over the keys between the first pieces says between which pieces to search.
struct LinearCells {
    static constexpr bool PARTIAL = true;
    static constexpr u32 PLACE_BITS = 11, PLACES = 1 << PLACE_BITS, GUIDE_WORDS = PLACES / 2 + 4;
    const Round& round;
    const Piece* pieces;
    const u16* guide;  // the last piece that begins at or before each place's first key
    Key first;
    u32 shift;

    static __device__ u32 words(const Round& round) {
        return round.shared_edges ? GUIDE_WORDS + round.piece_count * u32(sizeof(Piece) / 4) : 0;
    }
    __device__ LinearCells(const Round& round, void* shared) : round(round), pieces(round.pieces), guide(nullptr) {
        first = round.pieces[0].first;
        const u32 width = key_bits(round.pieces[round.piece_count - 1].first - first);
        shift = width > PLACE_BITS ? width - PLACE_BITS : 0;
        if (!round.shared_edges) return;
        u16* filled = (u16*)shared;
        Piece* own = (Piece*)((u32*)shared + GUIDE_WORDS);
        for (u32 i = threadIdx.x; i < round.piece_count; i += THREADS) own[i] = round.pieces[i];
        for (u32 place = threadIdx.x; place <= PLACES; place += THREADS) {
            const Key from = first + (Key(place) << shift);
            const bool beyond = place == PLACES || from < first;
            filled[place] = u16(beyond ? round.piece_count - 1 : last_at_most([&](u32 i) { return round.pieces[i].first; }, round.piece_count, from));
        }
        pieces = own;
        guide = filled;
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        if (key < first) return NO_CELL;
        u32 low = 0, count = round.piece_count;
        if (guide) {
            const Key place = (key - first) >> shift;
            low = place < PLACES ? guide[u32(place)] : count - 1;
            count = (place < PLACES ? guide[u32(place) + 1] : low) - low + 1;
        }
        const Piece& piece = pieces[low + last_at_most([&](u32 i) { return pieces[low + i].first; }, count, key)];
        if (key > piece.last) return NO_CELL;
#if KEY_BITS == 32
        const u64 distance = u64(key - piece.first) << piece.shift;
#elif KEY_BITS == 64
        const u64 distance = (key - piece.first) << piece.shift;
#else
        const u64 distance = u64(((key - piece.first) << piece.shift) >> 64);
#endif
        return piece.base + u32(__umul64hi(distance, piece.slope));
    }
    template <int N>
    __device__ __forceinline__ void of(const Key (&keys)[N], u32 (&cell)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) cell[i] = (*this)(keys[i]);
    }
};
