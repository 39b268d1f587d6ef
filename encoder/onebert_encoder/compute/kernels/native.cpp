// What lies between the matrix products on a CPU, fused: one pass over memory where PyTorch makes three to six.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numbers.h"
#include "scratch.h"

namespace {

template <typename T>
void add_activate(T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; ++t) {
        T *own = z + t * width;
        const T *b = bias + row_of_token[t] * stride;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) store(own[i], gelu(load(own[i]) + load(b[i])));
    }
}

template <typename T>
void add_norm(T *y, const T *x, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token,
              const T *gain, int64_t gain_stride, const int64_t *gain_of_token, float eps, int64_t threads) {
    Scratch scratch(threads, width);
#pragma omp parallel num_threads(threads)
    {
        float *v = scratch.own();
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; ++t) {
            T *own = y + t * width;
            const T *from = x + t * width;
            const T *b = bias + row_of_token[t] * stride;
            const T *g = gain + (gain_of_token ? gain_of_token[t] * gain_stride : 0);
            float total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
            for (int64_t i = 0; i < width; ++i) {
                v[i] = load(own[i]) + load(from[i]) + load(b[i]);
                total += v[i];
            }
            const float mean = total / width;
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < width; ++i) {
                v[i] -= mean;
                squares += v[i] * v[i];
            }
            const float scale = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) store(own[i], v[i] * scale * load(g[i]));
        }
    }
}

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

// out [R][N lanes] = a b for b [depth][N lanes]; the element (r, k) of a lies at a[r * across + k * down].
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

template <int N>
inline void multiply(const float *a, int64_t across, int64_t down, const float *b, int64_t b_stride, int64_t depth, float *out,
                     int64_t out_stride, int64_t rows) {
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) multiply<8, N>(a + r * across, across, down, b, b_stride, depth, out + r * out_stride, out_stride);
    if (rows & 4) multiply<4, N>(a + r * across, across, down, b, b_stride, depth, out + r * out_stride, out_stride), r += 4;
    if (rows & 2) multiply<2, N>(a + r * across, across, down, b, b_stride, depth, out + r * out_stride, out_stride), r += 2;
    if (rows & 1) multiply<1, N>(a + r * across, across, down, b, b_stride, depth, out + r * out_stride, out_stride);
}

// Softmax over the rows of s [length][N lanes], not yet divided by the sums, which go to `total`.
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

// What one head of one sequence is computed in: queries [d][lanes], keys and values [length][d, padded], scores
// [length][lanes], and sums [lanes][d, padded].
struct Head {
    Head(float *scratch, int64_t length, int64_t d)
        : q(scratch), k(q + d * 2 * LANES), v(k + length * padded(d)), s(v + length * padded(d)), c(s + length * 2 * LANES) {}
    static int64_t floats(int64_t length, int64_t d) {
        return d * 2 * LANES + length * (2 * padded(d) + 2 * LANES) + 2 * LANES * padded(d);
    }
    float *q, *k, *v, *s, *c;
};

// Queries lie in lanes, so that the softmax needs no sums across a register.
template <int N, typename T>
void attend_queries(const T *query, const T *b_q, int64_t queries, int64_t h, int64_t length, int64_t d, float scale, T *out,
                    const Head &w) {
    constexpr int WIDTH = N * LANES;
    const int64_t wide = padded(d);
    float *q = w.q, *s = w.s, *c = w.c, total[WIDTH];
    for (int64_t r = 0; r < queries; ++r)
        for (int64_t i = 0; i < d; ++i) q[i * WIDTH + r] = (load(query[r * 3 * h + i]) + load(b_q[i])) * scale;
    multiply<N>(w.k, wide, 1, q, WIDTH, d, s, WIDTH, length);
    softmax<N>(s, length, total);
    int64_t i = 0;
    for (; i + 2 * LANES <= wide; i += 2 * LANES) multiply<2>(s, 1, WIDTH, w.v + i, wide, length, c + i, wide, queries);
    if (i < wide) multiply<1>(s, 1, WIDTH, w.v + i, wide, length, c + i, wide, queries);
    for (int64_t r = 0; r < queries; ++r) {
        const float share = 1 / total[r];
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) store(out[r * h + i], c[r * wide + i] * share);
    }
}

template <typename T>
void attend_head(const T *qkv, int64_t h, int64_t length, int64_t d, const T *b_q, T *out, float *scratch) {
    const int64_t wide = padded(d);
    const Head w(scratch, length, d);
    float *k = w.k, *v = w.v;
    for (int64_t j = 0; j < length; ++j) {
        const T *key = qkv + j * 3 * h + h, *value = key + h;
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) k[j * wide + i] = load(key[i]);
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) v[j * wide + i] = load(value[i]);
    }
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    int64_t first = 0;
    for (; length - first > LANES; first += 2 * LANES)
        attend_queries<2>(qkv + first * 3 * h, b_q, std::min<int64_t>(2 * LANES, length - first), h, length, d, scale,
                          out + first * h, w);
    if (first < length)
        attend_queries<1>(qkv + first * 3 * h, b_q, length - first, h, length, d, scale, out + first * h, w);
}

template <typename T>
void attend(const T *qkv, int64_t h, int64_t heads, const T *b_q, int64_t stride, const int64_t *row_of_token,
            const std::int32_t *edges, int64_t count, T *out, int64_t threads) {
    const int64_t d = h / heads;
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) longest = std::max<int64_t>(longest, edges[i + 1] - edges[i]);
    Scratch scratch(threads, Head::floats(longest, d));
#pragma omp parallel num_threads(threads)
    {
        float *own = scratch.own();
#pragma omp for schedule(dynamic, 4)
        for (int64_t unit = 0; unit < count * heads; ++unit) {
            const int64_t i = unit / heads, column = unit % heads * d, start = edges[i], length = edges[i + 1] - start;
            attend_head(qkv + start * 3 * h + column, h, length, d, b_q + row_of_token[start] * stride + column,
                        out + start * h + column, own);
        }
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                                                     \
    int add_activate_##NAME(T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token,                  \
                          int64_t threads) {                                                                                                  \
        return status_of([&] { add_activate(z, tokens, width, bias, stride, row_of_token, threads); });                                       \
    }                                                                                                                                         \
    int add_norm_##NAME(T *y, const T *x, int64_t tokens, int64_t width, const T *bias, int64_t stride,                                       \
                         const int64_t *row_of_token, const T *gain, int64_t gain_stride, const int64_t *gain_of_token,                       \
                         float eps, int64_t threads) {                                                                                        \
        return status_of([&] { add_norm(y, x, tokens, width, bias, stride, row_of_token, gain, gain_stride, gain_of_token, eps, threads); }); \
    }                                                                                                                                         \
    int attend_##NAME(const T *qkv, int64_t h, int64_t heads, const T *b_q, int64_t stride, const int64_t *row_of_token,                      \
                       const std::int32_t *edges, int64_t count, T *out, int64_t threads) {                                                   \
        return status_of([&] { attend(qkv, h, heads, b_q, stride, row_of_token, edges, count, out, threads); });                              \
    }

extern "C" {
FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)
}
