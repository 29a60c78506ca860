// Pairs of a query and a vector of a matrix that may be among the k best of their query, by products in tensor cores.
//
//   vp_parts_B      a warp a row      B = 32 or 16 bits of a component: what the score of each vector has besides the product
//   vp_points       a warp a query    the same of each query, and its components scaled to a length of at most 1, in 16 bits
//   vp_halves_B     a warp a row      the vectors of a step, scaled in the same way
//   vp_product      tiles             scores of 128 queries and 128 vectors; pairs within the limit of their query are listed
//   vp_settle       a block a query   the limit of a query: the k-th least of the greatest scores in its list, which is cut to that
//   vp_distances_B  a block a query   distances of the listed pairs in f64, with the bits of the CPU; those beyond the k-th are dropped
//   vp_collect      a block a query   what is left of all lists, one behind the other
//
// Less of a score is better. Products of numbers of 16 bits are exact in f32, so that a score is known up to a margin that
// the lengths of both vectors give; src/kernel/cuda/pair_kernels.rs has the bound. The score of a listed pair, less its margin, is its least
// score but for the term of the query alone. Compiled for 64 bits, unsigned: keys of distances.
#include "distances.cuh"

constexpr u32 TILE_SIDE = 128;  // queries, and vectors, of a tile
constexpr u32 SLICE = 32;       // components of a step of the product: 64 bytes of each vector
constexpr u32 STAGES = 3;       // slices in shared memory: one that is multiplied, and those on their way
constexpr u32 PAIR_THREADS = 128;
constexpr u32 QUERY_THREADS = 256;
constexpr u32 ROW_WARPS = 8;    // warps of a block that looks at single rows
#define INFINITE __uint_as_float(0x7f800000u)

struct Pairs {
    const void* vectors;   // `width` components for each row, aligned to 16 bytes
    const u8* validity;    // bitmap of rows as in Arrow; null: all are valid
    const u8* mask;        // bitmap of the rows that count; null: all do
    float4* parts;         // of each row: term, factor of the product, length, slack; the term is infinite if the row is never listed
    float* scales;         // of each row: the factor that makes it at most 1 long
    u16* halves;           // `depth` scaled components of each row of this step, 0 behind the last; a multiple of TILE_SIDE rows
    u16* points;           // the same of each query; a multiple of TILE_SIDE queries
    const double* queries; // `width` components of each query
    float* limits;         // the greatest score of each query that is listed
    float4* factors;       // of each query: factor of the product, margin for a vector of length 1, what the greatest score has besides, 0
    const u32* row_marks;  // of each row, or null: a pair of equal marks is not listed, nor one with the mark ~0
    const u32* query_marks;
    const u32* active;     // 1 for queries that take part; null: all do
    u32* again;            // 1 for queries whose list had too little room
    u32* counts;           // entries of each list, also those without room; in the end those that are left
    u32* before;           // entries of each list that are settled
    u64* items;            // `room` entries of each query: row, and the bits of its score in the upper half
    const u64* starts;     // where the distances of each query begin
    const u64* places;     // where the answer of each query begins
    u32* found_rows;       // rows and distances of all lists
    double* found;
    u32* out_rows;         // the answer
    double* out;
    u32* flags;            // rows and queries whose score is not known; lists that had too little room; entries of the longest settled list
    u64 rows;              // < 2^32 - 1
    u64 first, end;        // rows of this step
    u32 width, depth;
    u32 query_count;
    u32 k, room;
    u32 measure;           // 0 Euclidean distance, 1 cosine distance, 2 inner product
    float sign;            // 1, or -1 if the greatest distance comes first
    float margin;          // the error of a product, as a share of the product of both lengths
};

// A tile takes so many bytes of shared memory.
extern "C" __constant__ u32 vp_sizes[4] = {sizeof(Pairs), TILE_SIDE, SLICE, STAGES * 2 * TILE_SIDE * SLICE * 2 + 36 * TILE_SIDE};

constexpr u32 EUCLIDEAN = 0, COSINE = 1;

