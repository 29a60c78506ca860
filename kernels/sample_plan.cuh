// Samples of a column, and what follows from them: cells, and flagged cells that hold each rank with near certainty.
#pragma once
#include "sample_cells.cuh"
#include "sample_devices.cuh"

// ---------------------------------------------------------------- plan

// By PLAN_SAMPLE threads in all: one block alone would wait long for so many cache misses.
extern "C" __global__ void __launch_bounds__(THREADS) ss_draw(const __grid_constant__ Query query) {
    after_kernels_before();
    Control& control = *query.control;
    const bool alone = query.devices == 1;
    draw_sample(query.column, query.stripes, query.seed, alone ? control.sample : control.drawn,
                alone ? &control.samples : &control.drawn_keys);
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_plan(const __grid_constant__ Query query) {
    after_kernels_before();
    __shared__ u32 mass[ENTRIES];
    __shared__ u32 partial[33];
    __shared__ Key ends[2][32];
    Control& control = *query.control;
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    for (u32 i = threadIdx.x; i < ENTRIES; i += THREADS) mass[i] = 0;
    if (query.devices > 1) take_samples(query);
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
    // Without a sample, entries are equal over all keys.
    if (total == 0) least = 0, most = MAX_KEY;
    // Two entries are left for the keys outside the range of the sample.
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
    // An entry gets the greatest power of two within its share of the cells, but no cell is narrower than a key. As rounding down leaves
    // cells over, shares add up to a little more than the cells. An entry gets at least half of the share of a neighbour, because on
    // slopes a sample misses entries that hold many keys. If that makes too many cells, shares are smaller.
    const u32 spare = query.cells - ENTRIES, pre = KEY_BITS > 32 && shift > MOST_SPLIT ? shift - MOST_SPLIT : 0;
    u32 splits[2], cells, next;
    for (u32 attempt = 0;; ++attempt) {
        const u32 tenths = attempt < 2 ? 14 : 10;
        u32 own = 0;
        for (u32 j = 0; j < 2; ++j) {
            const u32 entry = threadIdx.x * 2 + j;
            u32 twice = 2 * mass[entry];
            if (attempt == 0 && entry > 0) twice = max(twice, mass[entry - 1]);
            if (attempt == 0 && entry + 1 < ENTRIES) twice = max(twice, mass[entry + 1]);
            const u32 share = total == 0 ? 1 : max(1u, u32(u64(twice) * spare * tenths / (20 * total)));
            splits[j] = entry < entries ? min(min(31u - __clz(share), shift), MOST_SPLIT) : 0;
            own += entry < entries ? 1u << splits[j] : 0;
        }
        next = block_scan(own, partial, cells);
        // The shares of the last attempt add up to no more than the cells.
        if (cells <= query.cells || attempt == 2) break;
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
    after_kernels_before();
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

// A flagged cell is hot if it has more than 1 in CROWDED_SHARE of all sampled keys, or more than 1 in a quarter of the number of cells, and
// at least LEAST_CROWDED of them.
constexpr u32 CROWDED_SHARE = 2048;
constexpr u32 LEAST_CROWDED = 32;
// A heavy key occurs at least LEAST_SEEN times in the small sample, and is at least 1 in HEAVY_SHARE of the sampled keys of its cell.
constexpr u32 LEAST_SEEN = 2;
constexpr u32 HEAVY_SHARE = 16;
// If at least 1 in so many of all sampled keys is heavy, heavy keys are looked up before cells.
constexpr u32 MOSTLY_HEAVY = 2;

// Bits that are set in each multiplier, also without heavy keys. With them key 1 does not belong to set 0, where it marks a free slot.
constexpr u32 LEAST_MULTIPLIER = 0x80000001u;
// Number of hash functions that a warp tries.
constexpr u32 TRIES = 4;

__device__ __forceinline__ u32 heavy_set(Key key, u32 multiplier) { return fold_key(key) * multiplier >> (32 - HEAVY_BITS); }

struct HeavyScratch {
    u32 guess[HOT_CELLS], seen[HOT_CELLS], explained[HOT_CELLS], drawn[HOT_CELLS];  // drawn: sampled keys of the hot cell
    u32 key[MOST_HEAVY];  // index in the sample
    u16 hot[MOST_HEAVY], weight[MOST_HEAVY];  // number of the hot cell; repeats
    union {
        u32 taken[THREADS / 32][2][HEAVY_SETS / 32];  // bitmaps of the sets with one key, and with two
        u16 set[MOST_HEAVY];
    };
    u32 fewest[THREADS / 32], multiplier[THREADS / 32];  // of each warp: keys without a slot by its best hash function, and that function
    u32 count, heaviest[MOST_KNOWN];  // repeats << 16 | slot
};
static_assert(sizeof(HeavyScratch) <= 16656, "HEAVY_SCRATCH of src/kernel/cuda/shape.rs");

// Finds heavy keys of the hot cells among the sampled keys. In each round one sampled key of each cell is the guess; its repeats are
// counted and removed. A key that is most of a cell is guessed soon. A heavy key that is never guessed only costs time. The result depends
// only on the sample, not on the order of threads, so that devices that select together have the same heavy keys.
__device__ void find_heavy(Control& control, const CellFunction& cell_of, const u16* mark, u32 hots, HeavyScratch& scratch) {
    constexpr u32 SHARE = PLAN_SAMPLE / THREADS;
    u32 hot[SHARE];
    Key keys[SHARE];
    if (threadIdx.x == 0) scratch.count = 0;
    for (u32 h = threadIdx.x; h < hots; h += THREADS) scratch.explained[h] = scratch.drawn[h] = 0;
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < SHARE; ++j) {
        const u32 i = j * THREADS + threadIdx.x;
        hot[j] = 0;
        if (i < control.samples) {
            keys[j] = control.sample[i];
            hot[j] = mark[cell_of(keys[j])];
            if (hot[j] >= 2) atomicAdd(&scratch.drawn[hot[j] - 2], 1);
        }
    }
    for (u32 round = 0; round < HEAVY_ROUNDS; ++round) {
        for (u32 h = threadIdx.x; h < hots; h += THREADS) scratch.seen[h] = scratch.guess[h] = 0;
        __syncthreads();
        // The guess is the last key of the cell. Most threads see a later one and need no atomic operation.
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
        const bool found = h < hots && scratch.seen[h] >= LEAST_SEEN && scratch.seen[h] * HEAVY_SHARE >= scratch.drawn[h];
        const u32 more = __syncthreads_count(found);
        // All keys of a round are taken, or none, so that no race decides which.
        if (scratch.count + more > MOST_HEAVY) break;
        __syncthreads();
        if (found) {
            const u32 at = atomicAdd(&scratch.count, 1);
            scratch.key[at] = scratch.guess[h];
            scratch.hot[at] = u16(h);
            scratch.weight[at] = u16(scratch.seen[h]);
        }
        __syncthreads();
        if (more == 0 && round >= 2) break;
    }
    // A set has two slots, so that a lookup is one load. Of many hash functions the one is taken that leaves out the fewest keys.
    const u32 count = scratch.count, warp = threadIdx.x / 32;
    u32 fewest = count + 1, its = 0;
    for (u32 turn = 0; turn < TRIES && fewest > 0; ++turn) {
        u32(&taken)[2][HEAVY_SETS / 32] = scratch.taken[warp];
        taken[lane_id() / (HEAVY_SETS / 32)][lane_id() % (HEAVY_SETS / 32)] = 0;
        __syncwarp();
        const u32 multiplier = hash32(turn * (THREADS / 32) + warp, 0x51ed270bu) | LEAST_MULTIPLIER;
        u32 left = 0;
        for (u32 i = lane_id(); i < count; i += 32) {
            const u32 set = heavy_set(control.sample[scratch.key[i]], multiplier), bit = 1u << set % 32;
            if (atomicOr(&taken[0][set / 32], bit) & bit) left += (atomicOr(&taken[1][set / 32], bit) & bit) != 0;
        }
        left = warp_sum(left);
        if (left < fewest) fewest = left, its = multiplier;
        __syncwarp();
    }
    if (lane_id() == 0) scratch.fewest[warp] = fewest, scratch.multiplier[warp] = its;
    if (threadIdx.x < MOST_KNOWN) scratch.heaviest[threadIdx.x] = 0;
    __syncthreads();
    u32 best = 0;
    for (u32 other = 1; other < THREADS / 32; ++other)
        if (scratch.fewest[other] < scratch.fewest[best]) best = other;
    const u32 multiplier = scratch.multiplier[best], placed = count - scratch.fewest[best];
    for (u32 i = threadIdx.x; i < count; i += THREADS)
        scratch.set[i] = u16(heavy_set(control.sample[scratch.key[i]], multiplier));
    __syncthreads();
    // The order of keys in a set is that of the sample.
    u32 own = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 set = scratch.set[i];
        u32 before = 0;
        for (u32 j = 0; j < count; ++j) before += scratch.set[j] == set && scratch.key[j] < scratch.key[i];
        if (before >= 2) continue;
        const u32 slot = 2 * set + before;
        control.heavy_used[slot] = 1;
        control.heavy[slot] = control.sample[scratch.key[i]];
        // One less, because with few sampled keys a key that repeats by chance explains little.
        atomicAdd(&scratch.explained[scratch.hot[i]], scratch.weight[i] - 1u);
        if (u32(scratch.weight[i]) * KNOWN_SHARE > control.samples) own = u32(scratch.weight[i]) << 16 | slot;
    }
    if (threadIdx.x == 0) {
        control.heavies = placed;
        control.heavy_multiplier = multiplier;
    }
    if (own) atomicMax(&scratch.heaviest[0], own);
    __syncthreads();
    if (own && own != scratch.heaviest[0]) atomicMax(&scratch.heaviest[1], own);
    __syncthreads();
}

// Flags the cells that hold each rank with near certainty. `before` has the sampled keys below each cell and, at the end, `total`, the
// number of all; `range` gets the first and the last of the flagged cells of each rank.
__device__ __forceinline__ void flag_cells_of_ranks(const Query& query, u32 cells, const u32* before, u32 total,
                                                    u16 (&range)[2][MOST_RANKS], u16* mark) {
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
}

// Marks flagged cells with more than 1 in `crowded` of all sampled keys as hot, and takes the flag from cells of one key. Of these,
// `single` gets the one with the most sampled keys, if there is one rank.
__device__ __forceinline__ void mark_crowded_cells(const Query& query, const Control& control, const u32* first_cell, u32 cells,
                                                   const u32* before, u32 total, u32 crowded, u16* mark, u64& single) {
    for (u32 c = threadIdx.x; c < cells; c += THREADS) {
        if (!mark[c]) continue;
        Key first, last;
        cell_range(control, first_cell, c, first, last);
        const u32 inside = before[c + 1] - before[c];
        if (first == last) {
            mark[c] = 0;
            if (query.rank_count == 1) atomicMax(&single, u64(inside) << 32 | c);
        } else if (inside >= LEAST_CROWDED && u64(inside) * crowded > total) {
            mark[c] = 2;
        }
    }
    __syncthreads();
}

// Numbers the hot cells in their order, the fullest first if there are more than HOT_CELLS: devices that select together take the same
// ones. Mark 2 of the cell with number h becomes 2 + h, and 1 where there is no number left. Returns how many have a number.
__device__ __forceinline__ u32 number_hot_cells(const OwnPlaces& places, const u32* before, u32 total, u32 crowded, u32* partial, u16* mark,
                                                u32 (&hot_cell)[HOT_CELLS]) {
    u32 hots, full = 0;
    auto is_full = [&](u32 c) { return mark[c] == 2 && u64(before[c + 1] - before[c]) * crowded > total; };
    auto number = [&](bool others, u32& all) {
        u32 own = 0;
        for (u32 c = places.from; c < places.to; ++c) own += others ? mark[c] == 2 && !is_full(c) : is_full(c);
        return block_scan(own, partial, all);
    };
    u32 first = number(false, hots), other = 0;
    if (hots > HOT_CELLS) {
        do {
            crowded /= 2;
            first = number(false, full);
        } while (full > HOT_CELLS);
        other = full + number(true, hots);
        hots = HOT_CELLS;
    }
    for (u32 c = places.from; c < places.to; ++c) {
        if (mark[c] != 2) continue;
        const u32 h = is_full(c) ? first++ : other++;
        mark[c] = h < HOT_CELLS ? u16(2 + h) : 1;
        if (h < HOT_CELLS) hot_cell[h] = c;
    }
    __syncthreads();
    return hots;
}

extern "C" __global__ void __launch_bounds__(THREADS) ss_brackets(const __grid_constant__ Query query) {
    after_kernels_before();
    extern __shared__ uint4 shared_memory[];
    __shared__ u32 partial[33], unexplained, hot_cell[HOT_CELLS], table[ENTRIES], first_cell[ENTRIES + 1];
    __shared__ u16 range[2][MOST_RANKS];
    __shared__ u64 single;  // of the cells of one key: the most sampled keys, and the cell
    Control& control = *query.control;
    const u32 cells = control.cells;
    HeavyScratch& scratch = *(HeavyScratch*)shared_memory;
    u32* before = (u32*)(&scratch + 1);      // cells + 1: sampled keys below each cell
    u16* mark = (u16*)(before + cells + 1);  // cells: 0, 1 flagged, 2 + h: flagged and hot
    const CellFunction cell_of(control, table);
    load_first_cells(control, first_cell);
    if (threadIdx.x == 0) unexplained = 0, single = 0;
    each_of(control.sampled, cells, [&](u64 cell, u32 count) {
        before[cell] = count;
        mark[cell] = 0;
    });
    if (query.devices > 1) add_samples(query, before);
    __syncthreads();
    const OwnPlaces places(cells);
    const u32 total = sums_before(before, places, partial);
    if (threadIdx.x == 0) before[cells] = total;
    __syncthreads();
    if (total == 0 || query.kept == 0) {
        if (threadIdx.x == 0) control.mode = COUNT_ONLY;
        return;
    }
    flag_cells_of_ranks(query, cells, before, total, range, mark);
    const u32 crowded = min(CROWDED_SHARE, query.cells / 4);
    mark_crowded_cells(query, control, first_cell, cells, before, total, crowded, mark, single);
    const u32 hots = number_hot_cells(places, before, total, crowded, partial, mark, hot_cell);
    if (hots) find_heavy(control, cell_of, mark, hots, scratch);
    // Keys that are not heavy would be copied. A cell with too many of them is only counted, and ss_deepen looks into it later.
    u32 wanted = 0, all_wanted, heavy = 0, all_heavy;
    for (u32 h = threadIdx.x; h < hots; h += THREADS) {
        const u32 c = hot_cell[h], inside = before[c + 1] - before[c], drawn = max(scratch.drawn[h], 1u);
        heavy += scratch.explained[h];
        const u32 open = inside - u32(u64(inside) * scratch.explained[h] / drawn);
        if (u64(open) * HOT_SHARE > total) {
            mark[c] = 0;
            atomicAdd(&unexplained, 1);
        } else {
            wanted += open;
        }
    }
    for (u32 c = threadIdx.x; c < cells; c += THREADS)
        if (mark[c] == 1) wanted += before[c + 1] - before[c];
    __syncthreads();
    block_scan(wanted, partial, all_wanted);
    block_scan(heavy, partial, all_heavy);
    const bool fits = double(all_wanted) / total * query.kept < 0.8 * double(query.room);
    for (u32 c = threadIdx.x; c < cells; c += THREADS) control.flags[c] = fits && mark[c] ? FLAG : 0;
    if (threadIdx.x == 0) {
        const bool alone = query.devices == 1;
        const double pairs = alone ? control.pairs : control.all_pairs, repeats = alone ? control.repeats : control.all_repeats;
        // Neighbouring rows repeat cells more often than by chance.
        const double excess = 0.05 * pairs;
        const bool repeated = repeats > excess;
        const u32 least = range[0][0], greatest = range[1][0];
        const bool one = query.rank_count == 1 && !query.counts_all && fits && unexplained == 0 && (least > 0 || greatest + 1 < cells);
        const bool some_heavy = control.heavies && fits && unexplained == 0 && !repeated && u64(all_heavy) * MOSTLY_HEAVY < control.samples;
        u32 known = 0;
        for (; hots && known < MOST_KNOWN && scratch.heaviest[known]; ++known) {
            control.known_slot[known] = scratch.heaviest[known] & 0xffff;
            control.known[known] = control.heavy[control.known_slot[known]];
        }
        // In this share of the pairs of neighbouring rows both have the one heavy key.
        const double share = known ? double(scratch.heaviest[0] >> 16) / control.samples : 0.0;
        const bool alone_known = known && control.heavies == 1 && repeats < share * share * pairs + excess;
        if (one) {
            Key unused;
            cell_range(control, first_cell, least, control.bracket_first, unused);
            cell_range(control, first_cell, greatest, unused, control.bracket_last);
            control.bracket_cells[0] = least;
            control.bracket_cells[1] = greatest;
            if (known < MOST_KNOWN && (single >> 32) * KNOWN_SHARE > total) {
                cell_range(control, first_cell, u32(single), control.known[known], unused);
                control.known_slot[known++] = HEAVY_SLOTS;
            }
            // A key outside of the bracket means that there is no known key.
            for (u32 i = known; i < MOST_KNOWN; ++i)
                control.known[i] = least > 0 ? control.bracket_first - 1 : control.bracket_last + 1;
        }
        control.mode = one && known                   ? ONE_BRACKET_KNOWN
                       : one                          ? ONE_BRACKET
                       : alone_known                  ? COUNT_COPY_KNOWN
                       : some_heavy                   ? COUNT_COPY_SOME_HEAVY
                       : control.heavies              ? COUNT_COPY_HEAVY
                       : !fits || all_wanted == 0     ? COUNT_ONLY
                       : repeated                     ? COUNT_COPY_REPEATED
                                                      : COUNT_COPY;
    }
}
