// Products with a frozen weight, y = x Wᵀ, with the widest instructions that this file is compiled for.
//
// A weight is packed once, as panels of two registers of outputs with all their inputs in order: [panels][in / G][P][G],
// where one instruction multiplies the G neighboring inputs of an output: 1 float, 2 bfloat16, 4 bytes or, without an
// instruction for these, 2. Zeros fill the last panel up. A sum runs over the inputs in order, independently of the other
// rows of x: a row of y has the same bits alone and with any others.
#pragma once
#include <algorithm>
#include <utility>

#include "numbers.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define MATRIX_REGISTERS
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if !defined(__AVX512VNNI__) && (defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__)))
#define BYTES_IN_PAIRS  // as 16-bit numbers
#endif

namespace {

constexpr int64_t PANEL = 2 * LANES;  // P

// Type of the sums of products with this type of weight, and the type of x.
template <typename T>
struct Product {
    using Input = T;
    using Sum = float;
};
template <>
struct Product<std::int8_t> {
#ifdef BYTES_IN_PAIRS
    using Input = std::uint16_t;
#else
    using Input = std::uint8_t;
#endif
    using Sum = std::int32_t;
};
template <typename T>
using Input = typename Product<T>::Input;
template <typename T>
using Sum = typename Product<T>::Sum;

// Neighboring inputs of one output.
template <typename T>
constexpr int64_t GROUP = 4 / sizeof(Input<T>);

inline int64_t panels(int64_t out) { return (out + PANEL - 1) / PANEL; }

template <typename T>
void pack_weight(const T *w, int64_t out, int64_t in, T *packed) {
    constexpr int64_t G = GROUP<T>;
    for (int64_t p = 0; p < panels(out); ++p)
        for (int64_t k = 0; k < in; k += G)
            for (int64_t c = 0; c < PANEL; ++c)
                for (int64_t g = 0; g < G; ++g) {
                    const int64_t column = p * PANEL + c;
                    packed[p * PANEL * in + k * PANEL + c * G + g] = column < out ? w[column * in + k + g] : T{};
                }
}

// Distance of the prefetch of a weight before its use, in bytes.
constexpr int64_t AHEAD = 2048;

// ---- one step over the inputs: R rows of x with a panel, summed in registers ----
// Sums are a parameter pack: GCC 12 stores every number of an array that a loop indexes, in every step.

// Registers: two sums for each row, two of weights, and one of x. On ARM, GCC 12 keeps sums of more rows on the stack.
template <typename T>
constexpr int ROWS = REGISTERS == 16 ? 6 : LANES == 4 ? 8 : 14;

// Prefetches what a later step reads of a panel.
template <typename T>
inline void fetch_ahead(const T *w) {
    for (std::size_t line = 0; line < PANEL * GROUP<T> * sizeof(T); line += 64)
        __builtin_prefetch(reinterpret_cast<const char *>(w) + AHEAD + line);
}

template <int... r>
[[gnu::noinline]] void tile(std::integer_sequence<int, r...>, const float *x, int64_t stride, const float *w, int64_t depth, float *out) {
    lanes low[sizeof...(r)] = {((void)r, lanes{})...}, high[sizeof...(r)] = {((void)r, lanes{})...};
    for (int64_t k = 0; k < depth; ++k, w += PANEL) {
        fetch_ahead(w);
        const lanes left = at(w), right = at(w + LANES);
        ((low[r] += x[r * stride + k] * left, high[r] += x[r * stride + k] * right), ...);
    }
    ((at(out + r * PANEL) = low[r], at(out + r * PANEL + LANES) = high[r]), ...);
}

#ifdef __AVX512BF16__
inline __m512bh two(const bf16 *x) {
    std::int32_t pair;
    std::memcpy(&pair, x, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}
template <int... r>
[[gnu::noinline]] void tile(std::integer_sequence<int, r...>, const bf16 *x, int64_t stride, const bf16 *w, int64_t depth, float *out) {
    __m512 low[sizeof...(r)] = {((void)r, _mm512_setzero_ps())...}, high[sizeof...(r)] = {((void)r, _mm512_setzero_ps())...};
    for (int64_t k = 0; k < depth; k += 2, w += 2 * PANEL) {
        fetch_ahead(w);
        const __m512bh left = (__m512bh)_mm512_loadu_si512(w), right = (__m512bh)_mm512_loadu_si512(w + PANEL);
        ((low[r] = _mm512_dpbf16_ps(low[r], two(x + r * stride + k), left),
          high[r] = _mm512_dpbf16_ps(high[r], two(x + r * stride + k), right)),
         ...);
    }
    ((_mm512_storeu_ps(out + r * PANEL, low[r]), _mm512_storeu_ps(out + r * PANEL + LANES, high[r])), ...);
}
#else
// A pair of bfloat16 is one word: its upper half is the second number, its lower half, shifted up, the first.
inline lanes first_of(const bf16 *w) { return (lanes)(*reinterpret_cast<const words *>(w) << 16); }
inline lanes second_of(const bf16 *w) { return (lanes)(*reinterpret_cast<const words *>(w) & 0xffff0000u); }
template <int... r>
[[gnu::noinline]] void tile(std::integer_sequence<int, r...>, const bf16 *x, int64_t stride, const bf16 *w, int64_t depth, float *out) {
    lanes low[sizeof...(r)] = {((void)r, lanes{})...}, high[sizeof...(r)] = {((void)r, lanes{})...};
    for (int64_t k = 0; k < depth; k += 2, w += 2 * PANEL) {
        const lanes left = first_of(w), right = first_of(w + PANEL);
        ((low[r] += load(x[r * stride + k]) * left, high[r] += load(x[r * stride + k]) * right), ...);
        const lanes next = second_of(w), last = second_of(w + PANEL);
        ((low[r] += load(x[r * stride + k + 1]) * next, high[r] += load(x[r * stride + k + 1]) * last), ...);
    }
    ((at(out + r * PANEL) = low[r], at(out + r * PANEL + LANES) = high[r]), ...);
}
#endif

#if defined(__AVX512VNNI__) || defined(BYTES_IN_PAIRS)
#ifdef __AVX512VNNI__
// Adds the products of four neighboring bytes.
inline ints multiply_add(ints sum, ints x, ints w) { return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w); }
inline ints weights_at(const std::int8_t *w) { return (ints)_mm512_loadu_si512(w); }
#elif defined(__AVX512BW__)
// Adds the products of two neighboring 16-bit numbers.
inline ints multiply_add(ints sum, ints x, ints w) { return sum + (ints)_mm512_madd_epi16((__m512i)x, (__m512i)w); }
inline ints weights_at(const std::int8_t *w) { return (ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)w)); }
#else
inline ints multiply_add(ints sum, ints x, ints w) { return sum + (ints)_mm256_madd_epi16((__m256i)x, (__m256i)w); }
inline ints weights_at(const std::int8_t *w) { return (ints)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w)); }
#endif
inline ints group_at(const Input<std::int8_t> *x) {
    std::int32_t group;
    std::memcpy(&group, x, 4);
    return ints{} + group;
}
template <int... r>
[[gnu::noinline]] void tile(std::integer_sequence<int, r...>, const Input<std::int8_t> *x, int64_t stride, const std::int8_t *w,
                            int64_t depth, std::int32_t *out) {
    constexpr int64_t G = GROUP<std::int8_t>;
    ints low[sizeof...(r)] = {((void)r, ints{})...}, high[sizeof...(r)] = {((void)r, ints{})...};
    for (int64_t k = 0; k < depth; k += G, w += G * PANEL) {
        fetch_ahead(w);
        const ints left = weights_at(w), right = weights_at(w + G * LANES);
        ((low[r] = multiply_add(low[r], group_at(x + r * stride + k), left),
          high[r] = multiply_add(high[r], group_at(x + r * stride + k), right)),
         ...);
    }
    ((std::memcpy(out + r * PANEL, low + r, sizeof *low), std::memcpy(out + r * PANEL + LANES, high + r, sizeof *high)), ...);
}
#else
template <>
constexpr int ROWS<std::int8_t> = 3;
template <int... r>
[[gnu::noinline]] void tile(std::integer_sequence<int, r...>, const std::uint8_t *x, int64_t stride, const std::int8_t *w, int64_t depth,
                 std::int32_t *out) {
    std::int32_t sums[sizeof...(r)][PANEL] = {};
    for (int64_t k = 0; k < depth; k += 4, w += 4 * PANEL)
        for (int row = 0; row < int(sizeof...(r)); ++row)
            for (int64_t c = 0; c < PANEL; ++c)
                for (int g = 0; g < 4; ++g) sums[row][c] += std::int32_t{x[row * stride + k + g]} * w[c * 4 + g];
    std::memcpy(out, sums, sizeof sums);
}
#endif

