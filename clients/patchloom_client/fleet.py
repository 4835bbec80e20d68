"""Several servers: a conversation goes where its cache is, and elsewhere only while that server is away."""

import hashlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.client import AsyncClient
from patchloom_client.errors import Unavailable
from patchloom_client.tensors import Response


def rank(addresses: Sequence[str], conversation_id: str) -> tuple[str, ...]:
    """The addresses by rendezvous hash (Thaler, Ravishankar 1996), the conversation's own first.

    Adding or removing a server moves only the conversations that it gains or had.
    """

    def weight(address: str) -> bytes:
        return hashlib.sha256(f"{len(address)}:{address}{conversation_id}".encode()).digest()

    return tuple(sorted(addresses, key=weight, reverse=True))


class Fleet:
    """One AsyncClient per address, made with the given options."""

    def __init__(self, addresses: Sequence[str], **options: Any) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise ValueError("a fleet needs at least one address, each once")
        self._clients = {address: AsyncClient(address, **options) for address in addresses}

    def of(self, conversation_id: str) -> AsyncClient:
        """The client of the server that a conversation belongs to."""
        return self._clients[rank(tuple(self._clients), conversation_id)[0]]

    async def preprocess(
        self, conversation_id: str, request: pb.PreprocessRequest, timeout: float | None = None
    ) -> Response:
        """AsyncClient.preprocess at the conversation's server, at the next one while that is away."""
        ordered = rank(tuple(self._clients), conversation_id)
        for address in ordered[:-1]:
            try:
                return await self._clients[address].preprocess(request, timeout)
            except Unavailable:
                continue
        return await self._clients[ordered[-1]].preprocess(request, timeout)

    async def close(self) -> None:
        """Ends all connections."""
        for client in self._clients.values():
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
