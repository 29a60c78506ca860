// Brackets of the wanted ranks of every group, from a sample of the rows, and one read of all rows that counts what lies between brackets
// and keeps what lies inside. The counts prove that a rank lies inside its bracket.
//
//   gb_draw     makes a record of one row, at a random place, of each stripe of `step` rows
//   gb_table    finds the brackets of each group in the sorted sample
//   gb_records  counts each row's group and bracket, and keeps records of the rows inside brackets
//   gb_rows     as gb_records, and keeps the numbers of these rows
//   gb_check    counts the groups of which fewer than the wanted rows were kept
//
// Brackets of a group do not overlap and ascend. A bracket of one key has its rows counted, and not kept, as they need no order. Keys count
// from the least key of the column. BATCH is the number of bytes of a record.
#include "group_records.cuh"

#if BATCH == 16
typedef unsigned __int128 Record;
#else
typedef u64 Record;
#endif

constexpr u32 MOST_BRACKETS = 8;

// The least and the greatest key of a bracket. It holds nothing if the first is above the second.
struct alignas(2 * sizeof(Key)) Bracket {
    Key low, high;
};

struct Brackets {
    Column column;        // keys; `mask`: bitmap of the rows that count
    const u32* codes;     // the code of each row's group, less `code_offset`
    Bracket* table;       // `brackets` for each code
    u32* counts;          // for each code: rows below its first bracket, inside, between the first and the second, and so on; zeroed
    void* out;            // records, or row numbers
    u64* cursor;          // number of records or rows; behind it the number of groups that gb_check found; zeroed
    u64 room;             // records or rows that fit
    const void* sample;   // sorted records of the sampled rows
    const u64* heads;     // of the groups in the sample, ascending: index of the first record
    const u64* head_codes;  // and the code
    u64 sampled;          // number of sampled rows
    u64 sampled_groups;
    u64 least[2];         // the key that counts from 0
    u64 numbers;          // codes are below it
    u64 step;             // rows of a stripe
    u64 wanted;           // rows of each group that gb_check wants kept
    double low[MOST_BRACKETS];   // share of a group's rows below each bracket's first rank
    double high[MOST_BRACKETS];  // and below its last
    double sigmas;        // standard deviations that a bracket reaches beyond its ranks
    double offset;        // and sampled rows beyond these
    u32 brackets;
    u32 bits;             // bits of a key in a record
    u32 keeps_equal;      // 1: rows of brackets of one key are kept too
    u32 code_offset;
    u32 codes_kept[2];    // if MASKED: the first and the last code of the groups whose rows count
};

extern "C" __constant__ u32 gb_sizes[4] = {sizeof(Brackets), sizeof(Key), sizeof(Bracket), MOST_BRACKETS};

constexpr u32 SEED = 0x6b8f2a11u;

__device__ __forceinline__ Key relative_key(const Brackets& plan, Word value) { return encode(value) - key_from(plan.least); }

// A row of the column and its group. `present`: it counts.
struct Row {
    Word value;
    u32 code;
    bool present;
};

__device__ __forceinline__ Row row_at(const Brackets& plan, u64 index) {
    Row row{};
    row.present = is_present(plan.column, index);
    if (row.present) {
        row.value = plan.column.values[index];
        row.code = plan.codes[index] + plan.code_offset;
#if MASKED
        row.present = plan.codes_kept[0] <= row.code && row.code <= plan.codes_kept[1];
#endif
    }
    return row;
}

// ---------------------------------------------------------------- the sample

extern "C" __global__ void __launch_bounds__(THREADS) gb_draw(const __grid_constant__ Brackets plan) {
    const u64 rows = plan.column.rows, stripes = (rows + plan.step - 1) / plan.step;
    auto load = [&](u64 stripe) {
        const u64 first = stripe * plan.step, wide = min(plan.step, rows - first);
        return row_at(plan, first + hash32(u32(stripe) ^ u32(stripe >> 32) * 0x85ebca6bu, SEED) % u32(wide));
    };
    auto keep = [&](u64, const Row& row, Record& record) {
        record = record_of<Record>(row.code, relative_key(plan, row.value), plan.bits);
        return row.present;
    };
    write_some(stripes, (Record*)plan.out, plan.room, plan.cursor, load, keep);
}

// ---------------------------------------------------------------- brackets

