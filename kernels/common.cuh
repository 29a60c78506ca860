// Common parts of all kernels: the streaming read of a column, scans, the grid barrier, samples, selection. `keys.cuh` says for which column.
#pragma once
#include "keys.cuh"

// ---------------------------------------------------------------- columns

// One column on the device. Bitmaps are as in Arrow (least significant bit first), start at bit 0, and are null if all rows count. `values`
// is aligned to 16 bytes. Bitmaps are readable up to the next multiple of 16 bits.
struct Column {
    const Word* values;
    u64 rows;
    const u8* validity;
    const u8* mask;
};

struct Vector {
    uint4 bits;
#if MASKED
    u32 present;
#endif
};

__device__ __forceinline__ Word word_of(const Vector& vector, int i) {
    const u32 part[4] = {vector.bits.x, vector.bits.y, vector.bits.z, vector.bits.w};
#if STORAGE_BITS < 32
    return Word(part[i * STORAGE_BITS / 32] >> (i * STORAGE_BITS % 32));
#elif STORAGE_BITS == 32
    return part[i];
#elif STORAGE_BITS == 64
    return u64(part[2 * i]) | u64(part[2 * i + 1]) << 32;
#else
    return Word(u64(part[0]) | u64(part[1]) << 32) | Word(u64(part[2]) | u64(part[3]) << 32) << 64;
#endif
}

__device__ __forceinline__ Key raw_key(const uint4& bits, int i) {
    const u32 part[4] = {bits.x, bits.y, bits.z, bits.w};
#if KEY_BITS == 32
    return part[i];
#elif KEY_BITS == 64
    return u64(part[2 * i]) | u64(part[2 * i + 1]) << 32;
#else
    return Key(u64(part[0]) | u64(part[1]) << 32) | Key(u64(part[2]) | u64(part[3]) << 32) << 64;
#endif
}

__device__ __forceinline__ Key key_of(const Vector& vector, int i) { return encode(word_of(vector, i)); }

__device__ __forceinline__ bool is_present(const Column& column, u64 row) {
#if MASKED
    u64 byte = row >> 3;
    u32 bit = u32(row & 7);
    return (!column.validity || column.validity[byte] >> bit & 1) && (!column.mask || column.mask[byte] >> bit & 1);
#else
    return true;
#endif
}

#if MASKED
// The bits of the rows of one vector, which lie in at most two bytes.
__device__ __forceinline__ u32 bitmap_bits(const u8* bitmap, u64 vector) {
    u64 bit = vector * VECTOR;
#if STORAGE_BITS == 8
    return ((const u16*)bitmap)[bit >> 4];
#else
    return bitmap[bit >> 3] >> (bit & 7);
#endif
}
#endif

__device__ __forceinline__ Vector load_vector(const Column& column, u64 vector) {
    Vector loaded;
    loaded.bits = __ldcs((const uint4*)column.values + vector);
#if MASKED
    loaded.present = (1u << VECTOR) - 1;
    if (column.validity) loaded.present &= bitmap_bits(column.validity, vector);
    if (column.mask) loaded.present &= bitmap_bits(column.mask, vector);
#endif
    return loaded;
}

__device__ __forceinline__ bool has(const Vector& vector, int i) {
#if MASKED
    return vector.present >> i & 1;
#else
    return true;
#endif
}

// Rows of one tile, which a block reads in one step.
[[maybe_unused]] constexpr u64 TILE = u64(THREADS) * BATCH * VECTOR;

