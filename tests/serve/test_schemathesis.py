"""schemathesis against our OpenAPI document: requests that it allows and requests that it does not, by the thousand.

Every answer must be one that the document has: status, headers, type, schema, each event of a stream; no 5xx; and what
the document forbids must be refused. FOURLEAF_CASES says how many cases each endpoint gets of each kind; `make soak`
sends thousands to each. The second test lets a real engine decode, on random weights.
"""

import os
from collections import Counter
from dataclasses import replace

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ENGINE
from fourleaf.serve.openapi import MANAGING, POSTS, document
from fourleaf.serve.settings import Settings

CASES = int(os.environ.get("FOURLEAF_CASES", "60"))
# 400 for fields that contradict each other, or the model: no schema says that. What it does forbid is refused, always.
NOT_HELD = [checks.positive_data_acceptance]
LOOKING = [path for path, methods in document(["cabin"], Settings())["paths"].items() if "get" in methods]
ANSWERING = [post.path for post in POSTS]
MANAGED = [post.path for post in MANAGING]


def statuses(app, method: str, path: str, kind: GenerationMode, cases: int) -> Counter[int]:
    """Sends `cases` requests of a kind, holds each answer against the document, and counts statuses."""
    seen: Counter[int] = Counter()
    strategy = schemathesis.openapi.from_asgi("/openapi.json", app)[path][method].as_strategy(generation_mode=kind)

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def send(case):
        response = case.call()
        seen[response.status_code] += 1
        case.validate_response(response, excluded_checks=NOT_HELD)

    send()
    return seen


@pytest.fixture
def app(scripted):
    """Answers at once, and honours every field but grammars."""
    engine = scripted("<think>Hm.</think>Hello you. ", "Two words.")
    engine.abilities = replace(ENGINE, constraints=(), scores=False)
    return create_app(engine, can_manage=False)


@pytest.mark.parametrize("path", ANSWERING)
@pytest.mark.parametrize("kind", GenerationMode, ids=lambda kind: kind.name.lower())
def test_every_answer_is_one_of_the_document_s(app, path, kind):
    seen = statuses(app, "POST", path, kind, CASES)
    if kind is GenerationMode.NEGATIVE:
        assert not [status for status in seen if status < 400]
    elif path != "/v1/systemone":  # which wants a real engine
        assert seen[200] > 0.05 * sum(seen.values()), "hardly any request was one"


@pytest.mark.parametrize("path", LOOKING)
def test_what_only_looks_answers_as_documented(app, path):
    assert statuses(app, "GET", path, GenerationMode.POSITIVE, 15)


@pytest.mark.parametrize("path", MANAGED)
def test_models_are_managed_as_documented(scripted, path):
    for kind in GenerationMode:
        assert statuses(create_app(scripted("Hi.")), "POST", path, kind, 15)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/systemone"])
def test_a_real_engine_answers_as_documented_too(tiny_engine, path):
    context = 2048 if path == "/v1/systemone" else 64
    app = create_app(tiny_engine(context), can_manage=False)
    assert statuses(app, "POST", path, GenerationMode.POSITIVE, CASES // 3)[200]
