"""The OpenAPI document: it has every route, its schemas are schemas, and what it says of answers and streams is so."""

import json
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from fourleaf.engine.request import LIMITS
from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ENGINE
from fourleaf.serve.openapi import POSTS, document
from fourleaf.serve.settings import Settings
from fourleaf.tasks.cabin.schema import TOOLS

SAID = [{"role": "user", "content": "hi"}]
CHAT = {"model": "cabin", "messages": SAID}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/events": CHAT,
    "/v1/completions": {"model": "cabin", "prompt": "hi", "max_tokens": 400},
    "/v1/fim/completions": {"model": "cabin", "prompt": "hi", "max_tokens": 400},
    "/v1/responses": {"model": "cabin", "input": "hi", "instructions": "Be brief."},
    "/v1/messages": CHAT | {"max_tokens": 400},
}
EVENTS = {post.path: post.event for post in POSTS if post.event is not None}


DOCUMENT = document(["cabin"], Settings())
SCHEMAS = DOCUMENT["components"]["schemas"]


def validator(schema: dict) -> Draft202012Validator:
    # The whole document as one schema, so that its references resolve.
    return Draft202012Validator({"components": DOCUMENT["components"], "allOf": [schema]})


def operations(paths: dict) -> set[tuple[str, str]]:
    return {(path, method.upper()) for path, methods in paths.items() for method in methods}


@pytest.mark.parametrize("can_manage", [True, False])
def test_the_document_has_every_route_but_the_page_s(scripted, can_manage):
    app = create_app(scripted("Hi."), can_manage=can_manage)
    with TestClient(app) as client:
        made = client.get("/openapi.json").json()
    served = operations(app.openapi()["paths"])  # the framework's own document, of bare routes
    served = {(path, method) for path, method in served if path != "/" and not path.startswith("/page/")}
    assert operations(made["paths"]) == served
    ids = [one["operationId"] for methods in made["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))


def test_schemas_are_schemas_and_references_lead_somewhere():
    assert DOCUMENT["openapi"] == "3.1.0"
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    for reference in set(re.findall(r'"#/([^"]+)"', json.dumps(DOCUMENT))):
        found = DOCUMENT
        for part in reference.split("/"):
            found = found[part]


def test_limits_enums_and_neutral_values_are_the_code_s():
    fields = SCHEMAS["ChatRequest"]["properties"]
    low, high = LIMITS["temperature"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": low, "maximum": high}
    assert fields["mode"]["enum"] == ["ar", "draft", "diffuse", "auto", None]
    assert fields["modalities"]["enum"] == [["text"], None]
    assert fields["model"]["enum"] == ["cabin"]


def test_a_server_with_keys_says_that_it_wants_one(scripted):
    with TestClient(create_app(scripted("Hi."), api_key="k")) as client:
        assert client.get("/openapi.json").status_code == 401
        made = client.get("/openapi.json", headers={"x-api-key": "k"}).json()
        assert client.get("/docs").status_code == 404, "it would fetch scripts from elsewhere"
    assert made["security"] == [{"bearer": []}, {"key": []}]
    assert made["paths"]["/health"]["get"]["security"] == []


def events_of(text: str) -> list[dict]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def fits(schema: dict, event: dict) -> bool:
    """Whether an event is of a stream's schema, the JSON in its data included (`contentSchema`)."""
    for one in schema.get("anyOf", [schema]):
        fields = one["properties"]
        if event.get("event") not in fields["event"].get("enum", [event.get("event")]):
            continue
        for kind in fields["data"].get("anyOf", [fields["data"]]):
            if "const" in kind and event["data"] == kind["const"]:
                return True
            if "const" not in kind and event["data"] != "[DONE]":
                return validator(kind["contentSchema"]).is_valid(json.loads(event["data"]))
    return False


USAGE = {"stream_options": {"include_usage": True}}
STREAMS = [
    *((path, {}) for path in BODIES),
    *(
        ("/v1/chat/completions", more)
        for more in ({"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"diffusing": True})
    ),
    ("/v1/chat/completions", {"stop": "b"} | USAGE),
    ("/v1/chat/events", {"logprobs": True}),
    ("/v1/completions", {"logprobs": 2} | USAGE),
    ("/v1/messages", {"stop_sequences": ["b"]}),
]


@pytest.mark.parametrize(("path", "more"), STREAMS)
def test_every_event_of_a_stream_is_documented(scripted, call_text, path, more):
    schema = EVENTS[path]
    schema = SCHEMAS["ChatEvent"] if "$ref" in schema else schema
    mixed = f"<think>Hm.</think>A b. {call_text('set_window', level=3)}"
    for said, fault in ((mixed, None), ("Long words. " * 12, None), ("Long words. " * 12, 3)):
        engine = scripted(said)
        engine.abilities = replace(ENGINE, constraints=(), scores=False)
        engine.fault_at = fault
        with TestClient(create_app(engine, fixed_tools=TOOLS)) as client:
            response = client.post(path, json=BODIES[path] | more | {"stream": True})
        assert response.status_code == 200
        events = events_of(response.text)
        assert len(events) > 2
        assert [event for event in events if not fits(schema, event)] == []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/infill", {"template": ["ab", {"gap": {"max_tokens": 5}}, "c", {"gap": {"max_tokens": 3}}], "n": 2}),
        ("/v1/fim/completions", {"suffix": "c", "max_tokens": 5}),
    ],
)
def test_every_piece_of_an_infilling_is_documented(tiny_engine, path, more):
    answer = next(post.answer for post in POSTS if post.path == path)
    body = {"model": "tiny", "prompt": "xy", "temperature": 1, **more}
    with TestClient(create_app(tiny_engine(96))) as client:
        whole = client.post(path, json=body)
        stream = client.post(path, json=body | {"stream": True} | USAGE)
    assert (whole.status_code, stream.status_code) == (200, 200)
    assert validator(SCHEMAS[answer]).is_valid(whole.json())
    events = events_of(stream.text)
    assert len(events) > 2
    assert [event for event in events if not fits(EVENTS[path], event)] == []


def test_a_schema_of_an_answer_has_no_field_too_few():
    """Objects of answers are closed, so that the tests above can fail."""
    event = {"data": '{"type":"content_block_stop","index":0}', "event": "content_block_stop"}
    assert fits(EVENTS["/v1/messages"], event)
    assert not fits(EVENTS["/v1/messages"], event | {"data": '{"type":"content_block_stop","index":0,"more":1}'})
    assert not fits(EVENTS["/v1/messages"], event | {"data": '{"type":"content_block_stop"}'})
