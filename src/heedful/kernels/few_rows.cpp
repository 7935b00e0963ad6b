// Few rows of tokens through the blocks of a stack on a CPU, as `heedful/kernels/few_rows.py` describes them.
//
// A step of decoding reads every weight once and computes little with it, so it should take the time that the memory
// needs. Weights stay in their own format (float32, bfloat16, float16, int8, int4) until they are in a register;
// activations and sums are float32. One parallel region computes the whole list of operations.
//
// Shapes: R rows (one token each), K inputs, N outputs, H query heads, G key-value heads, S keys, E head size.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>
#include <sched.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__F16C__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int STEP = 32;              // inputs that are read at a time; also the size of a group of int4
constexpr int PARTS = STEP / LANES;   // vectors in a step
constexpr int SPINS = 10000;       // looks at another thread's chunk before the processor is offered to others
constexpr int OUTPUTS = 4, ROWS = 4;  // of a tile, whose sums stay in registers

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef uint8_t Nibbles __attribute__((vector_size(LANES)));

template <class T> inline T load(const void* address) {
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}

inline float from_bits(uint32_t bits) { return load<float>(&bits); }
inline uint32_t bits_of(float number) { return load<uint32_t>(&number); }

// A float16 number, without the type _Float16: GCC knows it in C++ from version 12 or 13 on, by processor.
inline float float16_number(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff;
    if (size >= 0x7c00) return from_bits(sign | 0x7f800000u | size << 13);               // infinity, NaN
    if (size >= 0x0400) return from_bits(sign | ((size << 13) + ((127u - 15u) << 23)));  // the exponents' offsets
    return from_bits(sign | bits_of((float)size * 0x1p-24f));
}

