// One token's numbers in 8 bits, over a range of its own.
#pragma once
#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace {

// A token's numbers as x = scale * (q - 128) - offset, over the smallest range that holds them and zero.
struct Range {
    float scale, offset;
};

// Writes q. Scale and offset are NaN if a number is not finite. Each reduction is a loop of its own, since a loop of
// several is not compiled to vector code.
template <typename X>
Range quantize_token(const X *x, int64_t width, std::uint8_t *q) {
    float low = 0, high = 0, poison = 0;
#pragma omp simd reduction(min : low)
    for (int64_t i = 0; i < width; ++i) low = load(x[i]) < low ? load(x[i]) : low;
#pragma omp simd reduction(max : high)
    for (int64_t i = 0; i < width; ++i) high = load(x[i]) > high ? load(x[i]) : high;
#pragma omp simd reduction(+ : poison)
    for (int64_t i = 0; i < width; ++i) poison += load(x[i]) * 0;
    const float scale = std::max(high - low, 1e-30f) / 255 + poison, inverse = 1 / scale;
    const float zero = std::nearbyint(-low * inverse);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
        const float place = load(x[i]) * inverse + (zero + 0.5f), positive = place > 0 ? place : 0;
        q[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(positive < 255 ? positive : 255));
    }
    return {scale, scale * (zero - 128)};
}

}  // namespace
