// Adds the branches of single rows, low-rank, bottleneck and sparse, to a shared product, each on its span of tokens.
// A token's bits depend on its own input and its branch alone; `y` is rounded once for each branch.
#include <algorithm>
#include <utility>
#include <vector>

#include "numbers.h"
#include "scratch.h"

namespace {

// Tokens and ranks of one tile of sums, and tokens that a thread takes at a time.
constexpr int64_t TOKENS = 4, RANKS = 4, CHUNK = 32;

// y += f(x Aᵀ + c) Bᵀ: A [rank, in], B [out, rank] column by column; c [rank], or null where there is neither c nor f.
template <typename T>
struct LowRank {
    int64_t start, stop, rank;
    const T *A, *B, *c;
};

// y += x Sᵀ: the entries of S by rows.
template <typename T>
struct Sparse {
    int64_t start, stop, entries;
    const int64_t *rows, *columns;
    const T *values;
};

// p [TOKENS][RANKS] = x Aᵀ. At an edge the last token or line of A stands several times in x or A.
template <typename T>
inline void multiply_down(const T *const *x, const T *const *A, int64_t in, float (*p)[RANKS]) {
    lanes sums[TOKENS][RANKS] = {};
    int64_t i = 0;
    for (; i + LANES <= in; i += LANES) {
        lanes a[RANKS];
        for (int j = 0; j < RANKS; ++j) a[j] = load_lanes(A[j] + i);
        for (int t = 0; t < TOKENS; ++t) {
            const lanes own = load_lanes(x[t] + i);
            for (int j = 0; j < RANKS; ++j) sums[t][j] += own * a[j];
        }
    }
    for (int t = 0; t < TOKENS; ++t)
        for (int j = 0; j < RANKS; ++j) {
            float total = 0;
            for (int k = 0; k < LANES; ++k) total += sums[t][j][k];
            for (int64_t rest = i; rest < in; ++rest) total += load(x[t][rest]) * load(A[j][rest]);
            p[t][j] = total;
        }
}

// y[t] += B p[t] for the first `count` tokens.
template <typename T>
inline void add_up(T *y, int64_t out, int64_t count, const T *B, const float *p, int64_t rank, int64_t stride) {
    int64_t i = 0;
    for (; i + 2 * LANES <= out; i += 2 * LANES) {
        lanes low[TOKENS] = {}, high[TOKENS] = {};
        for (int64_t j = 0; j < rank; ++j) {
            const lanes left = load_lanes(B + j * out + i), right = load_lanes(B + j * out + i + LANES);
            for (int t = 0; t < TOKENS; ++t) low[t] += p[t * stride + j] * left, high[t] += p[t * stride + j] * right;
        }
        for (int t = 0; t < TOKENS; ++t) {
            T *own = y + t * out + i;
            if (t < count) store_lanes(own, load_lanes(own) + low[t]);
            if (t < count) store_lanes(own + LANES, load_lanes(own + LANES) + high[t]);
        }
    }
    for (; i < out; ++i)
        for (int64_t t = 0; t < count; ++t) {
            float total = 0;
            for (int64_t j = 0; j < rank; ++j) total += p[t * stride + j] * load(B[j * out + i]);
            store(y[t * out + i], load(y[t * out + i]) + total);
        }
}

inline int64_t whole_ranks(int64_t rank) { return (rank + RANKS - 1) / RANKS * RANKS; }

template <typename T>
int64_t floats(const LowRank<T> &branch, int64_t, int64_t) {
    return TOKENS * whole_ranks(branch.rank);
}

// Adds a low-rank or bottleneck branch; `p` is scratch memory for x Aᵀ of TOKENS tokens.
template <typename T>
void add(const LowRank<T> &branch, int64_t start, int64_t stop, T *y, int64_t out, const T *x, int64_t in,
         float *p) {
    const int64_t stride = whole_ranks(branch.rank);
    for (int64_t token = start; token < stop; token += TOKENS) {
        const T *own[TOKENS];
        for (int t = 0; t < TOKENS; ++t) own[t] = x + std::min(token + t, stop - 1) * in;
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
        add_up(y + token * out, out, std::min(TOKENS, stop - token), branch.B, p, branch.rank, stride);
    }
}

// Cuts a and b into groups of `S` lanes; takes every first group, or every second one, alternately from a and from b.
template <int S, bool SECOND, std::size_t... I>
inline lanes interleave(lanes a, lanes b, std::index_sequence<I...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, int(I & S ? (I - S + LANES + SECOND * S) : (I + SECOND * S))...);
#else
    return __builtin_shuffle(a, b, (ints){int(I & S ? (I - S + LANES + SECOND * S) : (I + SECOND * S))...});
#endif
}

