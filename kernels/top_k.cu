// The k greatest keys with their rows (the least with DESCENDING); among equal keys the smaller rows. Order of output free.
//
//   tk_draw       8192 thr.  a small sample
//   tk_coarse     one block  its order statistic: a floor for the large sample
//   tk_sample     grid       a large sample: keys above the floor
//   tk_threshold  one block  its order statistic: a threshold that at least k keys reach, with near certainty
//   tk_filter     grid       the one read: keys above the threshold with their rows; keys equal to it counted by chunk
//   tk_select     one block  the k-th candidate; or which chunks' ties complete the candidates
//   tk_emit       grid       the answer
//
// Where Control::outcome is not 0, the threshold is set to the k-th key itself, found by sample_select.cu, and the last
// three steps run again with one lane of candidates: fewer than k lie above, which fit in any order of rows.
#include "common.cuh"

constexpr u32 FINE_ROOM = 65536;
constexpr u32 CHUNK_VECTORS = 32 * BATCH;
constexpr u64 CHUNK = u64(CHUNK_VECTORS) * VECTOR;
constexpr u32 FILTER_THREADS = 512;
// Candidates go to as many interleaved lanes, each with a counter of its own: one counter would be fought for. Where data
// are periodic, all may come in one lane, which then overflows.
constexpr u32 LANES = 32;

// OVERFLOW: more candidates than room; SHORT: the threshold was too high.
enum Outcome : u32 { OVERFLOW = 1, SHORT = 2 };

struct TieWork {
    u32 chunk, take;
    u64 start;
};

// Zeroed before tk_draw; before the second tk_filter too, with `threshold` set.
struct TopControl {
    u32 outcome, samples, fine, equal;
    u64 candidates, emitted, works;
    u64 more_ties;  // 1 if rows equal to the k-th may have been left out
    Key coarse, threshold, kth;
    Key ceiling;   // fewer than k keys lie above it, with near certainty
    u64 last_row;  // of the candidates equal to kth, those up to this row count
    u64 slots;     // of `keys` that are in use, free ones between them
    u64 lane[LANES * 16];  // candidates of each lane, in a cache line of its own
    u64 near[16];          // in the first: candidates up to the ceiling
    Key sample[PLAN_SAMPLE];
    union {
        Key fine_keys[FINE_ROOM];
        u32 near_slots[FINE_ROOM];  // from tk_filter on: slots of candidates up to the ceiling
    };
};

struct TopQuery {
    Column column;
    u64 k, kept;          // 1 <= k <= kept present rows
    TopControl* control;
    Key* keys;            // candidates, zeroed: 0 is no candidate's key
    u64* rows;
    u64 room;             // >= 2 k, a multiple of LANES
    u16* ties;            // one a chunk, zeroed: rows equal to the threshold
    TieWork* works;       // min(k, chunks)
    Key* out_keys;        // k
    u64* out_rows;
    u64 sample_lines;
    u32 seed;
    float sigmas;
    u32 near_room;        // keys that fit in tk_select's shared memory, at most FINE_ROOM
    u32 lanes;            // in use, a power of two: LANES, or 1 where the threshold is the k-th key
};

extern "C" __constant__ u32 tk_sizes[4] = {sizeof(TopControl), sizeof(TopQuery), sizeof(Key), u32(CHUNK)};

// Keys of a sample of `size` that are as great as the k-th, and some more.
__device__ double wanted_of(const TopQuery& query, double size, double side) {
    const double expected = double(query.k) / double(query.kept) * size;
    return expected + side * (query.sigmas * sqrt(expected) + 8.0);
}