extern "C" __global__ void __launch_bounds__(THREADS) gb_table(const __grid_constant__ Brackets plan) {
    const Record* sample = (const Record*)plan.sample;
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 code = u64(blockIdx.x) * THREADS + threadIdx.x; code < plan.numbers; code += threads) {
        Bracket* own = plan.table + code * plan.brackets;
        const u64 group = lower_bound(plan.head_codes, plan.sampled_groups, code);
        u32 used = 0;
        if (group == plan.sampled_groups || plan.head_codes[group] != code) {
            own[used++] = {Key(0), MAX_KEY};
        } else {
            const u64 start = plan.heads[group];
            const u64 end = group + 1 < plan.sampled_groups ? plan.heads[group + 1] : plan.sampled;
            const double size = double(end - start);
            auto key_at = [&](double place) {
                const Record record = sample[start + u64(place)];
                return plan.bits < 8 * sizeof(Record) ? Key(record & ((Record(1) << plan.bits) - 1)) : Key(record);
            };
            for (u32 i = 0; i < plan.brackets; ++i) {
                const double low = plan.low[i], high = plan.high[i];
                const double first = floor(low * size - plan.sigmas * sqrt(size * low * (1 - low)) - plan.offset);
                const double last = ceil(high * size + plan.sigmas * sqrt(size * high * (1 - high)) + plan.offset);
                const Bracket bracket{first < 0 ? Key(0) : key_at(min(first, size - 1)), last >= size ? MAX_KEY : key_at(last)};
                if (used && bracket.low <= own[used - 1].high)
                    own[used - 1].high = bracket.high > own[used - 1].high ? bracket.high : own[used - 1].high;
                else
                    own[used++] = bracket;
            }
        }
        while (used < plan.brackets) own[used++] = {Key(1), Key(0)};
    }
}

// ---------------------------------------------------------------- the read

// `make(index, code, key)` is what is written of a row inside a bracket. SHARED: brackets and counters of a block lie in shared memory.
template <bool SHARED, class Made, class Make>
__device__ __forceinline__ void keep_inside(const Brackets& plan, Make make) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 brackets = plan.brackets, counters = 2 * brackets + 1;
    Bracket* own_table = (Bracket*)shared;
    u32* own_counts = (u32*)(own_table + plan.numbers * brackets);
    if (SHARED) {
        for (u32 i = threadIdx.x; i < plan.numbers * brackets; i += THREADS) own_table[i] = plan.table[i];
        for (u32 i = threadIdx.x; i < plan.numbers * counters; i += THREADS) own_counts[i] = 0;
        __syncthreads();
    }
    auto load = [&](u64 index) { return row_at(plan, index); };
    auto keep = [&](u64 index, const Row& row, Made& made) {
        if (!row.present) return false;
        const Key key = relative_key(plan, row.value);
        u32 passed = 0;  // edges of brackets at or below the key
        bool is_single = false;
        for (u32 i = 0; i < brackets; ++i) {
            const u64 at = u64(row.code) * brackets + i;
            Bracket bracket;
            if constexpr (SHARED)
                bracket = own_table[u32(at)];
            else
                bracket = plan.table[at];
            const bool reaches = bracket.low <= bracket.high && key >= bracket.low, exceeds = reaches && key > bracket.high;
            passed += u32(reaches) + u32(exceeds);
            is_single |= reaches && !exceeds && bracket.low == bracket.high;
        }
        const u64 counter = u64(row.code) * counters + passed;
        if constexpr (SHARED)
            atomicAdd(own_counts + u32(counter), 1u);
        else
            atomicAdd(plan.counts + counter, 1u);
        made = make(index, row.code, key);
        return (passed & 1) && (plan.keeps_equal || !is_single);
    };
    write_some(plan.column.rows, (Made*)plan.out, plan.room, plan.cursor, load, keep);
    if (SHARED) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < plan.numbers * counters; i += THREADS)
            if (own_counts[i]) atomicAdd(plan.counts + i, own_counts[i]);
    }
}

template <bool SHARED>
__device__ __forceinline__ void keep_records(const Brackets& plan) {
    keep_inside<SHARED, Record>(plan, [&](u64, u32 code, Key key) { return record_of<Record>(code, key, plan.bits); });
}

template <bool SHARED>
__device__ __forceinline__ void keep_rows(const Brackets& plan) {
    keep_inside<SHARED, u64>(plan, [](u64 index, u32, Key) { return index; });
}

extern "C" __global__ void __launch_bounds__(THREADS) gb_records(const __grid_constant__ Brackets plan) { keep_records<false>(plan); }
extern "C" __global__ void __launch_bounds__(THREADS) gb_records_shared(const __grid_constant__ Brackets plan) { keep_records<true>(plan); }
extern "C" __global__ void __launch_bounds__(THREADS) gb_rows(const __grid_constant__ Brackets plan) { keep_rows<false>(plan); }
extern "C" __global__ void __launch_bounds__(THREADS) gb_rows_shared(const __grid_constant__ Brackets plan) { keep_rows<true>(plan); }

extern "C" __global__ void __launch_bounds__(THREADS) gb_check(const __grid_constant__ Brackets plan) {
    const u32 counters = 2 * plan.brackets + 1;
    const u64 threads = u64(gridDim.x) * THREADS;
    u64 lacking = 0;
    for (u64 code = u64(blockIdx.x) * THREADS + threadIdx.x; code < plan.numbers; code += threads) {
        u64 all = 0, inside = 0;
        for (u32 i = 0; i < counters; ++i) {
            const u64 count = plan.counts[code * counters + i];
            all += count;
            inside += i & 1 ? count : 0;
        }
        lacking += inside < min(all, plan.wanted);
    }
    lacking = warp_sum(lacking);
    if (lane_id() == 0 && lacking) atomicAdd(plan.cursor + 1, lacking);
}
