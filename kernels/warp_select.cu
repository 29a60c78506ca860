// The k greatest of each row of a matrix with their places in the row; among equal keys the smaller places.
//
//   ws_rows_K        one warp a row: WarpSelect with a queue of K (32, 128, 256, 1024) >= k; sorted
//   ws_block_rows    one block a row: threshold from a sample, filter, selection in shared memory; any order
#include "warp_select.cuh"

constexpr u32 ROW_THREADS = 512;
constexpr u32 WARPS = 4;

// k outputs a row; where a row has fewer present values, the rest has place 0xffffffff.
struct Rows {
    Column column;       // rows of the matrix one after the other; `rows` counts values
    Key* out_keys;
    u32* out_places;
    u64 rows;
    u32 length, k;       // length < 2^32 - 1
    u32 sample, room;    // ws_block_rows: sampled values a row, candidates that fit
};

extern "C" __constant__ u32 ws_sizes[3] = {sizeof(Rows), sizeof(Item), sizeof(Key)};

__device__ __forceinline__ void write_item(const Rows& rows, u64 at, Item item) {
    rows.out_keys[at] = DESCENDING ? Key(~item_key(item)) : item_key(item);
    rows.out_places[at] = item_index(item);
}

__device__ __forceinline__ Item load_item(const Rows& rows, u64 first, u32 place) {
    return is_present(rows.column, first + place) ? item_of(encode(rows.column.values[first + place]), place) : Item(0);
}

struct RowVector {
    Vector values;
    u32 present;
};

// Values of a row come by vectors where rows are aligned to 16 bytes, one by one otherwise.
struct RowReader {
    const Rows& rows;
    u64 first;
    u32 vectors;
    bool aligned;
    __device__ RowReader(const Rows& rows, u64 row)
        : rows(rows), first(row * rows.length), vectors((rows.length + VECTOR - 1) / VECTOR), aligned(rows.length % VECTOR == 0) {}
    __device__ __forceinline__ RowVector load(u32 vector) const {
        RowVector loaded;
        loaded.present = 0;
        if (vector >= vectors) return loaded;
        if (aligned) {
            loaded.values = load_vector(rows.column, first / VECTOR + vector);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) loaded.present |= u32(has(loaded.values, i)) << i;
            return loaded;
        }
        Word words[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const u64 place = u64(vector) * VECTOR + i;
            const bool held = place < rows.length && is_present(rows.column, first + place);
            words[i] = held ? rows.column.values[first + place] : Word(0);
            loaded.present |= u32(held) << i;
        }
        u32 parts[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
#pragma unroll
            for (int b = 0; b < STORAGE_BITS; b += 32) parts[(i * STORAGE_BITS + b) / 32] |= u32(words[i] >> b) << (i * STORAGE_BITS + b) % 32;
        loaded.values.bits = make_uint4(parts[0], parts[1], parts[2], parts[3]);
        return loaded;
    }
};

template <int QUEUE, int THREAD>
__device__ __forceinline__ void select_row(const Rows& rows) {
    const u64 row = u64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows.rows) return;
    const RowReader reader(rows, row);
    WarpSelect<QUEUE, THREAD> select(rows.k);
    constexpr int AHEAD = 4;
    RowVector next[AHEAD];
    auto load = [&](u32 base) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) next[a] = reader.load(base + a * 32 + lane_id());
    };
    load(0);
    for (u32 base = 0;; base += 32 * AHEAD) {
        const bool last = base >= reader.vectors;
        RowVector now[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) now[a] = next[a];
        if (!last) load(base + 32 * AHEAD);
        bool any = last;
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                any |= now[a].present >> i & 1 && select.may_want(key_of(now[a].values, i), base * VECTOR);
        if (!__any_sync(ALL_LANES, any)) continue;
        // Value by value, those that some lane wants; the last turn merges what waits.
        u32 wanted = 0;
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                wanted |= u32(now[a].present >> i & 1 && select.may_want(key_of(now[a].values, i), base * VECTOR)) << (a * VECTOR + i);
        u32 turns = any_lane(last ? 0 : wanted);
        do {
            if (turns) {
                const u32 turn = __ffs(turns) - 1;
                turns &= turns - 1;
                if (wanted >> turn & 1) {
                    Word word = 0;
#pragma unroll
                    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
                        for (int i = 0; i < VECTOR; ++i)
                            if (turn == a * VECTOR + i) word = word_of(now[a].values, i);
                    select.offer(item_of(encode(word), (base + turn / VECTOR * 32 + lane_id()) * VECTOR + turn % VECTOR));
                }
            }
            if (last || select.must_merge()) select.merge();
        } while (turns);
        if (last) break;
    }
