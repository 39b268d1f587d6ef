// What lies between the matrix products on a CPU, fused: one pass over memory where PyTorch makes three to six.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention.h"
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
            attend_head(qkv + start * 3 * h + column, 3 * h, h, length, d, b_q + row_of_token[start] * stride + column, Scales<T>{},
                        out + start * h + column, h, own);
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
