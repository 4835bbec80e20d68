"""Token prompts: ids and media, strictly."""

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.protocols.tokens import to_request
from patchloom_proto import preprocess_pb2 as pb

PNG = "iVBORw0KGgo="


def test_ids_media_and_options_become_a_token_prompt():
    request = to_request(
        {
            "model": "m",
            "token_ids": [0, 151655, 2**32 - 1],
            "media": [{"type": "image", "data": PNG}],
            "patchloom": {"dtype": "bf16"},
        }
    )
    image = pb.ImagePart(source=pb.MediaSource(data=b"\x89PNG\r\n\x1a\n"))
    assert request == pb.PreprocessRequest(
        model="m",
        tokens=pb.TokenPrompt(token_ids=[0, 151655, 2**32 - 1], media=[pb.ContentPart(image=image)]),
        output=pb.OutputOptions(dtype=pb.DTYPE_BFLOAT16),
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids[1]"),
        ({"token_ids": [2**32]}, "token_ids[0]"),
        ({"token_ids": [True]}, "token_ids[0]"),
        ({"token_ids": [1.0]}, "token_ids[0]"),
        ({"token_ids": "12"}, "token_ids"),
        ({"token_ids": [1], "media": [{"type": "text", "text": "x"}]}, "media[0]"),
        ({"token_ids": [1], "media": [{"type": "image", "data": "?"}]}, "media[0].data"),
        ({"token_ids": [1], "messages": []}, "messages"),
    ],
)
def test_anything_else_is_refused_where_it_stands(body, path):
    with pytest.raises(InvalidArgument) as caught:
        to_request(body)
    assert caught.value.field_path == path
