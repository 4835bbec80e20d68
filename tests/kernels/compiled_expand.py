"""Compiles the Triton expansion for GPUs that are not here, and prints registers and spills as JSON."""

import json
import re

from patchloom_kernels.expand import BLOCK, expand_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

NAMES = ("total", "size1", "size2", "size3", "step0", "step1", "step2", "step3", "row_in", "row_out")


def main() -> None:
    """One JSON object a line: dtype, registers and spilled bytes for sm_90."""
    for dtype in ("fp32", "bf16", "fp16"):
        signature = {"levels": "*u8", "padding": "*u8", "entries": f"*{dtype}", "out": f"*{dtype}"}
        signature |= {name: "i64" if name == "total" else "i32" for name in NAMES}
        constants = {"CHANNEL": 0, "MASKED": True, "BLOCK": BLOCK}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(expand_kernel, signature, constants)
        compiled = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        spills = len(re.findall(r"\.local", compiled.asm["ptx"]))
        print(json.dumps({"dtype": dtype, "cubin": len(compiled.asm["cubin"]) > 0, "local": spills}))


if __name__ == "__main__":
    main()
