"""The floors of the house: who may import whom, and where foreign libraries end."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "patchloom_proto": ROOT / "proto" / "patchloom_proto",
    "patchloom_kernels": ROOT / "kernels" / "patchloom_kernels",
    "patchloom_service": ROOT / "service" / "patchloom_service",
    "patchloom_client": ROOT / "clients" / "patchloom_client",
}
ALLOWED = {
    "patchloom_kernels": set(),
    "patchloom_service": {"patchloom_proto", "patchloom_kernels"},
    "patchloom_client": {"patchloom_proto"},
}
# The client's lazy exceptions: commands that run without a server, and the expansion of levels.
LAZY = {
    "cli.py": {"patchloom_service"},
    "flags.py": {"patchloom_service"},
    "local.py": {"patchloom_service", "patchloom_kernels"},
    "expand.py": {"patchloom_kernels"},
}
EDGES = {
    "grpc": {"servicer.py", "server.py", "wire", "stream.py"},
    "grpc_health": {"server.py"},
    "grpc_reflection": {"server.py"},
    "grpc_status": {"servicer.py", "stream.py"},
    "google": {"servicer.py", "server.py", "wire", "stream.py"},
    "patchloom_proto": {"servicer.py", "server.py", "wire", "stream.py"},
    "PIL": {"media"},
    "transformers": {"models", "chat/jinja_template.py", "chat/tokenize.py"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_a_floor_imports_only_the_floors_below(package):
    wrong = []
    for path in sorted(PACKAGES[package].rglob("*.py")):
        others = imports(path) & PACKAGES.keys() - {package}
        allowed = ALLOWED[package] | (LAZY.get(path.name, set()) if package == "patchloom_client" else set())
        wrong += [f"{path.name} imports {name}" for name in sorted(others - allowed)]
    assert wrong == []


@pytest.mark.parametrize("library", EDGES)
def test_a_foreign_library_stays_at_its_edge(library):
    root = PACKAGES["patchloom_service"]
    wrong = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        inside = {place.as_posix(), place.parts[0]} & EDGES[library]
        if library in imports(path) and not inside:
            wrong.append(place.as_posix())
    assert wrong == []


def test_the_client_imports_no_torch_and_no_service_at_import():
    import subprocess
    import sys

    code = (
        "import sys, patchloom_client.client, patchloom_client.protocols, patchloom_client.cli;"
        "print(sorted({'torch','transformers','PIL','numba','triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
