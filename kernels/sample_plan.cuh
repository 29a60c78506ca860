// Samples of a column, and what they make: cells, and brackets that hold each rank with near certainty.
#pragma once
#include "sample_cells.cuh"
#include "sample_cards.cuh"

// ---------------------------------------------------------------- plan

// PLAN_SAMPLE threads in all: one block alone would wait long for so many misses.
extern "C" __global__ void __launch_bounds__(THREADS) ss_draw(const __grid_constant__ Query query) {
    Control& control = *query.control;
    const bool alone = query.cards == 1;
    draw_sample(query.column, query.stripes, query.seed, alone ? control.sample : control.drawn,
                alone ? &control.samples : &control.drawn_keys);
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_plan(const __grid_constant__ Query query) {
    __shared__ u32 mass[ENTRIES];
    __shared__ u32 partial[33];
    __shared__ Key ends[2][32];
    Control& control = *query.control;
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    for (u32 i = threadIdx.x; i < ENTRIES; i += THREADS) mass[i] = 0;
    if (query.cards > 1) take_samples(query);
    const u32 total = control.samples;
    Key keys[SHARE], least = MAX_KEY, most = 0;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j)
        if (j * THREADS + threadIdx.x < total) {
            keys[j] = control.sample[j * THREADS + threadIdx.x];
            least = keys[j] < least ? keys[j] : least;
            most = keys[j] > most ? keys[j] : most;
        }
    block_range(least, most, ends);
    // Nothing sampled: equal entries over all keys.
    if (total == 0) least = 0, most = MAX_KEY;
    // Two entries are kept for what lies outside the sample's range.
    const u32 width = key_bits(most - least);
    u32 shift = width > 11 ? width - 11 : 0;
    while (Key(most >> shift) - Key(least >> shift) > ENTRIES - 3) ++shift;
    Key low = (least >> shift) << shift;
    u32 entries = u32((most >> shift) - (least >> shift)) + 1;
    const bool below = low != 0, above = (most >> shift) != (MAX_KEY >> shift);
    if (below) low -= Key(1) << shift;
    entries += below + above;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j)
        if (j * THREADS + threadIdx.x < total) atomicAdd(&mass[u32((keys[j] - low) >> shift)], 1);
    __syncthreads();
    // The greatest power of two within an entry's share of the cells, but no cell narrower than a key. Rounding down
    // leaves cells over: shares are a little more than there are cells, unless that is too much.
    const u32 spare = query.cells - ENTRIES, pre = KEY_BITS > 32 && shift > MOST_SPLIT ? shift - MOST_SPLIT : 0;
    u32 splits[2], cells, next;
    for (u32 tenths = 14;; tenths = 10) {
        u32 own = 0;
        for (u32 j = 0; j < 2; ++j) {
            const u32 entry = threadIdx.x * 2 + j;
            const u32 share = total == 0 ? 1 : max(1u, u32(u64(mass[entry]) * spare * tenths / (10 * total)));
            splits[j] = entry < entries ? min(min(31u - __clz(share), shift), MOST_SPLIT) : 0;
            own += entry < entries ? 1u << splits[j] : 0;
        }
        next = block_scan(own, partial, cells);
        if (cells <= query.cells || tenths == 10) break;
    }
    for (u32 j = 0; j < 2; ++j) {
        const u32 entry = threadIdx.x * 2 + j;
        if (entry >= entries) break;
        control.first_cell[entry] = next;
        control.table[entry] = (next - (entry << splits[j])) << 5 | (shift - splits[j] - pre);
        next += 1u << splits[j];
    }
    if (threadIdx.x == 0) {
        control.first_cell[entries] = cells;
        control.cells = cells;
        control.entries = entries;
        control.shift = shift;
        control.pre = pre;
        control.low = low;
        control.least = low;
        control.most = low + ((Key(entries) << shift) - 1);
    }
}

// ---------------------------------------------------------------- the large sample

