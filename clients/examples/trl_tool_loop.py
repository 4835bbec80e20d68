"""A GRPO-style tool loop whose second turn has a screenshot: the image stays an image.

A scripted policy stands in for the model. Each turn calls tools of an environment and appends their typed
results; the whole history is converted once. With an address it goes to a running service, which answers
with the ids and pixels of the next forward pass:

    python clients/examples/trl_tool_loop.py
    python clients/examples/trl_tool_loop.py 127.0.0.1:50055
"""

import asyncio
import json
import sys
from typing import Any

from patchloom_client.client import Client
from patchloom_client.integrations.trl import call_tools, environment_tools, typed_messages
from patchloom_client.protocols import PROTOCOLS, messages_to_json
from patchloom_proto import preprocess_pb2 as pb
from PIL import Image, ImageDraw


class Browser:
    """An environment as `environment_factory` makes it: its public methods are the tools."""

    def reset(self) -> str:
        """Starts a new episode."""
        self.url = "about:blank"
        return "The browser is open."

    def goto(self, url: str) -> str:
        """Opens a page."""
        self.url = url
        return f"loaded {url}"

    async def screenshot(self) -> tuple[str, Image.Image]:
        """Takes a picture of the page."""
        await asyncio.sleep(0)
        picture = Image.new("RGB", (224, 112), "white")
        ImageDraw.Draw(picture).rectangle((28, 28, 84, 84), fill="red")
        return f"at {self.url}", picture


def policy(turn: int) -> dict[str, Any]:
    """What a model would sample: it opens a page, looks at it, then answers."""
    calls = [[("goto", {"url": "https://shop.example"})], [("screenshot", {})], []][turn]
    return {
        "role": "assistant",
        "content": "" if calls else "The red square is on the left.",
        "tool_calls": [
            {"id": f"call_{turn}_{i}", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


async def rollout() -> list[dict[str, Any]]:
    """One episode: the messages that the reward and the next forward pass see."""
    browser = Browser()
    question = {"role": "user", "content": f"{browser.reset()} Where is the red square?"}
    messages: list[dict[str, Any]] = [question]
    for turn in range(3):
        reply = policy(turn)
        messages.append(reply)
        messages.extend(await call_tools(reply["tool_calls"], environment_tools(browser)))
    return messages


def to_request(messages: list[dict[str, Any]]) -> pb.PreprocessRequest:
    """The request for the whole history; refused if an image had become text."""
    return PROTOCOLS["chat"]({"messages": typed_messages(messages)})


def main() -> None:
    """Prints the normalized history, or what the service answers to it."""
    request = to_request(asyncio.run(rollout()))
    if len(sys.argv) > 1:
        with Client(sys.argv[1]) as client:
            print(client.preprocess(request))
    else:
        print(json.dumps(messages_to_json(request.conversation.messages), indent=2))


if __name__ == "__main__":
    main()
