// Products of float16 matrices, for which no library is there: parts of the second one are widened as they are
// read, and sums are rounded once.

static const npy_intp INNER = 128, COLUMNS = 256;

// A matrix anywhere in memory; strides count elements.
struct Matrix {
    const half *data;
    npy_intp rows, columns, row_stride, column_stride;
};

static inline Matrix transposed(const Matrix &m) {
    return {m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

// Widens a block of a matrix to `target`, its rows one after the other.
static void widen_block(const Matrix &m, npy_intp row, npy_intp column, npy_intp rows, npy_intp columns,
                        npy_float32 *target) {
    for (npy_intp i = 0; i < rows; i++, target += columns) {
        const half *source = m.data + (row + i) * m.row_stride + column * m.column_stride;
        if (m.column_stride == 1)
            widen(source, target, columns);
        else
            for (npy_intp j = 0; j < columns; j++)
                target[j] = widened(source[j * m.column_stride]);
    }
}

#ifdef __AVX512F__
typedef __m512 halves_widened;
static inline halves_widened widened_at(const half *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }
#elif defined(__F16C__)
typedef __m256 halves_widened;
static inline halves_widened widened_at(const half *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }
#endif

// sum += factor * x, for AT_ONCE rows of x.
static const npy_intp AT_ONCE = 8;

static inline void add_rows(const half *x, npy_intp stride, const npy_float32 *factor, npy_float32 *sum,
                            npy_intp n) {
    npy_intp j = 0;
#ifdef __F16C__
    const npy_intp width = sizeof(halves_widened) / sizeof(npy_float32);
    for (; j + width <= n; j += width) {
        halves_widened total;
        memcpy(&total, sum + j, sizeof total);
#pragma GCC unroll 8
        for (npy_intp row = 0; row < AT_ONCE; row++)
            total += factor[row] * widened_at(x + row * stride + j);
        memcpy(sum + j, &total, sizeof total);
    }
#endif
    for (; j < n; j++)
        for (npy_intp row = 0; row < AT_ONCE; row++)
            sum[j] += factor[row] * widened(x[row * stride + j]);
}

static inline npy_float32 dot(const half *a, const npy_float32 *b, npy_intp n) {
    npy_intp i = 0;
    npy_float32 total = 0;
#ifdef __F16C__
    const npy_intp width = sizeof(halves_widened) / sizeof(npy_float32);
    halves_widened sums[4] = {}, b_i;
    for (; i + 4 * width <= n; i += 4 * width)
#pragma GCC unroll 4
        for (npy_intp part = 0; part < 4; part++) {
            memcpy(&b_i, b + i + part * width, sizeof b_i);
            sums[part] += widened_at(a + i + part * width) * b_i;
        }
    const halves_widened sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (npy_intp lane = 0; lane < width; lane++)
        total += sum[lane];
#endif
    for (; i < n; i++)
        total += widened(a[i]) * b[i];
    return total;
}

// Some columns of the product of one row and b, whose rows or columns lie in one piece.
static void multiply_row(const npy_float32 *a, const Matrix &b, npy_intp column, npy_intp columns,
                         npy_float32 *sums) {
    const half *first = b.data + column * b.column_stride;
    if (b.row_stride == 1) {
        for (npy_intp j = 0; j < columns; j++)
            sums[j] = dot(first + j * b.column_stride, a, b.rows);
        return;
    }
    npy_intp k = 0;
    for (; k + AT_ONCE <= b.rows; k += AT_ONCE)
        add_rows(first + k * b.row_stride, b.row_stride, a + k, sums, columns);
    for (; k < b.rows; k++)
        for (npy_intp j = 0; j < columns; j++)
            sums[j] += a[k] * widened(first[k * b.row_stride + j]);
}

// Some columns of the product of several rows and b, of which a part at a time is widened.
static void multiply_rows(const npy_float32 *a, npy_intp n_row, const Matrix &b, npy_intp column,
                          npy_intp columns, npy_float32 *part, npy_float32 *sums) {
    for (npy_intp k = 0; k < b.rows; k += INNER) {
        const npy_intp inner = std::min(INNER, b.rows - k);
        widen_block(b, k, column, inner, columns, part);
        multiply(a + k, b.rows, (npy_intp)1, part, columns, sums, columns, n_row, inner, columns);
    }
}

// The transpose of the same, for a b whose columns lie in one piece.
static void multiply_columns(const npy_float32 *a_transposed, npy_intp n_row, const Matrix &b, npy_intp column,
                             npy_intp columns, npy_float32 *part, npy_float32 *sums) {
    for (npy_intp k = 0; k < b.rows; k += INNER) {
        const npy_intp inner = std::min(INNER, b.rows - k);
        widen_block(transposed(b), column, k, columns, inner, part);
        multiply(part, inner, (npy_intp)1, a_transposed + k * n_row, n_row, sums, n_row, columns, inner, n_row);
    }
}

// Rows of the result that are held in float32 at once: few enough for the second-level cache.
static const npy_intp ROWS = 512;

static bool multiply_halves(const Matrix &a, const Matrix &b, half *out) {
    const bool in_rows = b.column_stride == 1 && b.columns > 1, in_columns = !in_rows && b.row_stride == 1;
    const bool one_row = a.rows == 1 && (in_rows || in_columns);
    const bool by_columns = in_columns && !one_row;
    const npy_intp width = one_row ? 4 * COLUMNS : COLUMNS, n_part = (b.columns + width - 1) / width;
    for (npy_intp first_row = 0; first_row < a.rows; first_row += ROWS) {
        const npy_intp n_row = std::min(ROWS, a.rows - first_row);
        std::vector<npy_float32> left(n_row * a.columns);
        if (by_columns)
            widen_block(transposed(a), 0, first_row, a.columns, n_row, left.data());
        else
            widen_block(a, first_row, 0, n_row, a.columns, left.data());
        // To read an element of b takes about as long as to multiply it with a few rows.
        const double operations = 2.0 * b.rows * b.columns * (n_row + 8);
        const bool done = share(n_part, operations, [&](auto take, npy_intp n) {
            std::vector<npy_float32> part(one_row ? 0 : INNER * width), sums(n_row * width);
            for (npy_intp at = take(); at < n; at = take()) {
                const npy_intp column = at * width, columns = std::min(width, b.columns - column);
                std::fill(sums.begin(), sums.end(), 0.0f);
                if (one_row)
                    multiply_row(left.data(), b, column, columns, sums.data());
                else if (by_columns)
                    multiply_columns(left.data(), n_row, b, column, columns, part.data(), sums.data());
                else
                    multiply_rows(left.data(), n_row, b, column, columns, part.data(), sums.data());
                for (npy_intp i = 0; i < n_row; i++) {
                    half *row = out + (first_row + i) * b.columns + column;
                    if (!by_columns)
                        narrow(sums.data() + i * columns, row, columns);
                    else
                        for (npy_intp j = 0; j < columns; j++)
                            row[j] = narrowed(sums[j * n_row + i]);
                }
            }
        });
        if (!done)
            return false;
    }
    return true;
}

// One matrix of a stack, the last two axes of an array; a stack may have one axis before them, or none.
static Matrix matrix_at(PyArrayObject *array, npy_intp index) {
    const int last = PyArray_NDIM(array) - 1;
    const npy_intp size = (npy_intp)sizeof(half);
    const char *data = PyArray_BYTES(array) + (last > 1 ? index * PyArray_STRIDE(array, 0) : 0);
    return {(const half *)data, PyArray_DIM(array, last - 1), PyArray_DIM(array, last),
            PyArray_STRIDE(array, last - 1) / size, PyArray_STRIDE(array, last) / size};
}

template <typename X, typename T>
static int half_product(PyArrayObject *a, PyArrayObject *b, PyArrayObject **out) {
    const int ndim = PyArray_NDIM(a);
    if (PyArray_DIM(a, ndim - 1) != PyArray_DIM(b, ndim - 2))
        return refuse("the first matrix must have as many columns as the second has rows");
    const npy_intp n_matrix = ndim > 2 ? PyArray_DIM(a, 0) : 1;
    if (ndim > 2 && PyArray_DIM(b, 0) != n_matrix)
        return refuse("there must be as many matrices in one stack as in the other");
    npy_intp shape[] = {n_matrix, PyArray_DIM(a, ndim - 2), PyArray_DIM(b, ndim - 1)};
    X *product = output<X>(out, ndim, shape + (3 - ndim));
    if (product == NULL)
        return -1;
    try {
        for (npy_intp i = 0; i < n_matrix; i++)
            if (!multiply_halves(matrix_at(a, i), matrix_at(b, i), product + i * shape[1] * shape[2]))
                throw std::bad_alloc();
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}
