"""Run in its own process: compile the PNG kernels ahead of time and print their resources as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from patchloom_kernels.png import decode, kernels, plan
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

ARCHITECTURES = (80, 90, 100)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

ROWS = "segments:*i64 images:*i64 filtered:*u8 rows:*u8"
EMIT = "pixel_image:*i32 images:*i64 tables:*i32 rows:*u8 out:*u8 flags:*i32"
KERNELS = {
    "sum_across": (kernels.sum_across, ROWS, {"CHUNK": decode.SUM_CHUNK}, 4),
    "sum_down": (kernels.sum_down, ROWS, {"COLUMNS": decode.SUM_COLUMNS}, 4),
    "wavefront short": (kernels.wavefront, ROWS, {"LANES": decode.SHORT}, decode.SHORT // 32),
    "wavefront long": (kernels.wavefront, ROWS, {"LANES": decode.LONG}, decode.LONG // 32),
    "emit rgb": (kernels.emit, EMIT, {"CHANNELS": 3, "PIXELS": plan.PIXELS}, 4),
    "emit rgbx": (kernels.emit, EMIT, {"CHANNELS": 4, "PIXELS": plan.PIXELS}, 4),
}


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


def main(table):
    rows = {
        f"{name} sm_{architecture}": resources(*kernel, architecture)
        for architecture in ARCHITECTURES
        for name, kernel in table.items()
    }
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main(KERNELS)