extern "C" __global__ void __launch_bounds__(THREADS) ss_sample(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    u32* table = (u32*)shared_memory;
    u32* counters = table + ENTRIES;
    Control& control = *query.control;
    const SampledLines lines(query.column.rows, query.sample_lines, query.seed);
    if (lines.count == 0) return;
    const CellFunction cell_of(control, table);
    const u32 cells = control.cells;
    for (u32 i = threadIdx.x; i < cells; i += THREADS) counters[i] = 0;
    __syncthreads();
    u32 repeats = 0, pairs = 0;
    constexpr int UNROLL = 4;
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 item = u64(blockIdx.x) * THREADS + threadIdx.x; item < lines.count * 8; item += threads * UNROLL) {
        Vector vectors[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if ((item + j * threads) / 8 >= lines.count) break;
            vectors[j] = load_vector(query.column, lines.vector(item + j * threads));
        }
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if ((item + j * threads) / 8 >= lines.count) break;
            u32 last = 0;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                if (!has(vectors[j], i)) continue;
                const u32 cell = cell_of(key_of(vectors[j], i));
                atomicAdd(&counters[cell], 1);
                if (i > 0) {
                    repeats += cell == last;
                    ++pairs;
                }
                last = cell;
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < cells; i += THREADS)
        if (counters[i]) atomicAdd(&control.sampled[i], counters[i]);
    repeats = warp_sum(repeats);
    pairs = warp_sum(pairs);
    if (lane_id() == 0) {
        atomicAdd(&control.repeats, repeats);
        atomicAdd(&control.pairs, pairs);
    }
}

// ---------------------------------------------------------------- brackets

// Bits of each multiplier, also where there are no heavy keys: key 1 is then not that of slot 0, which means that it is free.
constexpr u32 LEAST_MULTIPLIER = 0x80000001u;

__device__ __forceinline__ u32 heavy_slot(Key key, u32 multiplier) { return fold_key(key) * multiplier >> (32 - HEAVY_BITS); }

struct HeavyScratch {
    u32 guess[HOT_CELLS], seen[HOT_CELLS], explained[HOT_CELLS];
    u32 key[MOST_HEAVY], hot[MOST_HEAVY], weight[MOST_HEAVY];  // sampled index, hot cell, repeats
    u32 taken[THREADS / 32][HEAVY_SLOTS / 32], placed[THREADS / 32];  // slots, a bit each
    u32 count;
};

