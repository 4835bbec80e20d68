"""The command `patchloom`: serve, preprocess, count, model-info, inspect, bench."""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.client import Client
from patchloom_client.errors import InvalidMessage, PatchloomError
from patchloom_client.flags import (
    Parser,
    add_request_flags,
    add_setting_flags,
    config_fields,
    request_options,
    settings,
)
from patchloom_client.output import error_json, response_json, write_safetensors
from patchloom_client.protocols import OPTIONS, PROTOCOLS, apply_options
from patchloom_client.tensors import Response

if TYPE_CHECKING:
    from patchloom_client.local import LocalService

# The words of these settings are request options too; a request's flag sets the request.
_BOTH = frozenset({"parity", "dtype", "background", "lease_time", "address"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status is 0, or 2 for an error, which is printed as JSON.

    `bench` prints its report in any case; 2 says that no request succeeded.
    """
    try:
        parsed, unknown = _parser().parse_known_args(arguments)
        if unknown:
            text = f"unrecognized arguments: {' '.join(unknown)}; see patchloom {parsed.command} --help"
            raise InvalidMessage(text, "flags")
        return parsed.run(parsed) or 0
    except PatchloomError as error:
        return _fail(error)
    except (OSError, ValueError) as error:
        return _fail(InvalidMessage(str(error)))


def _fail(error: PatchloomError) -> int:
    print(json.dumps(error_json(error), ensure_ascii=False))
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="patchloom", description="Multimodal preprocessing for LLM serving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    serve = commands.add_parser("serve", help="run the service")
    serve.add_argument("--model", action="append", required=True, metavar="DIR_OR_ID", help="repeatable")
    serve.add_argument("--served-name", action="append", default=[], metavar="NAME", help="one per --model")
    serve.set_defaults(run=_serve)
    _add_settings(serve, frozenset())
    for name, text in (
        ("preprocess", "token ids and tensors of a request"),
        ("count", "token ids of a request; decodes nothing"),
        ("inspect", "a page that shows where each image landed"),
    ):
        _add_request_command(commands.add_parser(name, help=text), name)
    _add_bench(commands.add_parser("bench", help="load a running server with a request, again and again"))
    info = commands.add_parser("model-info", help="what is learnt of a checkpoint")
    info.add_argument("model", metavar="DIR_OR_ID")
    info.set_defaults(run=_model_info)
    _add_settings(info, _BOTH)
    return parser


def _add_settings(parser: argparse.ArgumentParser, skip: frozenset[str]) -> None:
    try:
        known = config_fields()
    except ModuleNotFoundError:
        return
    add_setting_flags(parser, known, skip)


def _add_request_command(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("request", type=Path, metavar="REQUEST.json")
    parser.add_argument("--model", default="", metavar="DIR_OR_NAME", help="a directory, or a served name")
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="chat")
    if name != "inspect":
        parser.add_argument(
            "--address", metavar="HOST:PORT", help="a running server; without it, in this process"
        )
    if name == "preprocess":
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors")
    if name == "inspect":
        parser.add_argument("--out", type=Path, required=True, metavar="REPORT.html")
    add_request_flags(parser, OPTIONS)
    _add_settings(parser, _BOTH)
    parser.set_defaults(run={"preprocess": _preprocess, "count": _count, "inspect": _inspect}[name])


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request", type=Path, nargs="?", metavar="REQUEST.json", help="default: a text and a 1080p PNG"
    )
    parser.add_argument("--model", default="", metavar="NAME", help="a served name")
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="chat")
    parser.add_argument("--address", default="127.0.0.1:50055", metavar="HOST:PORT", help="a running server")
    parser.add_argument("--requests", type=int, default=100, help="requests to send (default: 100)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time to send in (default: 30)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight (default: 8)")
    parser.add_argument("--count-only", action="store_true", help="CountTokens instead of Preprocess")
    add_request_flags(parser, OPTIONS)
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    import asyncio

    from patchloom_client.bench import Load, load_server, sample_request

    load = Load(arguments.requests, arguments.seconds, arguments.concurrency, arguments.count_only)
    if arguments.request is None:
        request = sample_request()
        apply_options(request, request_options(arguments), "flags")
        request.model = arguments.model
    else:
        request = _request(arguments)
    report = asyncio.run(load_server(_address(arguments), request, load))
    _print(report.as_json())
    return 0 if report.succeeded else 2


def _request(arguments: argparse.Namespace) -> pb.PreprocessRequest:
    try:
        body = json.loads(arguments.request.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique_keys)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"{arguments.request} is no JSON: {error}") from error
    request = PROTOCOLS[arguments.protocol](body)
    apply_options(request, request_options(arguments), "flags")
    request.model = arguments.model or request.model
    return request


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidMessage(f"the request file has an object with the key {twice!r} twice")
    return value


def _answer(arguments: argparse.Namespace, count_only: bool) -> Response:
    request = _request(arguments)
    if not arguments.address:
        return _local(arguments).run(request, count_only)
    if ignored := settings(arguments):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        print(f"no effect with --address, give it to patchloom serve: {flags}", file=sys.stderr)
    with Client(_address(arguments)) as client:
        return client.count_tokens(request) if count_only else client.preprocess(request)


def _address(arguments: argparse.Namespace) -> str:
    """The server's; gRPC would take a name without a port for one of https."""
    address: str = arguments.address
    if ":" not in address:
        raise InvalidMessage(f"{address!r} has no port; give HOST:PORT", "flags.address")
    return address


def _local(arguments: argparse.Namespace) -> "LocalService":
    if not arguments.model:
        other = "" if arguments.run is _inspect else ", or a server with --address"
        raise InvalidMessage(f"missing --model; name a model directory{other}", "flags.model")
    from patchloom_client.local import LocalService

    return LocalService(arguments.model, settings(arguments))


def _print(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _preprocess(arguments: argparse.Namespace) -> None:
    response = _answer(arguments, count_only=False)
    write_safetensors(arguments.out, response.tensors)
    _print(response_json(response))


def _count(arguments: argparse.Namespace) -> None:
    _print(response_json(_answer(arguments, count_only=True)))


def _model_info(arguments: argparse.Namespace) -> None:
    from patchloom_service.config import Config
    from patchloom_service.loading import load_model

    model = load_model(arguments.model, Config(**settings(arguments)))
    _print({"model": model.name, **model.info})


def _inspect(arguments: argparse.Namespace) -> None:
    from patchloom_client.report import render_report

    request = _request(arguments)
    apply_options(request, {"encoding": "uint8", "show_messages": True}, "flags")
    service = _local(arguments)
    response = service.run(request)
    tokens = [service.model.tokenizer.decode([token]) for token in response.token_ids]
    control = service.model.tokenizer.control.values()
    arguments.out.write_text(render_report(response, tokens, control), encoding="utf-8")
    _print({"report": str(arguments.out), "items": response_json(response)["items"]})


def _serve(arguments: argparse.Namespace) -> None:
    import asyncio

    from patchloom_service.config import Config
    from patchloom_service.loading import load_model
    from patchloom_service.media.storage import keep_freed_memory, prepare_process
    from patchloom_service.server import serve

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    if arguments.served_name and len(arguments.served_name) != len(arguments.model):
        raise InvalidMessage("give one --served-name per --model, or none", "flags.served_name")
    names = arguments.served_name or arguments.model
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidMessage(
            f"two models are served as {twice[0]!r}; give each its own name", "flags.served_name"
        )
    prepare_process()
    keep_freed_memory()
    config = Config(**settings(arguments))
    loaded = [load_model(path, config, name) for path, name in zip(arguments.model, names, strict=True)]
    asyncio.run(serve(config, {model.name: model for model in loaded}))


if __name__ == "__main__":
    sys.exit(main())
