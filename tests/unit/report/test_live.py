"""The live page: who may read it, and what it says."""

from __future__ import annotations

import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from urllib.parse import quote, urlsplit

import dask
import pytest
from click.testing import CliRunner

from dask_exo import Scheduler, events
from dask_exo.cli.main import main
from dask_exo.errors import LiveError
from dask_exo.report.live import Live, latest_url, poll, watch
from dask_exo.testing import InlineFutures


@pytest.fixture(autouse=True)
def notes(monkeypatch, tmp_path):
    """Other tests that run now must not find each other's pages."""
    monkeypatch.setattr("dask_exo.report.live._directory", lambda: tmp_path / "notes")


@pytest.fixture
def live():
    page = Live()
    yield page
    page.stop()


def read(url: str, path: str = "/", host: str | None = None) -> tuple[int, str]:
    asked = urllib.request.Request(urlsplit(url)._replace(path=path).geturl())
    if host is not None:
        asked.add_header("Host", host)
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_it_is_on_this_machine_only_and_asks_for_its_token(live) -> None:
    parts = urlsplit(live.url)
    assert parts.hostname == "127.0.0.1"
    assert read(live.url)[0] == 200
    for path in ("/", "/now", "/report"):
        assert read(parts._replace(query="").geturl(), path)[0] == 403
        assert read(parts._replace(query="token=wrong").geturl(), path)[0] == 403
        assert read(live.url, path, host="evil.example:80")[0] == 403
    assert read(live.url, "/../etc/passwd")[0] == 404


def test_it_shows_what_runs_escaped(live) -> None:
    read(live.url)
    events.emit(events.RunStarted({"<i>map": 9}, run=10**9))
    events.emit(events.TasksFinished("<i>map", 3, 1.0, 100, run=10**9))
    now = json.loads(read(live.url, "/now")[1])
    (row,) = now["rows"]
    assert (row["cells"][:2], row["share"]) == (["<i>map", "3/9"], 3 / 9)
    assert "<i>map" not in now["html"]
    assert "&lt;i&gt;map" in now["html"]
    events.emit(events.RunFinished(1.0, 1, 1, 0, 0, failed=False, run=10**9))
    assert json.loads(read(live.url, "/now")[1])["footer"] == "nothing runs"


def test_the_report_so_far_is_a_page(live) -> None:
    read(live.url)
    dask.delayed(sum)([1, 2]).compute(scheduler=Scheduler(InlineFutures()))
    status, page = read(live.url, "/report")
    assert status == 200
    assert "Timeline" in page


def test_plots_come_once_and_then_only_their_data(live) -> None:
    read(live.url)
    graph = {("<i>", i): (sum, [i, 1]) for i in range(5)}
    Scheduler(InlineFutures())(graph, list(graph))
    first = json.loads(read(live.url, "/plots")[1])["plots"]
    assert [plot["heading"] for plot in first][:2] == ["Task stream", "Timeline"]
    assert all({"key", "heading", "caption", "item"} == set(plot) for plot in first)
    Scheduler(InlineFutures())(graph, list(graph))
    have = "".join(f"&have={quote(plot['key'])}" for plot in first)
    parts = urlsplit(live.url)
    again = read(parts._replace(query=parts.query + have).geturl(), "/plots")[1]
    stream, timeline, *_ = json.loads(again)["plots"]
    assert "item" not in stream
    assert [len(column) for column in stream["data"]["bars"].values()] == [10] * 9
    assert timeline["data"]["bars"]["group"] == ["i"]
    scrolled = parts._replace(query=f"{parts.query}&hidden={quote(stream['key'])}").geturl()
    stream, timeline, *_ = json.loads(read(scrolled, "/plots")[1])["plots"]
    assert stream.keys() == {"key", "heading", "caption"}
    assert "item" in timeline


def test_keys_of_many_workers_fit_into_an_address(live) -> None:
    read(live.url)
    events.emit(events.ClusterSeen(10, 0, 0, 1, "", run=10**9))  # before any task
    assert json.loads(read(live.url, "/plots")[1])["plots"] == []
    for process in range(3000):
        ran = events.CallSpan("node", process, 1.0, 1.0, 0)
        events.emit(events.TasksFinished("map", 1, 1.0, 100, ran=ran, run=10**9))
    plots = json.loads(read(live.url, "/plots")[1])["plots"]
    assert sum(len(plot["key"]) for plot in plots) < 200


def test_a_page_that_is_closed_meanwhile_prints_nothing(live, capfd) -> None:
    parts = urlsplit(live.url)
    for _ in range(3):
        with socket.create_connection((parts.hostname, parts.port)) as reader:
            linger = struct.pack("ii", 1, 0)  # close() resets the connection
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            reader.sendall(f"GET /?{parts.query} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
    assert read(live.url)[0] == 200
    assert capfd.readouterr().err == ""


def test_it_names_the_dashboard_of_a_joined_cluster(live) -> None:
    assert "dashboard" not in read(live.url)[1]
    page = Live("10.0.0.1:8265'<b>")
    try:
        link = "<a href='http://10.0.0.1:8265&#x27;&lt;b&gt;' rel='noreferrer'>Ray's dashboard</a>"
        assert link in read(page.url)[1]
    finally:
        page.stop()


def test_a_failed_task_is_shown_with_what_it_printed(live) -> None:
    read(live.url)
    events.emit(events.RunStarted({"map": 1}, run=10**9))
    events.emit(events.TaskFailed("<i>map", "Traceback\nKeyError: '<b>'", "7 <rows>", run=10**9))
    html = json.loads(read(live.url, "/now")[1])["html"]
    assert "<summary>&lt;i&gt;map: KeyError: &#x27;&lt;b&gt;&#x27;</summary>" in html
    assert "7 &lt;rows&gt;" in html


def test_nothing_is_recorded_until_somebody_looks(live) -> None:
    assert not events.listening()
    read(live.url)
    assert events.listening()


def test_at_its_end_nothing_is_left() -> None:
    before = set(threading.enumerate())
    page = Live()
    assert latest_url() == page.url
    page.stop()
    assert set(threading.enumerate()) <= before
    assert not events.listening()


def test_top_says_what_runs(live, capsys) -> None:
    events.emit(events.RunStarted({"map\x1b[2J": 9}, run=10**9))
    events.emit(events.TasksFinished("map\x1b[2J", 3, 1.0, 100, run=10**9))
    watch(live.url, once=True)
    shown = capsys.readouterr().out
    assert "3/9" in shown
    assert "\x1b" not in shown
    result = CliRunner().invoke(main, ["top", "--once"])
    assert result.exit_code == 0, result.output
    assert "3/9" in result.output


def test_top_names_what_is_wrong(live) -> None:
    with pytest.raises(LiveError, match="refuses"):
        next(poll(live.url + "x"))
    with pytest.raises(LiveError, match="no page on this machine"):
        next(poll("http://example.com/?token=x"))
    live_url = live.url
    live.stop()
    with pytest.raises(LiveError, match="the program may have ended"):
        next(poll(live_url))
    result = CliRunner().invoke(main, ["top", live_url])
    assert result.exit_code == 1
    assert "the program may have ended" in result.output
