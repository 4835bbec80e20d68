"""What a family cannot give is refused before anything is decoded, or said in a warning."""

import pytest
from patchloom_service import errors

from tests.support.pipeline import Pipeline, plain, write_checkpoint


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    def open_family(family):
        if family not in opened:
            directory = tmp_path_factory.mktemp(family)
            opened[family] = Pipeline(write_checkpoint(plain(family), directory))
        return opened[family]

    opened = {}
    yield open_family
    for own in opened.values():
        own.__exit__(None, None, None)


BROKEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize("count", [False, True])
def test_positions_that_a_family_does_not_have_are_refused_first(pipeline, count):
    body = {"messages": [{"role": "user", "content": [BROKEN]}]}  # would be refused next
    with pytest.raises(errors.UnsupportedContent) as caught:
        pipeline("llama4").run(body, count=count, positions=True)
    assert caught.value.field_path == "output.positions"


def test_a_dtype_that_a_family_does_not_have_is_a_warning(pipeline):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    family = pipeline("llama4")
    warned = family.run(body, dtype="float32").message.warnings
    assert [(w.reason, w.field_path) for w in warned] == [("DTYPE_IGNORED", "output.dtype")]
    assert not family.run(body, dtype="bfloat16").message.warnings
    assert not family.run(body).message.warnings


def test_calls_of_a_message_that_is_left_open_are_said_to_be_left_out(pipeline):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "content": "I will", "tool_calls": [call]}
    body = {"messages": [{"role": "user", "content": "hi"}, said]}
    warned = pipeline("qwen2_5_vl").run(body, continue_final_message=True, count=True).message.warnings
    assert ("CALLS_LEFT_OUT", "messages[1].tool_calls") in [(w.reason, w.field_path) for w in warned]
    assert not pipeline("qwen2_5_vl").run(body, count=True).message.warnings


@pytest.mark.parametrize("seconds", [-1, 253402300800, 2**62])
def test_a_time_that_no_template_can_show_names_its_place(pipeline, seconds):
    from patchloom_proto import preprocess_pb2 as pb
    from patchloom_service.wire import read_request

    request = pb.PreprocessRequest()
    request.conversation.messages.add(role=pb.ROLE_USER).content.add().text.text = "hi"
    request.render.now.seconds = seconds
    with pytest.raises(errors.InvalidMessage) as caught:
        read_request(request)
    assert caught.value.field_path == "render.now"