// Heavy keys of the hot cells, among the sampled keys: any sampled key is the guess of its cell, its repeats are
// counted, and it leaves; a key that makes up most of a cell is guessed soon. A guess that is missed costs time only. What comes
// out depends on the sample alone, not on which thread is first: cards that select together have the same heavy keys.
__device__ void find_heavy(Control& control, const CellFunction& cell_of, const u16* mark, u32 hots, HeavyScratch& scratch) {
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    u32 hot[SHARE];
    Key keys[SHARE];
    if (threadIdx.x == 0) scratch.count = 0;
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j) {
        const u32 i = j * THREADS + threadIdx.x;
        hot[j] = 0;
        if (i < control.samples) {
            keys[j] = control.sample[i];
            hot[j] = mark[cell_of(keys[j])];
        }
    }
    for (u32 round = 0; round < HEAVY_ROUNDS; ++round) {
        for (u32 h = threadIdx.x; h < hots; h += THREADS) scratch.seen[h] = scratch.guess[h] = 0;
        __syncthreads();
        // The last one of a cell; most threads see a later one and need not vie for it.
#pragma unroll
        for (u32 j = SHARE; j-- > 0;) {
            const u32 i = j * THREADS + threadIdx.x;
            if (hot[j] >= 2 && *(volatile u32*)&scratch.guess[hot[j] - 2] < i) atomicMax(&scratch.guess[hot[j] - 2], i);
        }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < SHARE; ++j)
            if (hot[j] >= 2 && keys[j] == control.sample[scratch.guess[hot[j] - 2]]) {
                atomicAdd(&scratch.seen[hot[j] - 2], 1);
                hot[j] = 0;
            }
        __syncthreads();
        const u32 h = threadIdx.x;
        const bool found = h < hots && scratch.seen[h] >= PLAN_SAMPLE / 1000;
        const u32 more = __syncthreads_count(found);
        // All or none of a round: no race decides which.
        if (scratch.count + more > MOST_HEAVY) break;
        __syncthreads();
        if (found) {
            const u32 at = atomicAdd(&scratch.count, 1);
            scratch.key[at] = scratch.guess[h];
            scratch.hot[at] = h;
            scratch.weight[at] = scratch.seen[h];
        }
        __syncthreads();
        if (more == 0 && round >= 2) break;
    }
    // One slot a key, so that a lookup is one load: of 32 hash functions, the one with the fewest clashes.
    const u32 count = scratch.count, warp = threadIdx.x / 32;
    auto multiplier = [](u32 of) { return hash32(of, 0x51ed270bu) | LEAST_MULTIPLIER; };
    scratch.taken[warp][lane_id()] = 0;
    __syncwarp();
    for (u32 i = lane_id(); i < count; i += 32) {
        const u32 slot = heavy_slot(control.sample[scratch.key[i]], multiplier(warp));
        atomicOr(&scratch.taken[warp][slot / 32], 1u << slot % 32);
    }
    __syncwarp();
    const u32 placed = warp_sum(__popc(scratch.taken[warp][lane_id()]));
    if (lane_id() == 0) scratch.placed[warp] = placed;
    __syncthreads();
    u32 best = 0;
    for (u32 other = 1; other < THREADS / 32; ++other)
        if (scratch.placed[other] > scratch.placed[best]) best = other;
    const u32 placed_keys = scratch.placed[best];
    u32* owner = &scratch.taken[0][0];  // of each slot: the sampled key that has it, and 1
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < HEAVY_SLOTS; slot += THREADS) owner[slot] = 0;
    __syncthreads();
    auto slot_of = [&](u32 i) { return heavy_slot(control.sample[scratch.key[i]], multiplier(best)); };
    for (u32 i = threadIdx.x; i < count; i += THREADS) atomicMax(&owner[slot_of(i)], scratch.key[i] + 1);
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 slot = slot_of(i);
        if (owner[slot] != scratch.key[i] + 1) continue;
        control.heavy_used[slot] = 1;
        control.heavy[slot] = control.sample[scratch.key[i]];
        atomicAdd(&scratch.explained[scratch.hot[i]], scratch.weight[i]);
    }
    if (threadIdx.x == 0) {
        control.heavies = placed_keys;
        control.heavy_multiplier = multiplier(best);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_brackets(const __grid_constant__ Query query) {
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 partial[33], hot, hot_cell[HOT_CELLS], table[ENTRIES], first_cell[ENTRIES + 1];
    __shared__ u16 range[2][MOST_RANKS];
    Control& control = *query.control;
    const u32 cells = control.cells, share = (cells + THREADS - 1) / THREADS | 1;  // odd: no bank conflicts
    HeavyScratch& scratch = *(HeavyScratch*)shared_memory;
    u32* before = (u32*)(&scratch + 1);      // cells + 1: sampled keys below each cell
    u16* mark = (u16*)(before + cells + 1);  // cells: 0, 1 flagged, 2 + h: flagged and hot
    const CellFunction cell_of(control, table);
    load_first_cells(control, first_cell);
    if (threadIdx.x == 0) hot = 0;
    for (u32 h = threadIdx.x; h < HOT_CELLS; h += THREADS) scratch.explained[h] = 0;
    each_of(control.sampled, cells, [&](u64 cell, u32 count) {
        before[cell] = count;
        mark[cell] = 0;
    });
    if (query.cards > 1) add_samples(query, before);
    __syncthreads();
    const u32 from = min(threadIdx.x * share, cells), to = min(from + share, cells);
    u32 own = 0, total;
    for (u32 c = from; c < to; ++c) own += before[c];
    u32 next = block_scan(own, partial, total);
    for (u32 c = from; c < to; ++c) {
        const u32 inside = before[c];
        before[c] = next;
        next += inside;
    }
    if (threadIdx.x == 0) before[cells] = total;
    __syncthreads();
    if (total == 0 || query.kept == 0) {
        if (threadIdx.x == 0) control.mode = COUNT_ONLY;
        return;
    }
    for (u32 r = threadIdx.x; r < query.rank_count; r += THREADS) {
        const double expected = (double(query.ranks[r]) + 0.5) / double(query.kept) * total;
        const double spread = query.sigmas * sqrt(fmax(expected * (1.0 - expected / total), 0.0)) + 2.0;
        const double low = expected - spread, high = expected + spread;
        range[0][r] = low <= 0.0 ? 0 : last_at_most(before, cells, u32(low));
        range[1][r] = high >= total ? cells - 1 : last_at_most(before, cells, u32(high));
    }
    __syncthreads();
    for (u32 r = threadIdx.x / 32; r < query.rank_count; r += THREADS / 32)
        for (u32 c = range[0][r] + lane_id(); c <= range[1][r]; c += 32) mark[c] = 1;
    __syncthreads();
    for (u32 c = threadIdx.x; c < cells; c += THREADS) {
        if (!mark[c]) continue;
        Key first, last;
        cell_range(control, first_cell, c, first, last);
        if (first == last)
            mark[c] = 0;
        else if (u64(before[c + 1] - before[c]) * 500 > total) {
            const u32 h = atomicAdd(&hot, 1);
            if (h < HOT_CELLS) {
                hot_cell[h] = c;
                mark[c] = u16(2 + h);
            }
        }
    }
    __syncthreads();
    const u32 hots = min(hot, HOT_CELLS);
    if (hots) find_heavy(control, cell_of, mark, hots, scratch);
    // What heavy keys do not explain would be copied; a cell with too much of it is only counted, and deepened later.
    u32 wanted = 0, all_wanted;
    for (u32 h = threadIdx.x; h < hots; h += THREADS) {
        const u32 c = hot_cell[h], inside = before[c + 1] - before[c];
        const u32 heavy = min(inside, u32(double(scratch.explained[h]) / control.samples * total));
        if (u64(inside - heavy) * HOT_SHARE > total)
            mark[c] = 0;
        else
            wanted += inside - heavy;
    }
    for (u32 c = threadIdx.x; c < cells; c += THREADS)
        if (mark[c] == 1) wanted += before[c + 1] - before[c];
    __syncthreads();
    block_scan(wanted, partial, all_wanted);
    const bool fits = double(all_wanted) / total * query.kept < 0.8 * double(query.room);
    for (u32 c = threadIdx.x; c < cells; c += THREADS) control.flags[c] = fits && mark[c] ? FLAG : 0;
    if (threadIdx.x == 0) {
        const bool alone = query.cards == 1;
        const bool repeated = u64(alone ? control.repeats : control.all_repeats) * 20 > (alone ? control.pairs : control.all_pairs);
        const bool one = query.rank_count == 1 && !query.counts_all && fits && hots == 0 && mark[range[0][0]] && mark[range[1][0]];
        if (one) {
            Key unused;
            cell_range(control, first_cell, range[0][0], control.bracket_first, unused);
            cell_range(control, first_cell, range[1][0], unused, control.bracket_last);
            control.bracket_cells[0] = range[0][0];
            control.bracket_cells[1] = range[1][0];
        }
        control.mode = one                            ? ONE_BRACKET
                       : control.heavies              ? COUNT_COPY_HEAVY
                       : !fits || all_wanted == 0     ? COUNT_ONLY
                       : repeated                     ? COUNT_COPY_REPEATED
                                                      : COUNT_COPY;
    }
}