template <int S>
inline void exchange(lanes *v) {
    constexpr auto all = std::make_index_sequence<LANES>{};
    for (int i = 0; i < LANES; ++i)
        if (!(i & S)) {
            const lanes a = v[i], b = v[i + S];
            v[i] = interleave<S, false>(a, b, all);
            v[i + S] = interleave<S, true>(a, b, all);
        }
}

inline void transpose(lanes *v) { exchange<8>(v), exchange<4>(v), exchange<2>(v), exchange<1>(v); }

template <typename T>
int64_t floats(const Sparse<T> &, int64_t in, int64_t out) {
    return (in + out) * LANES;
}

// Tokens lie in lanes, so that an entry takes one product for sixteen tokens. The part of `scratch` for sums must be
// zeros, and is zeros again afterwards.
template <typename T>
void add(const Sparse<T> &branch, int64_t start, int64_t stop, T *y, int64_t out, const T *x, int64_t in, float *scratch) {
    float *across = scratch, *sums = across + in * LANES;
    for (int64_t token = start; token < stop; token += LANES) {
        const int count = std::min<int64_t>(LANES, stop - token);
        const T *from = x + token * in;
        T *to = y + token * out;
        lanes tile[LANES];
        int64_t i = 0;
        for (; i + LANES <= in; i += LANES) {
            for (int t = 0; t < LANES; ++t) tile[t] = load_lanes(from + std::min(t, count - 1) * in + i);
            transpose(tile);
            for (int k = 0; k < LANES; ++k) at(across + (i + k) * LANES) = tile[k];
        }
        for (; i < in; ++i)
            for (int t = 0; t < count; ++t) across[i * LANES + t] = load(from[t * in + i]);
        for (int64_t e = 0; e < branch.entries; ++e)
            at(sums + branch.rows[e] * LANES) += load(branch.values[e]) * at(across + branch.columns[e] * LANES);
        for (i = 0; i + LANES <= out; i += LANES) {
            for (int k = 0; k < LANES; ++k) tile[k] = at(sums + (i + k) * LANES), at(sums + (i + k) * LANES) = lanes{};
            transpose(tile);
            for (int t = 0; t < count; ++t) store_lanes(to + t * out + i, load_lanes(to + t * out + i) + tile[t]);
        }
        for (; i < out; ++i) {
            for (int t = 0; t < count; ++t) store(to[t * out + i], load(to[t * out + i]) + sums[i * LANES + t]);
            at(sums + i * LANES) = lanes{};
        }
    }
}

// The branches of one span stand together in `branches`. One thread adds all of them to a chunk of its tokens, in their
// order, so that no two threads write to one token.
template <typename Branch, typename T>
void add_all(const Branch *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in, int64_t threads) {
    struct Chunk {
        const Branch *first, *last;
        int64_t start;
    };
    std::vector<Chunk> chunks;
    const Branch *end = branches + count;
    for (const Branch *first = branches, *last; first < end; first = last) {
        last = std::find_if(first, end, [&](const Branch &other) { return other.start != first->start; });
        for (int64_t start = first->start; start < first->stop; start += CHUNK) chunks.push_back({first, last, start});
    }
    const int64_t total = chunks.size();
    int64_t most = 0;
    for (const Branch *branch = branches; branch < end; ++branch) most = std::max(most, floats(*branch, in, out));
    Scratch scratch(threads, most);
#pragma omp parallel num_threads(threads)
    {
        float *own = scratch.own();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < total; ++i)
            for (const Branch *branch = chunks[i].first; branch < chunks[i].last; ++branch)
                add(*branch, chunks[i].start, std::min(chunks[i].start + CHUNK, branch->stop), y, out, x, in, own);
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                         \
    int add_low_rank_##NAME(const LowRank<T> *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in, \
                             int64_t threads) {                                                                   \
        return status_of([&] { add_all(branches, count, y, out, x, in, threads); });                              \
    }                                                                                                             \
    int add_sparse_##NAME(const Sparse<T> *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in,    \
                           int64_t threads) {                                                                     \
        return status_of([&] { add_all(branches, count, y, out, x, in, threads); });                              \
    }

extern "C" {
FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)
}
