"""The load generator against the real server."""

import asyncio
import json

import pytest
from patchloom_client.bench import Load, load_server, sample_request
from patchloom_client.cli import main

from tests.support.servers import png, request, running


async def test_it_sends_as_many_requests_as_asked_and_reports_them():
    async with running(request_timeout=300.0) as (_, client):
        await client.preprocess(request(png(1)), timeout=300)
        report = await load_server(client.address, request(png(1)), Load(requests=20, concurrency=4))
        assert (report.sent, report.succeeded, report.errors) == (20, 20, {})
        assert report.ms_p20 <= report.ms_p50 <= report.ms_p80 <= report.ms_p99 <= report.ms_max
        assert report.items_per_second == pytest.approx(report.per_second)


async def test_it_ends_when_its_time_is_over():
    async with running() as (_, client):
        load = Load(requests=1_000_000, seconds=0.5, concurrency=2, count_only=True)
        async with asyncio.timeout(20):
            report = await load_server(client.address, request(), load)
        assert 0 < report.sent < 1_000_000


async def test_errors_of_the_server_are_counted_by_reason():
    async with running() as (_, client):
        wrong = request()
        wrong.model = "other"
        report = await load_server(client.address, wrong, Load(requests=3, concurrency=1))
        assert (report.succeeded, report.errors) == (0, {"MODEL_NOT_FOUND": 3})


@pytest.mark.parametrize("field", ["requests", "seconds", "concurrency"])
def test_a_load_without_bounds_is_refused(field):
    for value in (0, 1e9):
        with pytest.raises(ValueError, match=f"{field} must be between 1 and"):
            Load(**{field: value})


async def test_the_command_prints_one_json_object(tmp_path, capsys):
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
    async with running() as (_, client):
        flags = ["--address", client.address, "--requests", "3", "--count-only"]
        assert await asyncio.to_thread(main, ["bench", str(path), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["succeeded"] == 3


async def test_the_sample_needs_no_file_and_is_a_picture_to_the_server(capsys):
    async with running(request_timeout=300.0) as (_, client):
        (item,) = (await client.preprocess(sample_request(30, 50), timeout=300)).items
        assert (item.size.height, item.size.width) == (30, 50)
        flags = ["--address", client.address, "--requests", "2", "--count-only"]
        assert await asyncio.to_thread(main, ["bench", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["succeeded"], report["errors"]) == (2, {})


def test_a_load_that_failed_says_why_and_has_no_times(capsys):
    assert main(["bench", "--address", "127.0.0.1:1", "--requests", "2"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["succeeded"], report["errors"], report["ms_p50"]) == (0, {"UNAVAILABLE": 2}, None)
    assert "is it running at this address?" in report["first_error"]
