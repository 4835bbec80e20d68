"""The preprocessing service: conversations with media in, token ids and pixel tensors out."""
