"""The client: calls the service, converts dialects, hands tensors to engines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchloom_client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    """Both clients, imported when they are asked for: converters alone need no gRPC."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from patchloom_client import client

    return getattr(client, name)
