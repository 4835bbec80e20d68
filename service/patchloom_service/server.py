"""Runs the service: models, gRPC server, health, reflection, and a graceful end on SIGTERM."""

import asyncio
import gc
import logging
import signal
from collections.abc import Mapping

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from patchloom_kernels import backend
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.config import Config
from patchloom_service.metrics import Metrics
from patchloom_service.metrics_server import MetricsServer
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.served import ServedModel
from patchloom_service.servicer import PreprocessServicer, add_to_server
from patchloom_service.transport.transports import Transports

log = logging.getLogger("patchloom")
_SWEEP_SECONDS = 0.5
SERVICE = pb.DESCRIPTOR.services_by_name["PreprocessService"].full_name


class Server:
    """A server on `config.address`; port 0 takes a free one. `start` returns the port, `stop` drains."""

    def __init__(self, config: Config, models: Mapping[str, ServedModel]) -> None:
        self._config = config
        self.metrics = Metrics()
        self.preprocessor = Preprocessor(config, models, backend.select(config.device))
        self.transports = Transports(config, self.preprocessor.buffers)
        self.metrics.collect(self.transports.gauges)
        self.metrics.collect(self.preprocessor.cache_gauges)
        self.metrics.collect(self.preprocessor.gauges)
        self._servicer = PreprocessServicer(self.preprocessor, self.transports, self.metrics, config)
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(config))
        self._metrics_server = MetricsServer(self.metrics, config.metrics_address)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Serves from now on. OSError where the address cannot be bound."""
        add_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            port: int = self._server.add_insecure_port(self._config.address)
        except RuntimeError as error:
            raise OSError(_no_address(self._config.address)) from error
        if port == 0:
            raise OSError(_no_address(self._config.address))
        await self._server.start()
        await self._metrics_server.start()
        self._sweeper = asyncio.create_task(self._sweep())
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    @property
    def metrics_port(self) -> int:
        """The port that answers GET /metrics, 0 for none."""
        return self._metrics_server.port

    async def stop(self) -> None:
        """Refuses new requests, lets running ones end within the drain time, then ends."""
        self._servicer.drain()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(self._config.drain_timeout)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._metrics_server.stop()
        self.transports.close()
        self.preprocessor.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await asyncio.to_thread(self.transports.sweep)


async def serve(config: Config, models: Mapping[str, ServedModel]) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    log.info("loading kernels; the first start on a machine compiles them, which takes a minute")
    server = Server(config, models)
    await asyncio.to_thread(server.preprocessor.warm)
    gc.collect()
    gc.freeze()  # models and tokenizers stay: no collection walks through them while requests wait
    port = await server.start()
    if server.metrics_port:
        log.info("metrics on %s:%d", config.metrics_address.rpartition(":")[0], server.metrics_port)
    host = config.address.rpartition(":")[0]
    log.info("serving %s on %s:%d", ", ".join(models), host, port)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopped.set)
    await stopped.wait()
    log.info("draining")
    await server.stop()


def _no_address(address: str) -> str:
    return f"cannot listen on {address}: another process does, or the host has no such address"


def _options(config: Config) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.so_reuseport", 0),
    ]
