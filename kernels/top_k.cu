// The k greatest keys with their rows (the least with DESCENDING); among equal keys the smaller rows. The output has any order.
//
//   tk_draw       8192 thr.  draws a small sample
//   tk_coarse     one block  selects an order statistic of it: a floor for the large sample
//   tk_sample     grid       draws a large sample, and keeps its keys above the floor
//   tk_threshold  2 blocks   selects order statistics of it: a threshold that at least k keys reach, with near certainty, and a ceiling
//                            that fewer than k keys exceed
//   tk_filter     grid       the one read: keeps keys above the threshold with their rows, counts keys equal to it in each chunk
//   tk_select     grid       finds the k-th candidate, or the chunks whose ties complete the candidates
//   tk_emit       grid       writes the answer
//
// If TopControl::outcome is not 0, the host has sample_select.cu find the k-th key, sets the threshold to it, and runs the last three steps
// again; fewer than k keys lie above it.
#include "common.cuh"

constexpr u32 FINE_ROOM = 65536;
constexpr u32 CHUNK_VECTORS = 32 * BATCH;
constexpr u64 CHUNK = u64(CHUNK_VECTORS) * VECTOR;
constexpr u32 FILTER_THREADS = 512;

// OVERFLOW: more candidates than room; SHORT: the threshold was too high.
enum Outcome : u32 { OVERFLOW = 1, SHORT = 2 };

struct TieWork {
    u32 chunk, take;
    u64 start;
};

// Zeroed before tk_draw, and again before a second tk_filter, with `threshold` set.
struct TopControl {
    u32 outcome, samples, fine, equal;
    u64 candidates, emitted, works;
    u64 more_ties;  // 1 if there may be other rows that tie with the k-th
    Key coarse, threshold, kth;
    Key ceiling;   // fewer than k keys lie above it, with near certainty
    u64 last_row;  // candidates equal to `kth` count up to this row
    u32 nears;     // number of candidates up to the ceiling
    u32 listed;    // number of blocks of tk_select that have listed theirs
    Key sample[PLAN_SAMPLE];
    union {
        Key fine_keys[FINE_ROOM];
        Key near_keys[FINE_ROOM];  // in tk_select: candidates up to the ceiling
    };
    u64 near_rows[FINE_ROOM];
};

struct TopQuery {
    Column column;
    u64 k, kept;          // 1 <= k <= kept present rows
    TopControl* control;
    Key* keys;            // candidates
    u64* rows;
    u64 room;             // >= 2 k
    u16* ties;            // for each chunk the number of rows equal to the threshold; zeroed
    TieWork* works;       // min(k, chunks)
    Key* out_keys;        // k
    u64* out_rows;
    u64 sample_lines;
    u32 seed;
    float sigmas;
    u32 near_room;        // keys that fit in tk_select's shared memory, at most FINE_ROOM
};

extern "C" __constant__ u32 tk_sizes[4] = {sizeof(TopControl), sizeof(TopQuery), sizeof(Key), u32(CHUNK)};

// Number of keys in a sample of `size` keys that are at least as great as the k-th, and some more for certainty.
__device__ double wanted_of(const TopQuery& query, double size, double side) {
    const double expected = double(query.k) / double(query.kept) * size;
    return expected + side * (query.sigmas * sqrt(expected) + 8.0);
}

