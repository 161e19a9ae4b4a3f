"""Several models, settings, limits, metrics and logs: what whoever runs a server relies on."""

import json
import logging
import socket
import threading
import time
from contextlib import suppress

import httpx2
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from fourleaf import cli
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.serve import listener
from fourleaf.serve.app import create_app
from fourleaf.serve.models import Models
from fourleaf.serve.settings import Settings, read_config

SAID = [{"role": "user", "content": "my secret words"}]


def ask(client, model: str = "cabin", **fields):
    return client.post("/v1/chat/completions", json={"model": model, "messages": SAID, **fields})


def until(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def statuses(client) -> dict[str, str]:
    return {card["id"]: card["status"] for card in client.get("/v1/models").json()["data"]}


def test_models_are_loaded_and_unloaded_by_name(scripted):
    gate = threading.Event()

    def slow():
        assert gate.wait(20)
        return scripted("Second.", name="second"), None

    models = Models({"first": lambda: (scripted("First.", name="first"), None), "second": slow})
    with TestClient(create_app(models)) as client:
        until(lambda: statuses(client)["first"] == "loaded")
        assert ask(client, "first").json()["choices"][0]["message"]["content"] == "First."
        waiting = ask(client, "second")
        assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "model_loading")
        assert int(waiting.headers["retry-after"]) >= 1
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading model second")
        gate.set()
        until(lambda: statuses(client)["second"] == "loaded")
        assert client.get("/health").json() == {"status": "ok"}
        assert ask(client, "second").status_code == 200

        assert client.post("/v1/models/unload", json={"model": "first"}).json()["status"] == "unloaded"
        gone = ask(client, "first")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "model_unloaded")
        assert client.get("/health").status_code == 200, "a model that was put away is no trouble"
        assert client.post("/v1/models/load", json={"model": "first"}).status_code == 202
        until(lambda: statuses(client)["first"] == "loaded")
        assert ask(client, "first").status_code == 200
        assert client.post("/v1/models/load", json={"model": "third"}).status_code == 404
        assert client.post("/v1/models/load", json={"model": 5}).json()["error"]["param"] == "model"


def test_a_model_that_cannot_be_loaded_says_why(scripted):
    def broken():
        raise CheckpointError("there is no config.json")

    models = Models({"good": lambda: (scripted("Hi.", name="good"), None), "bad": broken})
    failures: list[Exception] = []
    models.on_failure = failures.append
    with TestClient(create_app(models)) as client:
        until(lambda: statuses(client) == {"good": "loaded", "bad": "failed"})
        assert "no config.json" in ask(client, "bad").json()["error"]["message"]
        assert ask(client, "good").status_code == 200
        assert "no config.json" in client.get("/health").json()["status"]
    assert [str(error) for error in failures] == ["there is no config.json"]


def test_unloading_lets_what_runs_come_to_its_end(scripted):
    engine = scripted("One two three. " * 9, name="only")
    engine.gate = threading.Semaphore(0)
    with TestClient(create_app(Models({"only": lambda: (engine, None)}))) as client:
        until(lambda: statuses(client)["only"] == "loaded")
        answers: list = []
        asking = threading.Thread(target=lambda: answers.append(ask(client, "only")))
        asking.start()
        until(lambda: bool(engine.prompts))
        unloading = threading.Thread(target=lambda: client.post("/v1/models/unload", json={"model": "only"}))
        unloading.start()
        until(lambda: statuses(client)["only"] == "unloading")
        assert ask(client, "only").json()["error"]["code"] == "model_unloading"
        engine.gate.release(1000)
        asking.join(20)
        unloading.join(20)
        assert answers[0].json()["choices"][0]["finish_reason"] == "stop"
        assert statuses(client)["only"] == "unloaded"


def test_a_server_that_stops_takes_nothing_new(scripted):
    app = create_app(scripted("Hi."))
    with TestClient(app) as client:
        app.state.server.draining = True
        assert ask(client).json()["error"]["code"] == "draining"
        assert client.get("/health").status_code == 503


def test_a_request_may_not_take_for_ever(scripted):
    engine = scripted("One two three. " * 9, "Next.")
    engine.gate = threading.Semaphore(2)
    with TestClient(create_app(engine, timeout=0.3)) as client:
        late = ask(client)
        assert (late.status_code, late.json()["error"]["type"]) == (504, "timeout_error")
        streamed = ask(client, stream=True).text
        assert "timeout_error" in streamed
        assert streamed.rstrip().endswith("data: [DONE]")
        engine.gate.release(1000)
        until(lambda: ask(client).status_code == 200)


def test_any_of_several_keys_opens(scripted):
    with TestClient(create_app(scripted("Hi."), settings=Settings(api_keys=("one", "two")))) as client:
        codes = [ask_with(client, {"Authorization": f"Bearer {key}"}) for key in ("one", "two", "three", "")]
        assert codes == [200, 200, 401, 401]
        assert ask_with(client, {"x-api-key": "two"}) == 200
        assert ask_with(client, {}) == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/health").status_code == 200, "whoever starts the server asks this without a key"


