// Rotate pairs of the last axis: see Rotate in pytensor_rope/rotate.py.

template <typename X, typename T>
static inline void rotate_row(const X *__restrict x, const T *__restrict cos, const T *__restrict sin,
                              X *__restrict out, npy_intp n_pair, npy_intp d, bool adjacent) {
    if (adjacent) {
        for (npy_intp i = 0; i < n_pair; i++) {
            const T first = load(x[2 * i]), second = load(x[2 * i + 1]);
            out[2 * i] = stored_as<X>::from(first * cos[i] - second * sin[i]);
            out[2 * i + 1] = stored_as<X>::from(second * cos[i] + first * sin[i]);
        }
    } else {
        for (npy_intp i = 0; i < n_pair; i++) {
            const T first = load(x[i]), second = load(x[n_pair + i]);
            out[i] = stored_as<X>::from(first * cos[i] - second * sin[i]);
            out[n_pair + i] = stored_as<X>::from(second * cos[i] + first * sin[i]);
        }
    }
    memcpy(out + 2 * n_pair, x + 2 * n_pair, (d - 2 * n_pair) * sizeof(X));
}

// Walks the rows of x in C order, and the rows of angles that go with them by broadcasting.
class RowWalk {
    int n_axis;
    npy_intp index[NPY_MAXDIMS], size[NPY_MAXDIMS], x_stride[NPY_MAXDIMS], angle_stride[NPY_MAXDIMS];

  public:
    const char *x_row;
    npy_intp angle_row;

    // Returns false where the angles don't broadcast over x's leading axes.
    bool start(PyArrayObject *x, PyArrayObject *cos) {
        n_axis = PyArray_NDIM(x) - 1;
        x_row = PyArray_BYTES(x);
        angle_row = 0;
        npy_intp stride = 1;
        for (int axis = n_axis - 1; axis >= 0; axis--) {
            const int cos_axis = axis - PyArray_NDIM(x) + PyArray_NDIM(cos);
            const npy_intp angle_size = cos_axis < 0 ? 1 : PyArray_DIM(cos, cos_axis);
            index[axis] = 0;
            size[axis] = PyArray_DIM(x, axis);
            x_stride[axis] = PyArray_STRIDE(x, axis);
            angle_stride[axis] = angle_size == 1 ? 0 : stride;
            if (angle_size != 1 && angle_size != size[axis])
                return false;
            stride *= angle_size;
        }
        return true;
    }

    // Goes on by some rows from the first.
    void skip(npy_intp rows) {
        for (int axis = n_axis - 1; axis >= 0 && rows > 0; axis--) {
            index[axis] = rows % size[axis];
            x_row += x_stride[axis] * index[axis];
            angle_row += angle_stride[axis] * index[axis];
            rows /= size[axis];
        }
    }

    void next() {
        for (int axis = n_axis - 1; axis >= 0; axis--) {
            x_row += x_stride[axis];
            angle_row += angle_stride[axis];
            if (++index[axis] < size[axis])
                return;
            x_row -= x_stride[axis] * size[axis];
            angle_row -= angle_stride[axis] * size[axis];
            index[axis] = 0;
        }
    }
};

// A `rotary_dim` of 0 rotates the whole last axis.
template <typename X, typename T>
static int rotate(PyArrayObject *x, PyArrayObject *cos, PyArrayObject *sin, PyArrayObject **out,
                  npy_int64 rotary_dim, bool adjacent) {
    const int ndim = PyArray_NDIM(x), cos_ndim = PyArray_NDIM(cos);
    const npy_intp d = PyArray_DIM(x, ndim - 1), rotated = rotary_dim ? rotary_dim : d;
    if (rotated % 2 || rotated > d)
        return refuse("x's last axis must be even, and no shorter than rotary_dim, to be rotated in pairs");
    const npy_intp n_pair = rotated / 2;
    if (PyArray_DIM(cos, cos_ndim - 1) != n_pair)
        return refuse("the angles must have one value for each pair of x's last axis that is rotated");
    if (PyArray_DIM(cos, cos_ndim - 2) != PyArray_DIM(x, ndim - 2))
        return refuse("the angles must have one row for each token of x");
    if (!PyArray_SAMESHAPE(cos, sin))
        return refuse("cos and sin must have one shape");

    // Rows may lie anywhere, as they do in a transposed x, as long as each is in one piece.
    const bool in_pieces = PyArray_STRIDE(x, ndim - 1) != (npy_intp)sizeof(X) && d > 1;
    PyArrayObject *rows = in_pieces ? PyArray_GETCONTIGUOUS(x) : (Py_INCREF(x), x);
    if (rows == NULL)
        return -1;
    Contiguous<T> cosines(cos), sines(sin);
    X *rotated_rows = output<X>(out, ndim, PyArray_DIMS(x));
    RowWalk walk;
    int status = -1;
    if (cosines.failed() || sines.failed() || rotated_rows == NULL) {
        // The exception is set.
    } else if (!walk.start(rows, cos)) {
        refuse("the angles must broadcast over x's leading axes");
    } else {
        const npy_intp n_row = product(PyArray_DIMS(x), ndim - 1);
        share_rows(n_row, 4.0 * sizeof(X) * n_row * d, [&](npy_intp row, npy_intp end) {
            RowWalk of_part = walk;
            for (of_part.skip(row); row < end; row++, of_part.next()) {
                const npy_intp at = of_part.angle_row * n_pair;
                rotate_row((const X *)of_part.x_row, cosines.data() + at, sines.data() + at,
                           rotated_rows + row * d, n_pair, d, adjacent);
            }
        });
        status = 0;
    }
    Py_DECREF(rows);
    return status;
}
