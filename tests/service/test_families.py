"""Every family through the whole pipeline: encoded images in, the ids and tensors of its processor out."""

import asyncio

import pytest
from patchloom_kernels import backend
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import (
    Encoding,
    OutputOptions,
    Request,
)

from tests.oracles.families import FAMILIES, digest, run_lengths
from tests.support.families import golden
from tests.support.served import conversation, write_model

# Inkling renders its own prompts, without a template.
TEMPLATED = [name for name in FAMILIES if not name.startswith("inkling")]
SIZES = [[[57, 83]], [[57, 83], [300, 140], [140, 300]]]


@pytest.fixture(scope="module", params=TEMPLATED)
def served(request, tmp_path_factory):
    name = request.param
    directory = write_model(FAMILIES[name], tmp_path_factory.mktemp(name))
    model = load_model(str(directory), Config(), name)
    preprocessor = Preprocessor(Config(device="cpu"), {name: model}, backend.select("cpu"))
    yield name, preprocessor
    preprocessor.close()


def ask(preprocessor, sizes, **output):
    request = Request("", conversation(sizes), output=OutputOptions(**output))
    return asyncio.run(preprocessor.preprocess(request))


@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_ids_and_tensors_equal_the_processor(served, sizes):
    name, preprocessor = served
    case = next(case for case in golden(name) if case["sizes"] == sizes)
    made = ask(preprocessor, sizes)
    assert run_lengths(made.ids.tolist()) == case["ids"]
    types = {} if made.token_types is None else {made.token_types_name: run_lengths(made.token_types)}
    assert types == case["types"]
    found = {
        key: {"dtype": t.dtype, "shape": list(t.array.shape), "sha256": digest(t.array)}
        for key, t in made.tensors.items()
    }
    assert found == case["tensors"]


def test_a_count_decodes_nothing_and_equals(served):
    _, preprocessor = served
    request = Request("", conversation(SIZES[1]))
    made = asyncio.run(preprocessor.count(request))
    assert made.ids.tolist() == ask(preprocessor, SIZES[1]).ids.tolist()
    assert made.tensors == {}


def test_levels_have_the_shape_of_single_frames(served):
    _, preprocessor = served
    full, levels = ask(preprocessor, SIZES[1]), ask(preprocessor, SIZES[1], encoding=Encoding.UINT8)
    for key, tensor in levels.tensors.items():
        if tensor.expansion is not None:
            assert tensor.array.dtype == "uint8"
            assert tensor.expansion.shape == full.tensors[key].array.shape
            assert tensor.array.size * tensor.expansion.temporal == full.tensors[key].array.size
