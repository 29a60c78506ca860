// Selection in lists of several devices. Lists stay where they are: their parts are counted, and other devices read the keys of one part.
#pragma once
#include "sample_answer.cuh"

// Number of parts of a list: one for each value of the first digit of its keys.
constexpr u32 PARTS = 1 << DIGIT_BITS;

// The first digit of the keys of a list, which is the part that they lie in. The cells at both ends hold all keys outside of the sample,
// where most keys can be of few magnitudes. There it is the digit of a logarithm of their distance from the neighbouring cell.
struct Digit {
    static constexpr u32 FRACTION = KEY_BITS == 32 ? 6 : KEY_BITS == 64 ? 5 : 4;
    Key first, last;
    u32 shift;
    bool is_least, is_greatest;

    __device__ Digit(const Control& control, const Target& target) : first(target.first), last(target.last) {
        const u32 bits = key_bits(last - first);
        shift = bits > DIGIT_BITS ? bits - DIGIT_BITS : 0;
        is_least = shift > 0 && target.cell == 0;
        is_greatest = shift > 0 && !is_least && target.cell + 1 == control.cells;
    }
    // An ascending function: exact for few bits, then 2^FRACTION steps for each number of bits.
    static __device__ __forceinline__ u32 scale(Key distance) {
        const u32 bits = key_bits(distance);
        if (bits <= FRACTION) return u32(distance);
        const u32 below = bits - 1 - FRACTION;
        return (below << FRACTION) + u32(distance >> below);
    }
    __device__ __forceinline__ u32 operator()(Key key) const {
        if (is_least) return PARTS - 1 - scale(last - key);
        return is_greatest ? scale(key - first) : u32((key - first) >> shift);
    }
    // Narrows the range of the target to the keys of a part.
    __device__ void narrow(u32 part, Target& target) const {
        Key from = Key(part) << shift, width = (Key(1) << shift) - 1;
        if (is_least || is_greatest) {
            const u32 step = is_least ? PARTS - 1 - part : part, below = step >> FRACTION ? (step >> FRACTION) - 1 : 0;
            from = Key(step - (below << FRACTION)) << below;
            width = (Key(1) << below) - 1;
        }
        const Key room = last - first - from;
        width = width < room ? width : room;
        target.first = is_least ? last - from - width : first + from;
        target.last = target.first + width;
    }
};

__device__ __forceinline__ u32* tallies_of(const Query& query, const Control& control, u32 list) {
    return (u32*)((char*)&control + query.tallies) + u64(list) * PARTS;
}
__device__ __forceinline__ Key* few_of(const Query& query, const Control& control, u32 rank) {
    return (Key*)((char*)&control + query.few) + u64(rank) * MOST_FEW;
}

// Counts the parts of each list, by the block of the first rank that shares it.
extern "C" __global__ void __launch_bounds__(THREADS) ss_tally(const __grid_constant__ Query query) {
    __shared__ u32 parts[PARTS];
    Control& control = *query.control;
    const u32 r = blockIdx.x;
    const Target target = control.targets[r];
    if (target.where != LISTED) return;
    if (r > 0 && control.targets[r - 1].where == LISTED && control.targets[r - 1].list == target.list) return;
    for (u32 part = threadIdx.x; part < PARTS; part += THREADS) parts[part] = 0;
    __syncthreads();
    const Digit digit(control, target);
    const u64 count = control.list_cursor[target.list];
    each_of(query.listed + control.list_start[target.list], count, [&](u64, Key key) { atomicAdd(&parts[digit(key)], 1); });
    __syncthreads();
    u32* tallies = tallies_of(query, control, target.list);
    for (u32 part = threadIdx.x; part < PARTS; part += THREADS) tallies[part] = parts[part];
}