// Numbers of memory as float32. Intrinsics where there are some: GCC 12 converts short vectors in many instructions.
#if defined(__AVX512F__)
inline float sum(Vector v) { return _mm512_reduce_add_ps((__m512)v); }
inline Vector from_float16(const void* p) { return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Vector from_int8(const void* p) {
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
#elif defined(__AVX2__) && defined(__F16C__)
inline float sum(Vector v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline Vector from_float16(const void* p) { return (Vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Vector from_int8(const void* p) {
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
}
#else
inline float sum(Vector v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}
inline Vector from_float16(const void* p) {
    const Bits half = __builtin_convertvector(load<Halves>(p), Bits), size = half & 0x7fff;
    const Bits large = (Bits)(size >= 0x7c00), normal = (Bits)(size >= 0x0400);
    const Vector small = __builtin_convertvector((Integers)size, Vector) * 0x1p-24f;
    const Bits shifted = ((size << 13) + ((127u - 15u) << 23)) | (large & 0x7f800000u);  // of infinity, NaN: the largest
    return (Vector)((half & 0x8000) << 16 | (normal & shifted) | (~normal & (Bits)small));
}
inline Vector from_int8(const void* p) {
    return __builtin_convertvector(__builtin_convertvector(load<Bytes>(p), Integers), Vector);
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)(__builtin_convertvector(load<Halves>(p), Bits) << 16);
}
#endif

// -------------------------------------------------------------------------------------------- formats of weights
// read(k, out): STEP weights of a row from its input k on; one(k): a single weight, for the inputs after the last step

struct Float32 {
    const float* w;
    static constexpr int bits = 32;
    static constexpr bool scaled = false;
    Float32(const void* weights, const void*, int64_t row, int64_t inputs) : w((const float*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = load<Vector>(w + k + p * LANES);
    }
    float one(int64_t k) const { return w[k]; }
};

struct BFloat16 {
    const uint16_t* w;
    static constexpr int bits = 16;
    static constexpr bool scaled = false;
    BFloat16(const void* weights, const void*, int64_t row, int64_t inputs)
        : w((const uint16_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++)
            out[p] = from_bfloat16(w + k + p * LANES);
    }
    float one(int64_t k) const { return from_bits((uint32_t)w[k] << 16); }
};

struct Float16 {
    const uint16_t* w;
    static constexpr int bits = 16;
    static constexpr bool scaled = false;
    Float16(const void* weights, const void*, int64_t row, int64_t inputs)
        : w((const uint16_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = from_float16(w + k + p * LANES);
    }
    float one(int64_t k) const { return float16_number(w[k]); }
};

struct Int8 {  // w = scale q, one scale for each output
    const int8_t* w;
    static constexpr int bits = 8;
    static constexpr bool scaled = true;
    Int8(const void* weights, const void*, int64_t row, int64_t inputs) : w((const int8_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = from_int8(w + k + p * LANES);
    }
    float one(int64_t k) const { return w[k]; }
};

struct Int4 {  // w = scale (q − 8) + middle in groups of STEP; a byte holds inputs i (lower half) and i + STEP / 2 of its group
    const uint8_t* w;
    const uint32_t* pairs;  // of each group the bfloat16 numbers scale (lower half) and middle
    static constexpr int bits = 4;
    static constexpr bool scaled = false;
    Int4(const void* weights, const void* groups, int64_t row, int64_t inputs)
        : w((const uint8_t*)weights + row * (inputs / 2)), pairs((const uint32_t*)groups + row * (inputs / STEP)) {}
    void read(int64_t k, Vector* out) const {
        const uint32_t pair = pairs[k / STEP];
        const float scale = from_bits(pair << 16), low = from_bits(pair & 0xffff0000u) - 8 * scale;
        for (int p = 0; p < PARTS / 2; p++) {
            const Nibbles both = load<Nibbles>(w + k / 2 + p * LANES), first = both & 15, second = both >> 4;
            out[p] = from_int8(&first) * scale + low;
            out[p + PARTS / 2] = from_int8(&second) * scale + low;
        }
    }
    float one(int64_t) const { return 0; }  // never called: K is a multiple of STEP
};

}  // namespace

// -------------------------------------------------------------------------------- what Python fills: see few_rows.py

extern "C" {

struct Operation {
    int64_t kind, x, y;  // x, y: offsets of buffers in the scratch memory, in floats a row
    int64_t inputs, outputs, format, activation, layer, accumulate;
    const void *weight, *groups;
    const float *scale, *bias;
    const float *query_norm, *key_norm;
    int64_t heads, kv_heads, head_size;
    double factor, epsilon, key_epsilon;
};

struct KeyValues {  // of one attention: (row b, head g, column s) is at b * row_stride + g * head_stride + s * E
    char *key, *value;
    int64_t row_stride, head_stride, columns, queries_per_source;
    const int64_t* slots;                // (R,) column of the new token; null: the last
    const float* bias;                   // (R or 1, H or 1, S); null: none
    int64_t bias_row_stride, bias_head_stride;
};

struct Progress {  // of an operation; fills a cache line, against false sharing
    std::atomic<int64_t> taken, done;
    int64_t unused[6];
};

struct Call {
    int64_t rows, threads, bfloat16_cache;
    float *scratch, *scores;    // scores: max_keys for each thread
    int64_t max_keys;
    const float *cosine, *sine;  // (R or 1, E); null: no rotation
    int64_t rotation_stride;
    const KeyValues* keys;    // two for each layer: self-attention, cross-attention
    Progress* progress;  // zeros, one for each operation
};
}

namespace {

enum Kind { LAYER_NORM, RMS_NORM, LINEAR, SELF_ATTENTION, CROSS_ATTENTION, MULTIPLY, ADD };
enum Activation { NONE, RELU, GELU, GELU_TANH, SILU, TANH };

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

inline float activated(float x, int64_t activation) {
    switch (activation) {
        case RELU: return x > 0 || x != x ? x : 0;  // NaN stays
        case GELU: return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
        case GELU_TANH: return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
        case SILU: return x * sigmoid(x);
        case TANH: return std::tanh(x);
        default: return x;
    }
}

struct Buffers {
    const Call& call;
    float* row(int64_t offset, int64_t width, int64_t r) const { return call.scratch + offset * call.rows + r * width; }
};

// ------------------------------------------------------------------------------------------------- linear maps

// Output n of row r, from its sum of products.
inline void store(const Operation& op, const Buffers& buffers, int64_t n, int64_t r, float total) {
    total = activated(op.bias ? total + op.bias[n] : total, op.activation);
    float* y = buffers.row(op.y, op.outputs, r) + n;
    *y = op.accumulate ? *y + total : total;
}

template <class Format, int N, int R>
inline void tile(const Operation& op, const Buffers& buffers, int64_t n, int64_t r) {
    Vector sums[N][R] = {};
    const int64_t inputs = op.inputs, whole = inputs - inputs % STEP;
    const float* x = buffers.row(op.x, inputs, r);
    const auto weights = [&](int i) { return Format(op.weight, op.groups, n + i, inputs); };
    for (int64_t k = 0; k < whole; k += STEP) {
        Vector columns[R][PARTS];
#pragma GCC unroll 16
        for (int j = 0; j < R; j++)
#pragma GCC unroll 16
            for (int p = 0; p < PARTS; p++) columns[j][p] = load<Vector>(x + j * inputs + k + p * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {
            Vector w[PARTS];
            const Format format = weights(i);
            format.read(k, w);
            for (int64_t line = 0; line < Format::bits * STEP / 8; line += 64)  // of the next tile
                __builtin_prefetch((const char*)format.w + (k + N * inputs) * Format::bits / 8 + line);
#pragma GCC unroll 16
            for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) sums[i][j] += w[p] * columns[j][p];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) {
            float total = sum(sums[i][j]);
            for (int64_t k = whole; k < inputs; k++) total += weights(i).one(k) * x[j * inputs + k];
            store(op, buffers, n + i, r + j, Format::scaled ? total * op.scale[n + i] : total);
        }
}

template <class Format, int N> inline void outputs(const Operation& op, const Buffers& buffers, int64_t n) {
    int64_t r = 0;
    for (; r + ROWS <= buffers.call.rows; r += ROWS) tile<Format, N, ROWS>(op, buffers, n, r);
    switch (buffers.call.rows - r) {
        case 3: tile<Format, N, 3>(op, buffers, n, r); break;
        case 2: tile<Format, N, 2>(op, buffers, n, r); break;
        case 1: tile<Format, N, 1>(op, buffers, n, r); break;
    }
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_VNNI

// Integer weights with the processor's sums of bytes: four times as many weights in an instruction. Each row of x is
// rounded to bytes first, with a scale for each GROUP of inputs.
constexpr int64_t GROUP = 256;  // inputs of int8; int4 has scales of its own for STEP inputs

inline __mmask64 first_bytes(int64_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// Rounds the rows of an operation in its first chunk that this thread computes.
thread_local const Operation* rounded = nullptr;  // in the present call

template <class Row>
void round_once(std::vector<Row>& rows, const Operation& op, const Buffers& buffers, int64_t count) {
    if (rounded == &op) return;
    rows.resize(std::max<int64_t>(rows.size(), buffers.call.rows));
    for (int64_t r = 0; r < buffers.call.rows; r++) rows[r].read(buffers.row(op.x, op.inputs, r), count);
    rounded = &op;
}

struct Int8Row {
    std::vector<int8_t> bytes;   // zeros up to a whole group
    std::vector<float> scales;   // of each group
    float correction;            // what the product with weights + 128 has too much

    void read(const float* x, int64_t inputs) {
        const int64_t groups = (inputs + GROUP - 1) / GROUP;
        bytes.assign(groups * GROUP, 0);
        scales.assign(groups, 0.0f);
        correction = 0;
        for (int64_t g = 0; g < groups; g++) {
            const int64_t first = g * GROUP, count = std::min(GROUP, inputs - first);
            __m512 sizes = _mm512_setzero_ps();
            __mmask16 has_nan = 0;  // a maximum may pass over it
            for (int64_t i = 0; i < count; i += 16) {
                const __mmask16 present = (__mmask16)first_bytes(std::min<int64_t>(16, count - i));
                const __m512 part = _mm512_maskz_loadu_ps(present, x + first + i);
                has_nan |= _mm512_cmp_ps_mask(part, part, _CMP_UNORD_Q);
                sizes = _mm512_max_ps(sizes, _mm512_abs_ps(part));
            }
            const float largest = has_nan ? NAN : _mm512_reduce_max_ps(sizes);
            const __m512 factor = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
            __m512i total = _mm512_setzero_si512();
            for (int64_t i = 0; i < count; i += 16) {
                const __mmask16 present = (__mmask16)first_bytes(std::min<int64_t>(16, count - i));
                const __m512 part = _mm512_maskz_loadu_ps(present, x + first + i);
                const __m512i levels = _mm512_cvtps_epi32(_mm512_mul_ps(part, factor));
                total = _mm512_add_epi32(total, levels);
                _mm_storeu_si128((__m128i*)&bytes[first + i], _mm512_cvtsepi32_epi8(levels));
            }
            scales[g] = largest / 127;
            correction += 128 * scales[g] * _mm512_reduce_add_epi32(total);
        }
    }
};

template <int N, int R>
inline void int8_tile(const Operation& op, const Buffers& buffers, const Int8Row* rows, int64_t n, int64_t r) {
    const int64_t inputs = op.inputs;
    const int8_t* weights = (const int8_t*)op.weight + n * inputs;
    __m512 sums[N][R];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t first = 0; first < inputs; first += GROUP) {
        __m512i dots[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) dots[i][j] = _mm512_setzero_si512();
        for (int64_t k = first; k < std::min(first + GROUP, inputs); k += 64) {
            const __mmask64 present = first_bytes(inputs - k);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                _mm_prefetch((const char*)weights + (i + N) * inputs + k, _MM_HINT_T0);  // of the next tile
                const __m512i signed_weights = _mm512_maskz_loadu_epi8(present, weights + i * inputs + k);
                const __m512i bytes = _mm512_xor_si512(signed_weights, _mm512_set1_epi8((char)128));  // + 128
#pragma GCC unroll 16
                for (int j = 0; j < R; j++)
                    dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], bytes, _mm512_loadu_si512(&rows[r + j].bytes[k]));
            }
        }
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) {
            const __m512 scale = _mm512_set1_ps(rows[r + j].scales[first / GROUP]);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++)
                sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][j]), scale, sums[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) {
            const float total = _mm512_reduce_add_ps(sums[i][j]) - rows[r + j].correction;
            store(op, buffers, n + i, r + j, total * op.scale[n + i]);
        }
}

template <int N> inline void int8_outputs(const Operation& op, const Buffers& buffers, const Int8Row* rows, int64_t n) {
    int64_t r = 0;
    for (; r + 4 <= buffers.call.rows; r += 4)
        for (int half = 0; half < N; half += (N + 1) / 2) int8_tile<(N + 1) / 2, 4>(op, buffers, rows, n + half, r);
    for (; r + 2 <= buffers.call.rows; r += 2) int8_tile<N, 2>(op, buffers, rows, n, r);
    if (r < buffers.call.rows) int8_tile<N, 1>(op, buffers, rows, n, r);
}

void int8_linear(const Operation& op, const Buffers& buffers, int64_t first, int64_t end) {
    static thread_local std::vector<Int8Row> rows;
    round_once(rows, op, buffers, op.inputs);
    int64_t n = first;
    for (; n + OUTPUTS <= end; n += OUTPUTS) int8_outputs<OUTPUTS>(op, buffers, rows.data(), n);
    for (; n < end; n++) int8_outputs<1>(op, buffers, rows.data(), n);
}

// int4: a group's product has the scale of its weights times that of its x; rounding x adds a tenth of their error.
struct Int4Row {
    std::vector<int8_t> pairs;        // of two groups the inputs 0 to 15 of both, then 16 to 31 of both
    std::vector<float> scales, sums;  // of each group; zeros up to a multiple of 16

    void read(const float* x, int64_t groups) {
        const int64_t padded = (groups + 15) / 16 * 16;
        pairs.assign((groups + 1) / 2 * 64, 0);
        scales.assign(padded, 0.0f);
        sums.assign(padded, 0.0f);
        for (int64_t g = 0; g < groups; g++) {
            const __m512 first = _mm512_loadu_ps(x + g * STEP), second = _mm512_loadu_ps(x + g * STEP + 16);
            const __m512 sizes = _mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second));
            const bool has_nan = _mm512_cmp_ps_mask(first, second, _CMP_UNORD_Q);  // a maximum may pass over it
            const float largest = has_nan ? NAN : _mm512_reduce_max_ps(sizes);
            scales[g] = largest / 127;
            const __m512 factor = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
            const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor));
            const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
            sums[g] = scales[g] * _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));  // of what is multiplied
            __m128i* place = (__m128i*)&pairs[g / 2 * 64] + g % 2;
            _mm_storeu_si128(place, _mm512_cvtsepi32_epi8(low));
            _mm_storeu_si128(place + 2, _mm512_cvtsepi32_epi8(high));
        }
    }
};

