// The one read of a column, or the second: counts the keys of all cells, copies those of flagged ones.
#pragma once
#include "sample_cells.cuh"
#include "sample_plan.cuh"

// ---------------------------------------------------------------- the read

// Shared memory of both reads: what has a fixed place first, then the counters and `depth` keys a thread.
struct PassMemory {
    Key heavy[HEAVY_SLOTS];
    u32 heavy_count[HEAVY_SLOTS];
    u32 table[ENTRIES];
    u32 counters[1];
};

template <u32 MODE>
struct Pass {
    CellFunction cell_of;
    PassMemory& memory;
    Key* columns;  // keys held back: of one thread THREADS apart
    u32* filled;   // shared: keys in this block's region
    Key* out;
    u32 region, limit, multiplier, held;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        u32 cell[N], flag[N], slot[N];
        bool heavy[N];
#pragma unroll
        for (int i = 0; i < N; ++i) cell[i] = cell_of(keys[i]);
        if (MODE == COUNT_COPY_HEAVY || MODE == COPY_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                slot[i] = heavy_slot(keys[i], multiplier);
                heavy[i] = memory.heavy[slot[i]] == keys[i];
            }
        }
        if (MODE == COUNT_COPY) {
#pragma unroll
            for (int i = 0; i < N; ++i) flag[i] = present >> i & 1 ? atomicAdd(&memory.counters[cell[i]], 1) : 0;
        } else if (MODE != COUNT_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) flag[i] = present >> i & 1 ? *(volatile u32*)&memory.counters[cell[i]] : 0;
        }
        if (MODE == COUNT_ONLY || MODE == COUNT_COPY_REPEATED || MODE == COUNT_COPY_HEAVY) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (present >> i & 1) {
                    u32* counter = &memory.counters[cell[i]];
                    if (MODE == COUNT_COPY_HEAVY && heavy[i]) counter = &memory.heavy_count[slot[i]];
                    atomicAdd(counter, 1);
                }
        }
        if (MODE != COUNT_ONLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                bool wanted = int(flag[i]) < 0;
                if (MODE == COUNT_COPY_HEAVY || MODE == COPY_ONLY) wanted = wanted && !heavy[i];
                if (wanted) {
                    columns[held] = keys[i];
                    held += THREADS;
                }
            }
        }
    }
    __device__ __forceinline__ void batch() {
        if (MODE != COUNT_ONLY && __any_sync(ALL_LANES, held > limit)) flush();
    }
    // Row by row of the warp's columns, so that neighbours write neighbours.
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

// The visitor of ONE_BRACKET.
struct OneBracket {
    Pass<COUNT_COPY> pass;
    Key first, width;
    u32 below, above;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        bool inside[N], any = false;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            inside[i] = present >> i & 1 && Key(keys[i] - first) <= width;
            any |= inside[i];
            below += present >> i & 1 && keys[i] < first;
            above += present >> i & 1 && keys[i] >= first && !inside[i];
        }
        if (any)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (inside[i]) {
                    atomicAdd(&pass.memory.counters[pass.cell_of(keys[i])], 1);
                    pass.columns[pass.held] = keys[i];
                    pass.held += THREADS;
                }
    }
    __device__ __forceinline__ void batch() { pass.batch(); }
};

template <u32 MODE>
__device__ __forceinline__ void run_pass(const Query& query, const CellFunction& cell_of, PassMemory& memory, u32* filled) {
    Key* columns = (Key*)(memory.counters + query.cells);
    Pass<MODE> pass{cell_of, memory, columns, filled, query.copied + query.region * blockIdx.x, u32(query.region),
                    (query.depth - BATCH * VECTOR) * THREADS + threadIdx.x, query.control->heavy_multiplier | LEAST_MULTIPLIER,
                    threadIdx.x};
    if constexpr (MODE == ONE_BRACKET) {
        const Control& control = *query.control;
        OneBracket one{{cell_of, memory, columns, filled, pass.out, pass.region, pass.limit, 0, threadIdx.x},
                       control.bracket_first, control.bracket_last - control.bracket_first, 0, 0};
        stream(query.column, one);
        one.pass.flush();
        one.below = warp_sum(one.below);
        one.above = warp_sum(one.above);
        // All keys outside are put into the cells beside the bracket: only the sums matter.
        if (lane_id() == 0 && one.below) atomicAdd(&memory.counters[control.bracket_cells[0] - 1], one.below);
        if (lane_id() == 0 && one.above) atomicAdd(&memory.counters[control.bracket_cells[1] + 1], one.above);
    } else {
        stream(query.column, pass);
        if (MODE != COUNT_ONLY) pass.flush();
    }
}

// Counters begin with their flags; a free slot of the heavy keys holds a key of another slot: no key at all could mark it.
__device__ __forceinline__ void load_pass(const Query& query, PassMemory& memory, u32* filled) {
    const Control& control = *query.control;
    for (u32 i = threadIdx.x; i < control.cells; i += THREADS) memory.counters[i] = control.flags[i];
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS) {
        memory.heavy[i] = control.heavy_used[i] ? control.heavy[i] : Key(i == 0);
        memory.heavy_count[i] = 0;
    }
    if (threadIdx.x == 0) *filled = u32(control.filled[blockIdx.x]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_count(const __grid_constant__ Query query) {
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
    else if (mode == ONE_BRACKET)
        run_pass<ONE_BRACKET>(query, cell_of, memory, &filled);
    else if (mode == COUNT_COPY_REPEATED)
        run_pass<COUNT_COPY_REPEATED>(query, cell_of, memory, &filled);
    else
        run_pass<COUNT_COPY_HEAVY>(query, cell_of, memory, &filled);
    __syncthreads();
    const u32 cells = control.cells;
    for (u32 i = threadIdx.x; i < cells; i += THREADS)
        if (const u32 count = memory.counters[i] & ~FLAG) atomicAdd(&control.counts[i], u64(count));
    for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
        if (memory.heavy_count[i]) atomicAdd(&control.heavy_counts[i], u64(memory.heavy_count[i]));
    if (threadIdx.x == 0) control.filled[blockIdx.x] = filled;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_extract(const __grid_constant__ Query query) {
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
