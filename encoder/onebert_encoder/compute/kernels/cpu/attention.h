// Attention of one head of one sequence, its scores in the processor's cache.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "numbers.h"

namespace {

inline lanes larger(lanes a, lanes b) { return a > b ? a : b; }
inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

// e^x for x <= 0, relative error below 1e-6; 0 below -87.
inline lanes exp_negative(lanes x) {
    const ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    const lanes whole = __builtin_convertvector(n, lanes);
    const lanes r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const lanes scaled = p * (lanes)((n + 127) << 23);
    return x < -87.0f ? lanes{} : scaled;
}

inline lanes silu(lanes x) {
    const lanes e = exp_negative(x < 0.0f ? x : -x), positive = x / (1.0f + e);
    return x < 0.0f ? positive * e : positive;
}

// out [R][N lanes] = a b for b [depth][N lanes]; element (r, k) of a is a[r * across + k * down].
template <int R, int N>
inline void multiply(const float *a, int64_t across, int64_t down, const float *b, int64_t b_stride, int64_t depth, float *out,
                     int64_t out_stride) {
    lanes sum[R][N] = {};
    for (int64_t k = 0; k < depth; ++k) {
        lanes right[N];
        for (int n = 0; n < N; ++n) right[n] = at(b + k * b_stride + n * LANES);
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) sum[r][n] += a[r * across + k * down] * right[n];
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) at(out + r * out_stride + n * LANES) = sum[r][n];
}

// The same for any number of rows; at most R at once, whose 2 R sums and what they read have registers.
template <int N, int R = REGISTERS / 4>
inline void multiply_rows(const float *a, int64_t across, int64_t down, const float *b, int64_t b_stride, int64_t depth, float *out,
                     int64_t out_stride, int64_t rows) {
    for (; rows >= R; rows -= R, a += R * across, out += R * out_stride)
        multiply<R, N>(a, across, down, b, b_stride, depth, out, out_stride);
    if constexpr (R > 1) multiply_rows<N, R / 2>(a, across, down, b, b_stride, depth, out, out_stride, rows);
}

// Softmax over the rows of s [length][N lanes], not yet divided by the sums, which are written to `total`.
template <int N>
inline void softmax(float *s, int64_t length, float *total) {
    lanes top[N], sum[N] = {};
    for (int n = 0; n < N; ++n) top[n] = at(s + n * LANES);
    for (int64_t j = 1; j < length; ++j)
        for (int n = 0; n < N; ++n) top[n] = larger(at(s + (j * N + n) * LANES), top[n]);
    for (int64_t j = 0; j < length; ++j)
        for (int n = 0; n < N; ++n) {
            lanes &score = at(s + (j * N + n) * LANES);
            score = exp_negative(score - top[n]);
            sum[n] += score;
        }
    for (int n = 0; n < N; ++n) at(total + n * LANES) = sum[n];
}

// Buffers of one head: queries [d, padded][lanes], keys and values [length][d, padded], scores [length][lanes], and
// sums [lanes][d, padded].
struct Head {
    Head(float *scratch, int64_t length, int64_t d)
        : q(scratch), k(q + padded(d) * 2 * LANES), v(k + length * padded(d)), s(v + length * padded(d)), c(s + length * 2 * LANES) {}
    static int64_t floats(int64_t length, int64_t d) {
        return padded(d) * 4 * LANES + length * (2 * padded(d) + 2 * LANES);
    }
    float *q, *k, *v, *s, *c;
};

// Keys or values of a head, `apart` numbers between tokens.
struct Strided {
    const float *first;
    int64_t apart;
};

// Queries with their bias (null for none), times scale, in lanes: q [d][N lanes]. Lanes without a query are zero.
template <int N, typename X, typename T>
inline void lay_across(const X *query, int64_t apart, const T *b_q, int64_t queries, int64_t d, float scale, float *q) {
    constexpr int WIDTH = N * LANES;
    for (int64_t first = 0; first < WIDTH; first += LANES) {
        const int64_t count = std::clamp<int64_t>(queries - first, 0, LANES);
        int64_t i = 0;
        for (; i + LANES <= d; i += LANES) {
            const lanes bias = b_q ? load_lanes(b_q + i) : lanes{};
            lanes tile[LANES] = {};
            for (int64_t r = 0; r < count; ++r) tile[r] = (load_lanes(query + (first + r) * apart + i) + bias) * scale;
            transpose(tile);
            for (int k = 0; k < LANES; ++k) at(q + (i + k) * WIDTH + first) = tile[k];
        }
        for (; i < d; ++i)
            for (int64_t r = 0; r < LANES; ++r)
                q[i * WIDTH + first + r] = r < count ? (load(query[(first + r) * apart + i]) + (b_q ? load(b_q[i]) : 0)) * scale : 0;
    }
}

// The score of tokens that do not attend to each other: e^x is 0 there, and its exponent is an int.
constexpr float FAR = -1e9f;

// What the scores of a head get beside the products: `added` is from `of_distances`, or null; tokens further apart than
// `window` do not attend to each other, unless it is 0.
struct Beside {
    const float *added = nullptr;
    int64_t window = 0;
};

// Adds to the scores [length][N lanes] of the queries from `first` on with the keys from `from` on.
template <int N>
inline void add_beside(Beside beside, int64_t first, int64_t from, int64_t length, float *s) {
    constexpr int64_t WIDTH = N * LANES;
    for (int64_t j = from; j < from + length; ++j, s += WIDTH) {
        if (beside.added)
            for (int n = 0; n < N; ++n) at(s + n * LANES) += at(beside.added + first - j + n * LANES);
        if (!beside.window || (j >= first + WIDTH - 1 - beside.window && j <= first + beside.window)) continue;
        for (int64_t i = 0; i < WIDTH; ++i)
            if (std::abs(first + i - j) > beside.window) s[i] = FAR;
    }
}

