"""A checkpoint without a family file, served through its own processor by the whole pipeline."""

import asyncio

import numpy as np
import pytest
import torch
from patchloom_kernels import backend
from patchloom_service.config import Config
from patchloom_service.errors import InvalidArgument
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import Encoding, OutputOptions, Request

from tests.oracles.families import image
from tests.support.reference_models import AYA
from tests.support.served import conversation, write_model

SIZES = [(57, 83), (140, 300), (140, 300)]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    model = load_model(str(write_model(AYA, tmp_path_factory.mktemp("aya"))), Config(), "aya")
    preprocessor = Preprocessor(Config(device="cpu"), {"aya": model}, backend.select("cpu"))
    yield model.spec, preprocessor
    preprocessor.close()


def ask(preprocessor, **output):
    request = Request("", conversation(SIZES), output=OutputOptions(**output))
    return asyncio.run(preprocessor.preprocess(request))


def test_tensors_are_the_processors_own(served):
    spec, preprocessor = served
    made = ask(preprocessor)
    want = spec.reference.run([image(size) for size in SIZES])["pixel_values"]
    np.testing.assert_array_equal(made.tensors["pixel_values"].array, want)
    slices = [item.slices[0] for item in made.items]
    assert [part.start for part in slices] == list(np.cumsum([0, *(p.count for p in slices[:-1])]))
    assert sum(part.count for part in slices) == len(want)
    assert made.counters.decodes == 2


def test_values_are_rounded_to_the_dtype(served):
    _, preprocessor = served
    full, half = ask(preprocessor), ask(preprocessor, dtype="bfloat16")
    want = torch.from_numpy(full.tensors["pixel_values"].array).bfloat16().view(torch.int16)
    np.testing.assert_array_equal(half.tensors["pixel_values"].array.view(np.int16), want.numpy())


def test_a_count_gives_the_same_ids(served):
    _, preprocessor = served
    counted = asyncio.run(preprocessor.count(Request("", conversation(SIZES))))
    assert counted.ids.tolist() == ask(preprocessor).ids.tolist()


def test_levels_are_refused(served):
    _, preprocessor = served
    with pytest.raises(InvalidArgument, match="no uint8 encoding"):
        ask(preprocessor, encoding=Encoding.UINT8)
