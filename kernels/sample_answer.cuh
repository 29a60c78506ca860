// From counts and copied keys to the exact cell of each rank, a list for each such cell, and the key in its list.
#pragma once
#include "sample_cells.cuh"
#include "sample_devices.cuh"

// ---------------------------------------------------------------- exact cells

// Finds the cell that holds rank `r`, its place there, and its key if the cell has only one. `flagged`: whether the first read copied the
// keys of the cell.
__device__ __forceinline__ void locate_rank(const Query& query, const Control& control, const u32* first_cell, const u64* before, u32 cells,
                                            u64 total, u32 r, u32 (&rank_cell)[MOST_RANKS], Target& target, bool& flagged) {
    const u64 rank = query.ranks[r];
    const u32 cell = last_at_most(before, cells, rank);
    target.cell = cell;
    target.inner = rank - before[cell];
    target.count = (cell + 1 < cells ? before[cell + 1] : total) - before[cell];
    cell_range(control, first_cell, cell, target.first, target.last);
    target.where = target.first == target.last ? ANSWERED : OPEN;
    flagged = control.flags[cell] != 0;
    rank_cell[r] = cell;
    if (target.where == ANSWERED) query.answers[r] = target.first;
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_resolve(const __grid_constant__ Query query) {
    after_kernels_before();
    extern __shared__ uint4 shared_memory[];
    __shared__ u64 partial[33];
    __shared__ u32 table[ENTRIES], first_cell[ENTRIES + 1], rank_cell[MOST_RANKS];
    __shared__ u16 head_list[MOST_RANKS];
    Control& control = *query.control;
    u64* before = (u64*)shared_memory;  // cells: keys below each cell
    const CellFunction cell_of(control, table);
    load_first_cells(control, first_cell);
    const u32 cells = control.cells;
    const u64 *counts = counts_of_all(query), *heavy_counts = heavy_counts_of_all(query);
    if (query.devices == 1) {
        each_of(counts, cells, [&](u64 cell, u64 count) { before[cell] = count; });
    } else if (!add_counts(query, before)) {
        if (threadIdx.x == 0) control.open = query.rank_count;
        return;
    }
    __syncthreads();
    if (control.heavies)
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
            if (heavy_counts[i]) atomicAdd(&before[cell_of(control.heavy[i])], heavy_counts[i]);
    __syncthreads();
    const OwnPlaces places(cells);
    u64 copied;
    block_scan(threadIdx.x < query.regions ? control.filled[threadIdx.x] : 0, partial, copied);
    const u64 total = sums_before(before, places, partial);
    if (total != query.kept) {
        if (threadIdx.x == 0) control.outcome = MISMATCH;
        return;
    }
    __syncthreads();
    if (control.mode == ONE_BRACKET || control.mode == ONE_BRACKET_KNOWN) {
        // Outside of the bracket only the sums of counts are right.
        const u32 cell = last_at_most(before, cells, query.ranks[0]);
        if (cell < control.bracket_cells[0] || cell > control.bracket_cells[1]) {
            if (threadIdx.x == 0) control.outcome = OUTSIDE;
            return;
        }
    }
    // Each thread has a rank. Ranks are ascending, so those of one cell are neighbours and share a list.
    const u32 r = threadIdx.x;
    const bool is_rank = r < query.rank_count;
    Target target = {};
    bool flagged = false;
    if (is_rank) locate_rank(query, control, first_cell, before, cells, total, r, rank_cell, target, flagged);
    __syncthreads();
    for (u32 c = threadIdx.x; c < cells; c += THREADS) control.flags[c] = 0;
    const bool head = is_rank && target.where == OPEN && (r == 0 || rank_cell[r - 1] != target.cell);
    // The number of keys to be copied: heavy keys are not in `counts`. A cell that is too full for one block is left to ss_deepen.
    const u64 expected = head ? counts[target.cell] : 0;
    const u64 most = max(query.kept / HOT_SHARE, u64(1 << 16));
    const bool fine = head && expected <= (query.devices == 1 ? most : most * query.devices * SPREAD_SHARE);
    u64 second;
    const u64 second_before = block_scan(fine && !flagged ? expected : 0ull, partial, second);
    const u64 room = query.region * query.regions, free = room > copied ? room - copied : 0;
    const bool candidate = fine && (flagged || query.devices > 1 || second_before + expected <= free / 4 * 3);
    // Several devices decide alike, and do not run ss_deepen. If one of them has no room for a list, its ranks stay open later.
    const u64 local = candidate ? control.counts[target.cell] : 0;
    const u64 start = block_scan(local, partial, second);
    const bool fits = start + local <= query.list_room, listed = candidate && (fits || query.devices > 1);
    // The numbers of heads and of lists before this one, in one scan.
    u64 numbers;
    const u64 number = block_scan(u64(head) << 32 | u64(listed), partial, numbers);
    const u32 list = u32(number), list_head = u32(number >> 32) + head - 1;
    if (head) head_list[list_head] = u16(listed ? list : NO_LIST);
    if (listed) {
        control.list_start[list] = start;
        control.list_expected[list] = fits ? local : NO_ROOM;
        control.list_cell[list] = target.cell;
        // The second read copies the cells that the first one did not copy.
        if (!flagged && expected) {
            control.flags[target.cell] = FLAG;
            atomicAdd(&control.second_copy, expected);
            atomicOr(&control.outcome, MISSED);
        }
    }
    __syncthreads();
    if (is_rank) {
        if (target.where == OPEN) {
            target.list = head_list[list_head];
            if (target.list != NO_LIST)
                target.where = LISTED;
            else
                atomicAdd(&control.open, 1);
        }
        control.targets[r] = target;
    }
    if (threadIdx.x == 0) {
        control.lists = u32(numbers);
    }
}

// ---------------------------------------------------------------- lists

// One block for each region.
extern "C" __global__ void __launch_bounds__(THREADS, 1) ss_refine(const __grid_constant__ Query query) {
    after_kernels_before();
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 staged, tally[MOST_RANKS];
    __shared__ u64 origin[MOST_RANKS];
    Control& control = *query.control;
    const u32 cells = control.cells, lists = control.lists;
    const u32 filled = u32(min(control.filled[blockIdx.x], query.region));
    if (lists == 0 || filled == 0) return;
    constexpr u32 WIDE = sizeof(uint4) / sizeof(Key), UNROLL = 4;
    const u32 vectors = filled / WIDE + (filled % WIDE > 0);
    const uint4* source = (const uint4*)(query.copied + query.region * blockIdx.x);
    uint4 next[UNROLL];
    auto load = [&](u32 base) {
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (base + j * THREADS + threadIdx.x < vectors) next[j] = __ldcs(source + base + j * THREADS + threadIdx.x);
    };
    load(0);
    Key* keys = (Key*)shared_memory;
    u32* table = (u32*)(keys + query.stage);
    u16* list_of = (u16*)(table + ENTRIES);
    u16* staged_lists = list_of + query.cells;
    const CellFunction cell_of(control, table);
    for (u32 c = threadIdx.x; c < cells; c += THREADS) list_of[c] = u16(NO_LIST);
    Staging staging{keys, staged_lists, tally, origin, &staged, query.stage, lists, control.list_start, control.list_cursor, query.listed};
    staging.begin();
    for (u32 i = threadIdx.x; i < lists; i += THREADS)
        if (control.list_expected[i] != NO_ROOM) list_of[control.list_cell[i]] = u16(i);
    __syncthreads();
    for (u32 base = 0; base < vectors; base += THREADS * UNROLL) {
        uint4 now[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) now[j] = next[j];
        load(base + THREADS * UNROLL);
        // At most 8 keys of each thread between flushes, so that staged keys have room even if all keys go to lists.
        constexpr u32 JOINED = WIDE >= 4 ? 2 : 4;
#pragma unroll
        for (u32 j = 0; j < UNROLL; j += JOINED) {
            Key values[JOINED * WIDE];
            u32 list[JOINED * WIDE];
#pragma unroll
            for (u32 i = 0; i < JOINED * WIDE; ++i) {
                values[i] = raw_key(now[j + i / WIDE], i % WIDE);
                list[i] = list_of[cell_of(values[i])];
            }
#pragma unroll
            for (u32 v = 0; v < JOINED; ++v) {
                const u32 vector = base + (j + v) * THREADS + threadIdx.x, left = vector < vectors ? filled - vector * WIDE : 0;
#pragma unroll
                for (u32 i = 0; i < WIDE; ++i)
                    if (i >= left) list[v * WIDE + i] = NO_LIST;
            }
            staging.push(values, list);
            staging.flush_if(false);
        }
    }
    staging.flush_if(true);
}

// ---------------------------------------------------------------- answers

// The key of a rank among the `count` keys that each() visits and the heavy keys of its cell, which are counted but not listed. Only keys
// in the range of the target count.
template <class Each>
__device__ Key select_target(const Query& query, const Target& target, Each each, u64 count, SelectScratch<Key>& scratch) {
    __shared__ Key heavy[HEAVY_ROUNDS];
    __shared__ u64 heavy_count[HEAVY_ROUNDS];
    __shared__ u32 heavies, less[HEAVY_ROUNDS];
    const Control& control = *query.control;
    const u64* heavy_counts = heavy_counts_of_all(query);
    u64 inner = target.inner;
    __syncthreads();
    // The first and the last key of a cell need no selection. Those of the column lie in cells that hold all keys outside of the sample.
    if (inner == 0 || inner + 1 == target.count) {
        __shared__ Key ends[2][32];
        Key least = MAX_KEY, most = 0;
        auto look_at = [&](Key key) {
            if (key < target.first || target.last < key) return;
            least = key < least ? key : least;
            most = key > most ? key : most;
        };
        each(look_at);
        if (control.heavies)
            for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS)
                if (heavy_counts[i]) look_at(control.heavy[i]);
        block_range(least, most, ends);
        return inner == 0 ? least : most;
    }
    if (threadIdx.x == 0) heavies = 0;
    __syncthreads();
    if (control.heavies) {
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += blockDim.x)
            if (heavy_counts[i] && target.first <= control.heavy[i] && control.heavy[i] <= target.last) {
                const u32 h = atomicAdd(&heavies, 1);
                heavy[h] = control.heavy[i];
                heavy_count[h] = heavy_counts[i];
            }
        if (threadIdx.x < HEAVY_ROUNDS) less[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x == 0)
            for (u32 i = 1; i < heavies; ++i)
                for (u32 j = i; j > 0 && heavy[j - 1] > heavy[j]; --j) {
                    const Key key = heavy[j];
                    const u64 number = heavy_count[j];
                    heavy[j] = heavy[j - 1], heavy_count[j] = heavy_count[j - 1];
                    heavy[j - 1] = key, heavy_count[j - 1] = number;
                }
        __syncthreads();
        for (u32 h = 0; h < heavies; ++h) {
            u32 own = 0;
            each([&](Key key) { own += target.first <= key && key < heavy[h]; });
            own = warp_sum(own);
            if (lane_id() == 0 && own) atomicAdd(&less[h], own);
        }
        __syncthreads();
        // `inner` counts listed and heavy keys; the heavy ones below are subtracted.
        u64 below = 0;
        for (u32 h = 0; h < heavies; ++h) {
            if (inner < below + less[h]) break;
            if (inner < below + less[h] + heavy_count[h]) return heavy[h];
            below += heavy_count[h];
        }
        inner -= below;
    }
    const u32 bits = key_bits(target.last - target.first);
    if (count > FEW) return select_among(each, u32(inner), target.first, bits, scratch);
    if (threadIdx.x == 0) scratch.collected = 0;
    __syncthreads();
    return select_few(each, u32(inner), target.first, bits, scratch);
}

// The keys of a list.
struct EachOf {
    const Key* keys;
    u64 count;
    template <class Visit>
    __device__ __forceinline__ void operator()(Visit visit) const {
        auto at = [&](u64 i) { return keys[i]; };
        EachAhead<decltype(at), u64>{at, count}(visit);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) ss_select(const __grid_constant__ Query query) {
    after_kernels_before();
    __shared__ SelectScratch<Key> scratch;
    Control& control = *query.control;
    if (control.outcome & MISMATCH) return;
    const Target target = control.targets[blockIdx.x];
    if (target.where != LISTED) return;
    const u64 expected = control.list_expected[target.list];
    if (control.list_cursor[target.list] != expected) {
        // Keys were dropped because there was no room.
        if (threadIdx.x == 0) {
            control.targets[blockIdx.x].where = OPEN;
            atomicAdd(&control.open, 1);
        }
        return;
    }
    const Key* list = query.listed + control.list_start[target.list];
    const Key key = select_target(query, target, EachOf{list, expected}, expected, scratch);
    if (threadIdx.x == 0) query.answers[blockIdx.x] = key;
}