// Moves each rank to the part that holds it, and puts this device's keys of that part together if they are few.
extern "C" __global__ void __launch_bounds__(THREADS) ss_narrow(const __grid_constant__ Query query) {
    __shared__ u64 sums[PARTS], partial[33], before_part;
    __shared__ u32 chosen, cursor;
    Control& control = *query.control;
    const u32 r = blockIdx.x;
    Target target = control.targets[r];
    if (target.where != LISTED) return;
    const u32 list = target.list;
    bool misses = false;
    if (threadIdx.x < query.devices) {
        const Control& other = *query.controls[threadIdx.x];
        misses = other.list_cursor[list] != other.list_expected[list];
    }
    if (threadIdx.x == 0) cursor = 0;
    for (u32 part = threadIdx.x; part < PARTS; part += THREADS) sums[part] = 0;
    for (u32 device = 0; device < query.devices; ++device)
        each_of(tallies_of(query, *query.controls[device], list), PARTS, [&](u64 part, u32 count) { sums[part] += count; });
    if (__syncthreads_or(misses)) {
        // Keys were dropped because there was no room.
        if (threadIdx.x == 0) {
            control.targets[r].where = OPEN;
            atomicAdd(&control.open, 1);
        }
        return;
    }
    const Digit digit(control, target);
    if (control.heavies)
        for (u32 i = threadIdx.x; i < HEAVY_SLOTS; i += THREADS) {
            const Key key = control.heavy[i];
            const u64 count = control.all_heavy_counts[i];
            if (count && target.first <= key && key <= target.last) atomicAdd(&sums[digit(key)], count);
        }
    __syncthreads();
    constexpr u32 SHARE = PARTS / THREADS;
    u64 own = 0, total;
    for (u32 part = threadIdx.x * SHARE; part < (threadIdx.x + 1) * SHARE; ++part) own += sums[part];
    u64 before = block_scan(own, partial, total);
    if (before <= target.inner && target.inner < before + own)
        for (u32 part = threadIdx.x * SHARE;; ++part) {
            if (target.inner < before + sums[part]) {
                chosen = part;
                before_part = before;
                break;
            }
            before += sums[part];
        }
    __syncthreads();
    digit.narrow(chosen, target);
    target.inner -= before_part;
    if (target.first == target.last) {
        // The part has only one key.
        target.where = ANSWERED;
        if (threadIdx.x == 0) query.answers[r] = target.first;
    }
    const u32 wanted = tallies_of(query, control, list)[chosen];
    if (threadIdx.x == 0) {
        control.targets[r] = target;
        control.few_keys[r] = wanted;
    }
    if (target.where == ANSWERED || wanted > MOST_FEW) return;
    Key* few = few_of(query, control, r);
    each_of(query.listed + control.list_start[list], control.list_cursor[list], [&](u64, Key key) {
        if (target.first <= key && key <= target.last) few[atomicAdd(&cursor, 1)] = key;
    });
}

// Visits the keys of a rank, device by device.
struct EachOfAll {
    const Key* const* keys;
    const u64* counts;
    u32 devices;
    template <class Visit>
    __device__ __forceinline__ void operator()(Visit visit) const {
        for (u32 device = 0; device < devices; ++device) EachOf{keys[device], counts[device]}(visit);
    }
};

// Selects among the keys that are left of each rank. Ranks are divided among the devices. If a device has many such keys, they are read in
// its list, among others.
extern "C" __global__ void __launch_bounds__(THREADS) ss_finish(const __grid_constant__ Query query) {
    __shared__ SelectScratch<Key> scratch;
    __shared__ const Key* keys[MOST_DEVICES];
    __shared__ u64 counts[MOST_DEVICES];
    const Control& control = *query.control;
    const u32 r = blockIdx.x;
    const Target target = control.targets[r];
    if (target.where != LISTED || r % query.devices != query.device) return;
    if (threadIdx.x < query.devices) {
        const Control& other = *query.controls[threadIdx.x];
        const u32 few = other.few_keys[r];
        keys[threadIdx.x] = few <= MOST_FEW ? few_of(query, other, r) : query.lists[threadIdx.x] + other.list_start[target.list];
        counts[threadIdx.x] = few <= MOST_FEW ? few : other.list_cursor[target.list];
    }
    __syncthreads();
    u64 all = 0;
    for (u32 device = 0; device < query.devices; ++device) all += counts[device];
    const Key key = select_target(query, target, EachOfAll{keys, counts, query.devices}, all, scratch);
    if (threadIdx.x == 0) query.answers[r] = key;
}