// Reads a column tile by tile. The tiles of a block are strided, so that sorted data is spread over all blocks.
//
// Calls visit.some(keys, present, row) for groups of rows. Bit i of `present` says whether keys[i] counts; its row is
// row + i / VECTOR * THREADS * VECTOR + i % VECTOR. Rows come in groups so that a visitor can have several accesses to shared memory in
// flight: the compiler may not reorder loads with the stores of the row before. Calls visit.batch() after at most BATCH * VECTOR rows of
// each thread, by all threads of a block alike.
//
// AHEAD: the vectors of the next tile are loaded meanwhile. Without it, other warps hide the wait, and the visitor has more registers.
template <bool AHEAD = true, class Visit>
__device__ __forceinline__ void stream(const Column& column, Visit& visit) {
    constexpr int JOINED = VECTOR >= 4 ? 1 : 4 / VECTOR < BATCH ? 4 / VECTOR : BATCH, GROUP = JOINED * VECTOR;
    const u64 tiles = column.rows / TILE;
    Vector next[BATCH];
    auto load = [&](u64 tile) {
#pragma unroll
        for (int v = 0; v < BATCH; ++v) next[v] = load_vector(column, tile * (THREADS * BATCH) + v * THREADS + threadIdx.x);
    };
    if (AHEAD && blockIdx.x < tiles) load(blockIdx.x);
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (!AHEAD) load(tile);
        Vector now[BATCH];
#pragma unroll
        for (int v = 0; v < BATCH; ++v) now[v] = next[v];
        if (AHEAD && tile + gridDim.x < tiles) load(tile + gridDim.x);
#pragma unroll
        for (int v = 0; v < BATCH; v += JOINED) {
            Key keys[GROUP];
            u32 present = 0;
#pragma unroll
            for (int i = 0; i < GROUP; ++i) {
                keys[i] = key_of(now[v + i / VECTOR], i % VECTOR);
                present |= u32(has(now[v + i / VECTOR], i % VECTOR)) << i;
            }
            visit.some(keys, present, tile * TILE + (u64(v) * THREADS + threadIdx.x) * VECTOR);
        }
        visit.batch();
    }
    // The last rows, which are no whole tile, go to the block whose turn it is.
    if (tiles % gridDim.x == blockIdx.x)
        for (u64 row = tiles * TILE; row < column.rows; row += THREADS) {
            const u64 own = row + threadIdx.x;
            if (own < column.rows) {
                const Key keys[1] = {encode(column.values[own])};
                visit.some(keys, u32(is_present(column, own)), own);
            }
            visit.batch();
        }
}

// ---------------------------------------------------------------- warps and blocks

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ u32 lanes_below() { return (1u << lane_id()) - 1; }

__device__ __forceinline__ Key shuffle_xor_key(Key key, u32 mask) {
#if KEY_BITS == 128
    return Key(__shfl_xor_sync(ALL_LANES, u64(key >> 64), mask)) << 64 | __shfl_xor_sync(ALL_LANES, u64(key), mask);
#else
    return __shfl_xor_sync(ALL_LANES, key, mask);
#endif
}

// Replaces the least and the greatest key of each lane by those of the warp.
__device__ __forceinline__ void warp_range(Key& least, Key& most) {
    for (int step = 16; step; step >>= 1) {
        const Key lower = shuffle_xor_key(least, step), upper = shuffle_xor_key(most, step);
        least = lower < least ? lower : least;
        most = upper > most ? upper : most;
    }
}

// Replaces the least and the greatest key of each thread by those of the block, of THREADS threads.
__device__ __forceinline__ void block_range(Key& least, Key& most, Key (&ends)[2][32]) {
    warp_range(least, most);
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
}

// The first call of a kernel whose blocks may start before the kernel before it has ended: waits for the end of that kernel, and lets the
// blocks of the next one start.
__device__ __forceinline__ void after_kernels_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// Sum of the values of the threads before this one; `total` is the sum of all. `partial` holds 33 values. Blocks consist of whole warps.
template <class T>
__device__ T block_scan(T value, T* partial, T& total) {
    T inclusive = value;
    for (u32 step = 1; step < 32; step <<= 1) {
        T other = __shfl_up_sync(ALL_LANES, inclusive, step);
        if (lane_id() >= step) inclusive += other;
    }
    __syncthreads();
    const u32 warps = blockDim.x / 32;
    if (lane_id() == 31) partial[threadIdx.x / 32] = inclusive;
    __syncthreads();
    if (threadIdx.x < 32) {
        T own = threadIdx.x < warps ? partial[threadIdx.x] : T(0), sum = own;
        for (u32 step = 1; step < 32; step <<= 1) {
            T other = __shfl_up_sync(ALL_LANES, sum, step);
            if (lane_id() >= step) sum += other;
        }
        partial[threadIdx.x] = sum - own;
        if (threadIdx.x == 31) partial[32] = sum;
    }
    __syncthreads();
    total = partial[32];
    T before = partial[threadIdx.x / 32] + inclusive - value;
    __syncthreads();
    return before;
}

