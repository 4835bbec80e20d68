"""Tool declarations of the dialects, in the function form that templates take.

Key order: Chat Completions keeps its own; the flat forms of the other two become name, description,
parameters and then what else they hold. Written in that order, a declaration gives the same bytes in
all three.
"""

from collections.abc import Collection

from patchloom_client.errors import UnsupportedContent
from patchloom_client.protocols._json import canonical
from patchloom_client.protocols._values import Body, items, join, mapping, required_text, shown


def nested_tools(value: object, path: str) -> list[bytes]:
    """Declarations of the form {"type": "function", "function": {...}}, as they are."""
    return [_nested(mapping(tool, where), where) for tool, where in _entries(value, path)]


def _nested(tool: Body, path: str) -> bytes:
    _function_only(tool.get("type"), ("function",), path)
    function = mapping(tool.get("function"), join(path, "function"))
    required_text(function, "name", join(path, "function"))
    return canonical(tool, path)


def flat_tools(
    value: object, path: str, kinds: Collection[str | None], schema: str, left_out: Collection[str]
) -> list[bytes]:
    """Declarations with name, description and a schema beside their type.

    `kinds` are the types that mean a function, `schema` is the key of the parameters, `left_out` are keys
    that say nothing about the function itself.
    """
    return [
        _flat(mapping(tool, where), where, kinds, schema, left_out) for tool, where in _entries(value, path)
    ]


def _flat(
    tool: Body, path: str, kinds: Collection[str | None], schema: str, left_out: Collection[str]
) -> bytes:
    _function_only(tool.get("type"), kinds, path)
    required_text(tool, "name", path)
    renamed = {"parameters" if key == schema else key: value for key, value in tool.items()}
    first = ("name", "description", "parameters")
    order = [*first, *(key for key in renamed if key not in (*first, "type", *left_out))]
    function = {key: renamed[key] for key in order if renamed.get(key) is not None}
    return canonical({"type": "function", "function": function}, path)


def _entries(value: object, path: str) -> list[tuple[object, str]]:
    return [] if value is None else list(items(value, path))


def _function_only(kind: object, kinds: Collection[str | None], path: str) -> None:
    if not (kind is None or isinstance(kind, str)) or kind not in kinds:
        raise UnsupportedContent(f"tool type {shown(kind)} is not supported; send function tools", path)
