// Finds the rows of each run of a column whose keys are among the k greatest of the run, and all rows that tie with the k-th.
//
//   ws_block_runs    a block for each run: a floor from a sample, one read, and selection among the keys that reach the floor
//   ws_runs_K        a warp for each run: WarpSelect with a queue of K (32, 128, 256, 1024) >= k
//
// Rows come in any order. If ties do not fit, the run is left out and its number is listed. BATCH is 1 for the first kernel, or a K: each
// of the others is a compilation of its own, because its networks take the compiler long. Values have 32, 64 or 128 bits, the last by
// blocks only.
#include "warp_select.cuh"

static_assert(ENCODING != 4, "Reach turns a key back into its word as encodings 0 to 3 have it: with 4, which starts at -inf, rows would be missed");

constexpr u32 WARPS = 4;
constexpr u32 RUN_THREADS = 512;
// Vectors of each thread that are being loaded while as many are looked at.
constexpr int AHEAD = 2;

struct Runs {
    Column column;
    const u64* starts;   // run r has rows starts[r] to starts[r + 1], fewer than 2^31
    const u32* which;    // numbers of the runs to look at; null: all
    u64* rows;           // the rows that are found
    u64* cursors;        // number of rows found, and of runs left out; zeroed
    u32* left;           // numbers of the runs left out; room for `count`
    u64 room;            // rows that there is room for
    u64 count;           // number of runs to look at
    u32 k;
    u32 sample;          // of ws_block_runs: vectors of a sample, a multiple of RUN_THREADS
    u32 candidates;      // of ws_block_runs: keys with places that fit in shared memory, at least k, and at least those of a sample
    u32 unused;
};

extern "C" __constant__ u32 ws_sizes[4] = {sizeof(Runs), sizeof(Key), WARPS, RUN_THREADS};

// ---------------------------------------------------------------- words that reach a key

// Tells by one comparison of integers whether the key of a word may reach `floor`. Some words that do not reach it pass, too; the rare path
// drops them.
#if STORAGE_BITS == 32 || STORAGE_BITS == 64
#if STORAGE_BITS == 32
typedef int Signed;
#else
typedef long long Signed;
#endif
struct Reach {
    static constexpr Word SIGN = Word(1) << (STORAGE_BITS - 1);
    static constexpr Word INFINITE = STORAGE_BITS == 32 ? Word(0x7f800000) : Word(0x7ff0000000000000ull);
    Word turn;
    Signed least;
    __device__ __forceinline__ explicit Reach(Key floor) {
        const Key key = DESCENDING ? Key(~floor) : floor;
#if ENCODING == 0
        turn = SIGN;
        const Word word = key;
#elif ENCODING == 1
        turn = 0;
        const Word word = key ^ SIGN;
#else
        // The words of negative floats have the reverse order.
        const Word word = key & SIGN ? Word(key ^ SIGN) : Word(~key);
        turn = (word & SIGN) ? Word(SIGN - 1) : Word(0);
#endif
        if (DESCENDING) turn = ~turn;
        least = Signed(word ^ turn);
#if ENCODING == 2
        // All NaNs have one key, but many words.
        if (!(word & SIGN) && word > INFINITE) least = DESCENDING ? Signed(SIGN) : Signed(INFINITE + 1);
#endif
    }
    __device__ __forceinline__ bool operator()(Word word) const {
        bool reaches = Signed(word ^ turn) >= least;
#if ENCODING == 2
        if (!DESCENDING) reaches |= word > (INFINITE | SIGN);
#endif
        return reaches;
    }
};
#else
struct Reach {
    Key floor;
    __device__ __forceinline__ explicit Reach(Key floor) : floor(floor) {}
    __device__ __forceinline__ bool operator()(Word word) const { return encode(word) >= floor; }
};
#endif

// ---------------------------------------------------------------- reading a run

// Reads the vectors of the column that have values of a run. The first and the last can have values of other runs, too.
struct RunReader {
    const Column& column;
    u64 vector;          // index of the first vector
    u32 vectors;
    u32 first, beyond;   // first place of the run, and the one after the last, counted from the first value of the first vector
    __device__ __forceinline__ RunReader(const Runs& runs, u64 run) : column(runs.column) {
        const u64 start = runs.starts[run], end = runs.starts[run + 1];
        vector = start / VECTOR;
        vectors = u32((end + VECTOR - 1) / VECTOR - vector);
        first = u32(start - vector * VECTOR);
        beyond = u32(end - vector * VECTOR);
    }
    __device__ __forceinline__ u32 length() const { return beyond - first; }
    __device__ __forceinline__ u64 row(u32 place) const { return vector * VECTOR + place; }
    // Vector v of the run, or the last one if there are fewer.
    __device__ __forceinline__ Vector load(u32 v) const { return load_vector(column, vector + min(v, vectors - 1)); }
    __device__ __forceinline__ bool holds(const Vector& loaded, u32 v, int i) const {
        const u32 place = v * VECTOR + i;
        return has(loaded, i) && place >= first && place < beyond;
    }
    // The key at an index in the run; 0 if it is missing.
    __device__ __forceinline__ Key key(u32 index) const {
        const u64 at = row(first + index);
        return is_present(column, at) ? encode(column.values[at]) : Key(0);
    }
};

