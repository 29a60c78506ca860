// The read of a column: counts the keys of all cells and copies those of flagged cells. A second read only copies.
#pragma once
#include "sample_cells.cuh"
#include "sample_plan.cuh"

// ---------------------------------------------------------------- the read

// Shared memory of both reads: first the members with a fixed place, then the counters, and `depth` keys for each thread.
struct PassMemory {
    struct alignas(2 * sizeof(Key) < 16 ? 2 * sizeof(Key) : 16) Set {
        Key first, second;
    } heavy[HEAVY_SETS];
    u32 heavy_count[HEAVY_SLOTS];
    u32 table[ENTRIES];
    u32 counters[1];

    // The slot of a heavy key; HEAVY_SLOTS for other keys.
    __device__ __forceinline__ u32 slot_of(Key key, u32 multiplier) const {
        const u32 set = heavy_set(key, multiplier);
        const Set both = heavy[set];
        return key == both.first ? 2 * set : key == both.second ? 2 * set + 1 : HEAVY_SLOTS;
    }
};

template <u32 MODE>
struct Pass {
    CellFunction cell_of;
    PassMemory& memory;
    Key* columns;  // keys held back; those of one thread are THREADS apart
    u32* filled;   // shared: number of keys in this block's region
    Key* out;
    u32 region, limit, multiplier;
    Key known;
    u32 held;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        constexpr bool FIRST = MODE == COUNT_COPY_HEAVY, LATER = MODE == COUNT_COPY_SOME_HEAVY || MODE == COPY_ONLY;
        constexpr bool RETURNS = MODE == COUNT_COPY || MODE == COUNT_COPY_SOME_HEAVY || MODE == COUNT_COPY_KNOWN;
        u32 cell[N], flag[N], slot[N];
        bool others = !FIRST;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            slot[i] = FIRST ? memory.slot_of(keys[i], multiplier) : HEAVY_SLOTS;
            others |= slot[i] == HEAVY_SLOTS;
            cell[i] = flag[i] = 0;
        }
        if (others) {
#pragma unroll
            for (int i = 0; i < N; ++i) cell[i] = slot[i] < HEAVY_SLOTS ? 0 : cell_of(keys[i]);
            if (RETURNS) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    u32* counter = &memory.counters[cell[i]];
                    // Each lane has a counter of its own, because lanes would wait for each other.
                    if (MODE == COUNT_COPY_KNOWN && keys[i] == known) counter = &memory.heavy_count[lane_id()];
                    flag[i] = present >> i & 1 ? atomicAdd(counter, 1) : 0;
                }
            } else if (MODE != COUNT_ONLY) {
#pragma unroll
                for (int i = 0; i < N; ++i)
                    flag[i] = present >> i & 1 && slot[i] == HEAVY_SLOTS ? *(volatile u32*)&memory.counters[cell[i]] : 0;
            }
        }
        if (!RETURNS && MODE != COPY_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (present >> i & 1) {
                    u32* counter = &memory.counters[cell[i]];
                    if (FIRST && slot[i] < HEAVY_SLOTS) counter = &memory.heavy_count[slot[i]];
                    atomicAdd(counter, 1);
                }
        }
        if (LATER) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (int(flag[i]) < 0) {
                    slot[i] = memory.slot_of(keys[i], multiplier);
                    if (slot[i] == HEAVY_SLOTS) continue;
                    flag[i] = 0;
                    if (RETURNS) atomicAdd(&memory.heavy_count[slot[i]], 1);  // and in its cell; see ss_count
                }
        }
        if (MODE != COUNT_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (int(flag[i]) < 0) {
                    columns[held] = keys[i];
                    held += THREADS;
                }
        }
    }
    __device__ __forceinline__ void batch() {
        if (MODE != COUNT_ONLY && __any_sync(ALL_LANES, held > limit)) flush();
    }
    // Writes row by row of the keys held back, so that neighbouring lanes write neighbouring places.
    __device__ __forceinline__ void flush() {
        const u32 count = held / THREADS, all = warp_sum(count);
        u32 at = 0;
        if (lane_id() == 0) at = atomicAdd(filled, all);
        at = __shfl_sync(ALL_LANES, at, 0);
        for (u32 d = 0;; ++d) {
            const u32 active = __ballot_sync(ALL_LANES, d < count);
            if (!active) break;
            const u32 place = at + __popc(active & lanes_below());
            if (d < count && place < region) out[place] = columns[d * THREADS + threadIdx.x];
            at += __popc(active);
        }
        held = threadIdx.x;
    }
};