// Queries from `first` on, `query` their first; queries are in lanes, so the softmax needs no sums across a register.
template <int N, typename X, typename T, typename Y>
void attend_queries(const X *query, int64_t apart, const T *b_q, int64_t first, int64_t queries, int64_t length, int64_t d, float scale,
                    Y *out, int64_t out_apart, const Head &w, Strided keys, Strided values, Beside beside) {
    constexpr int WIDTH = N * LANES;
    const int64_t wide = padded(d);
    float *q = w.q, *s = w.s, *c = w.c, total[WIDTH];
    const int64_t from = beside.window ? std::max<int64_t>(0, first - beside.window) : 0;
    if (beside.window) length = std::min(length, first + queries + beside.window) - from;
    keys.first += from * keys.apart, values.first += from * values.apart;
    lay_across<N>(query, apart, b_q, queries, d, scale, q);
    multiply_rows<N>(keys.first, keys.apart, 1, q, WIDTH, d, s, WIDTH, length);
    if (beside.added || beside.window) add_beside<N>(beside, first, from, length, s);
    softmax<N>(s, length, total);
    int64_t i = 0;
    for (; i + 2 * LANES <= wide; i += 2 * LANES) multiply_rows<2>(s, 1, WIDTH, values.first + i, values.apart, length, c + i, wide, queries);
    if (i < wide) multiply_rows<1>(s, 1, WIDTH, values.first + i, values.apart, length, c + i, wide, queries);
    for (int64_t r = 0; r < queries; ++r) {
        const float share = 1 / total[r];
        int64_t i = 0;
        for (; i + LANES <= d; i += LANES) store_lanes(out + r * out_apart + i, at(c + r * wide + i) * share);
        for (; i < d; ++i) store(out[r * out_apart + i], c[r * wide + i] * share);
    }
}

// Scales of the keys and values of a head; null if all are one.
template <typename T>
struct Scales {
    const T *key = nullptr, *value = nullptr;
};

template <typename X, typename T>
inline void widen(const X *from, const T *scale, int64_t d, float *to) {
    if (scale) {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) to[i] = load(from[i]) * load(scale[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) to[i] = load(from[i]);
    }
}

// Numbers to add to the scores of one head, by i - j for query i and key j, in a table [heads, 2 most - 1 + FILLING]
// (`ByDistance` in scores.py). Lanes behind the last query read the filling.
constexpr int64_t FILLING = 32;
inline const float *of_distances(const float *table, int64_t head, int64_t most) { return table + head * (2 * most - 1 + FILLING) + most - 1; }
static_assert(2 * LANES <= FILLING);

// Turns the queries and keys of a head by the angles of their positions, after their biases: the first half of the
// numbers with the second half. `cos` and `sin` are [positions, d / 2]; `scale` is of the keys, or null.
template <typename T>
void turn_head(float *qkv, int64_t apart, int64_t h, int64_t length, int64_t d, const T *b_q, const T *b_k, const T *scale, const float *cos,
               const float *sin) {
    const int64_t half = d / 2;
    for (int64_t j = 0; j < length; ++j, qkv += apart, cos += half, sin += half) {
        float *const both[] = {qkv, qkv + h};
        for (int which = 0; which < 2; ++which) {
            float *x = both[which];
            const T *b = which ? b_k : b_q, *s = which ? scale : nullptr;
#pragma omp simd
            for (int64_t i = 0; i < half; ++i) {
                const float first = x[i] * (s ? load(s[i]) : 1) + load(b[i]);
                const float second = x[i + half] * (s ? load(s[i + half]) : 1) + load(b[i + half]);
                x[i] = first * cos[i] - second * sin[i];
                x[i + half] = second * cos[i] + first * sin[i];
            }
        }
    }
}

// One head. Tokens of `qkv` are `apart` numbers apart; a token's keys are `h` behind its queries and its values `h`
// behind its keys. `out` takes d numbers per token, `out_apart` apart.
template <typename X, typename T, typename Y>
void attend_head(const X *qkv, int64_t apart, int64_t h, int64_t length, int64_t d, const T *b_q, Scales<T> scales, Beside beside, Y *out,
                 int64_t out_apart, float *scratch) {
    const int64_t wide = padded(d);
    const Head w(scratch, length, d);
    Strided keys{w.k, wide}, values{w.v, wide};
    // Skip the copy of keys and values that are read once.
    bool there = false;
    if constexpr (std::is_same_v<X, float>) {
        there = !scales.key && !scales.value && d == wide && length <= 2 * LANES;
        if (there) keys = {qkv + h, apart}, values = {qkv + 2 * h, apart};
    }
    for (int64_t j = 0; j < length && !there; ++j) {
        const X *key = qkv + j * apart + h;
        widen(key, scales.key, d, w.k + j * wide);
        widen(key + h, scales.value, d, w.v + j * wide);
    }
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    int64_t first = 0;
    for (; length - first > LANES; first += 2 * LANES)
        attend_queries<2>(qkv + first * apart, apart, b_q, first, std::min<int64_t>(2 * LANES, length - first), length, d, scale,
                          out + first * out_apart, out_apart, w, keys, values, beside);
    if (first < length)
        attend_queries<1>(qkv + first * apart, apart, b_q, first, length - first, length, d, scale, out + first * out_apart, out_apart, w, keys,
                          values, beside);
}

}  // namespace