// Devices before these have no such instructions, and are never asked.
#define HAS_INSTRUCTIONS (__CUDA_ARCH__ >= 800)

__device__ __forceinline__ u16 to_half(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

// ---------------------------------------------------------------- vectors

// Whether the margins hold for a vector whose squared length this is: nothing that matters underflows or overflows.
__device__ __forceinline__ bool is_known(const Pairs& ask, double square) {
    return (square >= 1e-20 && square < 1e30) || (square == 0 && ask.measure != COSINE);
}

// The exponent of a power of two above the length of a vector, or 0.
__device__ __forceinline__ int exponent_of(double length) { return length > 0 ? ilogb(length) + 1 : 0; }

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (u32 apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
    return sum;
}

extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32) vp_points(const __grid_constant__ Pairs ask) {
    const u32 warps = gridDim.x * ROW_WARPS, padded = (ask.query_count + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE;
    for (u32 query = blockIdx.x * ROW_WARPS + threadIdx.x / 32; query < padded; query += warps) {
        const double* components = ask.queries + u64(query) * ask.width;
        const bool there = query < ask.query_count;
        double square = 0;
        for (u32 at = lane_id(); there && at < ask.width; at += 32) square += components[at] * components[at];
        square = sum_of_warp(square);
        const bool known = is_known(ask, square);
        const double length = known ? sqrt(square) : 0;
        const int exponent = exponent_of(length);
        const double scale = ask.measure == COSINE ? 1 / length : scalbn(1.0, -exponent);
        u16* points = ask.points + u64(query) * ask.depth;
        for (u32 at = lane_id(); at < ask.depth; at += 32)
            points[at] = there && known && at < ask.width ? to_half(float(components[at] * scale)) : 0;
        if (!there || lane_id() != 0) continue;
        if (!known) atomicAdd(ask.flags, 1);
        float4 factors = make_float4(ask.sign, ask.margin, 0, 0);
        if (ask.measure == COSINE) {
            factors.x = -ask.sign;
        } else {
            factors.x = float(ask.sign * scalbn(1.0, exponent));
            factors.y = __double2float_ru(ask.margin * length * (1 + 1e-12));
        }
        if (ask.measure == EUCLIDEAN) {
            factors.x *= -2;
            factors.y *= 2;
            factors.z = __double2float_ru(0x1p-19 * square);
        }
        ask.factors[query] = factors;
    }
}

template <typename Components>
__device__ __forceinline__ void parts_of_rows(const Pairs& ask) {
    const typename Components::Stored* vectors = (const typename Components::Stored*)ask.vectors;
    const u64 warps = u64(gridDim.x) * ROW_WARPS;
    for (u64 row = u64(blockIdx.x) * ROW_WARPS + threadIdx.x / 32; row < ask.rows; row += warps) {
        double square = 0;
        for (u32 at = lane_id(); at < ask.width; at += 32) {
            const double component = Components::one(vectors + row * ask.width + at);
            square += component * component;
        }
        square = sum_of_warp(square);
        if (lane_id() != 0) continue;
        const bool asked = !ask.mask || ask.mask[row >> 3] >> (row & 7) & 1;
        const bool valid = !ask.validity || ask.validity[row >> 3] >> (row & 7) & 1;
        const bool known = valid && is_known(ask, square);
        if (asked && !known) atomicAdd(ask.flags, 1);
        float4 part = make_float4(0, 1, 1, 0);
        if (ask.measure == EUCLIDEAN) {
            // So much less that rounding the term, and adding it, cannot make the score too great.
            part.x = __double2float_rd(ask.sign * square - 0x1p-20 * square);
            part.w = __double2float_ru(0x1p-19 * square);
        }
        const double length = sqrt(square);
        if (ask.measure == COSINE) {
            ask.scales[row] = float(1 / length);
        } else {
            part.z = __double2float_ru(length * (1 + 1e-12));
            const int exponent = known ? exponent_of(length) : 0;
            part.y = float(scalbn(1.0, exponent));
            ask.scales[row] = float(scalbn(1.0, -exponent));
        }
        if (!asked || !known) part.x = INFINITE;
        ask.parts[row] = part;
    }
}

extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32) vp_parts_32(const __grid_constant__ Pairs ask) { parts_of_rows<Singles>(ask); }
extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32) vp_parts_16(const __grid_constant__ Pairs ask) { parts_of_rows<Halves>(ask); }