// Barrier for all blocks of a cooperative grid. The counter is zeroed before the launch.
struct GridBarrier {
    u32* count;
    u32 target;
    __device__ explicit GridBarrier(u32* count) : count(count), target(0) {}
    __device__ void wait() {
        target += gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(count, 1);
            while (*(volatile u32*)count < target) __nanosleep(64);
            __threadfence();
        }
        __syncthreads();
    }
};

// ---------------------------------------------------------------- samples

constexpr u32 PLAN_SAMPLE = 8192;

// Draws one random row of each of `stripes` stripes, at most PLAN_SAMPLE. Each thread draws one; there are a few blocks, because one alone
// would wait long for cache misses.
__device__ void draw_sample(const Column& column, u32 stripes, u32 seed, Key* sample, u32* samples) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    bool held = false;
    Key key = 0;
    const u64 step = (u64(1) << 48) / max(stripes, 1u);
    // If a row is missing, other rows of the stripe are tried.
    for (u32 attempt = 0; attempt < (MASKED ? 4 : 1) && index < stripes && column.rows && !held; ++attempt) {
        const u64 fraction = (u64(index) << 16 | (hash32(index + attempt * PLAN_SAMPLE, seed) & 0xffff)) * step;
        const u64 row = __umul64hi(column.rows, fraction);
        key = encode(column.values[row]);
        held = is_present(column, row);
    }
    const u32 all = __ballot_sync(ALL_LANES, held);
    u32 at = 0;
    if (lane_id() == 0 && all) at = atomicAdd(samples, u32(__popc(all)));
    at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
    if (held) sample[at] = key;
}

// Random lines of 128 bytes, one of each stripe; memory is read by lines. Items are vectors, 8 in each line.
struct SampledLines {
    u64 count, step;
    u32 seed;
    __device__ SampledLines(u64 rows, u64 wanted, u32 seed) : seed(seed) {
        const u64 all = rows / (8 * VECTOR);
        count = wanted < all ? wanted : all;
        // Lines of a stripe, with 24 bits of fraction, so that stripes spread over all rows.
        step = count ? (all << 24) / count : 0;
    }
    __device__ __forceinline__ u64 vector(u64 item) const {
        const u64 line = item / 8, from = line * step >> 24, stripe = ((line + 1) * step >> 24) - from;
        return (from + (u64(hash32(u32(line), seed)) * stripe >> 32)) * 8 + (item & 7);
    }
};

// Calls visit(i, at(i)) for each i below `count`, by all threads of a block. A thread has AHEAD loads in flight, so that it does not wait
// for each of them.
template <u32 AHEAD, class At, class Index, class Visit>
__device__ __forceinline__ void each_at(At at, Index count, Visit visit) {
    using T = decltype(at(Index(0)));
    for (Index base = threadIdx.x; base < count; base += THREADS * AHEAD) {
        T loaded[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; ++j)
            if (base + j * THREADS < count) loaded[j] = at(base + j * THREADS);
#pragma unroll
        for (u32 j = 0; j < AHEAD; ++j)
            if (base + j * THREADS < count) visit(base + j * THREADS, loaded[j]);
    }
}

// ---------------------------------------------------------------- selection in one block

constexpr u32 DIGIT_BITS = 11;
// Most keys that are compared each with each; with more, another pass is faster.
constexpr u32 FEW = 256;

