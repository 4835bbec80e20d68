"""What numba compiles for."""

from numba.core.registry import cpu_target


def _features() -> str:
    """As numba is told to or as it finds the processor: "+avx2,-avx512bw,..."."""
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return features


INSTRUCTION_SETS = frozenset(_features().split(","))
