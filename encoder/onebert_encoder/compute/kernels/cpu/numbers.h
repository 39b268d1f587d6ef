// Shared by all kernels: float and bfloat16, GELU, and vectors that the compiler fits to the processor.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

using std::int64_t;

// bfloat16 is the upper half of a float; arithmetic is in float throughout.
struct bf16 {
    std::uint16_t bits;
};

inline float load(float x) { return x; }
inline float load(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
inline void store(float &to, float x) { to = x; }
inline void store(bf16 &to, float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const auto nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = static_cast<std::uint16_t>(x == x ? nearest_even : 0x7fc0);
}

// The normal distribution function Phi; absolute error below 1e-7 for |x| < 5, 0 or 1 beyond.
template <typename V>
inline V normal(V x) {
    constexpr float edge = 5.0f;
    constexpr float c[] = {1.413637805e-01f,  -7.029665238e-02f, 5.152142087e-02f,  -4.043294956e-02f, 3.142622959e-02f,
                           -2.333673052e-02f, 1.649765598e-02f,  -1.097323295e-02f, 6.165431372e-03f,  -2.915671723e-03f,
                           2.001859240e-03f,  -1.514154366e-03f, 4.929699408e-04f};
    const V t = x * x * (2 / (edge * edge)) - 1;
    V p = V{} + c[12];
    for (int i = 11; i >= 0; --i) p = p * t + c[i];
    V phi = 0.5f + x * p;
    phi = x > edge ? V{} + 1.0f : phi;
    return x < -edge ? V{} : phi;
}

// x Phi(x); absolute error below 5e-7 for |x| < 5, relative error below 3e-7 beyond.
template <typename V>
inline V gelu(V x) {
    return x * normal(x);
}

// One register. GCC computes wider vectors number by number.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif
typedef float lanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef std::int32_t ints __attribute__((vector_size(LANES * 4)));
typedef std::int32_t loose_ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef std::uint32_t words __attribute__((vector_size(LANES * 4)));
typedef std::uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

inline lanes &at(float *p) { return *reinterpret_cast<lanes *>(p); }
inline const lanes &at(const float *p) { return *reinterpret_cast<const lanes *>(p); }

inline lanes load_lanes(const float *p) { return at(p); }
#ifdef __AVX512F__
// GCC 12 makes six instructions of the conversion below.
inline lanes load_lanes(const bf16 *p) {
    return (lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))), 16);
}
#else
inline lanes load_lanes(const bf16 *p) {
    return (lanes)(__builtin_convertvector(*reinterpret_cast<const halves *>(p), words) << 16);
}
#endif
inline void store_lanes(float *p, lanes x) { at(p) = x; }
#ifdef __AVX512BF16__
inline void store_lanes(bf16 *p, lanes x) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(p, &rounded, sizeof rounded);
}
#else
inline void store_lanes(bf16 *p, lanes x) {
    const words bits = (words)x, nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const words kept = x == x ? nearest_even : words{} + 0x7fc0;
    *reinterpret_cast<halves *>(p) = __builtin_convertvector(kept, halves);
}
#endif

// Writes numbers in another type.
template <typename X, typename Y>
inline void convert(const X *from, int64_t width, Y *to) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store_lanes(to + i, load_lanes(from + i));
    for (; i < width; ++i) store(to[i], load(from[i]));
}

// Splits a and b into groups of `S` lanes, and takes the first (or second) group of each pair, alternately from a and
// from b.
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

inline void transpose(lanes *v) {
    if constexpr (LANES > 8) exchange<8>(v);
    if constexpr (LANES > 4) exchange<4>(v);
    exchange<2>(v), exchange<1>(v);
}

}  // namespace
