// Quantizes a token's numbers to 8 bits over the token's own range.
#pragma once
#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace {

// A token's numbers are x = scale * (q - 128) - offset, over the smallest range that holds them and zero.
struct Range {
    float scale, offset;
};

// The smallest and the largest number, zero included; and zero, or NaN if a number is not finite.
template <typename X>
inline void find_range(const X *x, int64_t width, float &low, float &high, float &poison) {
    constexpr int N = 4;  // registers of each, so that one comparison does not wait for the previous one
    lanes lows[N] = {}, highs[N] = {}, poisons[N] = {};
    int64_t i = 0;
    for (; i + N * LANES <= width; i += N * LANES)
        for (int n = 0; n < N; ++n) {
            const lanes own = load_lanes(x + i + n * LANES);
            lows[n] = own < lows[n] ? own : lows[n];
            highs[n] = own > highs[n] ? own : highs[n];
            poisons[n] += own * 0.0f;
        }
    for (int n = 1; n < N; ++n) {
        lows[0] = lows[n] < lows[0] ? lows[n] : lows[0];
        highs[0] = highs[n] > highs[0] ? highs[n] : highs[0];
        poisons[0] += poisons[n];
    }
    low = high = poison = 0;
#pragma omp simd reduction(min : low)
    for (int k = 0; k < LANES; ++k) low = lows[0][k] < low ? lows[0][k] : low;
#pragma omp simd reduction(max : high)
    for (int k = 0; k < LANES; ++k) high = highs[0][k] > high ? highs[0][k] : high;
#pragma omp simd reduction(+ : poison)
    for (int k = 0; k < LANES; ++k) poison += poisons[0][k];
    for (; i < width; ++i) {
        const float own = load(x[i]);
        low = own < low ? own : low, high = own > high ? own : high, poison += own * 0.0f;
    }
}

// Writes q. Scale and offset are NaN if a number is not finite.
template <typename X, typename Q>
Range quantize_token(const X *x, int64_t width, Q *q) {
    float low, high, poison;
    find_range(x, width, low, high, poison);
    const float scale = std::max(high - low, 1e-30f) / 255 + poison, inverse = 1 / scale;
    const float zero = std::nearbyint(-low * inverse);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
        const float place = load(x[i]) * inverse + (zero + 0.5f), positive = place > 0 ? place : 0;
        q[i] = static_cast<Q>(static_cast<std::int32_t>(positive < 255 ? positive : 255));
    }
    return {scale, scale * (zero - 128)};
}

}  // namespace
