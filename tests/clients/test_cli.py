"""The command line in this process: one JSON object on stdout, exit status 2 for an error."""

import base64
import functools
import json

import numpy as np
import pytest
from patchloom_client import cli, local
from patchloom_client.cli import main
from patchloom_client.errors import ModelNotFound
from patchloom_client.protocols import OPTIONS
from safetensors import safe_open

from bench.checkpoints import build_checkpoint
from tests.support.pictures import encode, noise, solid
from tests.support.tokenizers import CACHE

LOAD = functools.cache(local.load_model)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(build_checkpoint("qwen2_5_vl", tmp_path_factory.mktemp("model"), cache_dir=CACHE))


def uri(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image(data):
    return {"type": "image_url", "image_url": {"url": uri(data)}}


def call(*ids):
    calls = [{"id": i, "type": "function", "function": {"name": f"see_{i}", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


RED, BLUE = encode(solid(56, 84, (255, 0, 0))), encode(solid(84, 56, (0, 0, 255)))
AGENT = {
    "messages": [
        {"role": "user", "content": "look"},
        call("a", "b"),
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "B:"}, image(BLUE)]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "A:"}, image(RED)]},
    ]
}


@pytest.fixture(autouse=True)
def _one_load(monkeypatch):
    """A checkpoint is loaded once for all tests with the same settings; loading takes seconds."""
    monkeypatch.setattr(local, "load_model", LOAD)


@pytest.fixture
def run(tmp_path, capsys, model):
    def run(command, body, *flags):
        path = tmp_path / "request.json"
        path.write_text(json.dumps(body))
        out = ["--out", str(tmp_path / "out.bin")] if command != "count" else []
        status = main([command, str(path), "--model", model, *out, *flags])
        printed = capsys.readouterr()
        return status, json.loads(printed.out), tmp_path / "out.bin"

    return run


def tensors(path):
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_preprocess_prints_the_documented_object_and_writes_the_tensors(run, model):
    status, answer, path = run("preprocess", AGENT)
    assert status == 0
    assert list(answer)[:9] == [
        "model",
        "token_ids",
        "token_types",
        "items",
        "tensors",
        "warnings",
        "fingerprint",
        "timings_ms",
        "counters",
    ]
    assert answer["model"] == model
    first, second = answer["items"]
    assert (first["path"], first["tool_call_id"]) == ("messages[2].content[1]", "b")
    assert (second["path"], second["tool_call_id"]) == ("messages[3].content[1]", "a")
    assert first["grid"] == {"kind": "patches", "shape": [1, 6, 4]}
    assert first["ranges"] == [{"offset": first["ranges"][0]["offset"], "length": 6}]
    written = tensors(path)
    assert {n: {"dtype": str(t.dtype), "shape": list(t.shape)} for n, t in written.items()} == answer[
        "tensors"
    ]
    assert written["image_grid_thw"].tolist() == [[1, 6, 4], [1, 4, 6]]


def test_each_image_is_under_its_own_call_pixels_beside_unique_text(run, model):
    _, answer, path = run("preprocess", AGENT)
    pixels = tensors(path)["pixel_values"]
    for item, channel in zip(answer["items"], (2, 0), strict=True):
        rows = next(s for s in item["slices"] if s["tensor"] == "pixel_values")
        mean = (
            pixels[rows["start"] : rows["start"] + rows["count"]].reshape(rows["count"], 3, -1).mean((0, 2))
        )
        assert np.argmax(mean) == channel


def test_count_gives_the_same_ids_without_decoding(run):
    _, whole, _ = run("preprocess", AGENT)
    status, counted, _ = run("count", AGENT)
    assert status == 0
    assert counted["token_ids"] == whole["token_ids"]
    assert counted["tensors"] == {}
    assert counted["counters"]["decodes"] == 0


def test_count_does_not_notice_a_truncated_image_but_preprocess_refuses_it(run):
    cut = encode(noise(64, 64), "JPEG")[:-128]
    body = {"messages": [{"role": "user", "content": [image(cut)]}]}
    assert run("count", body)[0] == 0
    status, answer, _ = run("preprocess", body)
    assert (status, answer["error"]["reason"]) == (2, "INVALID_IMAGE")
    assert answer["error"]["field_path"] == "messages[0].content[0]"


