"""The pipeline in this process on a CPU, as the benchmarks call it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchloom_kernels import backend
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.storage import prepare_process
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import Request
from patchloom_service.wire import read_request


@contextmanager
def pipeline(model_dir: Path, **settings: Any) -> Iterator[Preprocessor]:
    """A preprocessor of one model, compiled."""
    prepare_process()
    config = Config(device="cpu", **settings)
    served = {"bench": load_model(str(model_dir), config, "bench")}
    preprocessor = Preprocessor(config, served, backend.select("cpu"))
    preprocessor.warm()
    gc.collect()
    gc.freeze()  # as a server does
    try:
        yield preprocessor
    finally:
        preprocessor.close()
        gc.unfreeze()


def read(message: pb.PreprocessRequest) -> Request:
    """The request as the pipeline takes it."""
    return read_request(message)
