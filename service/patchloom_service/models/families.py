"""How a family recognises its checkpoints."""

from collections.abc import Mapping
from typing import Any


def architecture_of(config: Mapping[str, Any], known: Mapping[str, str]) -> str | None:
    """The first architecture of config.json that is in `known`, a map from architectures to model types.

    A config.json without architectures is recognised by its model type.
    """
    names = config.get("architectures")
    if names:
        return next((name for name in names if name in known), None)
    kind = config.get("model_type")
    return next((name for name, model_type in known.items() if model_type == kind), None)
