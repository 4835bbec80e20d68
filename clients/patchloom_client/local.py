"""The whole pipeline in this process, for the command line without an address: same answers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb
from patchloom_service import errors as service_errors
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.servicer import typed
from patchloom_service.wire import read_request, write_response

from patchloom_client import errors
from patchloom_client.tensors import Response, read_response


class LocalService:
    """One model in this process. `run` answers a request as a server would."""

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        from patchloom_kernels import backend
        from patchloom_service.media.storage import prepare_process

        prepare_process()
        self._config = Config(**settings)
        self.model = load_model(model, self._config)
        self._backend = backend.select(self._config.device)

    def run(self, request: pb.PreprocessRequest, count_only: bool = False) -> Response:
        """The response; raises the client's typed errors."""
        try:
            return asyncio.run(self._run(request, count_only))
        except Exception as error:
            raise client_error(typed(error, "Preprocess")) from error

    async def _run(self, request: pb.PreprocessRequest, count_only: bool) -> Response:
        preprocessor = Preprocessor(self._config, {self.model.name: self.model}, self._backend)
        try:
            parsed = read_request(request, limits=self._config)
            result = await (preprocessor.count(parsed) if count_only else preprocessor.preprocess(parsed))
            return read_response(write_response(result))
        finally:
            preprocessor.close()


def client_error(error: service_errors.PatchloomError) -> errors.PatchloomError:
    """The client's twin of a service error."""
    kind = errors.BY_REASON[error.reason]
    if isinstance(error, service_errors.ContentKeyNotFound) and issubclass(kind, errors.ContentKeyNotFound):
        return kind(error.message, error.field_path, error.keys)
    return kind(error.message, error.field_path)