template <typename T, int R>
inline void tile_of(int64_t rows, const Input<T> *x, int64_t stride, const T *w, int64_t depth, Sum<T> *out) {
    if (rows == R) return tile(std::make_integer_sequence<int, R>{}, x, stride, w, depth, out);
    if constexpr (R > 1) tile_of<T, R - 1>(rows, x, stride, w, depth, out);
}

template <typename T, typename F>
inline void multiply_vectors(int64_t tokens, const Input<T> *x, int64_t stride, int64_t depth, const T *w, int64_t count, F done) {
    alignas(64) Sum<T> out[ROWS<T> * PANEL];
    const int64_t tiles = (tokens + ROWS<T> - 1) / ROWS<T>, rows = (tokens + tiles - 1) / tiles;
    for (int64_t p = 0; p < count; ++p)
        for (int64_t t = 0; t < tokens; t += rows) {
            const int64_t some = std::min(rows, tokens - t);
            tile_of<T, ROWS<T>>(some, x + t * stride, stride, w + p * PANEL * depth, depth, out);
            done(p, t, some, out);
        }
}

#ifdef MATRIX_REGISTERS
// ---- Intel's matrix registers: 32 rows of x with a panel, four registers of sums ----

// Linux enables these registers for a process on request; returns 0 if it does.
inline int enable_instructions() {
    constexpr long REQUEST = 0x1023, TILES = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILES) ? 1 : 0;
}

