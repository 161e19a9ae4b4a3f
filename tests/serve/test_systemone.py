"""`/v1/systemone` by the official `typesafe-sdk`, by all of `jevcompat`, and by hand where they do not look."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
import typesafe_sdk
import zstandard
from jevcompat.runner import run
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient

from fourleaf.decide.calibration import Temperatures
from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import parse_request
from fourleaf.engine.engine import Engine

KEY = "a-key"
NOUL: Any = {"type": "noul", "instructions": "Is it night?"}
BODY: dict[str, Any] = {"model": "jev-latest", "state": "It is dark.", "questions": {"q": NOUL}}
THREE: dict[str, Any] = {
    "night": Noul(instructions="Is it night?", criteria={"true": "dark", "false": None}),
    "mode": Choice(instructions="Which mode?", criteria={"eco": "saves", "sport": None}),
    "warn": Score(instructions="How loud?", criteria=["silent", "soft", "loud"]),
}


@pytest.fixture(scope="module")
def engine(tiny_engine) -> Engine:
    """Random weights; a context that holds 255 options a byte a token."""
    return tiny_engine(16_384, seed=2, intermediate_size=24, initializer_range=0.02, block_size=32)


@pytest.fixture
def url(serve, engine) -> str:
    return serve(engine, api_key=KEY)


@pytest.fixture
def post(url):
    def send(body=None, **headers):
        content = json.dumps(BODY if body is None else body).encode() if not isinstance(body, bytes) else body
        sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return httpx2.post(f"{url}/v1/systemone", content=content, headers=sent, timeout=60)

    return send


def _client(url, **options) -> TypeSafeClient:
    return TypeSafeClient(**{"api_key": KEY, "base_url": url, "timeout": 60, "retry": None} | options)


def test_the_official_client_reads_every_type_of_answer(url, engine):
    with _client(url) as client:
        result = client.system_one({"light": 0.1}, THREE)
    expected = Decider(engine).decide(
        parse_request(
            {
                "model": "tiny",
                "state": {"light": 0.1},
                "questions": {name: question.model_dump(mode="json") for name, question in THREE.items()},
            }
        )
    )
    p = {answer.question.id: answer.p for answer in expected.answers}
    assert result.model == "tiny"
    assert result.nouls["night"].noul == pytest.approx(p["night"][1])
    assert result.choices["mode"].probabilities == pytest.approx(dict(zip(("eco", "sport"), p["mode"], strict=True)))
    assert result.choices["mode"].choice == ("eco", "sport")[p["mode"].argmax()]
    assert result.scores["warn"].probabilities == pytest.approx(dict(enumerate(p["warn"])))
    assert result.scores["warn"].score == pytest.approx(p["warn"][1] + 2 * p["warn"][2])
    assert result.usage.input_tokens == expected.input_tokens
    assert result.request_id


def test_the_official_client_compresses_and_we_read_it(url, monkeypatch):
    sent = []
    real = httpx2.Client.send

    def watched(self, request, **options):
        sent.append(request.headers.get("content-encoding"))
        return real(self, request, **options)

    monkeypatch.setattr(httpx2.Client, "send", watched)
    with _client(url) as client:
        short = client.system_one("night " * 4, {"q": NOUL})
        long = client.system_one("night " * 400, {"q": NOUL})
    assert sent == [None, "zstd"]
    tokens = [result.raw_http_response.json()["usage"]["input_tokens"] for result in (short, long)]
    assert tokens[1] - tokens[0] == 396 * 6


def test_the_official_async_client_works(url):
    async def ask():
        async with AsyncTypeSafeClient(api_key=KEY, base_url=url, timeout=60) as client:
            found = await asyncio.gather(*(client.system_one("dark", THREE) for _ in range(3)))
            return found, await client.models.list()

    found, models = asyncio.run(ask())
    assert len({result.nouls["night"].noul for result in found}) == 1
    assert [model.name for model in models.models] == ["tiny"]


def test_joint_answers_come_through_the_official_client_as_extensions(url):
    rules = [{"if": {"question": "night", "is": True}, "then": {"question": "mode", "is": "eco"}}]
    with _client(url) as client:
        result = client.system_one("dark", THREE, extra_body={"x_joint": True, "x_rules": rules, "x_enforce": True})
    body = result.raw_http_response.json()
    assert sorted(name for names in body["x_joint"]["order"] for name in names) == ["mode", "night", "warn"]
    assert 0 < body["x_joint"]["p"] <= 1
    assert body["x_joint"]["passes"] == len(body["x_joint"]["order"])
    assert body["x_rules"] == {"obeyed": True, "broken": []}
    answers = {name: answer["x_answer"] for name, answer in body["answers"].items()}
    assert not answers["night"] or answers["mode"] == "eco"
    assert all(answer["x_first"] for answer in body["answers"].values())


@pytest.mark.parametrize(
    ("change", "kind", "status"),
    [
        ({"api_key": "wrong"}, typesafe_sdk.TypeSafeAuthenticationError, 401),
        ({"model": "other"}, typesafe_sdk.TypeSafeNotFoundError, 404),
        ({"state": "x" * 20_000}, typesafe_sdk.TypeSafeBadRequestError, 400),
        ({"extra": {"x_joint": "yes"}}, typesafe_sdk.TypeSafeUnprocessableEntityError, 422),
    ],
)
def test_errors_reach_the_official_client_as_its_own_classes(url, change, kind, status):
    with _client(url, api_key=change.get("api_key", KEY)) as client, pytest.raises(kind) as caught:
        client.system_one(
            change.get("state", "dark"), {"q": NOUL}, model=change.get("model", "tiny"), extra_body=change.get("extra")
        )
    assert caught.value.status == status
    assert caught.value.request_id


def test_every_requirement_of_jevcompat_holds(url):
    report = run(url, key=KEY, timeout=120)
    assert report.aborted is None
    assert report.case_errors == []
    by_status = {status: {r.id for r in report.results if r.status == status} for status in ("pass", "fail", "skip")}
    assert by_status["fail"] == set(), [finding.message for r in report.results for finding in r.findings]
    assert by_status["skip"] == {"auth.ignored-when-off"}
    assert len(by_status["pass"]) == 47
    assert report.verdict == "conformant"


def test_without_a_key_any_authorization_header_is_fine(serve, engine):
    url = serve(engine)
    answered = httpx2.post(f"{url}/v1/systemone", json=BODY, headers={"authorization": "Bearer whatever"}, timeout=60)
    assert answered.status_code == 200


def test_wrong_fields_are_422_in_the_shape_of_fastapi(post):
    answered = post({"model": "tiny", "state": 3, "questions": {"a.b": {"type": "score"}}})
    assert answered.status_code == 422
    assert answered.json() == {
        "detail": [
            {
                "loc": ["body", "state"],
                "msg": "Input should be a string, an object or an array",
                "type": "string_type",
            },
            {"loc": ["body", "questions", "a.b", "score", "criteria"], "msg": "Field required", "type": "missing"},
        ]
    }


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (b"{", {}, 422, None),
        (b"[]", {}, 422, None),
        (b'{"model": NaN}', {}, 422, None),
        (b"\xff", {}, 422, None),
        (b"[" * 100_000, {}, 422, None),
        (b"no zstd", {"content_encoding": "zstd"}, 422, None),
        (b"{}", {"content_encoding": "gzip"}, 415, "unsupported_media_type"),
        (b"{}", {"content_type": "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
        (b" " * (5 * 2**20), {}, 413, "body_too_large"),
        (zstandard.compress(b" " * (5 * 2**20)), {"content_encoding": "zstd"}, 413, "body_too_large"),
        (b"{}", {"authorization": "Bearer wrong"}, 401, "authentication_error"),
    ],
)
def test_bad_bodies_are_4xx_in_typesafes_shape(post, body, headers, status, kind):
    answered = post(body, **headers)
    assert answered.status_code == status
    detail = answered.json()["detail"]
    assert detail[0]["loc"] == ["body"] if kind is None else detail["error_type"] == kind
    assert answered.headers["x-typesafe-request-id"]


def test_a_request_too_long_for_the_context_says_which_numbers(post):
    detail = post(BODY | {"state": "x" * 20_000}).json()["detail"]
    assert detail["error_type"] == "tokens_exceeded"
    assert "16,384" in detail["message"]


def test_wrong_methods_and_lone_surrogates_keep_the_shape(post, url):
    answered = httpx2.get(f"{url}/v1/systemone", headers={"authorization": f"Bearer {KEY}"})
    assert (answered.status_code, answered.json()["detail"]["error_type"]) == (405, "method_not_allowed")
    answered = post(b'{"model": "m", "state": "s", "questions": {"\\ud800": {"type": "\\ud800"}}}')
    assert answered.status_code == 422
    assert post(
        b'{"model": "tiny", "state": "\\ud800", "questions": {"\\ud800": {"type": "noul", "instructions": "?"}}}'
    )


def test_rules_that_nothing_obeys_are_a_422_that_says_so(post):
    rules = [{"question": "q", "is": True}, {"question": "q", "is": False}]
    answered = post(BODY | {"x_rules": rules, "x_enforce": True})
    assert answered.status_code == 422
    assert answered.json()["detail"][0]["loc"] == ["body", "x_rules"]


def test_an_engine_without_a_model_refuses_decisions(serve, scripted):
    answered = httpx2.post(f"{serve(scripted('Hi.'))}/v1/systemone", json=BODY, timeout=60)
    assert answered.status_code == 400
    assert "cannot answer decisions" in answered.json()["detail"]["message"]


def test_a_fault_of_ours_is_a_500_without_details_and_the_server_lives(post, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Decider, "decide", lambda *_: [][0])
        answered = post()
    assert (answered.status_code, answered.json()["detail"]["error_type"]) == (500, "unknown")
    assert "index" not in answered.text
    assert post().status_code == 200


def test_temperatures_of_the_checkpoint_are_used(engine, tmp_path):
    Temperatures({("independent", "noul", 2): 4.0}).save(tmp_path)
    warm = Engine(engine.name, engine.model, engine.tokenizer, engine.chat)
    warm.folder = tmp_path
    plain, calibrated = (Decider.of(one).decide(parse_request(BODY)).answers[0].p for one in (engine, warm))
    assert 0.5 < calibrated.max() < plain.max()


def test_capabilities_say_what_decisions_can_be(url, serve, scripted):
    found = httpx2.get(f"{url}/v1/capabilities?model=tiny", headers={"authorization": f"Bearer {KEY}"}).json()
    assert found["decisions"]["joint"] is True
    assert found["decisions"]["max_joint_questions"] == 8
    bare = httpx2.get(f"{serve(scripted('Hi.'))}/v1/capabilities?model=cabin").json()
    assert bare["decisions"] is None
