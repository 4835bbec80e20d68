"""The tree of errors, its statuses and its twins in the client."""

import re

import grpc
import patchloom_client.errors as client
import pytest
from patchloom_service import errors
from patchloom_service.servicer import STATUS, rich_status, status_code


def tree(root):
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


ALL = tree(errors.PatchloomError)[1:]


@pytest.mark.parametrize("error", ALL, ids=lambda e: e.__name__)
def test_every_error_has_a_status_a_reason_and_a_twin(error):
    twin = getattr(client, error.__name__)
    assert status_code(error("x")).name == twin.status
    assert re.fullmatch("[A-Z][A-Z_]+", error.reason)
    assert error.reason == twin.reason
    assert [b.__name__ for b in error.__mro__] == [b.__name__ for b in twin.__mro__]


def test_reasons_are_unique():
    assert len({error.reason for error in ALL}) == len(ALL)


def test_every_status_of_the_table_is_a_class_of_the_tree():
    assert set(STATUS) <= set(ALL)


def test_the_tree_at_the_top_of_the_file_is_the_tree():
    drawn = re.findall(r"^ *([A-Z]\w+)", errors.__doc__.split("\n\n")[1], re.M)
    assert drawn == [error.__name__ for error in tree(errors.PatchloomError)]


def test_a_status_carries_reason_path_and_retry():
    status = rich_status(errors.QueueFull("full; try later", "model", retry_after=1.5))
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    names = [detail.TypeName() for detail in status.details]
    assert names == ["google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo"]


def test_a_status_never_carries_more_than_a_kibibyte_of_message():
    assert len(rich_status(errors.InvalidImage("x" * 5000)).message) <= 1024


@pytest.mark.parametrize("letter", ["x", "é", "界", "🙂"])
def test_a_status_fits_into_trailing_metadata_whatever_a_request_wrote(letter):
    status = rich_status(errors.InvalidImage(letter * 5000, "a." + letter * 100_000))
    escaped = len(status.message.encode()) * 3
    assert escaped + len(status.SerializeToString()) * 4 // 3 < 8192
    assert status.message.startswith("a." + letter)
    assert status.message.endswith("...")


def test_an_error_says_where_and_what():
    assert str(errors.InvalidImage("broken", "messages[0].content[1]")) == "messages[0].content[1]: broken"
    assert errors.InvalidImage("broken").at("media[0]").field_path == "media[0]"
