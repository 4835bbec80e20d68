"""Writes the generated code of the contract: `python proto/generate.py [DIRECTORY]`, default this folder."""

import sys
from pathlib import Path

import google.rpc
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Runs protoc: package patchloom_proto appears below `out`. SystemExit on a bad contract."""
    google_apis = Path(next(iter(google.rpc.__path__))).parent.parent
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-Ipatchloom_proto={HERE / 'patchloom' / 'v1'}",
        f"-I{google_apis}",
        f"-I{well_known}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        "patchloom_proto/preprocess.proto",
    ]
    if code := protoc.main(arguments):
        raise SystemExit(code)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
