// Quantizes the tokens that a product in 8-bit integers reads, each over its own range, and corrects its result.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"
#include "scratch.h"

namespace {

// A token's numbers as x = scale * (q - 128) - offset, over the smallest range that holds them and zero.
struct Range {
    float scale, offset;
};

// Writes q. Scale and offset are NaN if a number is not finite. Each reduction is a loop of its own, since a loop of
// several is not compiled to vector code.
Range quantize_token(const float *v, int64_t width, std::uint8_t *q) {
    float low = 0, high = 0, poison = 0;
#pragma omp simd reduction(min : low)
    for (int64_t i = 0; i < width; ++i) low = v[i] < low ? v[i] : low;
#pragma omp simd reduction(max : high)
    for (int64_t i = 0; i < width; ++i) high = v[i] > high ? v[i] : high;
#pragma omp simd reduction(+ : poison)
    for (int64_t i = 0; i < width; ++i) poison += v[i] * 0;
    const float scale = std::max(high - low, 1e-30f) / 255 + poison, inverse = 1 / scale;
    const float zero = std::nearbyint(-low * inverse);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
        const float place = v[i] * inverse + (zero + 0.5f), positive = place > 0 ? place : 0;
        q[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(positive < 255 ? positive : 255));
    }
    return {scale, scale * (zero - 128)};
}

template <typename T>
void quantize(const T *x, int64_t tokens, int64_t width, std::uint8_t *q, Range *ranges, int64_t threads) {
    Scratch scratch(threads, width);
#pragma omp parallel num_threads(threads)
    {
        float *v = scratch.own();
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; ++t) {
            const T *own = x + t * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) v[i] = load(own[i]);
            ranges[t] = quantize_token(v, width, q + t * width);
        }
    }
}

// Turns y = W (q - 128) into W x, in place; `sums` are the sums of the rows of W.
template <typename T>
void dequantize(T *y, int64_t tokens, int64_t width, const Range *ranges, const float *sums, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; ++t) {
        T *own = y + t * width;
        const Range range = ranges[t];
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) store(own[i], load(own[i]) * range.scale - sums[i] * range.offset);
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                             \
    int quantize_##NAME(const T *x, int64_t tokens, int64_t width, std::uint8_t *q, Range *ranges, int64_t threads) { \
        return status_of([&] { quantize(x, tokens, width, q, ranges, threads); });                                    \
    }                                                                                                                 \
    int dequantize_##NAME(T *y, int64_t tokens, int64_t width, const Range *ranges, const float *sums,                \
                           int64_t threads) {                                                                         \
        return status_of([&] { dequantize(y, tokens, width, ranges, sums, threads); });                               \
    }

extern "C" {
FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)
}