def ask_with(client, headers: dict[str, str]) -> int:
    return client.post("/v1/chat/completions", json={"model": "cabin", "messages": SAID}, headers=headers).status_code


def test_metrics_count_what_was_done(scripted):
    with TestClient(create_app(scripted("Hello."))) as client:
        before = metrics(client)
        assert before["fourleaf_requests_total"] == 0
        ask(client)
        ask(client, stream=True)
        ask(client, temperature=9)
        after = metrics(client)
    assert after["fourleaf_requests_total"] == 2
    assert after["fourleaf_completion_tokens_total"] == 2 * 7
    assert after["fourleaf_passes_total"] == 4
    assert after["fourleaf_first_block_seconds_count"] == 2
    assert after['fourleaf_tokens_per_forward_bucket{le="4.0"}'] == 2
    assert after['fourleaf_tokens_per_forward_bucket{le="3.0"}'] == 0
    assert after['fourleaf_tokens_per_forward_bucket{le="+Inf"}'] == 2
    assert after["fourleaf_loaded_models"] == 1


def metrics(client) -> dict[str, float]:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_log_line_says_who_and_what_but_not_the_words(scripted, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("fourleaf.requests").propagate = True
    engine = scripted("an answer of its own")
    with TestClient(create_app(engine, api_key="hush")) as client:
        headers = {"Authorization": "Bearer hush", "X-Request-Id": "mine-1"}
        body = {"model": "cabin", "messages": SAID}
        response = client.post("/v1/chat/completions", json=body, headers=headers)
        assert response.headers["x-request-id"] == "mine-1"
        other = client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "no good\x01" * 20})
        assert other.headers["x-request-id"].startswith("req_")
    lines = [json.loads(record.message) for record in caplog.records if record.name == "fourleaf.requests"]
    assert (lines[0]["id"], lines[0]["status"]) == ("mine-1", 200)
    assert (lines[0]["path"], lines[0]["model"], lines[0]["mode"]) == ("/v1/chat/completions", "cabin", "diffuse")
    assert lines[1]["status"] == 401
    for secret in ("secret", "hush", "answer of its own"):
        assert secret not in caplog.text


def test_files_of_the_page_have_a_log_line_where_something_is_wrong(scripted, caplog):
    caplog.set_level(logging.INFO)
    logging.getLogger("fourleaf.requests").propagate = True
    with TestClient(create_app(scripted("Hi."))) as client:
        for path in ("/", "/page/index.html", "/page/main.js"):
            assert client.get(path).status_code == 200
        assert not [record for record in caplog.records if record.name == "fourleaf.requests"]
        assert client.get("/page/none.js").status_code == 404
        assert client.get("/page/judgement").status_code == 200
        paths = [json.loads(r.message)["path"] for r in caplog.records if r.name == "fourleaf.requests"]
        assert paths == ["/page/none.js", "/page/judgement"]
        caplog.set_level(logging.DEBUG, "fourleaf.requests")
        client.get("/")
        assert json.loads(caplog.records[-1].message)["path"] == "/"


@pytest.mark.parametrize(("log", "level"), [("none", "WARNING"), ("requests", "INFO"), ("debug", "DEBUG")])
def test_the_log_says_as_much_as_it_is_told_to(log, level):
    requests, all_of_us = logging.getLogger("fourleaf.requests"), logging.getLogger("fourleaf")
    before = requests.level, requests.propagate, all_of_us.level
    try:
        listener.set_up_log(log)
        assert logging.getLevelName(requests.level) == level
    finally:
        requests.handlers.clear()  # they write to a stream that ends with this test
        requests.setLevel(before[0])
        requests.propagate = before[1]
        all_of_us.setLevel(before[2])


