"""How a command finds the admin plane, and what it says when it cannot."""

import json

import httpx
import pytest

from gateway.admin.connection import AdminClient, CommandFailed, Connection, find_connection


@pytest.fixture
def home(tmp_path):
    demo = {
        "url": "http://127.0.0.1:8080/v1", "key": "wl-x", "model": "m",
        "admin": "http://127.0.0.1:8081", "admin_token": "demo-token",
    }  # fmt: skip
    (tmp_path / "demo.json").write_text(json.dumps(demo))
    return {"WARMLANE_HOME": str(tmp_path)}


def test_flags_come_before_the_environment_and_that_before_the_demo(home):
    """The nearest word wins."""
    environment = {**home, "WARMLANE_ADMIN_URL": "http://env:1", "WARMLANE_ADMIN_TOKEN": "env-token"}
    assert find_connection("http://flag:1", "flag-token", environment) == Connection("http://flag:1", "flag-token")
    assert find_connection(None, None, environment) == Connection("http://env:1", "env-token")
    assert find_connection(None, None, home) == Connection("http://127.0.0.1:8081", "demo-token")
    assert find_connection("http://127.0.0.1:8081", None, home).token == "demo-token"


def test_the_demos_token_is_never_sent_elsewhere(home):
    """A token must not leak to another address because a flag named only the address."""
    with pytest.raises(CommandFailed, match="no admin token"):
        find_connection("http://elsewhere:1", None, home)


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/admin/v1", "http://a:1/admin/v1/"])
def test_a_url_may_be_given_with_or_without_the_api_path(url):
    """Both are copied from somewhere."""
    assert find_connection(url, "t", {}).url == "http://a:1"


@pytest.mark.parametrize(
    ("url", "token", "sentence"),
    [
        (None, None, "no admin plane is known"),
        ("http://a", None, "no admin token"),
        ("a:8081", "t", "must begin with"),
        ("http://", "t", "name a host"),
        ("http://a:b", "t", "cannot be read"),
        ("http://a", "t\n", "visible ASCII"),
        ("http://a", "é", "visible ASCII"),
    ],
)
def test_what_is_missing_is_said(tmp_path, url, token, sentence):
    """A person must learn what to give."""
    with pytest.raises(CommandFailed, match=sentence):
        find_connection(url, token, {"WARMLANE_HOME": str(tmp_path)})


def test_a_broken_demo_file_is_said(tmp_path):
    """Half a file must not be a traceback."""
    (tmp_path / "demo.json").write_text('{"url":')
    with pytest.raises(CommandFailed, match=r"demo\.json cannot be read"):
        find_connection(None, None, {"WARMLANE_HOME": str(tmp_path)})


def client(answer) -> AdminClient:
    return AdminClient(Connection("http://admin", "t"), httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("status", "content", "sentence"),
    [
        (400, b'{"error": {"message": "name is too long", "param": "name"}}', "name is too long"),
        (400, b'{"error": {"message": "it is too long", "param": "name"}}', r"it is too long \(name\)"),
        (500, b'{"error": "x"}', "answered with status 500"),
        (500, b"{}", "answered with status 500"),
        (200, b"[]", "did not answer like an admin plane"),
        (200, b"<html>", "did not answer like an admin plane"),
        (502, b"", "did not answer like an admin plane"),
    ],
)
def test_a_refusal_is_the_servers_own_sentence(status, content, sentence):
    """The server knows best what is wrong; what it does not say is not invented."""
    with (
        client(lambda _: httpx.Response(status, content=content)) as admin,
        pytest.raises(CommandFailed, match=sentence),
    ):
        admin.ask("GET", "/keys")


def test_an_admin_plane_that_is_not_there_is_said():
    """No traceback because nothing listens."""

    def answer(request):
        raise httpx.ConnectError("connection refused")

    with client(answer) as admin, pytest.raises(CommandFailed, match="http://admin cannot be reached"):
        admin.ask("GET", "/keys")


def test_a_list_is_read_to_its_end():
    """A list of many pages must not be cut at the first."""

    def answer(request):
        after = int(request.url.params.get("after", 0))
        page = {"data": [{"n": after}], "next_cursor": str(after + 1) if after < 4 else None}
        return httpx.Response(200, json=page)

    with client(answer) as admin:
        assert [item["n"] for item in admin.list_all("/keys", {"project_id": "p"})] == [0, 1, 2, 3, 4]