// GCC does not know that tile instructions read memory; without this it would drop or move the stores before them.
inline void everything_written(const void *at) { asm volatile("" : : "r"(at) : "memory"); }

struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// Bytes of each output's inputs, and so of x, that one instruction multiplies.
constexpr int64_t STEP_BYTES = 64;

// Registers: sums 0 to 3 (above: left, right; below: left, right), x 4 and 5 (above, below), weights 6 and 7 (left,
// right).
inline void configure(int64_t rows) {
    const int64_t above = std::min<int64_t>(rows, 16), below = std::max<int64_t>(rows - above, 1);
    TileConfig config;
    const int64_t of[8] = {above, above, below, below, above, below, 16, 16};
    for (int i = 0; i < 8; ++i) config.rows[i] = static_cast<std::uint8_t>(of[i]), config.bytes[i] = 64;
    everything_written(&config);
    _tile_loadconfig(&config);
}

// GCC's tile instructions are statements that name their registers by constants.
#define MULTIPLY(SUM, X, W)                                      \
    do {                                                         \
        if constexpr (sizeof(T) == 2) _tile_dpbf16ps(SUM, X, W); \
        else _tile_dpbusd(SUM, X, W);                            \
    } while (false)

// `between()` after each step does some work on other sums, which overlaps with these multiplications.
template <typename T, bool BELOW, typename Between>
inline void matrix_tile(const Input<T> *x, int64_t stride, const T *w, int64_t depth, Sum<T> *out, Between between) {
    constexpr int64_t STEP = STEP_BYTES / sizeof(T);
    const int64_t bytes = stride * sizeof(T);
    everything_written(x);
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (BELOW) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += STEP, w += STEP * PANEL) {
        _tile_loadd(6, w, 128);
        _tile_loadd(7, w + 64 / sizeof(T), 128);
        _tile_loadd(4, x + k, bytes);
        MULTIPLY(0, 4, 6);
        MULTIPLY(1, 4, 7);
        if constexpr (BELOW) {
            _tile_loadd(5, x + 16 * stride + k, bytes);
            MULTIPLY(2, 5, 6);
            MULTIPLY(3, 5, 7);
        }
        between();
    }
    _tile_stored(0, out, 128);
    _tile_stored(1, out + LANES, 128);
    if constexpr (BELOW) {
        _tile_stored(2, out + 16 * PANEL, 128);
        _tile_stored(3, out + 16 * PANEL + LANES, 128);
    }
}
#undef MULTIPLY