// The visitor for a single rank, with KNOWN known keys.
template <int KNOWN>
struct OneBracket {
    Pass<COUNT_COPY> pass;
    Key first, width;
    Key known[MOST_KNOWN];
    u32 below, above, equal[MOST_KNOWN];
    bool heavies;

    __device__ OneBracket(const Pass<COUNT_COPY>& pass, const Control& control)
        : pass(pass), first(control.bracket_first), width(control.bracket_last - control.bracket_first), below(0), above(0), heavies(control.heavies > 0) {
#pragma unroll
        for (int k = 0; k < KNOWN; ++k) {
            known[k] = control.known[k];
            equal[k] = 0;
        }
    }
    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        bool inside[N], any = false;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            inside[i] = present >> i & 1 && Key(keys[i] - first) <= width;
            below += present >> i & 1 && keys[i] < first;
            above += present >> i & 1 && keys[i] >= first && !inside[i];
#pragma unroll
            for (int k = 0; k < KNOWN; ++k) {
                const bool is_known = inside[i] && keys[i] == known[k];
                equal[k] += is_known;
                inside[i] = inside[i] && !is_known;
            }
            any |= inside[i];
        }
        if (any)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (inside[i]) {
                    const u32 slot = heavies ? pass.memory.slot_of(keys[i], pass.multiplier) : HEAVY_SLOTS;
                    u32* counter = slot < HEAVY_SLOTS ? &pass.memory.heavy_count[slot] : &pass.memory.counters[pass.cell_of(keys[i])];
                    const bool wanted = slot == HEAVY_SLOTS && int(*(volatile u32*)counter) < 0;
                    atomicAdd(counter, 1);
                    if (wanted) {
                        pass.columns[pass.held] = keys[i];
                        pass.held += THREADS;
                    }
                }
    }
    __device__ __forceinline__ void batch() { pass.batch(); }
    // All keys outside are counted in the cells next to the bracket, because only the sums matter.
    __device__ void finish(const Control& control) {
        pass.flush();
        add(pass.memory.counters + control.bracket_cells[0] - 1, below);
        add(pass.memory.counters + control.bracket_cells[1] + 1, above);
#pragma unroll
        for (int k = 0; k < KNOWN; ++k) {
            const u32 slot = control.known_slot[k];
            add(slot < HEAVY_SLOTS ? pass.memory.heavy_count + slot : pass.memory.counters + pass.cell_of(known[k]), equal[k]);
        }
    }
    static __device__ void add(u32* counter, u32 own) {
        const u32 all = warp_sum(own);
        if (lane_id() == 0 && all) atomicAdd(counter, all);
    }
};

template <u32 MODE>
__device__ __forceinline__ Pass<MODE> pass_of(const Query& query, const CellFunction& cell_of, PassMemory& memory, u32* filled) {
    Key* columns = (Key*)(memory.counters + query.cells);
    return {cell_of, memory, columns, filled, query.copied + query.region * blockIdx.x, u32(query.region),
            (query.depth - BATCH * VECTOR) * THREADS + threadIdx.x, query.control->heavy_multiplier | LEAST_MULTIPLIER,
            query.control->known[0], threadIdx.x};
}

