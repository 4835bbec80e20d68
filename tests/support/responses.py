"""Responses of an in-process service, for converters."""

from functools import cache

from patchloom_client.local import LocalService
from patchloom_client.tensors import Response

from tests.support.servers import model_directory, png, request


@cache
def service(family: str = "qwen2_5_vl") -> LocalService:
    """One service a family and process."""
    return LocalService(str(model_directory(family)), {"device": "cpu"})


def answer(*, known: tuple[int, ...] = (), family: str = "qwen2_5_vl", **options: object) -> Response:
    """Two images of 4x6 and 8x4 patches; the pixels of the `known` ones are left out."""
    images = (png(1), png(2, 112, 56))
    if known:
        first = service(family).run(request(*images))
        options["known_content_keys"] = [first.items[index].content_key for index in known]
    return service(family).run(request(*images, options=options))
