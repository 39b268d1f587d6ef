// The heads of tasks, each on the last layer's tokens of one sequence.
#pragma once
#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace {

// LayerNorm if `centered`, else RMSNorm, in place, without a bias; `g` is null for ones.
template <typename G>
inline void normalize(float *x, int64_t h, float eps, bool centered, const G *g) {
    float total = 0, squares = 0;
    if (centered)
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < h; ++i) total += x[i];
    const float mean = total / h;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < h; ++i) {
        x[i] -= mean;
        squares += x[i] * x[i];
    }
    const float scale = 1 / std::sqrt(squares / h + eps);
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) x[i] = x[i] * scale * (g ? load(g[i]) : 1);
}

// Activations of a head's layer, in the order of ACTIVATED in rows.py.
enum { TANH, GELU, RELU };

// A layer [h, h] between a head's pooled vector and its classifier; `norm` is the gain of a LayerNorm behind it, or null.
struct Dense {
    const float *weight, *bias, *norm;
    int64_t activation;
};

// Poolings of a head, in the order of POOLED in rows.py.
enum { FIRST_TOKEN, MEAN, EVERY_TOKEN };

// One head on one sequence, and the address of its logits: [labels], or [tokens, labels] for every token.
struct Classifier {
    int64_t sequence;
    const float *weight, *bias;
    int64_t labels, pooled;
    const Dense *dense;
    int64_t denses;
    float *logits;
};

inline float activated(int64_t activation, float x) {
    return activation == TANH ? std::tanh(x) : activation == GELU ? gelu(x) : std::max(x, 0.0f);
}

// out [rows] = W x + b for W [rows, h].
inline void map(const float *weight, const float *bias, int64_t rows, int64_t h, const float *x, float *out) {
    for (int64_t row = 0; row < rows; ++row) {
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < h; ++i) total += x[i] * weight[row * h + i];
        out[row] = total + bias[row];
    }
}

// logits [labels] of a vector [h]; `scratch` has 2 h numbers.
inline void answer(const Classifier &own, const float *x, int64_t h, float eps, float *logits, float *scratch) {
    float *next = scratch, *other = next + h;
    for (const Dense *dense = own.dense; dense < own.dense + own.denses; ++dense, x = next, std::swap(next, other)) {
        map(dense->weight, dense->bias, h, h, x, next);
        for (int64_t i = 0; i < h; ++i) next[i] = activated(dense->activation, next[i]);
        if (dense->norm) normalize(next, h, eps, true, dense->norm);
    }
    map(own.weight, own.bias, own.labels, h, x, logits);
}

// The logits of a sequence's tokens x [length, h]; `scratch` has 3 h numbers.
inline void classify(const Classifier &own, const float *x, int64_t length, int64_t h, float eps, float *scratch) {
    if (own.pooled == EVERY_TOKEN) {
        for (int64_t t = 0; t < length; ++t) answer(own, x + t * h, h, eps, own.logits + t * own.labels, scratch + h);
        return;
    }
    const int64_t read = own.pooled == MEAN ? length : 1;
    float *pooled = scratch;
    for (int64_t i = 0; i < h; ++i) pooled[i] = 0;
    for (int64_t t = 0; t < read; ++t)
#pragma omp simd
        for (int64_t i = 0; i < h; ++i) pooled[i] += x[t * h + i];
    // Divide before multiplying: a sum over many tokens could overflow float32 even if the mean does not.
    for (int64_t i = 0; i < h; ++i) pooled[i] /= static_cast<float>(read);
    answer(own, pooled, h, eps, own.logits, scratch + h);
}

}  // namespace