// Bytes of panels that pass all rows before the next panels: weights are loaded from far memory once, and a tile's rows
// and results stay in the cache.
constexpr int64_t NEAR = 512 << 10;

// During the multiplication of one tile the sums of the previous one are delivered, some rows in each step.
template <typename T, bool BELOW, typename F>
inline void multiply_tiles(int64_t tokens, const Input<T> *x, int64_t stride, int64_t depth, const T *w, int64_t count, F done) {
    alignas(64) Sum<T> out[2][32 * PANEL];
    const int64_t tiles = (tokens + 31) / 32, rows = (tokens + tiles - 1) / tiles, steps = depth * sizeof(T) / STEP_BYTES;
    configure(rows);
    int64_t panel = 0, token = 0, stop = 0, some = 0;  // previous tile: its rows that are not yet delivered
    const Sum<T> *sums = out[1];
    const auto take = [&](int64_t wanted) {
        const int64_t taken = std::min(wanted, stop - token);
        done(panel, token, taken, sums);
        token += taken, sums += taken * PANEL;
    };
    Sum<T> *to = out[0], *other = out[1];
    const int64_t together = std::max<int64_t>(NEAR / (PANEL * depth * sizeof(T)), 1), blocks = (count + together - 1) / together;
    for (int64_t i = 0; i < blocks * tiles; ++i) {
        const int64_t t = i % tiles, from = i / tiles * together;
        for (int64_t p = from; p < std::min(from + together, count); ++p) {
            // The last tile overlaps the previous one, and the shared rows are summed twice, to the same bits.
            const int64_t first = std::min(t * rows, tokens - rows);
            matrix_tile<T, BELOW>(x + first * stride, stride, w + p * PANEL * depth, depth, to, [&] {
                if (token < stop) take(some);
            });
            take(stop - token);
            panel = p, token = t * rows, stop = first + rows, sums = to + (token - first) * PANEL;
            some = (stop - token + steps - 1) / steps;
            std::swap(to, other);
        }
    }
    take(stop - token);
    _tile_release();
}

template <typename T, typename F>
inline void multiply_matrix(int64_t tokens, const Input<T> *x, int64_t stride, int64_t depth, const T *w, int64_t count, F done) {
    if (tokens <= 16) multiply_tiles<T, false>(tokens, x, stride, depth, w, count, done);
    else multiply_tiles<T, true>(tokens, x, stride, depth, w, count, done);
}
#else
inline int enable_instructions() { return 0; }
#endif

// Multiplies all rows of x, `stride` numbers apart, by `count` panels; `done(panel, first row, rows, sums [rows][PANEL])`
// receives each tile.
template <typename T, typename F>
inline void multiply_panels(int64_t tokens, const Input<T> *x, int64_t stride, int64_t depth, const T *w, int64_t count, F done) {
#ifdef MATRIX_REGISTERS
    if constexpr (sizeof(T) < 4)
        if (depth * sizeof(T) % 64 == 0) return multiply_matrix<T>(tokens, x, stride, depth, w, count, done);
#endif
    multiply_vectors<T>(tokens, x, stride, depth, w, count, done);
}

}  // namespace
