"""What the page is made of, and the policy that it is sent with. These tests need no browser."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from fourleaf.serve import page
from fourleaf.serve.app import create_app
from fourleaf.tasks.cabin.schema import TOOLS

FOLDER = Path(page.__file__).parent / "page"
FILES = sorted(FOLDER.iterdir())
MAX_BYTES = 192 * 1024
NOT_FETCHED = ("http://www.w3.org/",)  # names of XML's, which nobody asks for


@pytest.fixture
def client(scripted) -> TestClient:
    return TestClient(create_app(scripted("hi"), api_key="secret"))


def test_the_page_needs_no_key_and_holds_nothing(client):
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "secret" not in response.text
    assert client.get("/v1/models").status_code == 401


def test_its_policy_lets_nothing_in_from_outside(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"https?:|\*", policy) == []


def test_the_frame_for_html_has_no_origin_and_no_network(client):
    policy = client.get("/page/preview.html").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert "connect-src 'none'" in policy
    assert 'sandbox: "allow-scripts"' in (FOLDER / "preview.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "page.py", "main", ".js", "a%00.js"])
def test_what_is_no_file_of_the_page_is_not_found(client, name):
    assert client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_sent_and_names_no_other_host(client, path):
    response = client.get(f"/page/{path.name}")
    assert response.status_code == 200
    text = response.text
    for name in NOT_FETCHED:
        text = text.replace(name, "")
    assert re.findall(r"""["'(=]\s*(?:https?:)?//[\w.]""", text) == []
    assert len(text.splitlines()) <= 400


def test_the_page_is_light():
    assert sum(path.stat().st_size for path in FILES) < MAX_BYTES


def test_scripts_write_no_html():
    for path in FOLDER.glob("*.js"):
        found = re.findall(
            r"\.(?:innerHTML|outerHTML|insertAdjacentHTML)|\beval\(|new Function", path.read_text("utf-8")
        )
        assert (path.name, found) == (path.name, [])


def test_the_car_knows_every_tool():
    text = (FOLDER / "carstate.js").read_text(encoding="utf-8")
    effects = re.search(r"const EFFECTS = \{\n(.*?)\n\};", text, re.DOTALL)
    assert effects is not None
    known = re.findall(r"^  (\w+): ", effects[1], re.MULTILINE)
    assert sorted(known) == sorted(tool["function"]["name"] for tool in TOOLS)


def test_a_puzzle_is_the_same_for_the_same_seed_and_can_be_asked_as_it_is(client):
    first = client.get("/page/judgement?seed=7").json()
    assert first == client.get("/page/judgement?seed=7").json()
    assert first != client.get("/page/judgement?seed=8").json()
    assert set(first["questions"]) == set(first["answers"])
    assert client.get("/page/judgement?seed=x").status_code in (400, 422)
