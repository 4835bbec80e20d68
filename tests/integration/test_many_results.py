"""A turn with thousands of results: GLM-5.3-Flash orders them by their calls, in linear time."""

import re
import time

import pytest

from tests.support.dialects import Call, Result, Session, Turn, picture, write
from tests.support.pipeline import OFFICIAL, Pipeline, shows, with_template, write_checkpoint

IDS = [f"call_{number}" for number in range(2000)]
FLASH = [served for served in OFFICIAL if served.family == "glm5_next"]


@pytest.mark.parametrize("served", FLASH, ids=lambda served: served.name)
def test_two_thousand_results_stand_in_call_order_within_seconds(served, official, tmp_path):
    shown = {3: picture(1), 1998: picture(2)}
    results = [Result(name, [f"<{n}>", shown[n]] if n in shown else f"<{n}>") for n, name in enumerate(IDS)]
    turn = Turn("assistant", None, [Call(name) for name in IDS], results[::-1])
    body = write(Session([Turn("user", "q"), turn]), "chat")
    with Pipeline(write_checkpoint(with_template(served, official), tmp_path)) as pipeline:
        response = pipeline.run(body)
        start = time.process_time()
        pipeline.run(body, count=True)
        # A quadratic sort takes minutes; 0.2 s were measured for the whole request.
        assert time.process_time() - start < 5
        assert re.findall(r"<(\d+)>", pipeline.text(response.token_ids)) == [str(n) for n in range(2000)]
        assert [item.tool_call_id for item in response.items] == [IDS[3], IDS[1998]]
        assert [shows(response, 0, shown[3]), shows(response, 1, shown[1998])] == [True, True]
