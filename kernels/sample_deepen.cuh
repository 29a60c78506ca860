// The ranks that are still open: narrower and narrower intervals around them are counted.
#pragma once
#include "sample_answer.cuh"

// ---------------------------------------------------------------- deeper levels

// Shared memory of ss_deepen, whose size depends on the number of ranks and cells. Pieces lie in one array for each member: with an array
// of structures, lanes that look at few pieces would wait for each other.
struct DeepMemory {
    Key *first, *last, *low, *high;
    u64* origin;
    u32 *place, *tally, *table, *counters;
    u32* guide;  // of each cell: index of its first piece, and number of pieces << 16
    __device__ DeepMemory(void* shared, u32 ranks, u32 most_cells) {
        const u32 even = (ranks + 3) & ~3u;
        first = (Key*)shared;
        last = first + even;
        low = last + even;
        high = low + even;
        origin = (u64*)(high + even);
        place = (u32*)(origin + even);
        tally = place + even;
        table = tally + even;
        counters = table + ENTRIES;
        guide = counters + most_cells;
    }
    __device__ __forceinline__ void set(u64 p, const Piece& piece) const {
        first[p] = piece.first;
        last[p] = piece.last;
        low[p] = piece.low;
        high[p] = piece.high;
        place[p] = piece.base << 8 | piece.shift;
    }
    // Index of the last of `count` pieces, from piece `from` on, that begins at or below the key.
    __device__ __forceinline__ u32 find(u32 from, u32 count, Key key) const {
        while (count > 1) {
            const u32 half = count / 2;
            if (first[from + half] <= key) {
                from += half;
                count -= half;
            } else {
                count = half;
            }
        }
        return from;
    }
};

template <bool COPY>
struct Deep {
    CellFunction cell_of;
    const DeepMemory& memory;
    Staging& staging;

    template <int N>
    __device__ __forceinline__ void some(const Key (&keys)[N], u32 present, u64) {
        u32 guide[N], list[N];
#pragma unroll
        for (int i = 0; i < N; ++i) guide[i] = present >> i & 1 ? memory.guide[cell_of(keys[i])] : 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            list[i] = NO_LIST;
            if (guide[i]) {
                const u32 p = memory.find(guide[i] & 0xffff, guide[i] >> 16, keys[i]);
                const Key key = keys[i], low = memory.low[p], high = memory.high[p];
                const u32 place = memory.place[p], shift = place & 0xff;
                u32 inner;
                if (low <= key && key <= high)
                    inner = 1 + u32((key - low) >> shift);
                else if (memory.first[p] <= key && key <= memory.last[p])
                    inner = key < low ? 0 : u32((high - low) >> shift) + 2;
                else
                    continue;
                list[i] = p;
                if (!COPY) atomicAdd(&memory.counters[(place >> 8) + inner], 1);
            }
        }
        if (COPY && N > 1) staging.push(keys, list);
        if (COPY && N == 1) push_alone(keys[0], list[0]);
    }
    // The last rows are visited by single lanes, not by the whole warp.
    __device__ void push_alone(Key key, u32 list) {
        if (list != NO_LIST) staging.out[staging.starts[list] + atomicAdd(&staging.cursors[list], 1ull)] = key;
    }
    __device__ __forceinline__ void batch() {
        if (COPY) staging.flush_if(false);
    }
};

// Finds the distinct intervals of the open ranks, and divides them into sub-cells by their counts, or plans their lists if they have few
// keys; by one block. Sub-cells lie between the least and the greatest sampled key of an interval, so that a cluster far narrower than
// its cell is resolved at once.
__device__ void plan_pieces(const Query& query, Control& control, const DeepMemory& memory) {
    __shared__ u64 partial[33];
    const u32 r = threadIdx.x;
    const bool open = r < query.rank_count && control.targets[r].where == OPEN;
    const Target target = open ? control.targets[r] : Target{};
    const bool head = open && !(r > 0 && control.targets[r - 1].where == OPEN && control.targets[r - 1].first == target.first);
    u64 pieces, all;
    const u64 p = block_scan(u64(head), partial, pieces) - (head ? 0 : 1);
    const u64 start = block_scan(head ? target.count : 0ull, partial, all);
    const bool copy = all <= query.list_room && (all <= query.kept / DEEP_SHARE || all <= 65536);
    if (head) {
        memory.set(p, Piece{target.first, target.last, MAX_KEY, 0});
    }
    __syncthreads();
#if KEY_BITS <= 64
    if (pieces)
        for (u32 i = r; i < control.samples; i += THREADS) {
            const Key key = control.sample[i];
            const u32 at = memory.find(0, u32(pieces), key);
            if (key < memory.first[at] || key > memory.last[at]) continue;
            atomicMin(&memory.low[at], key);
            atomicMax(&memory.high[at], key);
        }
    __syncthreads();
#endif
    u32 cells = 0, shift = 0;
    Key low = target.first, high = target.last;
    u32 share = 0, width = 0;
    if (head) {
        if (memory.low[p] <= memory.high[p]) low = memory.low[p], high = memory.high[p];
        // Rounded down, a piece has at most 2 sub-cells more than its share.
        const u32 spare = max(query.cells / 2, query.cells - min(query.cells, 4 * u32(pieces)));
        share = max(u32(double(target.count) / double(all) * spare), 2u);
        width = key_bits(high - low);
    }
    // Rounded up, sub-cells fit if some pieces are narrower than their shares.
    u64 base, total;
    for (u32 up = 1;; up = 0) {
        shift = width - min(bits_of(share) - 1 + up, width);
        cells = head ? u32((high - low) >> shift) + 3 : 0;
        base = block_scan(u64(cells), partial, total);
        if (total <= query.cells || up == 0) break;
    }
    if (head) {
        control.piece[p] = Piece{target.first, target.last, low, high, target.count, u32(base), shift, cells, target.cell};
        control.list_start[p] = start;
        control.list_cursor[p] = 0;
    }
    if (open) control.targets[r].list = u32(p);
    for (u32 i = threadIdx.x; i < MOST_SUBCELLS; i += THREADS) control.sub_counts[i] = 0;
    if (r == 0) {
        control.pieces = u32(pieces);
        control.deep_copy = copy;
        control.outcome |= DEEPENED;
    }
}

