// Products of float16 matrices, for which no library is there: parts of the second one are widened as they are
// read, and sums are rounded once.

static const npy_intp INNER = 128, COLUMNS = 256;

// Widens a block of a matrix to `target`, its rows one after the other.
static void widen_block(const Matrix<half> &m, npy_intp row, npy_intp column, npy_intp rows, npy_intp columns,
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

// Some columns of the product of several rows and b, of which a part at a time is widened.
static void multiply_by_rows(const npy_float32 *a, npy_intp n_row, const Matrix<half> &b, npy_intp column,
                             npy_intp columns, npy_float32 *part, npy_float32 *sums) {
    for (npy_intp k = 0; k < b.rows; k += INNER) {
        const npy_intp inner = std::min(INNER, b.rows - k);
        widen_block(b, k, column, inner, columns, part);
        multiply(a + k, b.rows, (npy_intp)1, part, columns, sums, columns, n_row, inner, columns);
    }
}

// The transpose of the same, for a b whose columns lie in one piece.
static void multiply_by_columns(const npy_float32 *a_transposed, npy_intp n_row, const Matrix<half> &b,
                                npy_intp column, npy_intp columns, npy_float32 *part, npy_float32 *sums) {
    for (npy_intp k = 0; k < b.rows; k += INNER) {
        const npy_intp inner = std::min(INNER, b.rows - k);
        widen_block(b.transposed(), column, k, columns, inner, part);
        multiply(part, inner, (npy_intp)1, a_transposed + k * n_row, n_row, sums, n_row, columns, inner, n_row);
    }
}

// Rows of the result that are held in float32 at once: few enough for the second-level cache.
static const npy_intp ROWS = 512;

static bool multiply_halves(const Matrix<half> &a, const Matrix<half> &b, half *out) {
    if (a.rows == 1 && (b.has_rows() || b.has_columns())) {
        std::vector<npy_float32> row(a.columns), sums(b.columns);
        widen_block(a, 0, 0, 1, a.columns, row.data());
        const bool done = multiply_row(row.data(), b, sums.data());
        narrow(sums.data(), out, b.columns);
        return done;
    }
    const bool by_columns = !b.has_rows() && b.has_columns();
    const npy_intp n_part = (b.columns + COLUMNS - 1) / COLUMNS;
    for (npy_intp first_row = 0; first_row < a.rows; first_row += ROWS) {
        const npy_intp n_row = std::min(ROWS, a.rows - first_row);
        std::vector<npy_float32> left(n_row * a.columns);
        if (by_columns)
            widen_block(a.transposed(), 0, first_row, a.columns, n_row, left.data());
        else
            widen_block(a, first_row, 0, n_row, a.columns, left.data());
        // To read an element of b takes about as long as to multiply it with a few rows.
        const double operations = 2.0 * b.rows * b.columns * (n_row + 8);
        const bool done = share(n_part, operations, [&](auto take, npy_intp n) {
            std::vector<npy_float32> part(INNER * COLUMNS), sums(n_row * COLUMNS);
            for (npy_intp at = take(); at < n; at = take()) {
                const npy_intp column = at * COLUMNS, columns = std::min(COLUMNS, b.columns - column);
                std::fill(sums.begin(), sums.end(), 0.0f);
                if (by_columns)
                    multiply_by_columns(left.data(), n_row, b, column, columns, part.data(), sums.data());
                else
                    multiply_by_rows(left.data(), n_row, b, column, columns, part.data(), sums.data());
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
            if (!multiply_halves(matrix_at<half>(a, i), matrix_at<half>(b, i), product + i * shape[1] * shape[2]))
                throw std::bad_alloc();
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}
