"""PNG: a walk over the chunks, inflate on the host, filters undone by numpy, numba or Triton."""
