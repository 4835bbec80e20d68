"""A checkpoint's chat template, compiled and run as transformers does it, within limits.

It knows nothing of conversations: what a template sees is built in template_messages.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from patchloom_service.errors import LimitExceeded, TemplateRefused


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What one run of a template may use: loop passes and calls, characters of output, seconds."""

    steps: int = 20_000_000
    output_chars: int = 64 << 20
    seconds: float = 60.0


class _Budget:
    """Counts the steps of one render."""

    __slots__ = ("deadline", "left", "limits")

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self.left = limits.steps
        self.deadline = time.monotonic() + limits.seconds

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise LimitExceeded(f"the chat template ran over its limit of {self.limits.steps} steps")
        if not self.left & 0xFFF and time.monotonic() > self.deadline:
            raise LimitExceeded(f"the chat template ran over its limit of {self.limits.seconds:g} seconds")

    def check_size(self, size: int) -> None:
        if size > self.limits.output_chars:
            raise LimitExceeded(
                f"the chat template makes a text of more than {self.limits.output_chars} characters"
            )


_BUDGET: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    budget = _BUDGET.get()
    if budget is None:
        yield from iterable
        return
    for item in iterable:
        budget.step()
        yield item


def _bounded(value: Any) -> Any:
    budget = _BUDGET.get()
    if budget is not None and isinstance(value, str | list):
        budget.check_size(len(value))
    return value


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of transformers, with every loop pass, call and growing text counted."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _generate(
        self,
        source: jinja2.nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _count_steps(source)
        return super()._generate(source, name, filename, defer_init)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The names are mangled so that a template may pass keywords of any name, as in the base class.
        budget = _BUDGET.get()
        if budget is None:
            return super().call(__context, __obj, *args, **kwargs)
        budget.step()
        value = super().call(__context, __obj, *args, **kwargs)
        if isinstance(value, str) and len(value) > budget.limits.output_chars:
            budget.check_size(len(value))
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check_repeat(left, right)
            self._check_repeat(right, left)
        elif operator == "**" and isinstance(right, int) and abs(right) > 1024:
            raise LimitExceeded("the chat template raises to a power over 1024")
        return _bounded(super().call_binop(context, operator, left, right))

    def _check_repeat(self, value: Any, times: Any) -> None:
        budget = _BUDGET.get()
        if budget is not None and isinstance(value, str | list | tuple) and isinstance(times, int):
            budget.check_size(len(value) * times)


def _count_steps(source: jinja2.nodes.Template) -> None:
    for loop in source.find_all(jinja2.nodes.For):
        loop.iter = _filtered(loop.iter, "patchloom_counted")
    for block in source.find_all(jinja2.nodes.AssignBlock):
        block.filter = _filtered(block.filter, "patchloom_bounded")
    _bound_concats(source)


def _bound_concats(node: jinja2.nodes.Node) -> None:
    for field, value in node.iter_fields():
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, jinja2.nodes.Node):
                continue
            _bound_concats(child)
            if isinstance(child, jinja2.nodes.Concat):
                wrapped = _filtered(child, "patchloom_bounded")
                if isinstance(value, list):
                    value[index] = wrapped
                else:
                    setattr(node, field, wrapped)


def _filtered(node: Any, name: str) -> Any:
    lineno = node.lineno if node is not None else 1
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=lineno)


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}` tag, which marks assistant text for training and renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The body as a call block, as transformers scopes it."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: jinja2.runtime.Macro) -> Any:
        return caller()


class _Dict:
    """`dict` without attribute access to the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.runtime.Namespace):  # type: ignore[misc, name-defined]
    """`namespace` that takes no attribute with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["patchloom_counted"] = _counted
    environment.filters["patchloom_bounded"] = _bounded
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "strftime_now",
        "raise_exception",
        "dict",
        "namespace",
        "range",
        "lipsum",
        "cycler",
        "joiner",
    }
)
"""Names that template kwargs may not take."""

_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
    OSError,
)


class ChatTemplate:
    """One compiled template; rendering is thread-safe.

    Raises TemplateRefused at construction for a source that does not compile.
    """

    def __init__(self, source: str, limits: TemplateLimits | None = None) -> None:
        self.source = source
        self.limits = limits or TemplateLimits()
        self.sha256 = sha256(source.encode("utf-8")).hexdigest()
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.literals = _literals(tree)
            self._compiled = environment.from_string(source)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            raise TemplateRefused(f"the chat template does not compile: {error}") from error

    def render(self, variables: Mapping[str, Any], now: float) -> str:
        """The prompt text. `now` in seconds since the epoch, shown to the template in UTC.

        Raises TemplateRefused with the template's own message where it fails, LimitExceeded for a run
        over the limits.
        """

        def strftime_now(form: str) -> str:
            return datetime.fromtimestamp(now, UTC).strftime(form)

        budget = _Budget(self.limits)
        token = _BUDGET.set(budget)
        try:
            return self._collect(budget, {**variables, "strftime_now": strftime_now})
        except _FAULTS as error:
            raise TemplateRefused(_describe(error)) from error
        finally:
            _BUDGET.reset(token)

    def _collect(self, budget: _Budget, variables: Mapping[str, Any]) -> str:
        chunks, size = [], 0
        for chunk in self._compiled.generate(variables):
            size += len(chunk)
            budget.check_size(size)
            chunks.append(chunk)
        return "".join(chunks)


def _literals(tree: jinja2.nodes.Template) -> tuple[str, ...]:
    """All text that a template itself can write: raw text and string constants."""
    texts = {node.data for node in tree.find_all(jinja2.nodes.TemplateData)}
    texts |= {n.value for n in tree.find_all(jinja2.nodes.Const) if isinstance(n.value, str)}
    return tuple(sorted(texts))


def _describe(error: Exception) -> str:
    kind: Literal["refuses", "fails on"] = (
        "refuses" if type(error) is jinja2.exceptions.TemplateError else "fails on"
    )
    text = "recursion without end" if isinstance(error, RecursionError) else str(error)
    return f"the chat template {kind} this conversation: {text[:300] or type(error).__name__}"
