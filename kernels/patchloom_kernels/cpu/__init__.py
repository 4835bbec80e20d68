"""The compiled CPU twins of the kernels: same names, same signatures, same bytes, no GIL."""
