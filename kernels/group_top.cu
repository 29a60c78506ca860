// The best rows of groups. A row becomes a record. In the order of records as integers each group lies together, its best rows first:
//
//     | code of the group | key, the best is 0 | value, or its place in the order of values |
//
// So rows with equal keys are in the order of their values, and the value is read from the record. Either all records are sorted
// (kernels/sort.cu), or, if groups are few and long, records are sorted only by group. Then each warp selects among some thousand records
// of a group (WarpSelect), and then among the records that warps found, until one list for each group is left.
//
//   gt_records   writes a record of each row that counts
//   gt_order     reads row numbers from sorted records without groups
//   gt_answer    writes the values of the best rows, and what orders them
//   gt_select_K  each warp finds the k best records of a chunk, sorted; K as in ws_runs_K
//
// Compiled for 32 bits if records have 64, and for 64 bits if records have 128, because an item of WarpSelect is a record. BATCH is 1, or a
// K: each gt_select_K is a compilation of its own, because its networks take the compiler long.
#include "warp_select.cuh"

typedef Item Record;

constexpr u32 MOST_FIELDS = 12;

enum FieldFlag : u32 { DOWN = 1, ABOVE_NULL = 2, ROW = 4 };

// A field of a record, made of a column: its key, counted from the least, or from the greatest with DOWN. A NULL is one more than the last
// key. The NULL of a group column is 0, and its keys count from 1 with ABOVE_NULL.
struct RecordField {
    const u8* values;    // `stride` bytes each; null: the field is the place of the row, from 0, or with ROW its number
    const u8* validity;  // bitmap as in Arrow; null: all are valid
    u64 least[2];
    u64 range[2];        // the greatest key less the least
    u64 span;            // of a group: factor for the code made of the columns before
    u32 stride, encoding;
    u32 bits;            // bits of the field, except of a group
    u32 flags;
};

struct RecordPlan {
    RecordField fields[MOST_FIELDS];
    u64 rows;
    const u8* validity;  // bitmaps of the rows that count; null: all
    const u8* mask;
    const u64* order;    // row at each place; null: row i has place i
    u64* ordered;        // of gt_order: row numbers
    Record* records;
    u64* cursor;         // number of records; zeroed
    u32 groups, others;  // fields: those of groups first, then the others
    u32 bits, unused;    // of gt_order: bits of a row number
};

struct Chunk {
    u64 from, out;
    u32 length, group;
};

struct AnswerPlan {
    RecordField value;
    const Record* from;   // sorted records, or lists of an earlier launch
    Record* lists;        // of gt_select_K: lists for the next launch
    Record* best;         // lists of the answer
    const Chunk* chunks;
    u64* floors;          // of each group: upper bits of an item that k items reach; zeroed
    u64 chunk_count;
    const u64* starts;    // of gt_answer: first records of groups; null: the records are in `best`
    const u64* offsets;   // of gt_answer: first places of the answers of groups, and the end of the last
    u64 groups;
    const u64* order;     // of gt_answer: row at each place; null: the record has the value
    u8* out;              // `width` bytes each
    u8* out_valid;        // a byte for each value; null: all are valid
    Record* out_orders;   // of gt_answer: the record of each value without the code of its group; null: not wanted
    u32 k, bits;          // bits of a record below the code of its group
    u32 first;            // 1: `from` are records
    u32 width;
};

extern "C" __constant__ u32 gt_sizes[4] = {sizeof(RecordPlan), sizeof(AnswerPlan), sizeof(Record), sizeof(Chunk)};

__device__ __forceinline__ bool bit_of(const u8* bitmap, u64 row) { return !bitmap || bitmap[row >> 3] >> (row & 7) & 1; }

// A record whose lowest `bits` bits are set.
__device__ __forceinline__ Record low_bits(u32 bits) { return bits >= 8 * sizeof(Record) ? ~Record(0) : (Record(1) << bits) - 1; }

#if BATCH == 1
// ---------------------------------------------------------------- records

constexpr u32 UNROLL = 4;

