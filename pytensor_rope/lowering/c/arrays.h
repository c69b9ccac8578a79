// Elements, and arrays of them: what the kernels share.

#ifdef __F16C__
#include <immintrin.h>
#endif

// A float16, stored; arithmetic is in float32.
struct half {
    npy_uint16 bits;
};

template <typename X> struct type_number;
template <> struct type_number<half> { static const int value = NPY_FLOAT16; };
template <> struct type_number<npy_float32> { static const int value = NPY_FLOAT32; };
template <> struct type_number<npy_float64> { static const int value = NPY_FLOAT64; };

template <typename To, typename From> static inline To same_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline npy_float32 widened(half x) {
    const npy_uint32 sign = (npy_uint32)(x.bits & 0x8000) << 16;
    const npy_uint32 magnitude = (npy_uint32)(x.bits & 0x7fff) << 13;
    const npy_uint32 normal = magnitude + (112u << 23);
    const npy_uint32 special = magnitude + (224u << 23);
    const npy_float32 smallest_normal = same_bits<npy_float32>(113u << 23);
    const npy_uint32 subnormal =
        same_bits<npy_uint32>(same_bits<npy_float32>(magnitude + (113u << 23)) - smallest_normal);
    const npy_uint32 bits = magnitude >= (31u << 23)   ? special
                            : magnitude < (1u << 23) ? subnormal
                                                     : normal;
    return same_bits<npy_float32>(sign | bits);
}

// Round to the nearest float16, ties to even.
static inline half narrowed(npy_float32 x) {
    const npy_uint32 bits = same_bits<npy_uint32>(x);
    const npy_uint32 sign = (bits >> 16) & 0x8000;
    const npy_uint32 magnitude = bits & 0x7fffffff;
    const npy_uint32 normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding a half moves a subnormal's bits to where float32's own rounding puts them.
    const npy_uint32 subnormal =
        same_bits<npy_uint32>(same_bits<npy_float32>(magnitude) + 0.5f) - (126u << 23);
    const npy_uint32 special = magnitude > (255u << 23) ? 0x7e00 : 0x7c00;
    const npy_uint32 result = magnitude >= (143u << 23)   ? special
                              : magnitude < (113u << 23) ? subnormal
                                                         : normal;
    return {(npy_uint16)(sign | result)};
}

static inline void widen(const half *source, npy_float32 *target, npy_intp n) {
    npy_intp i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i))));
#endif
    for (; i < n; i++)
        target[i] = widened(source[i]);
}

static inline void narrow(const npy_float32 *source, half *target, npy_intp n) {
    npy_intp i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(target + i), _mm256_cvtps_ph(_mm256_loadu_ps(source + i), 0));
#endif
    for (; i < n; i++)
        target[i] = narrowed(source[i]);
}

template <typename T> static inline T load(T x) { return x; }
static inline npy_float32 load(half x) { return widened(x); }

template <typename X> struct stored_as {
    template <typename T> static inline X from(T value) { return (X)value; }
};
template <> struct stored_as<half> {
    template <typename T> static inline half from(T value) { return narrowed((npy_float32)value); }
};

static int refuse(const char *message) {
    PyErr_SetString(PyExc_ValueError, message);
    return -1;
}

// An array's elements in C order, copied only if they are not in that order already.
template <typename X> class Contiguous {
    PyArrayObject *array;

  public:
    explicit Contiguous(PyArrayObject *source) : array(PyArray_GETCONTIGUOUS(source)) {}
    ~Contiguous() { Py_XDECREF(array); }
    Contiguous(const Contiguous &) = delete;
    Contiguous &operator=(const Contiguous &) = delete;

    bool failed() const { return array == NULL; }
    const X *data() const { return (const X *)PyArray_DATA(array); }
};

// The output's elements in C order, in the memory of the last call's output where that fits.
template <typename X> static X *output(PyArrayObject **array, int ndim, const npy_intp *shape) {
    const bool fits = *array != NULL && PyArray_NDIM(*array) == ndim && PyArray_IS_C_CONTIGUOUS(*array) &&
                      PyArray_CompareLists(PyArray_DIMS(*array), shape, ndim);
    if (!fits) {
        Py_XDECREF(*array);
        *array = (PyArrayObject *)PyArray_EMPTY(ndim, (npy_intp *)shape, type_number<X>::value, 0);
    }
    return *array == NULL ? NULL : (X *)PyArray_DATA(*array);
}

static npy_intp product(const npy_intp *sizes, int n) {
    npy_intp total = 1;
    for (int axis = 0; axis < n; axis++)
        total *= sizes[axis];
    return total;
}
