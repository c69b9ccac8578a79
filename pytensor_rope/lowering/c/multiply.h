// Products of small matrices, for which no library need be linked.

#ifdef __AVX512F__
#define WIDE_BYTES 64
#define WIDE_COUNT 4
#else
#define WIDE_BYTES 32
#define WIDE_COUNT 2
#endif

template <typename T, int BYTES> struct vector_of {
    typedef T type __attribute__((vector_size(BYTES)));
};

// Fetches what is so many bytes further on, or nothing where that is 0.
template <int FAR> static inline void fetch(const void *here) { __builtin_prefetch((const char *)here + FAR); }
template <> inline void fetch<0>(const void *) {}

// c += a @ b, where a's element (row, k) is a[row * row_stride + k * inner_stride]. b is fetched FAR bytes ahead.
template <typename V, int ROWS, int COUNT, int FAR, typename T>
static inline void multiply_block(const T *a, npy_intp row_stride, npy_intp inner_stride, const T *b,
                                  npy_intp b_stride, T *c, npy_intp c_stride, npy_intp inner) {
    const npy_intp width = sizeof(V) / sizeof(T);
    V sum[ROWS][COUNT];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++)
            memcpy(&sum[row][i], c + row * c_stride + i * width, sizeof(V));
    for (npy_intp k = 0; k < inner; k++) {
        V b_k[COUNT];
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++) {
            fetch<FAR>(b + k * b_stride + i * width);
            memcpy(&b_k[i], b + k * b_stride + i * width, sizeof(V));
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++) {
            const T a_k = a[row * row_stride + k * inner_stride];
#pragma GCC unroll 8
            for (int i = 0; i < COUNT; i++)
                sum[row][i] += a_k * b_k[i];
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++)
            memcpy(c + row * c_stride + i * width, &sum[row][i], sizeof(V));
}

// Multiplies as many columns as fill COUNT vectors, from `column` on, and moves `column` past them.
template <typename V, int ROWS, int COUNT, int FAR, typename T>
static inline void multiply_columns(const T *a, npy_intp row_stride, npy_intp inner_stride, const T *b,
                                    npy_intp b_stride, T *c, npy_intp c_stride, npy_intp rows, npy_intp inner,
                                    npy_intp columns, npy_intp &column) {
    const npy_intp width = COUNT * sizeof(V) / sizeof(T);
    for (; column + width <= columns; column += width) {
        npy_intp row = 0;
        for (; row + ROWS <= rows; row += ROWS)
            multiply_block<V, ROWS, COUNT, FAR>(a + row * row_stride, row_stride, inner_stride, b + column,
                                                b_stride, c + row * c_stride + column, c_stride, inner);
        for (; row < rows; row++)
            multiply_block<V, 1, COUNT, FAR>(a + row * row_stride, row_stride, inner_stride, b + column, b_stride,
                                             c + row * c_stride + column, c_stride, inner);
    }
}

template <int FAR = 0, typename T>
static void multiply(const T *a, npy_intp row_stride, npy_intp inner_stride, const T *b, npy_intp b_stride,
                     T *c, npy_intp c_stride, npy_intp rows, npy_intp inner, npy_intp columns) {
    typedef typename vector_of<T, WIDE_BYTES>::type wide;
    typedef typename vector_of<T, 32>::type middle;
    typedef typename vector_of<T, 16>::type narrow;
    npy_intp column = 0;
#define MULTIPLY(V, ROWS, COUNT)                                                                               \
    multiply_columns<V, ROWS, COUNT, FAR>(a, row_stride, inner_stride, b, b_stride, c, c_stride, rows, inner,  \
                                          columns, column)
    MULTIPLY(wide, 4, WIDE_COUNT);
    MULTIPLY(wide, 8, 1);
    MULTIPLY(middle, 8, 1);
    MULTIPLY(narrow, 8, 1);
    MULTIPLY(T, 4, 1);
#undef MULTIPLY
}

// What an array's elements are computed in, as many as a vector holds; of float16 one, where a processor doesn't
// widen vectors.
template <typename X> struct wide_of {
    typedef typename vector_of<X, WIDE_BYTES>::type type;
};
template <> struct wide_of<half> {
#ifdef __F16C__
    typedef vector_of<npy_float32, WIDE_BYTES>::type type;
#else
    typedef npy_float32 type;
#endif
};

template <typename V, typename T> static inline V read_as(const T *x) {
    V value;
    memcpy(&value, x, sizeof value);
    return value;
}
template <typename V> static inline V read_as(const half *x) {
#if defined(__F16C__) && defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
#else
    return widened(*x);
#endif
}

// The sum of a vector's N elements.
template <typename T, int N> struct summed {
    typedef typename vector_of<T, N * (int)sizeof(T)>::type whole;
    typedef typename vector_of<T, N * (int)sizeof(T) / 2>::type half_of_it;

    static inline T of(whole x) {
        half_of_it halves[2];
        memcpy(halves, &x, sizeof x);
        return summed<T, N / 2>::of(halves[0] + halves[1]);
    }
};
template <typename T> struct summed<T, 2> {
    static inline T of(typename vector_of<T, 2 * (int)sizeof(T)>::type x) { return x[0] + x[1]; }
};
template <typename T> struct summed<T, 1> {
    static inline T of(T x) { return x; }
};
template <typename T, typename V> static inline T sum_of(V x) { return summed<T, sizeof(V) / sizeof(T)>::of(x); }

// The products of one row, which is fetched FAR bytes ahead, with each of the COUNT rows of b, of n elements each.
template <int COUNT, int FAR, typename T>
static inline void multiply_each(const T *row, const T *b, npy_intp n, T *products) {
    typedef typename wide_of<T>::type wide;
    const npy_intp width = sizeof(wide) / sizeof(T);
    wide sums[COUNT] = {};
    npy_intp i = 0;
    for (; i + width <= n; i += width) {
        fetch<FAR>(row + i);
        const wide of_row = read_as<wide>(row + i);
#pragma GCC unroll 8
        for (int k = 0; k < COUNT; k++)
            sums[k] += of_row * read_as<wide>(b + k * n + i);
    }
#pragma GCC unroll 8
    for (int k = 0; k < COUNT; k++) {
        products[k] = sum_of<T>(sums[k]);
        for (npy_intp j = i; j < n; j++)
            products[k] += row[j] * b[k * n + j];
    }
}
