// Products of two matrices: of one row here, of more by NumPy and its BLAS.

template <typename X, typename T>
static int matrix_product(PyArrayObject *a, PyArrayObject *b, PyArrayObject **out) {
    const Matrix<X> left = matrix_at<X>(a, 0), right = matrix_at<X>(b, 0);
    if (left.columns != right.rows)
        return refuse("the first matrix must have as many columns as the second has rows");
    const npy_intp shape[] = {left.rows, right.columns};
    X *product = output<X>(out, 2, shape);
    if (product == NULL)
        return -1;
    if (left.rows != 1 || !(right.has_rows() || right.has_columns())) {
        PyObject *done = PyArray_MatrixProduct2((PyObject *)a, (PyObject *)b, *out);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    Contiguous<X> row(a);
    if (row.failed())
        return -1;
    if (multiply_row(row.data(), right, product))
        return 0;
    PyErr_NoMemory();
    return -1;
}