template <int N, int R>
inline void int4_tile(const Operation& op, const Buffers& buffers, const Int4Row* rows, int64_t n, int64_t r) {
    const int64_t groups = op.inputs / STEP;
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i low_half = _mm256_set1_epi8(15);
    __m512 sums[N][R];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g += 16) {
        const int64_t count = std::min<int64_t>(16, groups - g);
        __m512 factors[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {  // the part that does not depend on a weight: middle − 8 scale, times Σ x
            const uint32_t* of_groups = (const uint32_t*)op.groups + (n + i) * groups + g;
            const __m512i pair = _mm512_maskz_loadu_epi32((__mmask16)((1u << count) - 1), of_groups);
            const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            const __m512 middle = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
            const __m512 low = _mm512_fnmadd_ps(_mm512_set1_ps(8), scale, middle);
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) {
                sums[i][j] = _mm512_fmadd_ps(low, _mm512_loadu_ps(&rows[r + j].sums[g]), sums[i][j]);
                factors[i][j] = _mm512_mul_ps(scale, _mm512_loadu_ps(&rows[r + j].scales[g]));
            }
        }
        for (int64_t pair = 0; pair < (count + 1) / 2; pair++) {
            const __m512i of_pair = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)(2 * pair)));
            const __mmask32 present = 2 * pair + 1 < count ? 0xffffffffu : 0x0000ffffu;
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                const char* bytes = (const char*)op.weight + ((n + i) * groups + g + 2 * pair) * (STEP / 2);
                _mm_prefetch(bytes + N * groups * (STEP / 2), _MM_HINT_T0);  // of the next tile
                const __m256i both = _mm256_maskz_loadu_epi8(present, bytes);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
                const __m512i weights =
                    _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(both, low_half)), high, 1);
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) {
                    const __m512i x = _mm512_loadu_si512(&rows[r + j].pairs[(g / 2 + pair) * 64]);
                    const __m512i dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, x);
                    const __m512 factor = _mm512_permutexvar_ps(of_pair, factors[i][j]);
                    sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), factor, sums[i][j]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) store(op, buffers, n + i, r + j, _mm512_reduce_add_ps(sums[i][j]));
}