#if BATCH == 1
// ---------------------------------------------------------------- one block a run

// The greatest key of a block.
__device__ __forceinline__ Key block_max(Key key, Key* partial) {
#pragma unroll
    for (u32 mask = 16; mask; mask >>= 1) {
        const Key other = shuffle_xor_key(key, mask);
        key = other > key ? other : key;
    }
    __syncthreads();
    if (lane_id() == 0) partial[threadIdx.x / 32] = key;
    __syncthreads();
    key = partial[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) key = partial[warp] > key ? partial[warp] : key;
    return key;
}

// A floor is found among the greatest keys of so many groups of a sample.
constexpr u32 GROUPS = 256;

__device__ __forceinline__ Key highest_of(const Key* keys, u32 count, Key* partial) {
    Key highest = 0;
    for (u32 i = threadIdx.x; i < count; i += RUN_THREADS) highest = keys[i] > highest ? keys[i] : highest;
    return block_max(highest, partial);
}

struct Standing {
    u32 greater, equal;
};

// Counts the keys that are greater than `key` and equal to it, by SHARE neighbouring lanes together. `count` is a multiple of 4 SHARE.
template <u32 SHARE>
__device__ __forceinline__ Standing standing_of(Key key, const Key* keys, u32 count) {
    constexpr u32 TOGETHER = 16 / sizeof(Key);
    Standing standing = {0, 0};
#pragma unroll 4
    for (u32 i = threadIdx.x % SHARE * TOGETHER; i < count; i += SHARE * TOGETHER) {
        const uint4 loaded = *(const uint4*)(keys + i);
#pragma unroll
        for (u32 j = 0; j < TOGETHER; ++j) {
            standing.greater += raw_key(loaded, j) > key;
            standing.equal += raw_key(loaded, j) == key;
        }
    }
#pragma unroll
    for (u32 mask = SHARE / 2; mask; mask /= 2) {
        standing.greater += __shfl_xor_sync(ALL_LANES, standing.greater, mask);
        standing.equal += __shfl_xor_sync(ALL_LANES, standing.equal, mask);
    }
    return standing;
}

// A key that some more than k keys of the run reach, with near certainty, or 0: an order statistic of a sample, which consists of lines
// of 128 bytes at even distances. `keys` is shared memory with room for the sample.
__device__ __forceinline__ Key floor_of_sample(const Runs& runs, const RunReader& reader, u32 length, u32 k, u32 vectors, Key* keys,
                                               SelectScratch<Key>& scratch) {
    constexpr u32 LINE = 8;
    const u32 lines = min(runs.sample, vectors) / LINE, sampled = lines * LINE * VECTOR, step = vectors / lines;
    const float expected = float(k) * float(sampled) / float(length);
    const u32 wanted = u32(expected + 3.5f * sqrtf(expected) + 5.0f);
    const bool few = wanted <= GROUPS / 2;
    Key highest = 0;
    for (u32 i = threadIdx.x; i < lines * LINE; i += RUN_THREADS) {
        const u32 v = i / LINE * step + i % LINE;
        const Vector loaded = reader.load(v);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            const Key key = reader.holds(loaded, v, j) ? key_of(loaded, j) : Key(0);
            highest = key > highest ? key : highest;
            if (!few) keys[i * VECTOR + j] = key;
        }
    }
    if (few) {
        // The floor is the key of rank `wanted` among the greatest keys of groups, which is not above that among all sampled keys.
        constexpr u32 SHARE = RUN_THREADS / GROUPS;
#pragma unroll
        for (u32 mask = SHARE / 2; mask; mask /= 2) {
            const Key other = shuffle_xor_key(highest, mask);
            highest = other > highest ? other : highest;
        }
        if (threadIdx.x % SHARE == 0) keys[threadIdx.x / SHARE] = highest;
        __syncthreads();
        const Standing standing = standing_of<SHARE>(highest, keys, GROUPS);
        if (standing.greater < wanted && wanted <= standing.greater + standing.equal) scratch.answer = highest;
        __syncthreads();
        return scratch.answer;
    }
    __syncthreads();
    if (wanted < sampled) return block_select([&](u32 i) { return keys[i]; }, sampled, sampled - 1 - wanted, Key(0), KEY_BITS, scratch);
    return 0;
}