@pytest.mark.parametrize("dtype", ["float32", "bf16", "float16"])
def test_dtype_and_parity_flags_reach_the_pixels(run, dtype):
    _, answer, _ = run("preprocess", AGENT, "--dtype", dtype, "--parity", "pillow12")
    name = {"bf16": "bfloat16"}.get(dtype, dtype)
    assert answer["tensors"]["pixel_values"]["dtype"] == name


def test_the_patchloom_key_of_the_file_sets_options_and_flags_win(run):
    body = {**AGENT, "patchloom": {"dtype": "float16", "parity": "pillow13"}}
    assert run("preprocess", body)[1]["tensors"]["pixel_values"]["dtype"] == "float16"
    assert run("preprocess", body, "--dtype", "bf16")[1]["tensors"]["pixel_values"]["dtype"] == "bfloat16"


def test_uint8_levels_expand_to_the_same_values(run):
    _, _, path = run("preprocess", AGENT)
    values = tensors(path)["pixel_values"]
    _, answer, path = run("preprocess", AGENT, "--encoding", "uint8")
    levels = tensors(path)
    expansion = answer["tensors"]["pixel_values"]["expansion"]
    assert expansion["shape"] == list(values.shape)
    assert expansion["columns"] == "ctyx"
    patches = levels["pixel_values"].reshape(-1, 3, 1, 14, 14)
    channels = np.arange(3)[None, :, None, None, None]
    looked_up = levels["pixel_values.table"][channels, patches]
    doubled = np.repeat(looked_up, expansion["temporal"], axis=2).reshape(values.shape)
    assert np.array_equal(doubled, values)


def test_positions_are_added_on_request(run):
    _, answer, path = run("preprocess", AGENT, "--positions")
    written = tensors(path)
    assert written["position_ids"].shape == (3, len(answer["token_ids"]))
    assert written["rope_deltas"].shape == (1, 1)


def test_show_messages_adds_the_normalized_messages(run):
    _, answer, _ = run("count", AGENT, "--show-messages")
    assert [m["role"] for m in answer["messages"]] == ["user", "assistant", "tool", "tool"]
    assert answer["messages"][2]["name"] == "see_b"


def test_known_content_keys_come_back_without_pixels(run):
    _, answer, _ = run("preprocess", AGENT)
    key = answer["items"][0]["content_key"]
    _, again, path = run("preprocess", AGENT, "--known-content-keys", key)
    assert [item["known"] for item in again["items"]] == [True, False]
    assert again["items"][0]["slices"] == []
    assert tensors(path)["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert again["token_ids"] == answer["token_ids"]


def test_a_level_of_detail_that_changes_nothing_is_a_warning(run):
    part = image(RED)
    part["image_url"]["detail"] = "low"
    _, answer, _ = run("count", {"messages": [{"role": "user", "content": [image(RED), part]}]})
    assert [(w["reason"], w["field_path"]) for w in answer["warnings"]] == [
        ("DETAIL_IGNORED", "messages[0].content[1]")
    ]


def test_the_fingerprint_is_pinned_and_a_mismatch_is_refused(run):
    fingerprint = run("count", AGENT)[1]["fingerprint"]
    assert run("count", AGENT, "--expected-fingerprint", fingerprint)[0] == 0
    status, answer, _ = run("count", AGENT, "--expected-fingerprint", fingerprint, "--dtype", "bf16")
    assert (status, answer["error"]["reason"]) == (2, "FINGERPRINT_MISMATCH")
    assert answer["error"]["status"] == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("content", "reason", "path"),
    [
        ([{"type": "hologram"}], "UNSUPPORTED_CONTENT", "messages[0].content[0]"),
        (
            [{"type": "image_url", "image_url": {"url": uri(b"not an image")}}],
            "INVALID_IMAGE",
            "messages[0].content[0]",
        ),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}], "UNSUPPORTED_CONTENT", None),
        ([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}], "FETCH_DISABLED", None),
        (None, "INVALID_MESSAGE", "messages[0].content"),
    ],
)
def test_bad_content_is_a_typed_error_with_its_place(run, content, reason, path):
    status, answer, _ = run("preprocess", {"messages": [{"role": "user", "content": content}]})
    assert (status, answer["error"]["reason"]) == (2, reason)
    if path:
        assert answer["error"]["field_path"].startswith(path)


