"""The committed code of the contract is what protoc writes from it."""

import itertools
import runpy
from pathlib import Path

PROTO = Path(__file__).resolve().parents[2] / "proto"


def test_committed_code_equals_a_fresh_generation(tmp_path):
    generate = runpy.run_path(str(PROTO / "generate.py"))["generate"]
    generate(tmp_path)
    fresh = sorted((tmp_path / "patchloom_proto").iterdir())
    assert [f.name for f in fresh] == ["preprocess_pb2.py", "preprocess_pb2.pyi", "preprocess_pb2_grpc.py"]
    for file in fresh:
        assert file.read_text() == (PROTO / "patchloom_proto" / file.name).read_text(), file.name


def test_every_field_message_and_value_of_the_contract_is_commented():
    lines = (PROTO / "patchloom" / "v1" / "preprocess.proto").read_text().splitlines()
    bare = [
        line
        for previous, line in itertools.pairwise(lines)
        if line.strip().endswith(("{", ";"))
        and not line.startswith(("import", "package", "syntax"))
        and not previous.strip().startswith("//")
    ]
    assert bare == []


def test_no_top_level_folder_is_a_package():
    root = PROTO.parent
    assert [
        p
        for p in ("proto", "kernels", "service", "clients", "tests", "bench")
        if (root / p / "__init__.py").exists()
    ] == []