// Writes the rows of the best of `count` keys, of which each thread has one at most.
__device__ __forceinline__ void emit_few(const Runs& runs, const RunReader& reader, Key* keys, const u32* places, u32 count, u32 k, u64& base,
                                         u32& emitted) {
    if (threadIdx.x == 0) {
        base = atomicAdd(&runs.cursors[0], u64(min(count, k)));
        emitted = 0;
    }
    const u32 padded = (count + 3) / 4 * 4;
    if (threadIdx.x >= count && threadIdx.x < padded) keys[threadIdx.x] = 0;
    __syncthreads();
    const bool is_best = threadIdx.x < count && standing_of<1>(keys[threadIdx.x], keys, padded).greater < k;
    const u32 slot = is_best ? atomicAdd(&emitted, 1) : 0;
    __syncthreads();
    if (!is_best) return;
    const u64 at = slot < k ? base + slot : atomicAdd(&runs.cursors[0], 1ull);
    if (at < runs.room) runs.rows[at] = reader.row(places[threadIdx.x]);
}

extern "C" __global__ void __launch_bounds__(RUN_THREADS, 4) ws_block_runs(const __grid_constant__ Runs runs) {
    extern __shared__ uint4 shared_memory[];
    __shared__ SelectScratch<Key> scratch;
    __shared__ Key greatest[32];
    __shared__ u32 found, emitted;
    __shared__ u64 base;
    const u32 room = runs.candidates;
    Key* keys = (Key*)shared_memory;
    u32* places = (u32*)(keys + room);
    const u64 run = runs.which ? runs.which[blockIdx.x] : blockIdx.x;
    const RunReader reader(runs, run);
    const u32 length = reader.length(), k = min(runs.k, length), vectors = reader.vectors;
    if (length == 0) return;
    // The first vectors are loaded while the sample is looked at.
    Vector next[AHEAD];
    auto load = [&](u32 at) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) next[a] = reader.load(at + a * RUN_THREADS);
    };
    load(threadIdx.x);
    Key floor = 0;
    if (length > room) floor = floor_of_sample(runs, reader, length, k, vectors, keys, scratch);
    u32 count;
    Key highest;
    for (u32 attempt = 0;; ++attempt) {
        __syncthreads();
        if (threadIdx.x == 0) found = 0;
        __syncthreads();
        const Reach reach(floor);
        if (attempt) load(threadIdx.x);
        for (u32 at = threadIdx.x; at < vectors; at += RUN_THREADS * AHEAD) {
            Vector now[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) now[a] = next[a];
            if (at + RUN_THREADS * AHEAD < vectors) load(at + RUN_THREADS * AHEAD);
            bool any[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                any[a] = false;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) any[a] |= has(now[a], i) && reach(word_of(now[a], i));
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const u32 v = at + a * RUN_THREADS;
                if (!any[a] || v >= vectors) continue;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    const Key key = key_of(now[a], i);
                    if (key >= floor && reader.holds(now[a], v, i)) {
                        const u32 slot = atomicAdd(&found, 1);
                        if (slot < room) {
                            keys[slot] = key;
                            places[slot] = v * VECTOR + i;
                        }
                    }
                }
            }
        }
        __syncthreads();
        count = found;
        if (count <= room && (count >= k || floor == 0)) break;
        highest = highest_of(keys, min(count, room), greatest);
        // The sample misled, or many keys tie. The collected keys give a better floor, or else all keys of the run.
        Key raised = floor;
        if (count > room && attempt < 2) {
            raised = block_select([&](u32 i) { return keys[i]; }, room, room - k, floor, key_bits(highest - floor), scratch);
        } else if (attempt < 3) {
            raised = block_select([&](u32 i) { return reader.key(i); }, length, length - k, Key(0), KEY_BITS, scratch);
            attempt = 2;
        }
        if (count > room && raised <= floor) {
            if (threadIdx.x == 0) runs.left[atomicAdd(&runs.cursors[1], 1ull)] = u32(run);
            return;
        }
        floor = raised;
    }
    if (count <= RUN_THREADS) {
        emit_few(runs, reader, keys, places, count, k, base, emitted);
        return;
    }
    highest = highest_of(keys, count, greatest);
    Key kth = 0;
    if (count > k) kth = block_select([&](u32 i) { return keys[i]; }, count, count - k, floor, key_bits(highest - floor), scratch);
    u32 own = 0;
    for (u32 i = threadIdx.x; i < count; i += RUN_THREADS) own += keys[i] >= kth;
    u32 total;
    const u32 before = block_scan(own, scratch.partial, total);
    if (threadIdx.x == 0) base = atomicAdd(&runs.cursors[0], u64(total));
    __syncthreads();
    if (base + total > runs.room) return;
    u64 at = base + before;
    for (u32 i = threadIdx.x; i < count; i += RUN_THREADS)
        if (keys[i] >= kth) runs.rows[at++] = reader.row(places[i]);
}