template <class T>
struct SelectScratch {
    u32 bins[1 << DIGIT_BITS];
    T few[FEW];
    u32 partial[33];
    u32 chosen, before, inside, collected;
    T answer;
};

// The key of rank `rank`, from 0, among the keys in [first, first + 2^bits), of which there are at most FEW. each(visit) calls visit for
// the keys of a thread. By all threads of a block; `scratch.collected` is 0 before.
template <class T, class Each>
__device__ __forceinline__ T select_few(Each each, u32 rank, T first, u32 bits, SelectScratch<T>& scratch) {
    each([&](T key) {
        if (shifted_down(T(key - first), bits) == 0) scratch.few[atomicAdd(&scratch.collected, 1)] = key;
    });
    __syncthreads();
    const u32 inside = scratch.collected;
    for (u32 i = threadIdx.x; i < inside; i += blockDim.x) {
        const T key = scratch.few[i];
        u32 less = 0, equal = 0;
        for (u32 j = 0; j < inside; ++j) {
            less += scratch.few[j] < key;
            equal += scratch.few[j] == key;
        }
        if (less <= rank && rank < less + equal) scratch.answer = key;
    }
    __syncthreads();
    return scratch.answer;
}

// The key of rank `rank`, from 0, among the keys in [first, first + 2^bits), of which there can be any number.
template <class T, class Each>
__device__ __forceinline__ T select_among(Each each, u32 rank, T first, u32 bits, SelectScratch<T>& scratch) {
    while (bits > 0) {
        const u32 digit = bits < DIGIT_BITS ? bits : DIGIT_BITS, shift = bits - digit;
        __syncthreads();
        for (u32 bin = threadIdx.x; bin < 1u << DIGIT_BITS; bin += blockDim.x) scratch.bins[bin] = 0;
        if (threadIdx.x == 0) scratch.collected = 0;
        __syncthreads();
        each([&](T key) {
            const T above = key - first;
            if (shifted_down(above, bits) != 0) return;
            // Lanes with the same bin would wait for each other, so one lane counts for all if all agree.
            const u32 bin = u32(above >> shift), active = __activemask();
            int agree;
            __match_all_sync(active, bin, &agree);
            if (!agree)
                atomicAdd(&scratch.bins[bin], 1);
            else if ((active & lanes_below()) == 0)
                atomicAdd(&scratch.bins[bin], u32(__popc(active)));
        });
        __syncthreads();
        const u32 share = (1u << DIGIT_BITS) / blockDim.x, from = threadIdx.x * share;
        u32 own = 0, total;
        for (u32 bin = from; bin < from + share; ++bin) own += scratch.bins[bin];
        u32 before = block_scan(own, scratch.partial, total);
        if (before <= rank && rank < before + own)
            for (u32 bin = from;; ++bin) {
                if (rank < before + scratch.bins[bin]) {
                    scratch.chosen = bin;
                    scratch.before = before;
                    scratch.inside = scratch.bins[bin];
                    break;
                }
                before += scratch.bins[bin];
            }
        __syncthreads();
        rank -= scratch.before;
        first += T(scratch.chosen) << shift;
        bits = shift;
        if (bits == 0 || scratch.inside > FEW) continue;
        return select_few(each, rank, first, bits, scratch);
    }
    return first;
}

// Calls visit for the keys of a thread among the `count` keys at(i).
template <class At>
struct EachAt {
    At at;
    u32 count;
    template <class Visit>
    __device__ __forceinline__ void operator()(Visit visit) const {
#pragma unroll 8
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) visit(at(i));
    }
};

// Calls visit for the keys of a thread among the `count` keys at(i), with several loads in flight because at(i) is far. For blocks of
// THREADS threads.
template <class At, class Index = u32>
struct EachAhead {
    At at;
    Index count;
    template <class Visit>
    __device__ __forceinline__ void operator()(Visit visit) const {
        using T = decltype(at(0));
        each_at<(sizeof(T) > 8 ? 2 : 8)>(at, count, [&](Index, T key) { visit(key); });
    }
};