template <class T>
struct Wide {
    typedef u64 Type;
};
template <>
struct Wide<unsigned __int128> {
    typedef unsigned __int128 Type;
};

__device__ __forceinline__ void put(const u64 (&halves)[2], u64& to) { to = halves[0]; }
__device__ __forceinline__ void put(const u64 (&halves)[2], unsigned __int128& to) { to = (unsigned __int128)(halves[1]) << 64 | halves[0]; }

// The key of a word, as encode() of keys.cuh computes it, for an encoding that is known at run time.
template <class Word>
__device__ __forceinline__ typename Wide<Word>::Type key_of_word(Word word, u32 encoding) {
    constexpr u32 BITS = 8 * sizeof(Word);
    constexpr Word sign = Word(1) << (BITS - 1);
    if (encoding == 0) return word;
    if (encoding == 1) {
        if constexpr (BITS < 32)
            return u32(int(word ^ sign) - int(sign)) ^ 0x80000000u;
        else
            return Word(word ^ sign);
    }
    const Word negative = Word(0) - Word(word >> (BITS - 1));
    Word key = Word(word ^ Word(negative | sign));
    constexpr Word infinity = BITS == 16 ? Word(0x7c00) : BITS == 32 ? Word(0x7f800000) : Word(0x7ff0000000000000ull);
    constexpr Word nan = BITS == 16 ? Word(0x7e00) : BITS == 32 ? Word(0x7fc00000) : Word(0x7ff8000000000000ull);
    if (encoding == 4) key = Word(key - Word(~Word(infinity | sign)));
    if (encoding == 2 && Word(word & Word(sign - 1)) > infinity) key = Word(nan ^ sign);
    return key;
}

// The word of a key, for encodings whose keys tell all words apart.
template <class Word>
__device__ __forceinline__ Word word_of_key(typename Wide<Word>::Type key, u32 encoding) {
    constexpr u32 BITS = 8 * sizeof(Word);
    constexpr Word sign = Word(1) << (BITS - 1);
    if (encoding == 0) return Word(key);
    if (encoding == 1) return BITS < 32 ? Word(u32(key) ^ 0x80000000u) : Word(Word(key) ^ sign);
    constexpr Word infinity = BITS == 16 ? Word(0x7c00) : BITS == 32 ? Word(0x7f800000) : Word(0x7ff0000000000000ull);
    Word total = Word(key);
    if (encoding == 4) total = Word(total + Word(~Word(infinity | sign)));
    return total & sign ? Word(total ^ sign) : Word(~total);
}

// Runs the statement with Word as the type of `bytes` bytes.
#define WITH_WORD(bytes, ...)                                  \
    switch (bytes) {                                           \
        case 1: { typedef u8 Word; __VA_ARGS__; } break;       \
        case 2: { typedef u16 Word; __VA_ARGS__; } break;      \
        case 4: { typedef u32 Word; __VA_ARGS__; } break;      \
        case 8: { typedef u64 Word; __VA_ARGS__; } break;      \
        default: { typedef unsigned __int128 Word; __VA_ARGS__; } break; \
    }

template <class Word>
__device__ __forceinline__ void add_field(const RecordField& field, bool group, const u64 (&rows)[UNROLL], u32 present, Record (&records)[UNROLL]) {
    typedef typename Wide<Word>::Type Key;
    Word words[UNROLL];
    bool valid[UNROLL];
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        words[j] = present >> j & 1 ? ((const Word*)field.values)[rows[j]] : Word(0);
        valid[j] = present >> j & 1 && bit_of(field.validity, rows[j]);
    }
    Key least, range;
    put(field.least, least);
    put(field.range, range);
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        const Key key = Key(key_of_word(words[j], field.encoding) - least);
        if (group)
            records[j] = Record(u64(records[j]) * field.span + (valid[j] ? u64(key) + (field.flags & ABOVE_NULL ? 1 : 0) : 0));
        else
            // With 2^64 keys, NULL takes one bit more than a key has.
            records[j] = (field.bits >= 8 * sizeof(Record) ? Record(0) : Record(records[j] << field.bits)) |
                         (!valid[j] ? Record(Record(range) + 1) : Record(field.flags & DOWN ? Key(range - key) : key));
    }
}

