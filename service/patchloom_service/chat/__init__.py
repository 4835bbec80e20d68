"""Chat semantics: normalize, render, tokenize, expand."""
