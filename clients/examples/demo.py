"""`make demo`: a real server, an agent's session with screenshots in three dialects, and a page."""

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from patchloom_client.client import Client
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.report import render_report
from patchloom_client.tensors import Response
from patchloom_service.chat.tokenize import Tokenizer
from scene import chat_body, messages_body, responses_body

from bench.checkpoints import build_checkpoint

ROOT = Path(__file__).resolve().parents[2]
FAMILY = "qwen3_vl"
START_SECONDS = 900


def main() -> None:
    """Runs the demo and writes report.html into the folder given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "demo")
    out = parser.parse_args().out
    out.mkdir(exist_ok=True)
    model = ROOT / ".cache" / "demo" / FAMILY
    print(f"building a {FAMILY} model directory with its real vocabulary in {model.relative_to(ROOT)}")
    build_checkpoint(FAMILY, model)
    with _server(model) as address, Client(address) as client:
        responses = {
            "chat": _ask(client, "chat", chat_body()),
            "responses": _ask(client, "responses", responses_body()),
            "messages": _ask(client, "messages", messages_body()),
        }
    first = responses["chat"]
    same = all(response.token_ids == first.token_ids for response in responses.values())
    _print_landing(first)
    print(f"Chat Completions, Responses and Messages give {'the same' if same else 'DIFFERENT'} token ids")
    if not same:
        raise SystemExit(1)
    report = out / "report.html"
    report.write_text(_report(first, model), encoding="utf-8")
    print(f"report: {report}")


def _ask(client: Client, protocol: str, body: dict[str, object]) -> Response:
    request = PROTOCOLS[protocol](body)
    apply_options(request, {"encoding": "uint8", "show_messages": True})
    request.model = "demo"
    return client.preprocess(request)


def _print_landing(response: Response) -> None:
    print(f"\n{len(response.token_ids)} tokens, {len(response.items)} images:")
    for item in response.items:
        run = item.ranges[0]
        print(
            f"  image {item.index}  {item.path:<24} {item.tool_call_id:<13} "
            f"{item.size.width}x{item.size.height} -> {item.resized.width}x{item.resized.height}  "
            f"grid {list(item.grid.shape)}  tokens {run.offset}..{run.offset + run.length - 1}"
        )
    for name, tensor in response.tensors.items():
        print(f"  {name}: {tensor.dtype} {list(tensor.shape)}")
    print()


def _report(response: Response, model: Path) -> str:
    tokenizer = Tokenizer.load(model)
    tokens = [tokenizer.decode([token]) for token in response.token_ids]
    return render_report(response, tokens, {token.id for token in tokenizer.added.values()})


@contextmanager
def _server(model: Path) -> Iterator[str]:
    """The address of a real server, ready to answer; it is ended with SIGTERM."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "patchloom_client.cli", "serve", "--model", str(model)]
    process = subprocess.Popen([*command, "--served-name", "demo", "--address", address])
    try:
        _wait(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Returns when the server answers. Its first start compiles, which takes minutes on a busy machine."""
    print("starting the server; the first start compiles its kernels, a minute or more", flush=True)
    deadline = time.monotonic() + START_SECONDS
    with grpc.insecure_channel(address, [("grpc.max_reconnect_backoff_ms", 1000)]) as channel:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}")
            try:
                grpc.channel_ready_future(channel).result(timeout=1)
                return
            except grpc.FutureTimeoutError:
                continue
    raise SystemExit(f"the server was not ready within {START_SECONDS} seconds")


if __name__ == "__main__":
    main()