// The key of rank `rank`, from 0, among those of the `count` keys at(i) that lie in [first, first + 2^bits). By all threads of a block.
template <class T, class At>
__device__ T block_select(At at, u32 count, u32 rank, T first, u32 bits, SelectScratch<T>& scratch) {
    return select_among(EachAt<At>{at, count}, rank, first, bits, scratch);
}

// ---------------------------------------------------------------- scatter into lists

// Collects pairs of list and key in shared memory and appends them to lists in device memory, with one global atomic operation for each
// list and flush, not one for each key.
[[maybe_unused]] constexpr u32 NO_LIST = 0xffff;
constexpr u32 STAGE_SHARE = 16;

struct Staging {
    Key* keys;      // shared: `room` keys; room <= STAGE_SHARE * blockDim.x
    u16* lists;     // shared: `room` lists
    u32* tally;     // shared: one for each list, zero between flushes
    u64* origin;    // shared: one for each list
    u32* staged;    // shared
    u32 room;
    u32 list_count;
    const u64* starts;  // global: first place of each list
    u64* cursors;       // global: number of keys in each list
    Key* out;           // global

    __device__ void begin() {
        for (u32 i = threadIdx.x; i < list_count; i += blockDim.x) tally[i] = 0;
        if (threadIdx.x == 0) *staged = 0;
        __syncthreads();
    }
    // Adds the keys whose list is not NO_LIST; by all threads of a warp together.
    template <int N>
    __device__ __forceinline__ void push(const Key (&key)[N], const u32 (&list)[N]) {
        u32 own = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) own += list[i] != NO_LIST;
        u32 before = own;
#pragma unroll
        for (u32 step = 1; step < 32; step <<= 1) {
            const u32 other = __shfl_up_sync(ALL_LANES, before, step);
            if (lane_id() >= step) before += other;
        }
        u32 at = 0;
        if (lane_id() == 31 && before) at = atomicAdd(staged, before);
        const u32 end = __shfl_sync(ALL_LANES, at + before, 31);
        at = __shfl_sync(ALL_LANES, at, 31) + before - own;
        // If all keys have room, there is no further branch for each key.
        if (end <= room) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (list[i] != NO_LIST) {
                    keys[at] = key[i];
                    lists[at] = u16(list[i]);
                    ++at;
                }
            return;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (list[i] == NO_LIST) continue;
            if (at < room) {
                keys[at] = key[i];
                lists[at] = u16(list[i]);
            } else {
                out[starts[list[i]] + atomicAdd(&cursors[list[i]], 1ull)] = key[i];
            }
            ++at;
        }
    }
    // Writes the staged keys to their lists if they are many, or always; by all threads of the block, with a barrier.
    __device__ void flush_if(bool always) {
        const u32 limit = always ? 0 : room / 2;
        if (!__syncthreads_or(*(volatile u32*)staged > limit)) return;
        const u32 count = min(*staged, room);
        u32 place[STAGE_SHARE];
#pragma unroll
        for (u32 j = 0; j < STAGE_SHARE; ++j) {
            const u32 i = j * blockDim.x + threadIdx.x;
            if (i < count) place[j] = atomicAdd(&tally[lists[i]], 1);
            if (j * blockDim.x >= count) break;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < list_count; i += blockDim.x)
            if (tally[i]) {
                origin[i] = starts[i] + atomicAdd(&cursors[i], u64(tally[i]));
                tally[i] = 0;
            }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < STAGE_SHARE; ++j) {
            const u32 i = j * blockDim.x + threadIdx.x;
            if (i < count) out[origin[lists[i]] + place[j]] = keys[i];
            if (j * blockDim.x >= count) break;
        }
        if (threadIdx.x == 0) *staged = 0;
        __syncthreads();
    }
};
