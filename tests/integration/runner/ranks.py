"""Eight tensor-parallel ranks over gloo: `python -m tests.integration.runner.ranks MODEL SOCKET`.

Torch and transformers are imported once and the ranks are forked from there. Each connects to SOCKET,
says its number and serves commands: a JSON object, then the bytes of a PreprocessResponse.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from patchloom_client.tensors import Response, read_response
from patchloom_proto import preprocess_pb2 as pb
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tests.integration.runner import tiny_model

RANKS = tiny_model.HEADS


def main() -> None:
    """Forks the ranks and waits for them."""
    model, socket = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    store = Path(tempfile.mkdtemp()) / "store"
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            run(rank, model, socket, store)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def run(rank: int, directory: Path, socket: str, store: Path) -> None:
    """One rank, until its connection closes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model = tiny_model.load(directory, sharded=True)
    with Client(socket, "AF_UNIX") as connection:
        weight: Any = model.model.language_model.layers[0].self_attn.q_proj.weight
        answer(connection, {"rank": rank, "local_rows": weight.to_local().shape[0], "rows": weight.shape[0]})
        while True:
            try:
                command = json.loads(connection.recv_bytes())
                message = pb.PreprocessResponse.FromString(connection.recv_bytes())
            except EOFError:
                return
            serve(connection, rank, model, command, message)


def answer(connection: Connection, value: dict[str, Any], logits: bytes = b"") -> None:
    """A JSON object and bytes."""
    connection.send_bytes(json.dumps(value).encode())
    connection.send_bytes(logits)


def serve(
    connection: Connection, rank: int, model: Any, command: dict[str, Any], message: pb.PreprocessResponse
) -> None:
    """Maps the tensors, runs the model and answers with hashes; rank 0 with the logits too."""
    with read_response(message) as response:
        pixels = response.tensors["pixel_values"]
        digest = hashlib.sha256(np.ascontiguousarray(pixels.array).view(np.uint8)).hexdigest()
        if command["do"] == "die" and rank == command["rank"]:
            os.kill(os.getpid(), signal.SIGKILL)
        facts = {
            "pixels": digest,
            "copied": bool(pixels.array.flags.owndata),
            "handle": message.tensors["pixel_values"].WhichOneof("payload") == "handle",
            "vision_items": len(response.items),
        }
        if command["do"] == "die":
            answer(connection, facts)
            return
        inputs = inputs_of(response)
        if command["shared_vision"]:
            share = response.shard(rank)
            facts["vision_items"] = len(share.items)
            inputs["mm_encoder_outputs"] = {"image": gathered_images(model, response, rank)}
        else:
            inputs |= {"pixel_values": pixels.torch(), "image_grid_thw": grid(response)}
        with torch.no_grad():
            logits = model(**inputs, logits_to_keep=command["keep"]).logits[0]
    content = logits.numpy().tobytes()
    facts |= {"logits": hashlib.sha256(content).hexdigest(), "shape": list(logits.shape)}
    answer(connection, facts, content if rank == 0 else b"")


def inputs_of(response: Response) -> dict[str, Any]:
    """What every rank feeds: ids, token types and the service's own M-RoPE positions."""
    types = response.token_types
    assert types is not None
    return {
        "input_ids": torch.tensor([response.token_ids]),
        "mm_token_type_ids": torch.from_numpy(types.astype(np.int32))[None],
        "position_ids": response.tensors["position_ids"].torch()[:, None],
    }


def grid(response: Response) -> torch.Tensor:
    """image_grid_thw."""
    return response.tensors["image_grid_thw"].torch()


def gathered_images(model: Any, response: Response, rank: int) -> BaseModelOutputWithPooling:
    """Image features of all items, each computed by the rank whose share it is in."""
    share = response.shard(rank)
    own: list[tuple[int, torch.Tensor]] = []
    if share.items:
        pixels = torch.cat([part.torch() for part in share.tensors["pixel_values"]])
        grids = torch.cat([part.torch() for part in share.tensors["image_grid_thw"]])
        with torch.no_grad():
            features = model.model.get_image_features(pixels, grids).pooler_output
        own = [(item.index, feature) for item, feature in zip(share.items, features, strict=True)]
    everyone: list[list[tuple[int, torch.Tensor]]] = [[] for _ in range(RANKS)]
    dist.all_gather_object(everyone, own)
    ordered = sorted((pair for pairs in everyone for pair in pairs), key=lambda pair: pair[0])
    return BaseModelOutputWithPooling(pooler_output=tuple(feature for _, feature in ordered))


if __name__ == "__main__":
    main()
