"""Streams that show the canvas: typed events and Mercury's snapshots."""

import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from fourleaf.engine.request import Frame
from fourleaf.serve.capabilities import ALL_FIELDS, Abilities
from fourleaf.serve.events import View
from fourleaf.serve.openai import Prepared
from fourleaf.serve.tools import Offer
from fourleaf.tasks.cabin.schema import TOOLS

SAID = [{"role": "user", "content": "hi"}]
BODY = {"model": "cabin", "messages": SAID}
DOCS = Path(__file__).parents[2] / "docs" / "streaming.md"


def events(url: str, **fields) -> list[tuple[str, dict]]:
    response = httpx2.post(f"{url}/v1/chat/events", json=BODY | fields, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.fixture
def answer(call_text) -> str:
    return "<think>hm</think>Ça va? Let me see what can be done here." + call_text("set_ac", on=True)


def slow(engine):
    """Every pass takes long enough to be shown."""
    inner = engine._pass

    def passed() -> None:
        time.sleep(0.04)
        inner()

    engine._pass = passed
    return engine


def test_the_order_of_events(serve, scripted, answer):
    found = events(serve(slow(scripted(answer))))
    names = [name for name, _ in found]
    assert names[0] == "start"
    assert names[-3:] == ["tool_call", "usage", "done"]
    assert set(names[1:-3]) == {"frame", "commit"}
    assert found[0][1]["model"] == "cabin"
    commits = [data for name, data in found if name == "commit"]
    assert "".join(data["content"] for data in commits) == "Ça va? Let me see what can be done here."
    assert "".join(data["reasoning"] for data in commits) == "hm"
    starts = [data["position"] for data in commits]
    assert starts == [sum(data["tokens"] for data in commits[:at]) for at in range(len(commits))]
    assert all(len(data["cells"]) == data["tokens"] and "confidence" not in data for data in commits)
    assert "".join(cell for data in commits for cell in data["cells"]).startswith("<think>hm</think>\ufffd\ufffda va?")
    call = next(data for name, data in found if name == "tool_call")
    assert (call["index"], call["name"], json.loads(call["arguments"])) == (0, "set_ac", {"on": True})
    assert found[-2][1]["fourleaf"]["mode"] == "diffuse"
    assert found[-1][1] == {"finish_reason": "tool_calls"}


def test_frames_add_up_to_what_is_committed(serve, scripted, byte_tokenizer):
    text = "One two three. " * 9
    found = events(serve(slow(scripted(text))))
    blocks: dict[int, list] = {}
    for name, data in found:
        if name == "frame":
            canvas = blocks.setdefault(data["block"], [None] * data["rows"])
            assert data["position"] == 32 * data["block"]
            for row, cell in data["cells"]:
                canvas[row] = cell
    assert all(cell is not None for canvas in blocks.values() for cell in canvas)
    assert "".join(cell for canvas in blocks.values() for cell in canvas) == text


def test_commits_say_how_sure_the_model_was_where_logprobs_are_asked_for(serve, scripted):
    engine = scripted("Let me see.")
    engine.abilities = Abilities(fields=ALL_FIELDS)
    commits = [data for name, data in events(serve(engine), logprobs=True) if name == "commit"]
    assert commits
    for data in commits:
        assert len(data["confidence"]) == len(data["passes"]) == data["tokens"]
        assert all(0 < one <= 1 for one in data["confidence"])


def test_at_most_thirty_frames_a_second(serve, scripted):
    engine = scripted("x" * 3000)
    began = time.monotonic()
    found = events(serve(engine), max_tokens=3000)
    seconds = time.monotonic() - began
    frames = sum(name == "frame" for name, _ in found)
    assert 1 <= frames <= 30 * seconds + 2
    assert engine.passes > frames or seconds > 5


def test_frames_are_differences(byte_tokenizer):
    view = View(byte_tokenizer, Prepared([1, 2], [], Offer(None, None)))
    a, b, c = byte_tokenizer.encode("abc")

    def cells(block: int, tokens: tuple, masked: str) -> list:
        frame = Frame(block, 2 + 3 * block, 0, tokens, tuple(mark == "#" for mark in masked))
        ((name, data),) = view.events(frame)
        assert (name, data["position"], data["rows"]) == ("frame", 3 * block, 3)
        return data["cells"]

    assert cells(0, (a, b, c), ".##") == [[0, "a"]]
    assert cells(0, (a, b, c), ".##") == []
    assert cells(0, (b, b, c), ".#.") == [[0, "b"], [2, "c"]]
    assert cells(0, (b, b, c), "##.") == [[0, None]]
    assert cells(1, (b, byte_tokenizer.end_id, c), "..#") == [[0, "b"], [1, ""]]


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_an_infilling_is_shown_whose_canvas_changes_its_length(tiny_engine, serve, monkeypatch, mode):
    """A walk shows a row more at each step, and each filling that is tried has a length of its own."""
    monkeypatch.setattr("fourleaf.serve.server.MAX_FRAMES_PER_SECOND", 1e9)
    template = ["ab", {"gap": {"max_tokens": 5}}, "cd ", {"gap": {"max_tokens": 3}}, "€!"]
    url = serve(tiny_engine(96), fixed_tools=None)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "infill": template, "mode": mode}
    found = events(url, **asked)
    assert found[-1][0] == "done", found[-1]
    whole = httpx2.post(f"{url}/v1/chat/completions", json=asked, timeout=30).json()
    said = "".join(data["content"] for name, data in found if name == "commit")
    assert said == whole["choices"][0]["message"]["content"]


