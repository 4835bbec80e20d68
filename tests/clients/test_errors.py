"""The client's errors are the service's, by name, reason and shape."""

import inspect

import patchloom_client.errors as client
import patchloom_service.errors as service
import pytest

STATUS_NAMES = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "UNIMPLEMENTED",
    "INTERNAL",
}


def shape(module):
    """(name, parent, reason, constructor parameters) of every class of a tree."""
    return {
        (
            name,
            error.__base__.__name__,
            error.reason,
            tuple(inspect.signature(error).parameters),
        )
        for name, error in vars(module).items()
        if inspect.isclass(error) and issubclass(error, module.PatchloomError)
    }


def test_both_trees_have_the_same_names_parents_reasons_and_attributes():
    assert shape(client) == shape(service)


def test_every_reason_leads_to_its_class():
    assert {error.reason for error in client.ERRORS} == set(client.BY_REASON)
    assert len(client.ERRORS) == len(client.BY_REASON)
    assert client.BY_REASON["INTERNAL"] is client.Internal


def test_every_status_is_the_one_of_its_branch():
    assert set(client.BY_STATUS) == STATUS_NAMES
    for error in client.ERRORS:
        assert issubclass(error, client.BY_STATUS[error.status])


@pytest.mark.parametrize(
    ("reason", "status", "expected"),
    [
        ("INVALID_IMAGE", "INVALID_ARGUMENT", client.InvalidImage),
        ("FROM_A_NEWER_SERVER", "NOT_FOUND", client.NotFound),
        ("", "DATA_LOSS", client.Internal),
    ],
)
def test_an_unknown_reason_falls_back_to_its_status(reason, status, expected):
    assert client.error_class(reason, status) is expected


def test_an_error_keeps_what_and_where_apart_and_prints_both():
    error = client.InvalidImage("not base64; send base64").at("messages[0].content[1]")
    assert (error.message, error.field_path) == (
        "not base64; send base64",
        "messages[0].content[1]",
    )
    assert str(error) == "messages[0].content[1]: not base64; send base64"


def test_an_error_with_more_to_say_keeps_it_when_placed():
    assert client.QueueFull("busy", retry_after=1.5).retry_after == 1.5
    assert client.ContentKeyNotFound("missing", keys=("a",)).keys == ("a",)