def test_an_unknown_role_is_refused(run):
    status, answer, _ = run("count", {"messages": [{"role": "robot", "content": "x"}]})
    assert (status, answer["error"]["reason"], answer["error"]["field_path"]) == (
        2,
        "INVALID_MESSAGE",
        "messages[0].role",
    )


def test_a_thinking_part_in_a_tool_message_is_refused(run):
    calls = {"role": "assistant", "tool_calls": [{"id": "a", "name": "f", "arguments": {}}]}
    thought = {"role": "tool", "tool_call_id": "a", "content": [{"type": "thinking", "text": "x"}]}
    body = {"messages": [calls, thought]}
    status, answer, _ = run("count", body, "--protocol", "normalized")
    assert (status, answer["error"]["reason"]) == (2, "INVALID_MESSAGE")
    assert "assistant" in answer["error"]["message"]


def test_the_pixel_limit_decides_before_decoding(run):
    body = {"messages": [{"role": "user", "content": [image(RED)]}]}
    status, answer, _ = run("count", body, "--max-image-pixels", "1000")
    assert (status, answer["error"]["reason"]) == (2, "LIMIT_EXCEEDED")
    assert "4704" in answer["error"]["message"]
    assert "1000" in answer["error"]["message"]


def test_the_prompt_limit_is_a_flag(run):
    status, answer, _ = run("count", AGENT, "--max-prompt-tokens", "5")
    assert (status, answer["error"]["reason"]) == (2, "LIMIT_EXCEEDED")


def test_a_missing_file_or_model_is_an_error_object(run, tmp_path, capsys):
    assert main(["count", str(tmp_path / "none.json"), "--model", "x"]) == 2
    assert "none.json" in json.loads(capsys.readouterr().out)["error"]["message"]
    path = tmp_path / "request.json"
    path.write_text("{}")
    assert main(["count", str(path), "--model", str(tmp_path / "nowhere")]) == 2


def test_model_info_prints_what_was_learnt(capsys, model):
    assert main(["model-info", model]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["family"] == "qwen2_5_vl"
    assert info["placeholders"] == {"image": "<|image_pad|>"}
    assert "template" in info


def test_inspect_writes_a_page_with_every_image_under_its_call(run, tmp_path):
    status, _, path = run("inspect", AGENT)
    assert status == 0
    page = path.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert page.index("see_b · b") < page.index("id=item0") < page.index("see_a · a") < page.index("id=item1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see patchloom --help"),
        (
            ["count", "r.json", "--max-items", "many"],
            "argument --max-items: invalid int value: 'many'; see patchloom count --help",
        ),
        (
            ["count", "r.json", "--model", "m", "--pos"],
            "unrecognized arguments: --pos; see patchloom count --help",
        ),
        (
            ["bench", "--requests", "2", "--dtpye", "float32"],
            "unrecognized arguments: --dtpye; see patchloom bench --help",
        ),
        (
            ["preprocess", "r.json", "--model", "m"],
            "the following arguments are required: --out; see patchloom preprocess --help",
        ),
    ],
)
def test_a_wrong_command_line_is_an_error_object(arguments, message, capsys):
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "reason": "INVALID_MESSAGE",
            "field_path": "flags",
            "message": message,
            "status": "INVALID_ARGUMENT",
        }
    }


def test_a_repeated_flag_of_known_keys_adds_to_the_first(run):
    first, second = (item["content_key"] for item in run("count", AGENT)[1]["items"])
    flags = ("--known-content-keys", first, "--known-content-keys", second)
    assert [item["known"] for item in run("count", AGENT, *flags)[1]["items"]] == [True, True]


