"""Responses with images beside audio, and with the layouts of families that have no checkpoint here."""

import base64
import io
import wave
from functools import cache

import numpy as np
import pytest
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.tensors import Response, read_response
from patchloom_proto import preprocess_pb2 as pb

from tests.support.responses import answer, service
from tests.support.servers import png

_DTYPES = {"float32": pb.DTYPE_FLOAT32, "int64": pb.DTYPE_INT64}


@cache
def inkling(*kinds: str, encoding: str = "model") -> Response:
    """A message of images and audio clips, in the order of `kinds`; no two are the same."""
    parts = [_image(number) if kind == "image" else _audio(number) for number, kind in enumerate(kinds)]
    made = PROTOCOLS["chat"]({"messages": [{"role": "user", "content": parts}]})
    apply_options(made, {"encoding": encoding})
    return service("inkling").run(made)


def laid_out(tensors: dict[str, np.ndarray], *items: dict[str, int]) -> Response:
    """A response whose items have so many rows of each tensor, images one after the other."""
    message = pb.PreprocessResponse()
    for name, array in tensors.items():
        message.tensors[name].dtype = _DTYPES[array.dtype.name]
        message.tensors[name].shape.extend(array.shape)
        message.tensors[name].inline = array.tobytes()
    starts = dict.fromkeys(tensors, 0)
    for index, counts in enumerate(items):
        item = message.items.add(index=index, modality=pb.MODALITY_IMAGE, content_key=f"{index:064x}")
        for name, count in counts.items():
            item.slices.add(tensor=name, start=starts[name], count=count)
            starts[name] += count
    return read_response(message)


def _image(seed: int) -> dict[str, object]:
    data = base64.b64encode(png(seed)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _audio(seed: int) -> dict[str, object]:
    samples = np.random.default_rng(seed).integers(-9000, 9000, 3200 + 800 * seed, np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(16000)
        clip.writeframes(samples.tobytes())
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def check_known_item_is_refused(convert, known):
    """A conversion of a response with these items known names the first of them."""
    response = answer(known=known)
    item = response.items[known[0]]
    with pytest.raises(ValueError, match=item.content_key) as error:
        convert(response)
    assert str(error.value).startswith(f"{item.path}: ")
