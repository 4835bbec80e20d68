"""How tensors travel: inline, shared memory, CUDA IPC."""