def test_a_byte_order_mark_before_the_request_is_read_over(run, tmp_path, model, capsys):
    path = tmp_path / "marked.json"
    path.write_text(json.dumps(AGENT), encoding="utf-8-sig")
    assert main(["count", str(path), "--model", model]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == run("count", AGENT)[1]["token_ids"]


def test_a_key_given_twice_is_named(tmp_path, capsys):
    path = tmp_path / "request.json"
    path.write_text('{"messages": [{"role": "user", "content": "a", "content": "b"}]}')
    assert main(["count", str(path), "--model", "m"]) == 2
    message = "the request file has an object with the key 'content' twice"
    assert json.loads(capsys.readouterr().out)["error"]["message"] == message


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("count", "missing --model; name a model directory, or a server with --address"),
        ("inspect", "missing --model; name a model directory"),
    ],
)
def test_a_command_in_this_process_needs_a_model(command, message, tmp_path, capsys):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(AGENT))
    out = ["--out", str(tmp_path / "page.html")] if command == "inspect" else []
    assert main([command, str(path), *out]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field_path"], error["message"]) == ("flags.model", message)


class Refusing:
    """A client whose server serves nothing; the error names the model asked for."""

    def __init__(self, address):
        self.address = address

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def count_tokens(self, request):
        raise ModelNotFound(f"{self.address} {request.model}")


@pytest.mark.parametrize(
    ("flags", "asked"), [([], "of-the-file"), (["--model", "of-the-flag"], "of-the-flag")]
)
def test_a_server_is_asked_for_the_model_of_the_flag_or_else_of_the_file(
    flags, asked, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(cli, "Client", Refusing)
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**AGENT, "model": "of-the-file"}))
    assert main(["count", str(path), "--address", "here:1", *flags]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["message"] == f"here:1 {asked}"
    assert printed.err == ""


def test_a_setting_that_only_a_server_can_have_is_said_to_have_no_effect(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "Client", Refusing)
    path = tmp_path / "request.json"
    path.write_text(json.dumps(AGENT))
    main(["count", str(path), "--address", "here:1", "--max-items", "1", "--dtype", "bf16"])
    assert capsys.readouterr().err == "no effect with --address, give it to patchloom serve: --max-items\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "no config.json; a model directory in Hugging Face layout is needed"),
        (("config.json",), "no tokenizer; add tokenizer.json to the model directory"),
    ],
)
def test_a_directory_that_is_no_checkpoint_is_named_with_what_it_lacks(files, message, tmp_path, capsys):
    for name in files:
        (tmp_path / name).write_text('{"architectures": ["Qwen2VLForConditionalGeneration"]}')
    assert main(["model-info", str(tmp_path)]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == f"{tmp_path}: {message}"


@pytest.mark.parametrize("command", ["count", "bench"])
def test_an_address_needs_a_port(command, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    assert main([command, str(path), "--address", "localhost"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field_path"], error["message"]) == (
        "flags.address",
        "'localhost' has no port; give HOST:PORT",
    )


def test_an_address_that_nobody_listens_on_is_said_in_words(tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    assert main(["count", str(path), "--address", "127.0.0.1:1"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["reason"] == "UNAVAILABLE"
    assert error["message"].startswith("no answer from the server; is it running at this address?")


def test_two_models_need_two_names(capsys):
    for names in ([], ["--served-name", "a", "--served-name", "a"]):
        assert main(["serve", "--model", "m", "--model", "m", *names]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["field_path"] == "flags.served_name"
        assert "two models are served as" in error["message"]


def test_every_request_option_is_explained(capsys):
    with pytest.raises(SystemExit):
        main(["count", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in OPTIONS.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert text in shown


def test_template_variables_are_read_strictly(run):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    status, answer, _ = run("count", body, "--template-kwargs", '{"a": 1, "a": 2}')
    assert (status, answer["error"]["field_path"]) == (2, "flags.template_kwargs")
    assert run("count", body, "--template-kwargs", '{"a": 1}')[0] == 0
