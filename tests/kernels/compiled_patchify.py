"""Run in its own process: compile the Triton kernel ahead of time and print its resources as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from patchloom_kernels import patchify
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

ARCHITECTURES = (80, 90, 100)
ELEMENTS = {"float32": "i32", "bfloat16": "i16", "float16": "i16", "uint8": "u8"}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_for(architecture: int, element: str) -> bytes:
    """The cubin of the kernel as the launcher configures it."""
    signature = {
        "data": "*u8",
        "descriptors": "*i64",
        "tables": "*i32",
        "entries": f"*{element}",
        "out": f"*{element}",
        "scratch": "*i32",
        "scratch_words": "i32",
        "jobs": "i32",
        "tiles": "i32",
    }
    constants = {
        "TABLE": element != "u8",
        "BLOCK_ROWS": patchify.BLOCK_ROWS,
        "BLOCK_COLUMNS": patchify.BLOCK_COLUMNS,
        "BLOCK": patchify.BLOCK,
    }
    source = ASTSource(
        fn=patchify.resize_patchify_kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
    )
    target = GPUTarget("cuda", architecture, 32)
    return compile(source, target=target, options={"num_warps": patchify.WARPS}).asm["cubin"]


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, bytes of spills (stack and local memory) and of shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", report)}
    spills = found["STACK"] + found["LOCAL"]
    return {"registers": found["REG"], "spills": spills, "shared": found["SHARED"]}


def main() -> None:
    kernels = {
        f"resize_patchify sm_{architecture} {element}": resources(compile_for(architecture, element))
        for architecture in ARCHITECTURES
        for element in sorted(set(ELEMENTS.values()))
    }
    json.dump({"triton": triton.__version__, "kernels": kernels}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