// If rows can be missing, records come in any order; equal records need not be told apart.
extern "C" __global__ void __launch_bounds__(THREADS) gt_records(const __grid_constant__ RecordPlan plan) {
    __shared__ u32 partial[33];
    __shared__ u64 base;
    constexpr u64 TOGETHER = u64(THREADS) * UNROLL;
    const bool masked = plan.validity || plan.mask;
    for (u64 tile = blockIdx.x; tile * TOGETHER < plan.rows; tile += gridDim.x) {
        u64 rows[UNROLL];
        u32 present = 0;
        Record records[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 place = tile * TOGETHER + j * THREADS + threadIdx.x;
            records[j] = 0;
            rows[j] = 0;
            if (place >= plan.rows) continue;
            rows[j] = plan.order ? plan.order[place] : place;
            present |= u32(bit_of(plan.validity, rows[j]) && bit_of(plan.mask, rows[j])) << j;
        }
        for (u32 p = 0; p < plan.groups + plan.others; ++p) {
            const RecordField& field = plan.fields[p];
            if (!field.values) {
#pragma unroll
                for (u32 j = 0; j < UNROLL; ++j)
                    records[j] = (field.bits >= 8 * sizeof(Record) ? Record(0) : Record(records[j] << field.bits)) |
                                 Record(field.flags & ROW ? rows[j] : tile * TOGETHER + j * THREADS + threadIdx.x);
                continue;
            }
            WITH_WORD(field.stride, add_field<Word>(field, p < plan.groups, rows, present, records))
        }
        if (masked) {
            u32 total;
            const u32 before = block_scan(u32(__popc(present)), partial, total);
            if (threadIdx.x == 0) base = atomicAdd(plan.cursor, u64(total));
            __syncthreads();
            u64 at = base + before;
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j)
                if (present >> j & 1) plan.records[at++] = records[j];
        } else {
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j) {
                const u64 place = tile * TOGETHER + j * THREADS + threadIdx.x;
                if (place < plan.rows) plan.records[place] = records[j];
            }
        }
    }
    if (!masked && blockIdx.x == 0 && threadIdx.x == 0) *plan.cursor = plan.rows;
}

extern "C" __global__ void __launch_bounds__(THREADS) gt_order(const __grid_constant__ RecordPlan plan) {
    const u64 threads = u64(gridDim.x) * THREADS;
    const u64 row = u64(low_bits(plan.bits));
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < plan.rows; i += threads) {
        const u64 place = u64(plan.records[i]) & row;
        plan.ordered[i] = plan.order ? plan.order[place] : place;
    }
}

// ---------------------------------------------------------------- the answer

// The record of best row `i` of all groups.
__device__ __forceinline__ Record best_record(const AnswerPlan& plan, u64 i) {
    if (!plan.starts) return ~plan.best[i];
    // The group is the last one whose answer begins at i or before.
    u64 first = 0, beyond = plan.groups;
    while (first + 1 < beyond) {
        const u64 middle = (first + beyond) / 2;
        if (plan.offsets[middle] <= i)
            first = middle;
        else
            beyond = middle;
    }
    return plan.from[plan.starts[first] + (i - plan.offsets[first])];
}

template <class Word>
__device__ __forceinline__ void put_value(const AnswerPlan& plan, Record code, u64 i) {
    typedef typename Wide<Word>::Type Key;
    const RecordField& value = plan.value;
    u8* out = plan.out + i * plan.width;
    bool valid;
    Word word = 0;
    if (plan.order) {
        const u64 row = plan.order[u64(code)];
        word = ((const Word*)value.values)[row];
        valid = bit_of(value.validity, row);
    } else {
        Key least, range;
        put(value.least, least);
        put(value.range, range);
        valid = code <= Record(range);
        if (valid) word = word_of_key<Word>(Key(least + Key(code)), value.encoding);
    }
    // A value that is wider than in Arrow has its bits at the low end.
    if (plan.width == sizeof(Word))
        *(Word*)out = word;
    else
        *out = u8(word);
    if (plan.out_valid) plan.out_valid[i] = valid;
}