// Moves each open rank to the sub-cell that holds it; by one block.
__device__ void narrow_targets(const Query& query, Control& control, u64* before) {
    __shared__ u64 partial[33];
    for (u32 c = threadIdx.x; c < query.cells; c += THREADS) before[c] = control.sub_counts[c];
    __syncthreads();
    sums_before(before, OwnPlaces(query.cells), partial);
    __syncthreads();
    const u32 r = threadIdx.x;
    if (r >= query.rank_count || control.targets[r].where != OPEN) return;
    Target target = control.targets[r];
    const Piece piece = control.piece[target.list];
    const u64 rank = before[piece.base] + target.inner;
    const u32 at = piece.base + last_at_most(before + piece.base, piece.cells, rank), inner = at - piece.base;
    target.inner = rank - before[at];
    target.count = control.sub_counts[at];
    if (inner == 0) {
        target.last = piece.low - 1;
    } else if (inner + 1 == piece.cells) {
        target.first = piece.high + 1;
    } else {
        target.first = piece.low + (Key(inner - 1) << piece.shift);
        const Key last = target.first + ((Key(1) << piece.shift) - 1);
        target.last = last < target.first || last > piece.high ? piece.high : last;
    }
    if (target.first == target.last) {
        target.where = ANSWERED;
        query.answers[r] = target.first;
    }
    control.targets[r] = target;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_deepen(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 staged;
    Control& control = *query.control;
    if (control.open == 0 || control.outcome & MISMATCH) return;
    GridBarrier barrier(&control.barrier);
    const u32 cells = control.cells;
    const DeepMemory memory(shared_memory, query.rank_count, query.cells);
    for (;;) {
        if (blockIdx.x == 0) plan_pieces(query, control, memory);
        barrier.wait();
        const u32 pieces = control.pieces;
        if (pieces == 0) break;
        const CellFunction cell_of(control, memory.table);
        for (u32 c = threadIdx.x; c < cells; c += THREADS) memory.guide[c] = 0;
        for (u32 c = threadIdx.x; c < query.cells; c += THREADS) memory.counters[c] = 0;
        __syncthreads();
        for (u32 p = threadIdx.x; p < pieces; p += THREADS) {
            const Piece piece = control.piece[p];
            memory.set(p, piece);
            const bool leads = p == 0 || control.piece[p - 1].cell != piece.cell;
            atomicAdd(&memory.guide[piece.cell], (1u << 16) + (leads ? p : 0));
        }
        // Staged keys lie in the counters of sub-cells, which are not used while keys are copied.
        const u32 room = min(query.cells * 4 / u32(sizeof(Key) + sizeof(u16)), STAGE_SHARE * THREADS) & ~7u;
        Staging staging{(Key*)memory.counters, (u16*)((Key*)memory.counters + room), memory.tally, memory.origin, &staged, room,
                        pieces, control.list_start, control.list_cursor, query.listed};
        staging.begin();
        if (control.deep_copy) {
            Deep<true> deep{cell_of, memory, staging};
            stream(query.column, deep);
            staging.flush_if(true);
            barrier.wait();
            for (u32 r = blockIdx.x; r < query.rank_count; r += gridDim.x) {
                const Target target = control.targets[r];
                if (target.where != OPEN) continue;
                const Key* list = query.listed + control.list_start[target.list];
                const Key key = block_select([&](u32 i) { return list[i]; }, u32(target.count), u32(target.inner), target.first,
                                             key_bits(target.last - target.first), *(SelectScratch<Key>*)shared_memory);
                if (threadIdx.x == 0) query.answers[r] = key;
            }
            break;
        }
        Deep<false> deep{cell_of, memory, staging};
        stream(query.column, deep);
        __syncthreads();
        for (u32 c = threadIdx.x; c < query.cells; c += THREADS)
            if (memory.counters[c]) atomicAdd(&control.sub_counts[c], u64(memory.counters[c]));
        barrier.wait();
        if (blockIdx.x == 0) narrow_targets(query, control, (u64*)shared_memory);
        __syncthreads();
    }
}
