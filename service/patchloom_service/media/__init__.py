"""Media: sources, probing, decoding, keys and caches."""