template <int N> inline void int4_outputs(const Operation& op, const Buffers& buffers, const Int4Row* rows, int64_t n) {
    int64_t r = 0;
    for (; r + 4 <= buffers.call.rows; r += 4) int4_tile<N, 4>(op, buffers, rows, n, r);
    for (; r + 2 <= buffers.call.rows; r += 2) int4_tile<N, 2>(op, buffers, rows, n, r);
    if (r < buffers.call.rows) int4_tile<N, 1>(op, buffers, rows, n, r);
}

void int4_linear(const Operation& op, const Buffers& buffers, int64_t first, int64_t end) {
    static thread_local std::vector<Int4Row> rows;
    round_once(rows, op, buffers, op.inputs / STEP);
    int64_t n = first;
    for (; n + OUTPUTS <= end; n += OUTPUTS) int4_outputs<OUTPUTS>(op, buffers, rows.data(), n);
    for (; n < end; n++) int4_outputs<1>(op, buffers, rows.data(), n);
}

#endif

template <class Format> void linear(const Operation& op, const Buffers& buffers, int64_t first, int64_t end) {
    int64_t n = first;
    for (; n + OUTPUTS <= end; n += OUTPUTS) outputs<Format, OUTPUTS>(op, buffers, n);
    for (; n < end; n++) outputs<Format, 1>(op, buffers, n);
}