extern "C" __global__ void __launch_bounds__(THREADS) gt_answer(const __grid_constant__ AnswerPlan plan) {
    const u64 threads = u64(gridDim.x) * THREADS, count = plan.offsets[plan.groups];
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < count; i += threads) {
        const Record record = best_record(plan, i), code = record & low_bits(plan.value.bits);
        if (plan.out_orders) plan.out_orders[i] = record & low_bits(plan.bits);
        WITH_WORD(plan.value.stride, put_value<Word>(plan, code, i))
    }
}

#else
// ---------------------------------------------------------------- selection by warps

constexpr u32 WARPS = 4;
// Set in Chunk::out: the list is one of the answer.
constexpr u64 LAST = 1ull << 63;

template <int QUEUE, int THREAD>
__device__ __forceinline__ void select_chunk(const AnswerPlan& plan) {
    const u64 warp = u64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (warp >= plan.chunk_count) return;
    const Chunk chunk = plan.chunks[warp];
    constexpr int AHEAD = sizeof(Record) == 8 ? 8 : 4;
    const Record below = low_bits(plan.bits), above = Record(1) << plan.bits;
    const u32 dropped = plan.bits >= 64 ? plan.bits - 63 : 0;
    // If k items of the list of any warp reach an item, lesser items of the group are ruled out in all warps.
    volatile u64* const reached = plan.floors + chunk.group;
    WarpSelect<QUEUE, THREAD> select(plan.k);
    Record next[AHEAD];
    auto load = [&](u32 base) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const u32 at = base + a * 32 + lane_id();
            next[a] = at < chunk.length ? plan.from[chunk.from + at] : Record(0);
        }
    };
    load(0);
    for (u32 base = 0;; base += 32 * AHEAD) {
        const bool last = base >= chunk.length;
        Item now[AHEAD];
        u32 wanted = 0;
        const u64 least = *reached;
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const bool held = base + a * 32 + lane_id() < chunk.length;
            now[a] = plan.first ? Item((~next[a] & below) | above) : next[a];
            wanted |= u32(held && now[a] > select.floor && u64(now[a] >> dropped) >= least) << a;
        }
        if (!last) load(base + 32 * AHEAD);
        u32 turns = any_lane(last ? 0 : wanted);
        if (!turns && !last) continue;
        do {
            if (turns) {
                const u32 turn = __ffs(turns) - 1;
                turns &= turns - 1;
                Item item = 0;
#pragma unroll
                for (int a = 0; a < AHEAD; ++a)
                    if (turn == a) item = now[a];
                if (wanted >> turn & 1) select.offer(item);
            }
            if (last || select.must_merge()) {
                select.merge();
                if (lane_id() == 0 && select.floor != 0) atomicMax(plan.floors + chunk.group, u64(select.floor >> dropped));
            }
        } while (turns);
        if (last) break;
    }
    Record* out = (chunk.out & LAST ? plan.best : plan.lists) + (chunk.out & ~LAST);
    const u32 count = min(plan.k, chunk.length);
#pragma unroll
    for (int r = 0; r < QUEUE; ++r) {
        const u32 place = r * 32 + lane_id();
        if (place < count) out[place] = select.queue[r];
    }
}

#if BATCH == 32
extern "C" __global__ void __launch_bounds__(WARPS * 32) gt_select_32(const __grid_constant__ AnswerPlan plan) { select_chunk<1, 2>(plan); }
#elif BATCH == 128
extern "C" __global__ void __launch_bounds__(WARPS * 32) gt_select_128(const __grid_constant__ AnswerPlan plan) { select_chunk<4, 3>(plan); }
#elif BATCH == 256
extern "C" __global__ void __launch_bounds__(WARPS * 32) gt_select_256(const __grid_constant__ AnswerPlan plan) { select_chunk<8, 4>(plan); }
#else
extern "C" __global__ void __launch_bounds__(WARPS * 32) gt_select_1024(const __grid_constant__ AnswerPlan plan) { select_chunk<32, 8>(plan); }
#endif
#endif