def test_a_canvas_of_another_length_is_a_new_one(byte_tokenizer):
    view = View(byte_tokenizer, Prepared([1, 2], [], Offer(None, None)))
    a, b, c = byte_tokenizer.encode("abc")

    def cells(*tokens: int) -> list:
        ((_, data),) = view.events(Frame(0, 2, 0, tokens, (False,) * len(tokens)))
        assert data["rows"] == len(tokens)
        return data["cells"]

    assert cells(a) == [[0, "a"]]
    assert cells(a, b) == [[0, "a"], [1, "b"]]
    assert cells(a, c) == [[1, "c"]]
    assert cells(c) == [[0, "c"]]


def test_errors_come_before_the_stream_or_as_an_event(serve, scripted):
    engine = scripted("One two three. " * 9)
    url = serve(engine)
    for fields, param in (({"n": 2}, "n"), ({"messages": []}, "messages"), ({"mode": "odd"}, "mode")):
        response = httpx2.post(f"{url}/v1/chat/events", json=BODY | fields, timeout=30)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    engine.fault_at = 3
    name, data = events(url)[-1]
    assert (name, data["error"]["type"]) == ("error", "server_error")


def test_the_client_in_the_docs_runs(serve, scripted, tmp_path, call_text):
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 36
    program = tmp_path / "client.py"
    program.write_text(code[1], encoding="utf-8")
    url = serve(slow(scripted("Ça va. " * 9 + call_text("set_ac", on=True))))
    done = subprocess.run(
        [sys.executable, str(program), url, "hi"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n" + "Ça va. " * 9 + 'set_ac({"on": true})\n\n'
    assert "░" in done.stderr


def snapshots(url: str, **fields) -> list[dict]:
    response = httpx2.post(
        f"{url}/v1/chat/completions", json=BODY | {"stream": True, "diffusing": True} | fields, timeout=30
    )
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]


def test_snapshots_replace_and_the_last_one_is_the_answer(serve, scripted):
    text = "Ça va? " * 9
    url = serve(slow(scripted(text)))
    choices = snapshots(url)
    drawn = [choice for choice in choices if "diffusion" in choice]
    assert drawn[-1]["delta"]["content"] == text
    assert drawn[-1]["diffusion"]["provisional"] is False
    assert all(choice["diffusion"]["provisional"] for choice in drawn[:-1])
    assert len(drawn) > 3
    for choice in drawn[:-1]:
        content, masked = choice["delta"]["content"], choice["diffusion"]["masked"]
        assert content.count("░") == masked
        shown = content.split("░")[0].rstrip("\ufffd")
        assert text.startswith(shown)
    assert choices[-1]["finish_reason"] == "stop"
    assert "diffusion" not in choices[-1]


def test_snapshots_hold_no_markup_and_calls_come_when_they_are_whole(serve, scripted, answer):
    choices = snapshots(serve(slow(scripted(answer))))
    texts = [choice["delta"].get("content") or "" for choice in choices]
    assert not any(mark in text for text in texts for mark in ("<think>", "hm", "tool_call", "set_ac"))
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 0]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_without_a_canvas_the_pieces_are_snapshots(serve, scripted):
    engine = scripted("One two three. " * 4)
    generate = engine.generate
    engine.generate = lambda ids, params, observe=None: generate(ids, params, None)
    drawn = [choice for choice in snapshots(serve(engine), mode="ar") if "diffusion" in choice]
    texts = [choice["delta"]["content"] for choice in drawn]
    assert texts[-1] == "One two three. " * 4
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_tools_are_offered_here_as_elsewhere(serve, scripted, call_text):
    found = events(serve(scripted(call_text("set_window", window="all", position=0))), tools=TOOLS[-2:])
    assert "tool_call" not in [name for name, _ in found]
