"""Pixel kernels: ragged batches of images to patches, the same bytes on every device."""