__device__ double sample_size(const TopQuery& query) {
    const SampledLines lines(query.column.rows, query.sample_lines, query.seed);
    return double(lines.count) * 8 * VECTOR * (double(query.kept) / double(query.column.rows));
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_draw(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    draw_sample(query.column, PLAN_SAMPLE, query.seed, query.control->sample, &query.control->samples);
}

// The key of rank `rank`, from 0, among the `count` keys at(i).
template <class At>
__device__ Key select_ahead(At at, u32 count, u32 rank, SelectScratch<Key>& scratch) {
    return select_among(EachAhead<At>{at, count}, rank, Key(0), KEY_BITS, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tk_coarse(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    __shared__ SelectScratch<Key> scratch;
    TopControl& control = *query.control;
    const double size = sample_size(query), share = size > 0 ? wanted_of(query, size, 1.0) / size : 1.0;
    const double expected = share * control.samples, from_top = expected + query.sigmas * sqrt(expected) + 4.0;
    if (from_top >= control.samples) return;  // the floor stays 0
    const Key key = select_ahead([&](u32 i) { return control.sample[i]; }, control.samples, control.samples - 1 - u32(from_top), scratch);
    if (threadIdx.x == 0) control.coarse = key;
}

extern "C" __global__ void __launch_bounds__(THREADS) tk_sample(const __grid_constant__ TopQuery query) {
    after_kernels_before();
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

// The first block finds the threshold, and the second one the ceiling.
extern "C" __global__ void __launch_bounds__(THREADS, 1) tk_threshold(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    __shared__ SelectScratch<Key> scratch;
    TopControl& control = *query.control;
    const double size = sample_size(query), from_top = wanted_of(query, size, blockIdx.x == 0 ? 1.0 : -1.0);
    const u32 fine = control.fine;
    Key key = blockIdx.x == 0 ? Key(0) : MAX_KEY;
    if (fine > FINE_ROOM) {
        key = MAX_KEY;  // SHORT follows, unless the greatest key alone will do
    } else if (from_top < fine && (blockIdx.x == 0 || from_top >= 1.0)) {
        key = select_ahead([&](u32 i) { return control.fine_keys[i]; }, fine, fine - 1 - u32(fmax(from_top, 0.0)), scratch);
    } else if (blockIdx.x == 0 && from_top < double(fine) + control.equal) {
        key = control.coarse;
    }
    if (threadIdx.x == 0) (blockIdx.x == 0 ? control.threshold : control.ceiling) = key;
}

// ---------------------------------------------------------------- the read

struct Chunk {
    Vector vectors[BATCH];
};

__device__ __forceinline__ u64 row_of(u64 chunk, int v, int i) { return (chunk * CHUNK_VECTORS + v * 32 + lane_id()) * VECTOR + i; }

// Rows beyond the end count as missing.
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
    if ((chunk + 1) * CHUNK_VECTORS <= whole) {
#pragma unroll
        for (int v = 0; v < BATCH; ++v) loaded.vectors[v] = load_vector(query.column, chunk * CHUNK_VECTORS + v * 32 + lane_id());
        return loaded;
    }
#pragma unroll
    for (int v = 0; v < BATCH; ++v) {
        const u64 vector = chunk * CHUNK_VECTORS + v * 32 + lane_id();
        if (vector < whole) {
            loaded.vectors[v] = load_vector(query.column, vector);
        } else {
            // The last vector may reach beyond the buffer, so it is read word by word.
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

// Rows of the candidates of a warp. They wait until there are enough to reserve places for all of them at once.
struct Pending {
    u64* rows;  // 64
    u32 held = 0;
    bool full = false;

    __device__ __forceinline__ void put(const TopQuery& query, bool own, u64 row) {
        const u32 all = __ballot_sync(ALL_LANES, own);
        if (own) rows[held + __popc(all & lanes_below())] = row;
        held += __popc(all);
        if (held >= 32) flush(query, 32);
    }
    // The keys are loaded again: they are few, and no thread waits for them.
    __device__ __forceinline__ void flush(const TopQuery& query, u32 count) {
        __syncwarp();
        held -= count;
        if (full) return;
        u64 slot = 0;
        if (lane_id() == 0) slot = atomicAdd(&query.control->candidates, u64(count));
        slot = __shfl_sync(ALL_LANES, slot, 0);
        // tk_select notices that there are too many.
        full = slot + count > query.room;
        if (!full && lane_id() < count) {
            const u64 row = rows[held + lane_id()];
            query.keys[slot + lane_id()] = encode(query.column.values[row]);
            query.rows[slot + lane_id()] = row;
        }
        __syncwarp();
    }
};

__device__ __forceinline__ void take_chunk(const TopQuery& query, const Chunk& loaded, u64 chunk, Key threshold, Pending& pending) {
    static_assert(BATCH * VECTOR <= 32, "a bit for each row");
    u32 above = 0, equal = 0;
#pragma unroll
    for (int v = 0; v < BATCH; ++v) {
        const u32 present = present_rows(query, loaded, chunk, v);
        u32 own_above = 0, own_equal = 0;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const Key key = key_of(loaded.vectors[v], i);
            own_above |= u32(key > threshold) << i;
            own_equal |= u32(key == threshold) << i;
        }
        above |= (own_above & present) << v * VECTOR;
        equal |= (own_equal & present) << v * VECTOR;
    }
    if (__any_sync(ALL_LANES, equal)) {
        const u32 ties = warp_sum(u32(__popc(equal)));
        if (lane_id() == 0) query.ties[chunk] = u16(ties);
    }
    while (__any_sync(ALL_LANES, above)) {
        const u32 first = __ffs(above) - 1;
        pending.put(query, above, row_of(chunk, int(first / VECTOR), int(first % VECTOR)));
        above &= above - 1;
    }
}

extern "C" __global__ void __launch_bounds__(FILTER_THREADS, 2) tk_filter(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    __shared__ u64 rows[FILTER_THREADS / 32][64];
    Pending pending{rows[threadIdx.x / 32]};
    const Key threshold = query.control->threshold;
    const u64 chunks = (query.column.rows + CHUNK - 1) / CHUNK, warps = u64(gridDim.x) * FILTER_THREADS / 32;
    u64 chunk = (u64(blockIdx.x) * FILTER_THREADS + threadIdx.x) / 32;
    Chunk next;
    if (chunk < chunks) next = load_chunk(query, chunk);
    for (; chunk < chunks; chunk += warps) {
        const Chunk now = next;
        if (chunk + warps < chunks) next = load_chunk(query, chunk + warps);
        // Missing rows can pass here; the rare path drops them.
        bool any = false;
#pragma unroll
        for (int v = 0; v < BATCH; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) any |= key_of(now.vectors[v], i) >= threshold;
        if (__any_sync(ALL_LANES, any)) take_chunk(query, now, chunk, threshold, pending);
    }
    if (pending.held) pending.flush(query, pending.held);
}

// ---------------------------------------------------------------- the answer

struct CandidateScratch {
    union {
        SelectScratch<Key> keys;
        SelectScratch<u64> rows;
    };
    u64 partial[33];
};

// The k-th greatest of the `count` keys at(i), which lie in [first, last], and the last row that counts among the rows row_at(i) whose keys
// are equal to it.
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
    // Rows with other keys count as later than all others.
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

// All blocks list the candidates between threshold and ceiling, and the last block to finish selects among them.
extern "C" __global__ void __launch_bounds__(THREADS) tk_select(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    __shared__ CandidateScratch scratch;
    __shared__ u32 before;
    extern __shared__ uint4 shared_memory[];
    TopControl& control = *query.control;
    const u64 candidates = control.candidates;
    if (candidates > query.room) {
        if (threadIdx.x == 0) control.outcome = OVERFLOW;
        return;
    }
    if (candidates >= query.k) {
        const Key ceiling = control.ceiling;
        const u64 threads = u64(gridDim.x) * THREADS;
        for (u64 base = u64(blockIdx.x) * THREADS; base < candidates; base += threads) {
            const u64 slot = base + threadIdx.x;
            const Key key = slot < candidates ? query.keys[slot] : Key(0);
            const bool near = slot < candidates && key <= ceiling;
            const u32 all = __ballot_sync(ALL_LANES, near);
            if (!all) continue;
            u32 at = 0;
            if (lane_id() == 0) at = atomicAdd(&control.nears, u32(__popc(all)));
            at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
            if (near && at < FINE_ROOM) {
                control.near_keys[at] = key;
                control.near_rows[at] = query.rows[slot];
            }
        }
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(&control.listed, 1);
    __syncthreads();
    if (before + 1 < gridDim.x) return;
    __threadfence();
    if (candidates >= query.k) {
        // Candidates above the ceiling are among the k in any case.
        const u32 nears = __ldcg(&control.nears);
        const u64 above = candidates - nears;
        if (nears <= query.near_room && above < query.k) {
            Key* near = (Key*)shared_memory;
            each_at<8>([&](u32 i) { return control.near_keys[i]; }, nears, [&](u32 i, Key key) { near[i] = key; });
            __syncthreads();
            select_candidate(query, [&](u32 i) { return near[i]; }, [&](u32 i) { return control.near_rows[i]; }, nears, u32(query.k - above),
                             control.threshold, control.ceiling, scratch);
        } else {
            select_candidate(query, [&](u32 i) { return query.keys[i]; }, [&](u32 i) { return query.rows[i]; }, u32(candidates), u32(query.k),
                             Key(0), MAX_KEY, scratch);
        }
        return;
    }
    // All candidates count, and the first rows that tie with the threshold. A thread looks at eight chunks in a step.
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
        // Chunks that were not looked at may have such rows.
        control.more_ties = found > needed || base < chunks;
    }
}

extern "C" __global__ void __launch_bounds__(FILTER_THREADS) tk_emit(const __grid_constant__ TopQuery query) {
    after_kernels_before();
    TopControl& control = *query.control;
    if (control.outcome) return;
    const u64 threads = u64(gridDim.x) * FILTER_THREADS, warps = threads / 32;
    const u64 thread = u64(blockIdx.x) * FILTER_THREADS + threadIdx.x;
    const Key kth = control.kth;
    const u64 last_row = control.last_row, candidates = control.candidates;
    for (u64 base = thread - lane_id(); base < candidates; base += threads) {
        const u64 i = base + lane_id();
        const bool there = i < candidates;
        const Key key = there ? query.keys[i] : Key(0);
        const u64 row = there ? query.rows[i] : 0;
        const bool counts = there && (key > kth || (key == kth && row <= last_row));
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