// The vectors of a step, one behind the other.
template <typename Components>
__device__ __forceinline__ void halves_of_rows(const Pairs& ask) {
    const typename Components::Stored* vectors = (const typename Components::Stored*)ask.vectors;
    const u64 warps = u64(gridDim.x) * ROW_WARPS, count = (ask.end - ask.first + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE;
    for (u64 i = u64(blockIdx.x) * ROW_WARPS + threadIdx.x / 32; i < count; i += warps) {
        const u64 row = ask.first + i;
        const float scale = row < ask.end ? ask.scales[row] : 0;
        for (u32 at = lane_id(); at < ask.depth; at += 32) {
            const bool there = row < ask.end && at < ask.width;
            ask.halves[i * ask.depth + at] = there ? to_half(Components::one(vectors + row * ask.width + at) * scale) : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32) vp_halves_32(const __grid_constant__ Pairs ask) { halves_of_rows<Singles>(ask); }
extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32) vp_halves_16(const __grid_constant__ Pairs ask) { halves_of_rows<Halves>(ask); }

// ---------------------------------------------------------------- products

constexpr u32 PIECE = 8;                // halves of 16 bytes, which are copied and loaded at once
constexpr u32 PIECES = SLICE / PIECE;   // of a vector in a slice

// A slice of a tile of queries, and of a tile of vectors.
struct Slices {
    u16 queries[TILE_SIDE * SLICE];
    u16 vectors[TILE_SIDE * SLICE];
};

// The shared memory of a tile.
struct TileMemory {
    Slices slices[STAGES];
    float4 parts[TILE_SIDE];    // of its vectors
    float4 factors[TILE_SIDE];  // of its queries
    float limits[TILE_SIDE];
};

// Where a piece of a vector of a slice lies: the eight rows of a load meet in no bank.
__device__ __forceinline__ u32 place_of(u32 row, u32 piece) { return row * SLICE + (piece ^ (row >> 1 & 3)) * PIECE; }

__device__ __forceinline__ void copy_16(u16* to, const u16* from) {
#if HAS_INSTRUCTIONS
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from));
#endif
}
// Ends a group of copies.
__device__ __forceinline__ void copies_begin() {
#if HAS_INSTRUCTIONS
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups of copies but the last ones.
template <int BUT>
__device__ __forceinline__ void copies_end() {
#if HAS_INSTRUCTIONS
    asm volatile("cp.async.wait_group %0;" ::"n"(BUT) : "memory");
#endif
}

// Four matrices of 8 by 8 halves, as the instruction below takes them. Each lane has the address of a row.
__device__ __forceinline__ void load_four(u32 (&out)[4], const u16* row) {
#if HAS_INSTRUCTIONS
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(u32(__cvta_generic_to_shared(row))));
#endif
}

// c += a b for 16 queries, 8 vectors and 16 components.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 low, u32 high) {
#if HAS_INSTRUCTIONS
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
#endif
}

// The products of a warp: 64 queries and 64 vectors, in the fragments of the instruction.
typedef float Products[4][8][4];