void linear_of_format(const Operation& op, const Buffers& buffers, int64_t chunk, int64_t chunks) {
    const int64_t tiles = (op.outputs + OUTPUTS - 1) / OUTPUTS;
    const int64_t first = tiles * chunk / chunks * OUTPUTS;
    const int64_t end = std::min(tiles * (chunk + 1) / chunks * OUTPUTS, op.outputs);
    switch (op.format) {
        case 0: linear<Float32>(op, buffers, first, end); break;
        case 1: linear<BFloat16>(op, buffers, first, end); break;
        case 2: linear<Float16>(op, buffers, first, end); break;
#ifdef HAS_VNNI
        case 3: int8_linear(op, buffers, first, end); break;
        case 4: int4_linear(op, buffers, first, end); break;
#else
        case 3: linear<Int8>(op, buffers, first, end); break;
        case 4: linear<Int4>(op, buffers, first, end); break;
#endif
    }
}

// ------------------------------------------------------------------------------------------------------ norms

void rms_norm(const float* x, float* y, int64_t width, const float* weight, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++) y[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
}

void layer_norm(const float* x, float* y, int64_t width, const float* weight, const float* bias, float epsilon) {
    float mean = 0, squares = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < width; i++) mean += x[i];
    mean /= width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

// -------------------------------------------------------------------------------------------------- attention

