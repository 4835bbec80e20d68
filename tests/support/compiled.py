"""Compiles kernels ahead of time and prints their resources as JSON, in a process without interpreter."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

ARCHITECTURES = (80, 90, 100)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def resources(kernel, arguments, constants, warps, architecture):
    """Registers, bytes of spills (stack and local memory) and of shared memory."""
    signature = dict(argument.split(":") for argument in arguments.split())
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps}
    compiled = compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", report)}
    spills = found["STACK"] + found["LOCAL"]
    return {"registers": found["REG"], "spills": spills, "shared": compiled.metadata.shared}


def print_resources(kernels):
    """A row per kernel and architecture; a kernel is (function, arguments, constants, warps)."""
    table = {
        f"{name} sm_{architecture}": resources(*kernel, architecture)
        for architecture in ARCHITECTURES
        for name, kernel in kernels.items()
    }
    json.dump({"triton": triton.__version__, "kernels": table}, sys.stdout, indent=1)