// Adds the products of a slice of the 64 queries and 64 vectors from these rows on.
__device__ __forceinline__ void add_slice(Products& sums, const Slices& slice, u32 query, u32 vector) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 step = 0; step < SLICE / 16; ++step) {
        u32 a[4][4], b[4][4];
#pragma unroll
        for (u32 m = 0; m < 4; ++m) load_four(a[m], slice.queries + place_of(query + m * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (u32 n = 0; n < 4; ++n)
            load_four(b[n], slice.vectors + place_of(vector + n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
        for (u32 m = 0; m < 4; ++m)
#pragma unroll
            for (u32 n = 0; n < 8; ++n) multiply(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

// The products of a tile of queries and a tile of vectors of this step.
__device__ __forceinline__ void products_of(const Pairs& ask, u64 query, u64 vector, Slices* slices, Products& sums) {
    const u32 warp = threadIdx.x / 32, count = ask.depth / SLICE;
    const u16 *points = ask.points + query * ask.depth, *halves = ask.halves + vector * ask.depth;
    const auto begin = [&](u32 number) {
        if (number < count) {
            Slices& slice = slices[number % STAGES];
#pragma unroll
            for (u32 i = 0; i < TILE_SIDE * PIECES / PAIR_THREADS; ++i) {
                const u32 at = threadIdx.x + i * PAIR_THREADS, row = at / PIECES, piece = at % PIECES;
                const u64 from = u64(row) * ask.depth + number * SLICE + piece * PIECE;
                copy_16(slice.queries + place_of(row, piece), points + from);
                copy_16(slice.vectors + place_of(row, piece), halves + from);
            }
        }
        copies_begin();
    };
#pragma unroll
    for (u32 m = 0; m < 4; ++m)
#pragma unroll
        for (u32 n = 0; n < 8; ++n)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sums[m][n][i] = 0;
#pragma unroll
    for (u32 number = 0; number < STAGES - 1; ++number) begin(number);
    for (u32 number = 0; number < count; ++number) {
        copies_end<STAGES - 2>();
        __syncthreads();
        begin(number + STAGES - 1);
        add_slice(sums, slices[number % STAGES], warp / 2 * 64, warp % 2 * 64);
    }
}

// Lists the pairs of a warp that are within the limits of their queries: 64 queries and 64 vectors from these places in the tile on.
__device__ __forceinline__ void list_pairs(const Pairs& ask, const TileMemory& tile, u64 first_query, u64 first_row, u32 of_query, u32 of_row, Products& sums) {
    const u32 group = lane_id() / 4, own = lane_id() % 4;
    float factor[4][2], margin[4][2], least[4][2];
#pragma unroll
    for (u32 m = 0; m < 4; ++m)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const float4 factors = tile.factors[of_query + m * 16 + half * 8 + group];
            factor[m][half] = factors.x;
            margin[m][half] = -factors.y;
            least[m][half] = INFINITE;
        }
#pragma unroll
    for (u32 n = 0; n < 8; ++n)
#pragma unroll
        for (u32 j = 0; j < 2; ++j) {
            const float4 part = tile.parts[of_row + n * 8 + own * 2 + j];
#pragma unroll
            for (u32 m = 0; m < 4; ++m)
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    float& sum = sums[m][n][half * 2 + j];
                    sum = fmaf(margin[m][half], part.z, fmaf(factor[m][half], sum * part.y, part.x));
                    least[m][half] = fminf(least[m][half], sum);
                }
        }
#pragma unroll
    for (u32 m = 0; m < 4; ++m)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 at_query = of_query + m * 16 + half * 8 + group;
            const float limit = tile.limits[at_query];
            if (!__any_sync(ALL_LANES, least[m][half] <= limit)) continue;
            u32 mine = 0;
#pragma unroll
            for (u32 column = 0; column < 16; ++column)
                if (sums[m][column / 2][half * 2 + column % 2] <= limit) mine |= 1u << column;
            const u32 query = u32(first_query) + at_query;
            const u64 first_of_warp = first_row + of_row;
            if (ask.row_marks && mine) {
                const u32 mark = ask.query_marks[query];
                for (u32 left = mine; left; left &= left - 1) {
                    const u32 column = __ffs(left) - 1;
                    const u32 row_mark = ask.row_marks[first_of_warp + column / 2 * 8 + own * 2 + column % 2];
                    if (row_mark == mark || row_mark == ~0u || mark == ~0u) mine &= ~(1u << column);
                }
            }
            // One addition for the four lanes of a query.
            const u32 count = __popc(mine);
            u32 upto = count;
#pragma unroll
            for (u32 apart = 1; apart < 4; apart *= 2) {
                const u32 other = __shfl_up_sync(ALL_LANES, upto, apart, 4);
                if (own >= apart) upto += other;
            }
            const u32 total = __shfl_sync(ALL_LANES, upto, 3, 4);
            u32 at = 0;
            if (own == 0 && total) at = atomicAdd(ask.counts + query, total);
            at = __shfl_sync(ALL_LANES, at, 0, 4) + upto - count;
#pragma unroll
            for (u32 column = 0; column < 16; ++column)
                if (mine >> column & 1) {
                    const u64 row = first_of_warp + column / 2 * 8 + own * 2 + column % 2;
                    const u32 score = __float_as_uint(sums[m][column / 2][half * 2 + column % 2]);
                    if (at < ask.room) ask.items[u64(query) * ask.room + at] = u64(score) << 32 | row;
                    ++at;
                }
        }
}

// Tiles of one range of vectors follow each other, so that the vectors are read from the device's memory once.
extern "C" __global__ void __launch_bounds__(PAIR_THREADS, 2) vp_product(const __grid_constant__ Pairs ask) {
    extern __shared__ float4 tile_memory[];
    TileMemory& tile = *(TileMemory*)tile_memory;
    const u32 tiles = (ask.query_count + TILE_SIDE - 1) / TILE_SIDE;
    const u32 first_query = blockIdx.x % tiles * TILE_SIDE;
    const u64 vector = u64(blockIdx.x / tiles) * TILE_SIDE, first_row = ask.first + vector;
    const u32 query = first_query + threadIdx.x;
    const bool takes_part = query < ask.query_count && (!ask.active || ask.active[query]);
    if (ask.active && !__syncthreads_or(takes_part)) return;
    // A limit that no score of a row that is never listed reaches: it is infinite.
    tile.limits[threadIdx.x] = takes_part ? fminf(ask.limits[query], 3e38f) : -INFINITE;
    tile.factors[threadIdx.x] = takes_part ? ask.factors[query] : make_float4(0, 0, 0, 0);
    const u64 row = first_row + threadIdx.x;
    tile.parts[threadIdx.x] = row < ask.end ? ask.parts[row] : make_float4(INFINITE, 1, 0, 0);
    Products sums;
    products_of(ask, first_query, vector, tile.slices, sums);
    const u32 warp = threadIdx.x / 32;
    list_pairs(ask, tile, first_query, first_row, warp / 2 * 64, warp % 2 * 64, sums);
}

// ---------------------------------------------------------------- lists

// A number whose order is that of a float.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

extern "C" __global__ void __launch_bounds__(QUERY_THREADS) vp_settle(const __grid_constant__ Pairs ask) {
    __shared__ SelectScratch<u32> scratch;
    __shared__ u32 partial[33];
    const u32 query = blockIdx.x;
    if (ask.active && !ask.active[query]) return;
    u64* items = ask.items + u64(query) * ask.room;
    const u32 counted = ask.counts[query], settled = ask.before[query];
    const bool overflows = counted > ask.room;
    const u32 count = overflows ? ask.room : counted;
    const float4 factors = ask.factors[query];
    float limit = ask.limits[query];
    if (count >= ask.k && counted > settled) {
        const auto greatest = [&](u32 i) {
            const u64 item = items[i];
            const float4 part = ask.parts[u32(item)];
            return ordered(__fadd_ru(__fmaf_ru(__fmul_ru(2.002f, factors.y), part.z, __uint_as_float(u32(item >> 32))), part.w));
        };
        const u32 kth = block_select(greatest, count, ask.k - 1, u32(0), 32, scratch);
        limit = fminf(limit, __fadd_ru(from_ordered(kth), factors.z));
    }
    // What a list without room for all has of this step comes again.
    const u32 asked = overflows ? settled : count;
    u32 kept = 0;
    for (u32 first = 0; first < asked; first += QUERY_THREADS) {
        const u32 i = first + threadIdx.x;
        const u64 item = i < asked ? items[i] : 0;
        const u32 keeps = i < asked && __uint_as_float(u32(item >> 32)) <= limit;
        u32 total;
        const u32 at = kept + block_scan(keeps, partial, total);
        if (keeps) items[at] = item;
        kept += total;
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    ask.limits[query] = limit;
    ask.counts[query] = ask.before[query] = kept;
    ask.again[query] = overflows;
    if (overflows) atomicAdd(ask.flags + 1, 1);
    atomicMax(ask.flags + 2, kept);
}

template <typename Components>
__device__ __forceinline__ double distance_of(const Pairs& ask, const typename Components::Stored* vector, const double* query) {
    double terms = ask.measure == EUCLIDEAN ? -0.0 : 0.0, of_vector = 0, of_query = 0;
    for (u32 i = 0; i < ask.width; ++i) {
        const double a = Components::one(vector + i), b = query[i];
        if (ask.measure == EUCLIDEAN) {
            terms += (a - b) * (a - b);
        } else {
            terms += a * b;
            if (ask.measure == COSINE) {
                of_vector += a * a;
                of_query += b * b;
            }
        }
    }
    if (ask.measure == EUCLIDEAN) return sqrt(terms);
    return ask.measure == COSINE ? 1 - terms / (sqrt(of_vector) * sqrt(of_query)) : terms;
}

// A number whose order is that of scores: of distances, or of their negatives.
__device__ __forceinline__ u64 ordered(double x) {
    // Zeros of both signs are one number.
    const u64 bits = __double_as_longlong(x + 0.0);
    return bits >> 63 ? ~bits : bits | u64(1) << 63;
}

// Sums are added in the order of the components, without fused operations, as src/kernel/cpu/distance/exact.rs does it.
template <typename Components>
__device__ __forceinline__ void distances_of_pairs(const Pairs& ask) {
    __shared__ SelectScratch<u64> scratch;
    __shared__ u32 partial[33];
    const u32 query = blockIdx.x;
    const u64* items = ask.items + u64(query) * ask.room;
    const u64 start = ask.starts[query];
    const u32 count = ask.before[query];
    u32* rows = ask.found_rows + start;
    double* found = ask.found + start;
    for (u32 i = threadIdx.x; i < count; i += QUERY_THREADS) {
        const u32 row = u32(items[i]);
        const auto* vector = (const typename Components::Stored*)ask.vectors + u64(row) * ask.width;
        rows[i] = row;
        found[i] = distance_of<Components>(ask, vector, ask.queries + u64(query) * ask.width);
    }
    __syncthreads();
    u32 kept = count;
    if (count > ask.k) {
        const auto score = [&](u32 i) { return ordered(ask.sign * found[i]); };
        const u64 kth = block_select(score, count, ask.k - 1, u64(0), 64, scratch);
        kept = 0;
        for (u32 first = 0; first < count; first += QUERY_THREADS) {
            const u32 i = first + threadIdx.x;
            const u32 row = i < count ? rows[i] : 0;
            const double distance = i < count ? found[i] : 0;
            const u32 keeps = i < count && ordered(ask.sign * distance) <= kth;
            u32 total;
            const u32 at = kept + block_scan(keeps, partial, total);
            if (keeps) {
                rows[at] = row;
                found[at] = distance;
            }
            kept += total;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) ask.counts[query] = kept;
}

extern "C" __global__ void __launch_bounds__(QUERY_THREADS) vp_distances_32(const __grid_constant__ Pairs ask) { distances_of_pairs<Singles>(ask); }
extern "C" __global__ void __launch_bounds__(QUERY_THREADS) vp_distances_16(const __grid_constant__ Pairs ask) { distances_of_pairs<Halves>(ask); }

extern "C" __global__ void __launch_bounds__(QUERY_THREADS) vp_collect(const __grid_constant__ Pairs ask) {
    const u32 query = blockIdx.x, count = ask.counts[query];
    const u64 start = ask.starts[query], place = ask.places[query];
    for (u32 i = threadIdx.x; i < count; i += QUERY_THREADS) {
        ask.out_rows[place + i] = ask.found_rows[start + i];
        ask.out[place + i] = ask.found[start + i];
    }
}
