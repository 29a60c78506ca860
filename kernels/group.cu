// Makes records of rows: the code of a row's group above its key. Records that are sorted as integers (kernels/sort.cu) have the keys of
// each group together, in order.
//
//   gr_range    finds the least and the greatest key of a column, a pair for each block
//   gr_runs     lists the rows at which a column has another value than in the row before
//   gr_codes    adds a column to the code of each row's group
//   gr_records  writes a record of each row that counts
#include "group_records.cuh"

struct Group {
    Column column;   // `mask`: bitmap of the rows that count, for gr_range and gr_records
    u64* ends;       // of gr_range: halves of the least and of the greatest key, the low half first
    void* codes;     // the code of each row's group: u64 if `wide`, else u32; of gr_runs: the rows, u64, in any order
    void* records;   // of gr_records: of 64 bits, or of 128
    u64* cursor;     // of gr_records and gr_runs: number of records or rows; zeroed
    u64 room;        // rows or records that fit; if there are more rows, gr_runs ends early
    u64 least[2];    // the key that counts from 0
    u64 codes_kept[2];  // of gr_records, if MASKED: the first and the last code of the groups whose rows count
    u64 span;        // of gr_codes: factor for the code made of the columns before
    u32 bits;        // of gr_records: bits of a key in a record
    u32 wide;
    u32 folds;       // of gr_codes: 1 if there are columns before
    u32 above_null;  // of gr_codes: 1 if the column has NULLs, whose code is 0
    u32 keyless;     // of gr_records: 1 for records without keys, of all rows in `mask`
    u32 code_offset; // of gr_records: added to each of `codes` that is not `wide`
};

extern "C" __constant__ u32 gr_sizes[4] = {sizeof(Group), sizeof(Key), 0, 0};

__device__ __forceinline__ void put_halves(u64* halves, Key key) {
    halves[0] = u64(key);
#if KEY_BITS == 128
    halves[1] = u64(key >> 64);
#else
    halves[1] = 0;
#endif
}

// A block without a present row writes a least key that is above its greatest.
extern "C" __global__ void __launch_bounds__(THREADS) gr_range(const __grid_constant__ Group group) {
    __shared__ Key ends[2][32];
    Key least = MAX_KEY, most = 0;
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 from = u64(blockIdx.x) * THREADS + threadIdx.x; from < group.column.rows; from += threads * UNROLL) {
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = from + j * threads;
            if (row >= group.column.rows || !is_present(group.column, row)) continue;
            const Key key = encode(group.column.values[row]);
            least = key < least ? key : least;
            most = key > most ? key : most;
        }
    }
    block_range(least, most, ends);
    if (threadIdx.x == 0) {
        put_halves(group.ends + 4 * blockIdx.x, least);
        put_halves(group.ends + 4 * blockIdx.x + 2, most);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_runs(const __grid_constant__ Group group) {
    u64* heads = (u64*)group.codes;
    const Column& column = group.column;
    constexpr u64 TOGETHER = u64(THREADS) * UNROLL;
    for (u64 tile = blockIdx.x; tile * TOGETHER < column.rows; tile += gridDim.x) {
        if (*(volatile u64*)group.cursor > group.room) return;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = tile * TOGETHER + j * THREADS + threadIdx.x;
            bool heads_run = false;
            if (row > 0 && row < column.rows) {
                const bool present = is_present(column, row);
                heads_run = present != is_present(column, row - 1) || (present && column.values[row] != column.values[row - 1]);
            }
            const u32 all = __ballot_sync(ALL_LANES, heads_run);
            if (!all) continue;
            u64 at = 0;
            if (lane_id() == 0) at = atomicAdd(group.cursor, u64(__popc(all)));
            at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
            if (heads_run && at < group.room) heads[at] = row;
        }
    }
}

template <class Code>
__device__ __forceinline__ void fold_codes(const Group& group) {
    Code* codes = (Code*)group.codes;
    const Key least = key_from(group.least);
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 from = u64(blockIdx.x) * THREADS + threadIdx.x; from < group.column.rows; from += threads * UNROLL) {
        Word values[UNROLL];
        bool valid[UNROLL];
        Code before[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = from + j * threads;
            const bool inside = row < group.column.rows;
            values[j] = inside ? group.column.values[row] : Word(0);
            valid[j] = inside && is_present(group.column, row);
            before[j] = inside && group.folds ? codes[row] : Code(0);
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = from + j * threads;
            if (row >= group.column.rows) break;
            const u64 own = valid[j] ? u64(encode(values[j]) - least) + group.above_null : 0;
            codes[row] = Code(u64(before[j]) * group.span + own);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_codes(const __grid_constant__ Group group) {
    if (group.wide)
        fold_codes<u64>(group);
    else
        fold_codes<u32>(group);
}

__device__ __forceinline__ u64 code_at(const Group& group, u64 row) {
    return group.wide ? ((const u64*)group.codes)[row] : u64(((const u32*)group.codes)[row] + group.code_offset);
}

template <class Record>
__device__ __forceinline__ Record record_at(const Group& group, Key least, u64 row, u64 code) {
    return record_of<Record>(code, group.keyless ? Key(0) : Key(encode(group.column.values[row]) - least), group.bits);
}

// Records come in any order, because equal records need not be told apart. If MASKED, they follow those that other launches have made.
template <class Record>
__device__ __forceinline__ void make_records(const Group& group) {
    Record* records = (Record*)group.records;
    const Key least = key_from(group.least);
    const u64 rows = group.column.rows;
#if MASKED
    auto load = [&](u64 row) { return is_present(group.column, row); };
    auto keep = [&](u64 row, bool present, Record& record) {
        if (!present) return false;
        const u64 code = code_at(group, row);
        record = record_at<Record>(group, least, row, code);
        return group.codes_kept[0] <= code && code <= group.codes_kept[1];
    };
    write_some(rows, records, group.room, group.cursor, load, keep);
#else
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 from = u64(blockIdx.x) * THREADS + threadIdx.x; from < rows; from += threads * UNROLL) {
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 row = from + j * threads;
            if (row < rows) records[row] = record_at<Record>(group, least, row, code_at(group, row));
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *group.cursor = rows;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_records_64(const __grid_constant__ Group group) { make_records<u64>(group); }
extern "C" __global__ void __launch_bounds__(THREADS) gr_records_128(const __grid_constant__ Group group) {
    make_records<unsigned __int128>(group);
}
