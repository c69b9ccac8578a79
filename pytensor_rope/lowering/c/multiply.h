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

// c += a @ b, where a's element (row, k) is a[row * row_stride + k * inner_stride].

template <typename V, int ROWS, int COUNT, typename T>
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
        for (int i = 0; i < COUNT; i++)
            memcpy(&b_k[i], b + k * b_stride + i * width, sizeof(V));
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
template <typename V, int ROWS, int COUNT, typename T>
static inline void multiply_columns(const T *a, npy_intp row_stride, npy_intp inner_stride, const T *b,
                                    npy_intp b_stride, T *c, npy_intp c_stride, npy_intp rows, npy_intp inner,
                                    npy_intp columns, npy_intp &column) {
    const npy_intp width = COUNT * sizeof(V) / sizeof(T);
    for (; column + width <= columns; column += width) {
        npy_intp row = 0;
        for (; row + ROWS <= rows; row += ROWS)
            multiply_block<V, ROWS, COUNT>(a + row * row_stride, row_stride, inner_stride, b + column, b_stride,
                                           c + row * c_stride + column, c_stride, inner);
        for (; row < rows; row++)
            multiply_block<V, 1, COUNT>(a + row * row_stride, row_stride, inner_stride, b + column, b_stride,
                                        c + row * c_stride + column, c_stride, inner);
    }
}

template <typename T>
static void multiply(const T *a, npy_intp row_stride, npy_intp inner_stride, const T *b, npy_intp b_stride,
                     T *c, npy_intp c_stride, npy_intp rows, npy_intp inner, npy_intp columns) {
    typedef typename vector_of<T, WIDE_BYTES>::type wide;
    typedef typename vector_of<T, 32>::type middle;
    typedef typename vector_of<T, 16>::type narrow;
    npy_intp column = 0;
#define MULTIPLY(V, ROWS, COUNT)                                                                               \
    multiply_columns<V, ROWS, COUNT>(a, row_stride, inner_stride, b, b_stride, c, c_stride, rows, inner,       \
                                     columns, column)
    MULTIPLY(wide, 4, WIDE_COUNT);
    MULTIPLY(wide, 8, 1);
    MULTIPLY(middle, 8, 1);
    MULTIPLY(narrow, 8, 1);
    MULTIPLY(T, 4, 1);
#undef MULTIPLY
}

template <typename T> static inline T dot(const T *a, const T *b, npy_intp n) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (npy_intp i = 0; i < n; i++)
        total += a[i] * b[i];
    return total;
}
