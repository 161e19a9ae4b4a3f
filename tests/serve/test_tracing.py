"""Spans of requests: which there are, what they hold, and that nothing is imported where none are wanted."""

import subprocess
import sys
import time

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fourleaf.serve.app import create_app
from fourleaf.serve.tracing import Tracing

BODY = {"model": "cabin", "messages": [{"role": "user", "content": "my secret words"}]}


@pytest.fixture
def traced(scripted):
    """An engine's client, and what has been exported so far."""

    def serve(engine, **options) -> tuple[TestClient, InMemorySpanExporter]:
        spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(spans))
        return TestClient(create_app(engine, tracing=Tracing(provider), **options)), spans

    return serve


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_with_its_queue_prefill_and_decoding_inside(traced, scripted, stream):
    client, exported = traced(scripted("One two three. " * 9))
    with client:
        headers = {"X-Request-Id": "mine-1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        client.post("/v1/chat/completions", json=BODY | {"stream": stream}, headers=headers)
        client.get("/v1/models")
        spans = {span.name: span for span in exported.get_finished_spans()}
    assert [*spans] == ["queue", "prefill", "decode", "POST /v1/chat/completions"]
    request = spans["POST /v1/chat/completions"]
    assert request.context.trace_id == int("a" * 32, 16), "a child of the client's span"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["fourleaf.request_id"] == "mine-1"
    assert (request.attributes["gen_ai.request.model"], request.attributes["fourleaf.mode"]) == ("cabin", "diffuse")
    inner = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(span.parent.span_id == request.context.span_id for span in inner)
    times = [when for span in inner for when in (span.start_time, span.end_time)]
    assert times == sorted(times)
    counts = spans["decode"].attributes
    assert (counts["fourleaf.passes"], counts["fourleaf.completion_tokens"]) == (10, 136)
    assert counts["fourleaf.pieces"] == 34, "of four tokens"
    assert counts["gen_ai.response.finish_reasons"] == ("stop",)


def test_each_of_several_answers_has_its_own_spans(traced, scripted):
    client, exported = traced(scripted("Hi."))
    with client:
        client.post("/v1/completions", json={"model": "cabin", "prompt": ["a", "b"]})
        names = [span.name for span in exported.get_finished_spans()]
    assert sorted(names) == sorted(["queue", "prefill", "decode"] * 2 + ["POST /v1/completions"])


def test_an_infilling_counts_its_pieces(traced, tiny_engine):
    client, exported = traced(tiny_engine(96))
    with client:
        template = ["abcde", {"gap": {"max_tokens": 3}}, "z"]
        client.post("/v1/infill", json={"model": "tiny", "prompt": "xy", "template": template})
        (decode,) = [span for span in exported.get_finished_spans() if span.name == "decode"]
    assert decode.attributes["fourleaf.pieces"] >= 2, "five pinned tokens are two"


def test_a_prompt_that_is_scored_has_not_been_prefilled_yet(traced, tiny_engine, monkeypatch):
    engine = tiny_engine(96)
    generate = engine.generate

    def late(*words):
        time.sleep(0.1)
        yield from generate(*words)

    monkeypatch.setattr(engine, "generate", late)
    client, exported = traced(engine)
    with client:
        body = {"model": "tiny", "prompt": "xy", "echo": True, "logprobs": 0, "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        (prefill,) = [span for span in exported.get_finished_spans() if span.name == "prefill"]
    assert prefill.end_time - prefill.start_time >= 0.1 * 1e9


def test_a_decision_has_no_decoding_and_is_not_called_unfinished(traced, tiny_engine):
    client, exported = traced(tiny_engine(512))
    questions = {"q": {"type": "noul", "instructions": "Is it night?"}}
    with client:
        body = {"model": "tiny", "state": "It is dark.", "questions": questions}
        assert client.post("/v1/systemone", json=body).status_code == 200
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert spans.keys() == {"queue", "prefill", "POST /v1/systemone"}
    assert not [span for span in spans.values() if "fourleaf.unfinished" in span.attributes]


def test_no_span_holds_words_or_keys_and_a_fault_is_an_error(traced, scripted):
    engine = scripted("an answer of its own")
    client, exported = traced(engine, api_key="hush")
    with client:
        engine.fault_at = 0
        headers = {"Authorization": "Bearer hush"}
        assert client.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 500
        assert client.post("/v1/chat/completions", json=BODY | {"top_p": "secret"}, headers=headers).status_code == 400
        assert client.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
        spans = exported.get_finished_spans()
    requests = [span for span in spans if span.name.startswith("POST")]
    assert [span.status.status_code for span in requests] == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]
    text = "".join(span.to_json() for span in spans)
    for secret in ("secret", "hush", "answer of its own"):
        assert secret not in text


PROGRAM = """
import sys
from fastapi.testclient import TestClient
from fourleaf.serve.app import create_app
from fourleaf.serve.models import Models
print(*sys.modules)
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
with TestClient(create_app(Models({}))) as client:
    print(client.post("/v1/completions", content="{").status_code)
"""


def test_a_server_without_spans_imports_and_sends_nothing():
    """FastAPI comes with OpenTelemetry's API, and with spans and logs of its own, which hold bodies."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    modules, status = done.stdout.splitlines()
    assert "fourleaf.serve.app" in modules.split()
    assert not [name for name in modules.split() if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
    assert status == "400", "and no span behind it"
