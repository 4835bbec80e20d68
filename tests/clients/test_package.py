"""The package's own names."""

import subprocess
import sys

import pytest


def test_both_clients_are_names_of_the_package():
    import patchloom_client
    from patchloom_client.client import AsyncClient, Client

    assert (patchloom_client.AsyncClient, patchloom_client.Client) == (AsyncClient, Client)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = patchloom_client.Nothing


def test_converters_alone_import_no_grpc():
    code = "import sys, patchloom_client.protocols; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