struct FloatCache {
    typedef float Number;
    static Vector read(const Number* p) { return load<Vector>(p); }
    static float one(Number x) { return x; }
    static Number stored(float x) { return x; }
};

struct BFloat16Cache {
    typedef uint16_t Number;
    static Vector read(const Number* p) { return from_bfloat16(p); }
    static float one(Number x) { return from_bits((uint32_t)x << 16); }
    static Number stored(float x) {  // to the nearest, ties to even
        const uint32_t bits = load<uint32_t>(&x);
        return (uint16_t)(x == x ? (bits + 0x7fffu + (bits >> 16 & 1)) >> 16 : 0x7fc0u);
    }
};

// x in place: its norm, then the rotation (a, b) → (a cos − b sin, b cos + a sin) of its halves a and b
void normalise_and_rotate(float* x, const Operation& op, const float* norm, float epsilon, const Call& call, int64_t r) {
    const int64_t size = op.head_size, half = size / 2;
    if (norm) rms_norm(x, x, size, norm, epsilon);
    if (!call.cosine) return;
    const float *cosine = call.cosine + r * call.rotation_stride, *sine = call.sine + r * call.rotation_stride;
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] + b * sine[i];
        x[i + half] = b * cosine[i + half] + a * sine[i + half];
    }
}

template <class Cache>
float dot(const float* q, const typename Cache::Number* k, int64_t size) {
    Vector sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += load<Vector>(q + i) * Cache::read(k + i);
    float total = sum(sums);
    for (; i < size; i++) total += q[i] * Cache::one(k[i]);
    return total;
}

// One query head of a row: softmax(factor q kᵀ + bias) v; zeros if no key may be attended to.
template <class Cache>
void attend(const float* q, const KeyValues& keys, const Operation& op, int64_t r, int64_t h, float* scores, float* y) {
    typedef typename Cache::Number Number;
    const int64_t size = op.head_size, columns = keys.columns, head = h / (op.heads / op.kv_heads);
    const int64_t source = r / keys.queries_per_source, first = source * keys.row_stride + head * keys.head_stride;
    const Number *key = (const Number*)keys.key + first, *value = (const Number*)keys.value + first;
    const float* bias = keys.bias ? keys.bias + source * keys.bias_row_stride + h * keys.bias_head_stride : nullptr;
    float largest = -INFINITY;
    for (int64_t s = 0; s < columns; s++) {
        scores[s] = (float)op.factor * dot<Cache>(q, key + s * size, size) + (bias ? bias[s] : 0.0f);
        largest = std::max(largest, scores[s]);
    }
    std::fill(y, y + size, 0.0f);
    const auto is_masked = [](float score) { return score == -INFINITY; };  // not NaN, which stays
    if (largest == -INFINITY && std::all_of(scores, scores + columns, is_masked)) return;
    float total = 0;
    for (int64_t s = 0; s < columns; s++) total += scores[s] = std::exp(scores[s] - largest);
    const float share = 1.0f / total;
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) {
        Vector sums[4] = {};
        for (int64_t s = 0; s < columns; s++)
            for (int p = 0; p < 4; p++) sums[p] += scores[s] * Cache::read(value + s * size + i + p * LANES);
        for (int p = 0; p < 4; p++) {
            sums[p] *= share;
            std::memcpy(y + i + p * LANES, &sums[p], sizeof(Vector));
        }
    }
    for (; i + LANES <= size; i += LANES) {
        Vector sums = {};
        for (int64_t s = 0; s < columns; s++) sums += scores[s] * Cache::read(value + s * size + i);
        sums *= share;
        std::memcpy(y + i, &sums, sizeof(Vector));
    }
    for (; i < size; i++) {
        for (int64_t s = 0; s < columns; s++) y[i] += scores[s] * Cache::one(value[s * size + i]);
        y[i] *= share;
    }
}