#else
// ---------------------------------------------------------------- one warp a run

// Word `index` of all vectors, found by halving.
__device__ __forceinline__ Word chosen_word(const Vector (&vectors)[AHEAD], u32 index) {
    constexpr u32 COUNT = AHEAD * VECTOR;
    Word words[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) words[i] = word_of(vectors[i / VECTOR], i % VECTOR);
#pragma unroll
    for (u32 half = COUNT / 2; half; half /= 2)
#pragma unroll
        for (u32 i = 0; i < half; ++i) words[i] = index & half ? words[i + half] : words[i];
    return words[0];
}

template <int QUEUE, int THREAD>
__device__ __forceinline__ void select_run(const Runs& runs) {
    const u64 index = u64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (index >= runs.count) return;
    const u64 run = runs.which ? runs.which[index] : index;
    const RunReader reader(runs, run);
    if (reader.length() == 0) return;
    WarpSelect<QUEUE, THREAD> select(runs.k);
    Reach reach(0);
    Key tie = 0;
    bool ties = false;
    Vector next[AHEAD];
    auto load = [&](u32 base) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) next[a] = reader.load(base + a * 32 + lane_id());
    };
    load(0);
    for (u32 base = 0;; base += 32 * AHEAD) {
        const bool last = base >= reader.vectors;
        Vector now[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) now[a] = next[a];
        if (!last) load(base + 32 * AHEAD);
        bool any = last;
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) any |= has(now[a], i) && reach(word_of(now[a], i));
        if (!__any_sync(ALL_LANES, any)) continue;
        // The values of each lane that reach the floor, one after the other. The last turn merges the waiting items.
        u32 wanted = 0;
        if (!last)
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
                    wanted |= u32(reach(word_of(now[a], i)) && reader.holds(now[a], base + a * 32 + lane_id(), i)) << (a * VECTOR + i);
        do {
            if (wanted) {
                const u32 turn = __ffs(wanted) - 1;
                wanted &= wanted - 1;
                const Key key = encode(chosen_word(now, turn));
                const Item item = item_of(key, (base + turn / VECTOR * 32 + lane_id()) * VECTOR + turn % VECTOR);
                if (select.floor && key == item_key(select.floor)) {
                    ties = true;
                    tie = key;
                }
                select.offer(item);
            }
            if (last || select.must_merge()) {
                select.merge();
                reach = Reach(item_key(select.floor));
            }
        } while (__any_sync(ALL_LANES, wanted));
        if (last) break;
    }
    // The rows that tie with the k-th are complete only if none was lost.
    const Key kth = item_key(select.floor);
    const bool lost = ties && tie == kth || select.rejected != 0 && item_key(select.rejected) == kth;
    if (__any_sync(ALL_LANES, lost)) {
        if (lane_id() == 0) runs.left[atomicAdd(&runs.cursors[1], 1ull)] = u32(run);
        return;
    }
    u32 own = 0;
#pragma unroll
    for (int r = 0; r < QUEUE; ++r) own += select.queue[r] != 0 && item_key(select.queue[r]) >= kth;
    const u32 total = warp_sum(own);
    u64 base = 0;
    if (lane_id() == 0) base = atomicAdd(&runs.cursors[0], u64(total));
    base = __shfl_sync(ALL_LANES, base, 0);
    if (base + total > runs.room) return;
#pragma unroll
    for (int r = 0; r < QUEUE; ++r) {
        // The queue is in order.
        if (select.queue[r] != 0 && item_key(select.queue[r]) >= kth) runs.rows[base + r * 32 + lane_id()] = reader.row(item_index(select.queue[r]));
    }
}

#if BATCH == 32
extern "C" __global__ void __launch_bounds__(WARPS * 32, 8) ws_runs_32(const __grid_constant__ Runs runs) { select_run<1, 2>(runs); }
#elif BATCH == 128
extern "C" __global__ void __launch_bounds__(WARPS * 32, 8) ws_runs_128(const __grid_constant__ Runs runs) { select_run<4, 3>(runs); }
#elif BATCH == 256
extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_runs_256(const __grid_constant__ Runs runs) { select_run<8, 4>(runs); }
#else
extern "C" __global__ void __launch_bounds__(WARPS * 32) ws_runs_1024(const __grid_constant__ Runs runs) { select_run<32, 8>(runs); }
#endif
#endif