def sent_slowly(url: str, head: str, trickle: bytes) -> str:
    """What a server answers, until it hangs up, to a client that sends a byte now and then."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode())
        client.settimeout(0.1)
        said = b""
        for byte in trickle:
            try:
                said += (came := client.recv(65536))
                if not came:
                    return said.decode()
            except TimeoutError:
                pass
            except ConnectionError:  # it has hung up
                return said.decode()
            with suppress(OSError):  # the same
                client.sendall(bytes([byte]))
    raise AssertionError(f"the server still listens; so far it said {said!r}")


HEAD = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{{"


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", ("error", "type", "timeout_error")),
        ("/v1/messages", ("error", "type", "timeout_error")),
        ("/v1/systemone", ("detail", "error_type", "timeout")),
        ("/tokenize", ("error", "code", "body_too_slow")),
    ],
)
def test_a_body_that_trickles_in_is_a_408_and_the_end_of_its_connection(serve, scripted, path, shape):
    url = serve(scripted("Hi."), receive_seconds=0.5)
    said = sent_slowly(url, HEAD.format(path), b" " * 1000)
    head, _, body = said.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408 ")
    assert "connection: close" in head.lower()
    outer, name, value = shape
    assert json.loads(body)[outer][name] == value
    assert httpx2.get(f"{url}/health", timeout=30).status_code == 200


@pytest.mark.parametrize("head", ["", "POST /v1/chat/comp", HEAD.format("/v1/nothing/here")])
def test_who_keeps_a_connection_without_a_request_loses_it(serve, scripted, head):
    """Nothing at all, half a head, or the rest of a body that has been answered already."""
    said = sent_slowly(serve(scripted("Hi."), receive_seconds=0.5), head, b"x" * 1000)
    assert said == "" or said.startswith("HTTP/1.1 404 ")


def test_an_answer_may_take_longer_than_a_request(serve, scripted):
    engine = scripted("Hi.")
    engine.gate = threading.Semaphore(0)
    threading.Timer(1.5, engine.gate.release, (100,)).start()
    url = serve(engine, receive_seconds=0.3)
    body = {"model": "cabin", "messages": SAID}
    answered = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    assert answered["choices"][0]["message"]["content"] == "Hi."


def test_settings_come_from_a_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 9001\nmax-waiting = 5\nmodel = ["a", "b=c"]\n')
    assert read_config(file, {"port", "max_waiting", "model"}) == {
        "port": 9001,
        "max_waiting": 5,
        "model": ["a", "b=c"],
    }
    with pytest.raises(ConfigError, match="'port', which is no setting"):
        read_config(file, {"max_waiting", "model"})
    file.write_text("port = ")
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(file, set())


@pytest.fixture
def asked(monkeypatch):
    """What `fourleaf serve` would have listened on and served, without doing it."""
    seen: dict = {}

    class Stop(Exception):
        pass

    def bind(host: str, port: int):
        seen["address"] = (host, port)
        raise ConfigError("far enough")

    def settings(**fields):
        seen["settings"] = Settings(**fields)
        return seen["settings"]

    monkeypatch.setattr(listener, "bind", bind)
    monkeypatch.setattr("fourleaf.serve.settings.Settings", settings)
    return seen


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path, asked):
    file = tmp_path / "serve.toml"
    file.write_text('port = 9001\nhost = "127.0.0.2"\nmax-waiting = 5\ntimeout = 7.5\napi-key = ["k"]\n')
    environment = {"FOURLEAF_PORT": "9002", "FOURLEAF_HOST": "127.0.0.3", "FOURLEAF_CONFIG": str(file)}
    done = CliRunner().invoke(cli.app, ["serve", "--port", "9003"], env=environment)
    assert done.exit_code == 2
    assert asked["address"] == ("127.0.0.3", 9003)
    assert (asked["settings"].max_waiting, asked["settings"].timeout) == (5, 7.5)
    assert asked["settings"].api_keys == ("k",)


@pytest.mark.parametrize(
    "fields",
    [
        {"api_keys": ("two words",)},
        {"api_keys": ("",)},
        {"max_waiting": 0},
        {"timeout": 0.0},
        {"receive_seconds": 0.0},
        {"drain_seconds": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(fields):
    with pytest.raises(ConfigError):
        Settings(**fields)


def test_an_open_address_wants_a_key_or_a_word_that_it_is_meant():
    listener.check_host("127.0.0.1", ())
    listener.check_host("::1", ())
    listener.check_host("0.0.0.0", ("key",))
    listener.check_host("0.0.0.0", (), is_open=True)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.com"):
        with pytest.raises(ConfigError, match="FOURLEAF_API_KEY"):
            listener.check_host(host, ())


def test_no_page_of_another_origin_drives_the_server(scripted):
    """It could not read the answer; it could unload the model all the same."""
    engine = scripted("Hi.")
    with TestClient(create_app(engine), base_url="http://127.0.0.1:8000") as client:
        for origin in ("https://example.com", "null", "http://127.0.0.1:9999"):
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            refused = client.post("/v1/models/unload", content='{"model": "cabin"}', headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_refused")
        assert statuses(client) == {"cabin": "loaded"}
        own = client.post(
            "/v1/chat/completions",
            json={"model": "cabin", "messages": SAID},
            headers={"Origin": "http://127.0.0.1:8000"},
        )
        assert own.status_code == 200


def test_a_server_without_a_key_answers_to_its_own_names_alone(scripted):
    """A page whose name was pointed to 127.0.0.1 is of the same origin as the server."""
    assert listener.names("127.0.0.1", ()) == listener.LOOPBACK_NAMES
    assert listener.names("127.0.0.1", ("key",)) == listener.names("0.0.0.0", ()) == ()
    with TestClient(create_app(scripted("Hi."), hosts=listener.LOOPBACK_NAMES)) as client:
        body = {"model": "cabin", "messages": SAID}
        for host, status in (("evil.example:8000", 403), ("localhost:8000", 200), ("[::1]:8000", 200)):
            assert client.post("/v1/chat/completions", json=body, headers={"Host": host}).status_code == status


def test_headers_have_a_limit(serve, scripted):
    url = serve(scripted("Hi."))
    try:
        status = httpx2.get(f"{url}/health", headers={"X-Long": "a" * 200_000}, timeout=30).status_code
    except httpx2.TransportError:  # it hung up while we were still talking
        status = 0
    assert status in (0, 400, 431)
    assert httpx2.get(f"{url}/health", timeout=30).status_code == 200