__device__ double sample_size(const TopQuery& query) {
    const SampledLines lines(query.column.rows, query.sample_lines, query.seed);
    return double(lines.count) * 8 * VECTOR * (double(query.kept) / double(query.column.rows));
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_draw(const __grid_constant__ TopQuery query) {
    draw_sample(query.column, PLAN_SAMPLE, query.seed, query.control->sample, &query.control->samples);
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_coarse(const __grid_constant__ TopQuery query) {
    __shared__ SelectScratch<Key> scratch;
    TopControl& control = *query.control;
    const double size = sample_size(query), share = size > 0 ? wanted_of(query, size, 1.0) / size : 1.0;
    const double expected = share * control.samples, from_top = expected + query.sigmas * sqrt(expected) + 4.0;
    if (from_top >= control.samples) return;  // the floor stays 0
    const Key key = block_select([&](u32 i) { return control.sample[i]; }, control.samples, control.samples - 1 - u32(from_top), Key(0),
                                 KEY_BITS, scratch);
    if (threadIdx.x == 0) control.coarse = key;
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_sample(const __grid_constant__ TopQuery query) {
    TopControl& control = *query.control;
    const SampledLines lines(query.column.rows, query.sample_lines, query.seed);
    const Key coarse = control.coarse;
    constexpr int UNROLL = 4;
    const u64 threads = u64(gridDim.x) * THREADS;
    u32 equal = 0;
    for (u64 base = u64(blockIdx.x) * THREADS; base < lines.count * 8; base += threads * UNROLL) {
        Vector vectors[UNROLL];
        bool loaded[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            const u64 item = base + threadIdx.x + j * threads;
            loaded[j] = item < lines.count * 8;
            if (loaded[j]) vectors[j] = load_vector(query.column, lines.vector(item));
        }
#pragma unroll
        for (int j = 0; j < UNROLL; ++j)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const bool present = loaded[j] && has(vectors[j], i);
                const Key key = key_of(vectors[j], i);
                equal += present && key == coarse;
                const u32 above = __ballot_sync(ALL_LANES, present && key > coarse);
                if (!above) continue;
                u32 at = 0;
                if (lane_id() == 0) at = atomicAdd(&control.fine, u32(__popc(above)));
                at = __shfl_sync(ALL_LANES, at, 0) + __popc(above & lanes_below());
                if (above >> lane_id() & 1 && at < FINE_ROOM) control.fine_keys[at] = key;
            }
    }
    equal = warp_sum(equal);
    if (lane_id() == 0 && equal) atomicAdd(&control.equal, equal);
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_threshold(const __grid_constant__ TopQuery query) {
    __shared__ SelectScratch<Key> scratch;
    TopControl& control = *query.control;
    const double size = sample_size(query), surely = wanted_of(query, size, -1.0);
    const u64 wanted = u64(fmax(wanted_of(query, size, 1.0), 0.0));
    const u32 fine = control.fine;
    auto select = [&](u64 from_top) {
        return block_select([&](u32 i) { return control.fine_keys[i]; }, fine, fine - 1 - u32(from_top), Key(0), KEY_BITS, scratch);
    };
    Key threshold = 0, ceiling = MAX_KEY;
    if (fine > FINE_ROOM)
        threshold = MAX_KEY;  // SHORT follows, unless the greatest key alone will do
    else if (wanted < fine)
        threshold = select(wanted);
    else if (wanted < u64(fine) + control.equal)
        threshold = control.coarse;
    if (surely >= 1.0 && surely < fine && fine <= FINE_ROOM) ceiling = select(u64(surely));
    if (threadIdx.x == 0) {
        control.threshold = threshold;
        control.ceiling = ceiling;
    }
}

// ---------------------------------------------------------------- the read

struct Chunk {
    Vector vectors[BATCH];
};

__device__ __forceinline__ u64 row_of(u64 chunk, int v, int i) { return (chunk * CHUNK_VECTORS + v * 32 + lane_id()) * VECTOR + i; }

// Rows past the end are taken as missing.
__device__ __forceinline__ u32 present_rows(const TopQuery& query, const Chunk& loaded, u64 chunk, int v) {
    u32 present = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) present |= u32(has(loaded.vectors[v], i)) << i;
    const u64 first = row_of(chunk, v, 0);
    if (first + VECTOR > query.column.rows) present &= first >= query.column.rows ? 0 : (1u << (query.column.rows - first)) - 1;
    return present;
}

__device__ __forceinline__ Chunk load_chunk(const TopQuery& query, u64 chunk) {
    Chunk loaded;
    const u64 whole = query.column.rows / VECTOR;
#pragma unroll
    for (int v = 0; v < BATCH; ++v) {
        const u64 vector = chunk * CHUNK_VECTORS + v * 32 + lane_id();
        if (vector < whole) {
            loaded.vectors[v] = load_vector(query.column, vector);
        } else {
            // The last vector may reach beyond the buffer: word by word.
            u32 parts[4] = {0, 0, 0, 0};
            u32 present = 0;
            for (int i = 0; i < VECTOR; ++i) {
                const u64 row = vector * VECTOR + i;
                if (row >= query.column.rows) break;
                present |= u32(is_present(query.column, row)) << i;
                const Word word = query.column.values[row];
#if STORAGE_BITS < 32
                parts[i * STORAGE_BITS / 32] |= u32(word) << i * STORAGE_BITS % 32;
#elif STORAGE_BITS == 32
                parts[i] = word;
#elif STORAGE_BITS == 64
                parts[2 * i] = u32(word), parts[2 * i + 1] = u32(word >> 32);
#else
                for (int j = 0; j < 4; ++j) parts[j] = u32(word >> 32 * j);
#endif
            }
            loaded.vectors[v].bits = make_uint4(parts[0], parts[1], parts[2], parts[3]);
#if MASKED
            loaded.vectors[v].present = present;
#endif
        }
    }
    return loaded;
}

__device__ __forceinline__ void take_chunk(const TopQuery& query, const Chunk& loaded, u64 chunk, Key threshold, Key ceiling) {
    TopControl& control = *query.control;
    constexpr u32 NEAR = 1 << 16;
    u32 own = 0, ties = 0, above[BATCH];  // own: candidates, and NEAR for each one up to the ceiling
#pragma unroll
    for (int v = 0; v < BATCH; ++v) {
        const u32 present = present_rows(query, loaded, chunk, v);
        above[v] = 0;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const Key key = key_of(loaded.vectors[v], i);
            const bool is_above = present >> i & 1 && key > threshold;
            above[v] |= u32(is_above) << i;
            own += is_above ? key <= ceiling ? NEAR + 1 : 1 : 0;
            ties += present >> i & 1 && key == threshold;
        }
    }
    u32 before = own;
#pragma unroll
    for (u32 step = 1; step < 32; step <<= 1) {
        const u32 other = __shfl_up_sync(ALL_LANES, before, step);
        if (lane_id() >= step) before += other;
    }
    const u32 lane = (blockIdx.x * (FILTER_THREADS / 32) + threadIdx.x / 32) & (query.lanes - 1);
    u64 at = 0, near = 0;
    if (lane_id() == 31 && before % NEAR) at = atomicAdd(&control.lane[lane * 16], u64(before % NEAR));
    if (lane_id() == 31 && before / NEAR) near = atomicAdd(&control.near[0], u64(before / NEAR));
    at = (__shfl_sync(ALL_LANES, at, 31) + (before - own) % NEAR) * query.lanes + lane;
    near = __shfl_sync(ALL_LANES, near, 31) + (before - own) / NEAR;
#pragma unroll
    for (int v = 0; v < BATCH; ++v)
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
            if (above[v] >> i & 1) {
                const Key key = key_of(loaded.vectors[v], i);
                if (at < query.room) {
                    query.keys[at] = key;
                    query.rows[at] = row_of(chunk, v, i);
                }
                if (key <= ceiling) {
                    if (near < FINE_ROOM) control.near_slots[near] = u32(at);
                    ++near;
                }
                at += query.lanes;
            }
    ties = warp_sum(ties);
    if (lane_id() == 0 && ties) query.ties[chunk] = u16(ties);
}

extern "C" __global__ void __launch_bounds__(FILTER_THREADS, 2) tk_filter(const __grid_constant__ TopQuery query) {
    const Key threshold = query.control->threshold, ceiling = query.control->ceiling;
    const u64 chunks = (query.column.rows + CHUNK - 1) / CHUNK, warps = u64(gridDim.x) * FILTER_THREADS / 32;
    u64 chunk = (u64(blockIdx.x) * FILTER_THREADS + threadIdx.x) / 32;
    Chunk next;
    if (chunk < chunks) next = load_chunk(query, chunk);
    for (; chunk < chunks; chunk += warps) {
        const Chunk now = next;
        if (chunk + warps < chunks) next = load_chunk(query, chunk + warps);
        // Missing rows pass here and are sorted out in the rare path.
        bool any = false;
#pragma unroll
        for (int v = 0; v < BATCH; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) any |= key_of(now.vectors[v], i) >= threshold;
        if (__any_sync(ALL_LANES, any)) take_chunk(query, now, chunk, threshold, ceiling);
    }
}

// ---------------------------------------------------------------- the answer

struct CandidateScratch {
    union {
        SelectScratch<Key> keys;
        SelectScratch<u64> rows;
    };
    u64 partial[33];
};

// The k-th greatest of the `count` keys at(i), which lie in [first, last], and the last row that counts among its equals, of which
// row_at(i) is the row.
template <class At, class RowAt>
__device__ void select_candidate(const TopQuery& query, At at, RowAt row_at, u32 count, u32 k, Key first, Key last, CandidateScratch& scratch) {
    TopControl& control = *query.control;
    const Key kth = select_among(EachAhead<At>{at, count}, count - k, first, key_bits(last - first), scratch.keys);
    __syncthreads();
    u32 greater = 0, equal = 0;
    each_at<8>(at, count, [&](u32, Key key) {
        greater += key > kth;
        equal += key == kth;
    });
    u64 totals;
    block_scan(u64(greater) << 32 | equal, scratch.partial, totals);
    const u32 needed = k - u32(totals >> 32);
    u64 last_row = ~0ull;
    // Rows of other keys are moved beyond all that count.
    auto tied = [&](u32 i) { return at(i) == kth ? row_at(i) : ~0ull; };
    const EachAhead<decltype(tied)> each{tied, count};
    const u32 bits = 64 - __clzll(query.column.rows);
    if (needed < u32(totals)) {
        if (threadIdx.x == 0) scratch.rows.collected = 0;
        __syncthreads();
        last_row = u32(totals) > FEW ? select_among(each, needed - 1, u64(0), bits, scratch.rows) : select_few(each, needed - 1, u64(0), bits, scratch.rows);
    }
    if (threadIdx.x == 0) {
        control.kth = kth;
        control.last_row = last_row;
        control.more_ties = needed < u32(totals);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_select(const __grid_constant__ TopQuery query) {
    __shared__ CandidateScratch scratch;
    extern __shared__ uint4 shared_memory[];
    TopControl& control = *query.control;
    u64 candidates = 0, slots = 0;
    for (u32 lane = 0; lane < query.lanes; ++lane) {
        candidates += control.lane[lane * 16];
        slots = max(slots, control.lane[lane * 16] * query.lanes);
    }
    if (slots > query.room) {
        if (threadIdx.x == 0) control.outcome = OVERFLOW;
        return;
    }
    if (threadIdx.x == 0) {
        control.candidates = candidates;
        control.slots = slots;
    }
    if (candidates >= query.k) {
        // Those above the ceiling are surely among the k.
        const u64 nears = control.near[0], above = candidates - nears;
        if (nears <= query.near_room && above < query.k) {
            Key* near = (Key*)shared_memory;
            each_at<8>([&](u32 i) { return query.keys[control.near_slots[i]]; }, u32(nears), [&](u32 i, Key key) { near[i] = key; });
            __syncthreads();
            select_candidate(query, [&](u32 i) { return near[i]; }, [&](u32 i) { return query.rows[control.near_slots[i]]; }, u32(nears),
                             u32(query.k - above), control.threshold, control.ceiling, scratch);
        } else {
            select_candidate(query, [&](u32 i) { return query.keys[i]; }, [&](u32 i) { return query.rows[i]; }, u32(slots), u32(query.k), Key(0),
                             MAX_KEY, scratch);
        }
        return;
    }
    // All candidates count, and the first ties of the threshold: eight chunks a thread and step.
    const u64 needed = query.k - candidates, chunks = (query.column.rows + CHUNK - 1) / CHUNK;
    if (threadIdx.x == 0) {
        control.kth = 0;
        control.last_row = ~0ull;
    }
    u64 found = 0, base = 0;
    for (; base < chunks && found < needed; base += 8 * THREADS) {
        u32 ties[8];
        u64 own = 0, total;
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const u64 chunk = base + threadIdx.x * 8 + j;
            ties[j] = chunk < chunks ? query.ties[chunk] : 0;
            own += ties[j];
        }
        u64 start = found + block_scan(own, scratch.partial, total);
        for (u32 j = 0; j < 8; ++j) {
            if (ties[j] && start < needed) {
                const u64 take = needed - start < ties[j] ? needed - start : ties[j];
                query.works[atomicAdd(&control.works, 1ull)] = TieWork{u32(base) + threadIdx.x * 8 + j, u32(take), candidates + start};
            }
            start += ties[j];
        }
        found += total;
    }
    if (threadIdx.x == 0) {
        if (found < needed) control.outcome = SHORT;
        // Chunks that were not looked at may have some.
        control.more_ties = found > needed || base < chunks;
    }
}

extern "C" __global__ void __launch_bounds__(FILTER_THREADS) tk_emit(const __grid_constant__ TopQuery query) {
    TopControl& control = *query.control;
    if (control.outcome) return;
    const u64 threads = u64(gridDim.x) * FILTER_THREADS, warps = threads / 32;
    const u64 thread = u64(blockIdx.x) * FILTER_THREADS + threadIdx.x;
    const Key kth = control.kth;
    const u64 last_row = control.last_row, slots = control.slots;
    for (u64 base = thread - lane_id(); base < slots; base += threads) {
        const u64 i = base + lane_id();
        const Key key = i < slots ? query.keys[i] : Key(0);
        const u64 row = key != 0 ? query.rows[i] : 0;
        const bool counts = key != 0 && (key > kth || (key == kth && row <= last_row));
        const u32 all = __ballot_sync(ALL_LANES, counts);
        if (!all) continue;
        u64 at = 0;
        if (lane_id() == 0) at = atomicAdd(&control.emitted, u64(__popc(all)));
        at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
        if (counts) {
            query.out_keys[at] = DESCENDING ? Key(~key) : key;
            query.out_rows[at] = row;
        }
    }
    const Key threshold = control.threshold;
    for (u64 w = thread / 32; w < control.works; w += warps) {
        const TieWork work = query.works[w];
        const Chunk loaded = load_chunk(query, work.chunk);
        u32 seen = 0;
#pragma unroll
        for (int v = 0; v < BATCH; ++v) {
            const u32 present = present_rows(query, loaded, work.chunk, v);
            u32 own = 0;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) own += present >> i & 1 && key_of(loaded.vectors[v], i) == threshold;
            u32 before = own;
#pragma unroll
            for (u32 step = 1; step < 32; step <<= 1) {
                const u32 other = __shfl_up_sync(ALL_LANES, before, step);
                if (lane_id() >= step) before += other;
            }
            u32 rank = seen + before - own;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                if (present >> i & 1 && key_of(loaded.vectors[v], i) == threshold) {
                    if (rank < work.take) {
                        query.out_keys[work.start + rank] = DESCENDING ? Key(~threshold) : threshold;
                        query.out_rows[work.start + rank] = row_of(work.chunk, v, i);
                    }
                    ++rank;
                }
            seen += __shfl_sync(ALL_LANES, before, 31);
        }
    }
}