template <u32 MODE>
__device__ __forceinline__ void run_pass(const Query& query, const CellFunction& cell_of, PassMemory& memory, u32* filled) {
    Pass<MODE> pass = pass_of<MODE>(query, cell_of, memory, filled);
    stream(query.column, pass);
    if (MODE != COUNT_ONLY) pass.flush();
}

template <int KNOWN>
__device__ __forceinline__ void run_one(const Query& query, const CellFunction& cell_of, PassMemory& memory, u32* filled) {
    OneBracket<KNOWN> one(pass_of<COUNT_COPY>(query, cell_of, memory, filled), *query.control);
    stream(query.column, one);
    one.finish(*query.control);
}

// Fills the shared memory. Counters start with their flags. A free slot for heavy keys holds a key of another set, because every key is
// possible and none is left to mark it.
__device__ __forceinline__ void load_pass(const Query& query, PassMemory& memory, u32* filled) {
    const Control& control = *query.control;
    for (u32 i = threadIdx.x; i < control.cells; i += THREADS) memory.counters[i] = control.flags[i];
    Key* heavy = &memory.heavy[0].first;
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS) {
        heavy[i] = control.heavy_used[i] ? control.heavy[i] : Key(i < 2);
        memory.heavy_count[i] = 0;
    }
    if (threadIdx.x == 0) *filled = u32(control.filled[blockIdx.x]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_count(const __grid_constant__ Query query) {
    after_kernels_before();
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 filled;
    Control& control = *query.control;
    PassMemory& memory = *(PassMemory*)shared_memory;
    const CellFunction cell_of(control, memory.table);
    load_pass(query, memory, &filled);
    const u32 mode = control.mode;
    if (mode == COUNT_COPY)
        run_pass<COUNT_COPY>(query, cell_of, memory, &filled);
    else if (mode == COUNT_ONLY)
        run_pass<COUNT_ONLY>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_REPEATED)
        run_pass<COUNT_COPY_REPEATED>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_HEAVY)
        run_pass<COUNT_COPY_HEAVY>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_SOME_HEAVY)
        run_pass<COUNT_COPY_SOME_HEAVY>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_KNOWN)
        run_pass<COUNT_COPY_KNOWN>(query, cell_of, memory, &filled);
    else if (mode == ONE_BRACKET)
        run_one<0>(query, cell_of, memory, &filled);
    else
        run_one<MOST_KNOWN>(query, cell_of, memory, &filled);
    __syncthreads();
    if (mode == COUNT_COPY_SOME_HEAVY) {
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
            if (memory.heavy_count[i]) atomicSub(&memory.counters[cell_of(control.heavy[i])], memory.heavy_count[i]);
        __syncthreads();
    }
    if (mode == COUNT_COPY_KNOWN) {
        if (threadIdx.x < 32) {
            const u32 all = warp_sum(memory.heavy_count[threadIdx.x]);
            memory.heavy_count[threadIdx.x] = 0;
            __syncwarp();
            if (threadIdx.x == 0) memory.heavy_count[control.known_slot[0]] = all;
        }
        __syncthreads();
    }
    const u32 cells = control.cells;
    for (u32 i = threadIdx.x; i < cells; i += THREADS)
        if (const u32 count = memory.counters[i] & ~FLAG) atomicAdd(&control.counts[i], u64(count));
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
        if (memory.heavy_count[i]) atomicAdd(&control.heavy_counts[i], u64(memory.heavy_count[i]));
    if (threadIdx.x == 0) control.filled[blockIdx.x] = filled;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_extract(const __grid_constant__ Query query) {
    after_kernels_before();
    if (query.control->second_copy == 0) return;
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 filled;
    Control& control = *query.control;
    PassMemory& memory = *(PassMemory*)shared_memory;
    const CellFunction cell_of(control, memory.table);
    load_pass(query, memory, &filled);
    run_pass<COPY_ONLY>(query, cell_of, memory, &filled);
    __syncthreads();
    if (threadIdx.x == 0) control.filled[blockIdx.x] = filled;
}
