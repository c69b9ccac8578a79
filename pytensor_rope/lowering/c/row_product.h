// Products of one row and a matrix. All of their time goes into reading the matrix, so threads take parts of it that
// lie in one piece, and fetch what comes next.

// A matrix anywhere in memory; strides count elements.
template <typename X> struct Matrix {
    const X *data;
    npy_intp rows, columns, row_stride, column_stride;

    Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
    bool has_rows() const { return column_stride == 1 && columns > 1; } // Its rows lie in one piece each.
    bool has_columns() const { return row_stride == 1; }
};

// One matrix of a stack, the last two axes of an array; a stack may have one axis before them, or none.
template <typename X> static Matrix<X> matrix_at(PyArrayObject *array, npy_intp index) {
    const int last = PyArray_NDIM(array) - 1;
    const npy_intp size = (npy_intp)sizeof(X);
    const char *data = PyArray_BYTES(array) + (last > 1 ? index * PyArray_STRIDE(array, 0) : 0);
    return {(const X *)data, PyArray_DIM(array, last - 1), PyArray_DIM(array, last),
            PyArray_STRIDE(array, last - 1) / size, PyArray_STRIDE(array, last) / size};
}

// Rows that are added at once.
static const npy_intp AT_ONCE = 8;

// Fetches a row ahead, where a vector of it is read at once: one by one, that would take longer than it saves.
template <typename X> static inline void fetch_row(const X *x) {
    fetch<sizeof(typename wide_of<X>::type) < 16 ? 0 : 1024>(x);
}

// sum += factor * x, for AT_ONCE rows of x.
template <typename X, typename T>
static inline void add_rows(const X *x, npy_intp stride, const T *factor, T *sum, npy_intp n) {
    typedef typename wide_of<X>::type wide;
    const npy_intp width = sizeof(wide) / sizeof(T);
    npy_intp j = 0;
    for (; j + width <= n; j += width) {
        wide total = read_as<wide>(sum + j);
#pragma GCC unroll 8
        for (npy_intp row = 0; row < AT_ONCE; row++) {
            fetch_row(x + row * stride + j);
            total += factor[row] * read_as<wide>(x + row * stride + j);
        }
        memcpy(sum + j, &total, sizeof total);
    }
    for (; j < n; j++)
        for (npy_intp row = 0; row < AT_ONCE; row++)
            sum[j] += factor[row] * load(x[row * stride + j]);
}

template <typename X, typename T> static inline T dot(const X *a, const T *b, npy_intp n) {
    typedef typename wide_of<X>::type wide;
    const npy_intp width = sizeof(wide) / sizeof(T);
    wide sums[4] = {};
    npy_intp i = 0;
    for (; i + 4 * width <= n; i += 4 * width)
#pragma GCC unroll 4
        for (npy_intp part = 0; part < 4; part++) {
            fetch_row(a + i + part * width);
            sums[part] += read_as<wide>(a + i + part * width) * read_as<wide>(b + i + part * width);
        }
    T total = sum_of<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++)
        total += load(a[i]) * b[i];
    return total;
}

template <typename X> static double operations_to_read(const Matrix<X> &b) {
    return 2.0 * sizeof(X) * b.rows * b.columns; // As many as take the same time.
}

// a @ b, where b's columns lie in one piece each.
template <typename X, typename T> static bool multiply_columns_with_row(const T *a, const Matrix<X> &b, T *sums) {
    const npy_intp width = 64, n_part = (b.columns + width - 1) / width;
    return share(n_part, operations_to_read(b), [&](auto take, npy_intp n) {
        for (npy_intp at = take(); at < n; at = take())
            for (npy_intp j = at * width; j < std::min(b.columns, (at + 1) * width); j++)
                sums[j] = dot(b.data + j * b.column_stride, a, b.rows);
    });
}

// a @ b, where b's rows do. Parts of the rows are summed each on its own, and then together: as many parts, and so the
// same sums, on any number of threads.
template <typename X, typename T> static bool multiply_rows_with_row(const T *a, const Matrix<X> &b, T *sums) {
    const npy_intp most_parts = 8, width = 4096, n_width = (b.columns + width - 1) / width;
    const npy_intp height = ((b.rows + most_parts - 1) / most_parts + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    const npy_intp n_part = height == 0 ? 0 : (b.rows + height - 1) / height;
    std::vector<T> parts(n_part * b.columns);
    const bool done = share(n_part * n_width, operations_to_read(b), [&](auto take, npy_intp n) {
        for (npy_intp at = take(); at < n; at = take()) {
            const npy_intp part = at / n_width, column = at % n_width * width;
            const npy_intp columns = std::min(width, b.columns - column);
            const npy_intp end = std::min(b.rows, (part + 1) * height);
            const X *x = b.data + column;
            T *sum = parts.data() + part * b.columns + column;
            npy_intp k = part * height;
            for (; k + AT_ONCE <= end; k += AT_ONCE)
                add_rows(x + k * b.row_stride, b.row_stride, a + k, sum, columns);
            for (; k < end; k++)
                for (npy_intp j = 0; j < columns; j++)
                    sum[j] += a[k] * load(x[k * b.row_stride + j]);
        }
    });
    std::fill(sums, sums + b.columns, (T)0);
    for (npy_intp part = 0; part < n_part; part++)
        for (npy_intp j = 0; j < b.columns; j++)
            sums[j] += parts[part * b.columns + j];
    return done;
}

// `sums` becomes a @ b, where b has rows or columns. Returns false where memory ran out.
template <typename X, typename T> static bool multiply_row(const T *a, const Matrix<X> &b, T *sums) {
    try {
        return b.has_rows() ? multiply_rows_with_row(a, b, sums) : multiply_columns_with_row(a, b, sums);
    } catch (const std::bad_alloc &) {
        return false;
    }
}