#pragma unroll
    for (int r = 0; r < QUEUE; ++r) {
        const u32 place = r * 32 + lane_id();
        if (place < rows.k) write_item(rows, row * rows.k + place, select.queue[r]);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_rows_32(const __grid_constant__ Rows rows) { select_row<1, 2>(rows); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_rows_128(const __grid_constant__ Rows rows) { select_row<4, 3>(rows); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_rows_256(const __grid_constant__ Rows rows) { select_row<8, 4>(rows); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_rows_1024(const __grid_constant__ Rows rows) { select_row<32, 8>(rows); }

// ---------------------------------------------------------------- one block a row

// Shared memory: `room` items, at least k; the sample lies in them first.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 2) ws_block_rows(const __grid_constant__ Rows rows) {
    extern __shared__ uint4 shared_memory[];
    __shared__ union {
        SelectScratch<Key> keys;
        SelectScratch<Item> items;
    } scratch;
    __shared__ u32 found, emitted, partial[33];
    Item* items = (Item*)shared_memory;
    const u64 row = blockIdx.x, out = row * rows.k;
    const RowReader reader(rows, row);
    const u32 length = rows.length, k = min(rows.k, length), vectors = reader.vectors;
    if (threadIdx.x == 0) emitted = 0;
    // The threshold: an order statistic of the row's evenly spread vectors that k values reach, with near certainty.
    Key floor = 0;
    const u32 sampled = min(rows.sample / VECTOR, vectors), step = vectors / sampled;
    const float expected = float(k) * float(sampled * VECTOR) / float(length);
    const u32 wanted = u32(expected + 4.0f * sqrtf(expected) + 8.0f);
    if (length > rows.room) {
        Key* sample = (Key*)shared_memory;
        for (u32 i = threadIdx.x; i < sampled; i += ROW_THREADS) {
            const RowVector loaded = reader.load(i * step);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sample[i * VECTOR + j] = loaded.present >> j & 1 ? key_of(loaded.values, j) : Key(0);
        }
        __syncthreads();
        if (wanted < sampled * VECTOR)
            floor = block_select([&](u32 i) { return sample[i]; }, sampled * VECTOR, sampled * VECTOR - 1 - wanted, Key(0), KEY_BITS, scratch.keys);
    }
    constexpr int AHEAD = 4;
    // All values that reach the floor; where those are too many, for ties, the ones above it alone.
    bool above_only = false;
    u32 count;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) found = 0;
        __syncthreads();
        RowVector next[AHEAD];
        auto load = [&](u32 base) {
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) next[a] = reader.load(base + a * ROW_THREADS);
        };
        load(threadIdx.x);
        for (u32 base = threadIdx.x; base < vectors; base += ROW_THREADS * AHEAD) {
            RowVector now[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) now[a] = next[a];
            load(base + ROW_THREADS * AHEAD);
            // Missing values pass here and are sorted out in the rare path.
            bool any = false;
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) any |= key_of(now[a].values, i) >= floor;
            if (!any) continue;
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    const Key key = key_of(now[a].values, i);
                    if (now[a].present >> i & 1 && key >= floor && !(above_only && key == floor)) {
                        const u32 at = atomicAdd(&found, 1);
                        if (at < rows.room) items[at] = item_of(key, (base + a * ROW_THREADS) * VECTOR + i);
                    }
                }
        }
        __syncthreads();
        count = found;
        if (count <= rows.room || above_only) break;
        above_only = true;
    }
    Item kth = 0;
    // Candidates hold the k greatest; or all above the floor, and ties complete them; or the sample misled.
    const bool fits = count <= rows.room && (count >= k || floor == 0 || above_only);
    if (fits && count > k)
        kth = block_select([&](u32 i) { return items[i]; }, count, count - k, Item(0), KEY_BITS + 32, scratch.items);
    else if (!fits)
        kth = block_select([&](u32 i) { return load_item(rows, reader.first, i); }, length, length - k, Item(0), KEY_BITS + 32, scratch.items);
    __syncthreads();
    for (u32 i = threadIdx.x; i < (fits ? count : length); i += ROW_THREADS) {
        const Item item = fits ? items[i] : load_item(rows, reader.first, i);
        if (item != 0 && item >= kth) write_item(rows, out + atomicAdd(&emitted, 1), item);
    }
    __syncthreads();
    u32 done = emitted;
    if (fits && above_only)
        for (u32 base = 0; base < length && done < k; base += ROW_THREADS) {
            // Ties in the order of their places.
            const u32 place = base + threadIdx.x;
            const bool tie = place < length && is_present(rows.column, reader.first + place) && encode(rows.column.values[reader.first + place]) == floor;
            u32 ties;
            const u32 at = done + block_scan(u32(tie), partial, ties);
            if (tie && at < k) write_item(rows, out + at, item_of(floor, place));
            done = min(done + ties, k);
        }
    for (u32 i = done + threadIdx.x; i < rows.k; i += ROW_THREADS) write_item(rows, out + i, 0);
}
