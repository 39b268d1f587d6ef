// Adds each row's branches (low-rank, bottleneck, sparse) to a shared product on the row's span of tokens. A token's
// bits depend on its own input and its branch alone.
#pragma once
#include <algorithm>
#include <utility>

#include "numbers.h"

namespace {

// Tokens as rows of a matrix, `stride` numbers apart.
template <typename T>
struct Lines {
    T *first;
    int64_t width, stride;
    T *of(int64_t token) const { return first + token * stride; }
};

// Memory of one thread: `zeros` holds each output's sum for one register of tokens, and is zero again after use; `any`
// is free.
struct BranchScratch {
    float *zeros, *any;
};

// Tokens and ranks of one tile of sums; tokens per unit of work of a thread.
constexpr int64_t TOKENS = 4, RANKS = 4, CHUNK = 32;

// y += f(x Aᵀ + c) Bᵀ for A [rank, in] and column-major B [out, rank]; c [rank] is null without bias and activation.
// With a column-major core R [rank, rank], y += x Aᵀ Rᵀ Bᵀ; other branches may then share A and B.
// reach [rank, 2] is the range of outputs where each column of B is nonzero; null if unknown.
template <typename T>
struct LowRank {
    int64_t start, stop, rank;
    const T *A, *B, *c, *core;
    const int64_t *reach;
};

// y += x Sᵀ: the entries of S by rows.
template <typename T>
struct Sparse {
    int64_t start, stop, entries;
    const int64_t *rows, *columns;
    const T *values;
};

// One instruction multiplies `NUMBERS` pairs; with `PAIRS` each lane adds up the products of two neighbors.
template <typename X, typename T>
struct MultiplyAdd {
    static constexpr bool PAIRS = false;
    static constexpr int NUMBERS = LANES;
    template <typename Number>
    static lanes read(const Number *p) {
        return load_lanes(p);
    }
    static lanes add(lanes sum, lanes a, lanes b) { return sum + a * b; }
};
#ifdef __AVX512BF16__
template <>
struct MultiplyAdd<bf16, bf16> {
    static constexpr bool PAIRS = true;
    static constexpr int NUMBERS = 2 * LANES;
    static __m512bh read(const bf16 *p) { return (__m512bh)_mm512_loadu_si512(p); }
    static lanes add(lanes sum, __m512bh a, __m512bh b) { return (lanes)_mm512_dpbf16_ps((__m512)sum, a, b); }
};
#endif

// p [TOKENS][RANKS] = x Aᵀ. At an edge x or A repeats its last token or row.
template <typename X, typename T>
inline void multiply_down(const X *const *x, const T *const *A, int64_t in, float (*p)[RANKS]) {
    using S = MultiplyAdd<X, T>;
    constexpr int SUMS = TOKENS * RANKS;
    static_assert(SUMS % LANES == 0);
    lanes sums[SUMS] = {};
    int64_t i = 0;
    for (; i + S::NUMBERS <= in; i += S::NUMBERS) {
        decltype(S::read(A[0])) a[RANKS];
        for (int j = 0; j < RANKS; ++j) a[j] = S::read(A[j] + i);
        for (int t = 0; t < TOKENS; ++t) {
            const auto own = S::read(x[t] + i);
            for (int j = 0; j < RANKS; ++j) sums[t * RANKS + j] = S::add(sums[t * RANKS + j], own, a[j]);
        }
    }
    // All sums add up their lanes side by side: one after the other would take longer than the products.
    float totals[SUMS];
    for (int first = 0; first < SUMS; first += LANES) {
        lanes *own = sums + first, total = {};
        transpose(own);
        for (int k = 0; k < LANES; ++k) total += own[k];
        at(totals + first) = total;
    }
    for (int t = 0; t < TOKENS; ++t)
        for (int j = 0; j < RANKS; ++j) {
            float total = totals[t * RANKS + j];
            for (int64_t rest = i; rest < in; ++rest) total += load(x[t][rest]) * load(A[j][rest]);
            p[t][j] = total;
        }
}

// y[t] += B p[t] at the outputs from `i` to `stop`, for the first `count` tokens.
template <typename Y, typename T>
inline void add_up(const Lines<Y> &y, int64_t token, int64_t count, const T *B, const float *p, int64_t rank, int64_t stride, int64_t i,
                   int64_t stop) {
    const int64_t out = y.width;
    for (; i + 2 * LANES <= stop; i += 2 * LANES) {
        lanes low[TOKENS] = {}, high[TOKENS] = {};
        for (int64_t j = 0; j < rank; ++j) {
            const lanes left = load_lanes(B + j * out + i), right = load_lanes(B + j * out + i + LANES);
            for (int t = 0; t < TOKENS; ++t) low[t] += p[t * stride + j] * left, high[t] += p[t * stride + j] * right;
        }
        for (int t = 0; t < TOKENS; ++t) {
            Y *own = y.of(token + std::min<int64_t>(t, count - 1)) + i;
            if (t < count) store_lanes(own, load_lanes(own) + low[t]);
            if (t < count) store_lanes(own + LANES, load_lanes(own + LANES) + high[t]);
        }
    }
    for (; i < stop; ++i)
        for (int64_t t = 0; t < count; ++t) {
            float total = 0;
            for (int64_t j = 0; j < rank; ++j) total += p[t * stride + j] * load(B[j * out + i]);
            Y &own = y.of(token + t)[i];
            store(own, load(own) + total);
        }
}

inline int64_t whole_ranks(int64_t rank) { return (rank + RANKS - 1) / RANKS * RANKS; }

template <typename T>
int64_t floats(const LowRank<T> &branch, int64_t) {
    return (branch.core ? 2 : 1) * TOKENS * whole_ranks(branch.rank);
}

// q[t] = R p[t] for column-major R [rank, rank].
template <typename T>
inline void turn(const float *p, const T *R, int64_t rank, int64_t stride, float *q) {
    std::fill(q, q + TOKENS * stride, 0.0f);
    for (int t = 0; t < TOKENS; ++t)
        for (int64_t k = 0; k < rank; ++k)
#pragma omp simd
            for (int64_t j = 0; j < rank; ++j) q[t * stride + j] += p[t * stride + k] * load(R[k * rank + j]);
}

// Adds a low-rank, core or bottleneck branch; `any` holds x Aᵀ of TOKENS tokens, then x Aᵀ Rᵀ.
template <typename T, typename Y, typename X>
void add(const LowRank<T> &branch, int64_t start, int64_t stop, const Lines<Y> &y, const Lines<X> &x, BranchScratch scratch) {
    const int64_t in = x.width;
    const int64_t stride = whole_ranks(branch.rank);
    for (int64_t token = start; token < stop; token += TOKENS) {
        float *p = scratch.any;
        const X *own[TOKENS];
        for (int t = 0; t < TOKENS; ++t) own[t] = x.of(std::min(token + t, stop - 1));
        for (int64_t j = 0; j < branch.rank; j += RANKS) {
            const T *lines[RANKS];
            float tile[TOKENS][RANKS];
            for (int k = 0; k < RANKS; ++k) lines[k] = branch.A + std::min(j + k, branch.rank - 1) * in;
            multiply_down(own, lines, in, tile);
            for (int t = 0; t < TOKENS; ++t) std::copy(tile[t], tile[t] + RANKS, p + t * stride + j);
        }
        if (branch.c)
            for (int t = 0; t < TOKENS; ++t)
#pragma omp simd
                for (int64_t j = 0; j < branch.rank; ++j) p[t * stride + j] = gelu(p[t * stride + j] + load(branch.c[j]));
        if (branch.core) {
            float *turned = p + TOKENS * stride;
            turn(p, branch.core, branch.rank, stride, turned);
            p = turned;
        }
        for (int64_t j = 0, next; j < branch.rank; j = next) {
            const int64_t *reach = branch.reach ? branch.reach + 2 * j : nullptr;
            for (next = j + 1; next < branch.rank && (!reach || std::equal(reach, reach + 2, branch.reach + 2 * next));) ++next;
            add_up(y, token, std::min(TOKENS, stop - token), branch.B + j * y.width, p + j, next - j, stride, reach ? reach[0] : 0,
                   reach ? reach[1] : y.width);
        }
    }
}

template <typename T>
int64_t floats(const Sparse<T> &, int64_t in) {
    return in * LANES;
}

// Tokens are in lanes, so an entry takes one product for all tokens of a register.
template <typename T, typename Y, typename X>
void add(const Sparse<T> &branch, int64_t start, int64_t stop, const Lines<Y> &y, const Lines<X> &x, BranchScratch scratch) {
    const int64_t in = x.width, out = y.width;
    float *across = scratch.any, *sums = scratch.zeros;
    for (int64_t token = start; token < stop; token += LANES) {
        const int count = std::min<int64_t>(LANES, stop - token);
        lanes tile[LANES];
        int64_t i = 0;
        for (; i + LANES <= in; i += LANES) {
            for (int t = 0; t < LANES; ++t) tile[t] = load_lanes(x.of(token + std::min(t, count - 1)) + i);
            transpose(tile);
            for (int k = 0; k < LANES; ++k) at(across + (i + k) * LANES) = tile[k];
        }
        for (; i < in; ++i)
            for (int t = 0; t < count; ++t) across[i * LANES + t] = load(x.of(token + t)[i]);
        for (int64_t e = 0; e < branch.entries; ++e)
            at(sums + branch.rows[e] * LANES) += load(branch.values[e]) * at(across + branch.columns[e] * LANES);
        for (i = 0; i + LANES <= out; i += LANES) {
            for (int k = 0; k < LANES; ++k) tile[k] = at(sums + (i + k) * LANES), at(sums + (i + k) * LANES) = lanes{};
            transpose(tile);
            for (int t = 0; t < count; ++t) {
                Y *own = y.of(token + t) + i;
                store_lanes(own, load_lanes(own) + tile[t]);
            }
        }
        for (; i < out; ++i) {
            for (int t = 0; t < count; ++t) {
                Y &own = y.of(token + t)[i];
                store(own, load(own) + sums[i * LANES + t]);
            }
            at(sums + i * LANES) = lanes{};
        }
    }
}

}  // namespace