// Self-attention of a row (q, k, v) in a group of heads, whose key and value join the cache first; cross-attention of q.
template <class Cache>
void attention(const Operation& op, const Buffers& buffers, const KeyValues& keys, bool is_self, int64_t unit, int thread) {
    typedef typename Cache::Number Number;
    const Call& call = buffers.call;
    const int64_t size = op.head_size, group = op.heads / op.kv_heads;
    const int64_t r = unit / op.kv_heads, g = unit % op.kv_heads;
    float* scores = call.scores + thread * call.max_keys;
    float* x = buffers.row(op.x, op.inputs, r);
    if (is_self) {
        float *k = x + (op.heads + g) * size, *v = k + op.kv_heads * size;
        normalise_and_rotate(k, op, op.key_norm, (float)op.key_epsilon, call, r);
        const int64_t column = keys.slots ? keys.slots[r] : keys.columns - 1;
        const int64_t place = r * keys.row_stride + g * keys.head_stride + column * size;
        for (int64_t i = 0; i < size; i++) {
            ((Number*)keys.key)[place + i] = Cache::stored(k[i]);
            ((Number*)keys.value)[place + i] = Cache::stored(v[i]);
        }
    }
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        float* q = x + h * size;
        if (is_self)
            normalise_and_rotate(q, op, op.query_norm, (float)op.epsilon, call, r);
        else if (op.query_norm)
            rms_norm(q, q, size, op.query_norm, (float)op.epsilon);
        attend<Cache>(q, keys, op, r, h, scores, buffers.row(op.y, op.heads * size, r) + h * size);
    }
}

// Number of independent chunks of an operation.
int64_t chunks_of(const Operation& op, const Call& call) {
    switch (op.kind) {
        case LINEAR: return std::min((op.outputs + OUTPUTS - 1) / OUTPUTS, 8 * call.threads);
        case SELF_ATTENTION:
        case CROSS_ATTENTION: return call.rows * op.kv_heads;
        default: return call.rows;
    }
}

void compute(const Operation& op, const Call& call, int64_t chunk, int64_t chunks, int thread) {
    const Buffers buffers{call};
    switch (op.kind) {
        case LINEAR: linear_of_format(op, buffers, chunk, chunks); return;
        case SELF_ATTENTION:
        case CROSS_ATTENTION: {
            const bool is_self = op.kind == SELF_ATTENTION;
            const KeyValues& keys = call.keys[2 * op.layer + !is_self];
            if (call.bfloat16_cache)
                attention<BFloat16Cache>(op, buffers, keys, is_self, chunk, thread);
            else
                attention<FloatCache>(op, buffers, keys, is_self, chunk, thread);
            return;
        }
    }
    const float* x = buffers.row(op.x, op.inputs, chunk);
    float* y = buffers.row(op.y, op.inputs, chunk);
    switch (op.kind) {
        case LAYER_NORM: layer_norm(x, y, op.inputs, (const float*)op.weight, op.bias, (float)op.epsilon); break;
        case RMS_NORM: rms_norm(x, y, op.inputs, (const float*)op.weight, (float)op.epsilon); break;
        case MULTIPLY:
            for (int64_t i = 0; i < op.inputs; i++) y[i] *= x[i];
            break;
        case ADD:
            for (int64_t i = 0; i < op.inputs; i++) y[i] += x[i];
            break;
    }
}

}  // namespace

// Each thread takes chunks of an operation until none is left, and waits only for chunks that another one has taken:
// on a busy machine a thread that does not run holds nobody up.
extern "C" void run(const Operation* operations, int64_t count, const Call* call) {
#pragma omp parallel num_threads(call->threads)
    {
        const int thread = omp_get_thread_num();
#ifdef HAS_VNNI
        rounded = nullptr;
#endif
        for (int64_t i = 0; i < count; i++) {
            Progress& progress = call->progress[i];
            const int64_t chunks = chunks_of(operations[i], *call);
            for (;;) {
                const int64_t chunk = progress.taken.fetch_add(1, std::memory_order_relaxed);
                if (chunk >= chunks) break;
                compute(operations[i], *call, chunk, chunks, thread);
                progress.done.fetch_add(1, std::memory_order_release);
            }
            for (int spins = 0; progress.done.load(std::memory_order_acquire) < chunks; spins++)
                if (spins > SPINS) sched_yield();
        }
    }
}
