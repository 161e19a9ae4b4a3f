"""Streams on the wire, and requests that wait, leave or fail while others run."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx2
import pytest

from fourleaf.serve.worker import Job

SAID = [{"role": "user", "content": "hi"}]
LONG = "One two three. " * 30


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=30) as client:
        yield client


@pytest.fixture
def cancelled(monkeypatch) -> threading.Event:
    """Set once the server has cancelled a job: when it has seen that a client is gone, and at the end of any other."""
    seen = threading.Event()
    cancel = Job.cancel

    def noted(job: Job) -> None:
        cancel(job)
        seen.set()

    monkeypatch.setattr(Job, "cancel", noted)
    return seen


def ask(http: httpx2.Client, url: str, **fields):
    return http.post(f"{url}/v1/chat/completions", json={"model": "cabin", "messages": SAID, **fields})


def stream(http: httpx2.Client, url: str, **fields):
    body = {"model": "cabin", "messages": SAID, "stream": True, **fields}
    return http.stream("POST", f"{url}/v1/chat/completions", json=body)


def data_lines(response) -> Iterator[str]:
    """Keep it in a variable: the client closes the connection once it is collected."""
    return (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_wire_format(http, serve, scripted):
    with stream(http, serve(scripted("Hi!")), stream_options={"include_usage": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(data_lines(response))
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []


def test_the_role_comes_before_the_first_pass_and_health_answers_meanwhile(http, serve, scripted):
    engine = scripted("Hi!")
    engine.gate = threading.Semaphore(0)
    url = serve(engine)
    with stream(http, url) as response:
        lines = data_lines(response)
        assert json.loads(next(lines))["choices"][0]["delta"]["role"] == "assistant"
        assert engine.passes == 0
        with httpx2.Client(timeout=2) as other:
            assert other.get(f"{url}/health").json() == {"status": "ok"}
            assert other.get(f"{url}/v1/models").status_code == 200
        engine.gate.release(100)
        assert list(lines)[-1] == "[DONE]"


def test_a_comment_keeps_a_waiting_stream_open(http, serve, scripted):
    """Pitfall 16: proxies give up on a stream in which nothing comes while the first block is computed."""
    engine = scripted("Hi!")
    engine.gate = threading.Semaphore(0)
    with stream(http, serve(engine, ping_seconds=0.05)) as response:
        lines = response.iter_lines()
        while next(lines) != ": ping":
            pass
        engine.gate.release(100)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_fault_in_a_stream_is_a_line_of_its_own(http, serve, scripted):
    engine = scripted(LONG)
    engine.fault_at = 4
    url = serve(engine)
    with stream(http, url) as response:
        lines = list(data_lines(response))
    assert json.loads(lines[-2])["error"]["type"] == "server_error"
    assert lines[-1] == "[DONE]"
    assert not any("error" in json.loads(line) for line in lines[:-2])
    assert ask(http, url).json()["choices"][0]["message"]["content"] == LONG


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request_within_a_pass(http, serve, scripted, cancelled, streamed):
    engine = scripted(LONG, "Next.")
    engine.gate = threading.Semaphore(3)
    url = serve(engine)
    if streamed:
        with stream(http, url) as response:
            lines = data_lines(response)
            next(lines)
            until(lambda: engine.passes == 3)
    else:
        with httpx2.Client(timeout=0.5) as impatient, pytest.raises(httpx2.ReadTimeout):
            ask(impatient, url)
        until(lambda: engine.passes == 3)
    assert cancelled.wait(20)
    engine.gate.release(100)
    assert ask(http, url).json()["choices"][0]["message"]["content"] == "Next."
    assert engine.finished == 1, "the first answer was given up"
    assert engine.passes <= 3 + 1 + 2, "one more pass of the first answer at most, and two of the second"


def test_a_client_that_leaves_the_line_is_never_begun(http, serve, scripted, cancelled):
    engine = scripted("First.", "Third.")
    engine.gate = threading.Semaphore(0)
    url = serve(engine)
    with stream(http, url) as first:
        lines = data_lines(first)
        next(lines)
        with httpx2.Client(timeout=0.3) as impatient, pytest.raises(httpx2.ReadTimeout):
            ask(impatient, url, max_tokens=3)
        assert cancelled.wait(20)
        engine.gate.release(100)
        assert list(lines)[-1] == "[DONE]"
    assert ask(http, url).json()["choices"][0]["message"]["content"] == "Third."
    assert [params.max_tokens for params in engine.params] == [512, 512]


def test_requests_beyond_the_line_are_told_to_come_back(http, serve, scripted):
    engine = scripted("Hi!")
    engine.gate = threading.Semaphore(0)
    url = serve(engine, max_waiting=1)
    with stream(http, url) as first, httpx2.Client(timeout=30) as other:
        held = data_lines(first)
        next(held)
        until(lambda: len(engine.prompts) == 1)
        with stream(other, url) as second:
            waiting = data_lines(second)
            next(waiting)
            full = ask(http, url)
            assert full.status_code == 429
            assert int(full.headers["retry-after"]) >= 1
            assert full.json()["error"]["type"] == "rate_limit_error"
            engine.gate.release(100)
            assert list(waiting)[-1] == "[DONE]"


def test_answers_do_not_mix(http, serve, scripted):
    answers = [f"Answer {number}." for number in range(8)]
    url = serve(scripted(*answers))
    seen: list[str] = []

    def one(number: int) -> None:
        with httpx2.Client(timeout=30) as client:
            if number % 2:
                seen.append(ask(client, url).json()["choices"][0]["message"]["content"])
                return
            with stream(client, url) as response:
                chunks = [json.loads(line) for line in data_lines(response) if line != "[DONE]"]
            seen.append("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == answers


def test_a_server_that_goes_down_gives_up_what_runs(http, scripted, serve):
    engine = scripted(LONG)
    engine.gate = threading.Semaphore(2)
    with stream(http, serve(engine)) as response:
        lines = data_lines(response)
        next(lines)
    # The fixture's end asserts that the server's thread comes to its end.
    engine.gate.release(100)
