"""The commands about decisions, run on the bundled model."""

import io
import json

import pytest

from fourleaf import cli

STATE = "The car drives at 96 km/h."
REQUEST = {
    "questions": {"night": {"type": "noul", "instructions": "Is it night?"}},
    "x_rules": [{"if": {"question": "night", "is": True}, "then": {"question": "q1", "is": "eco"}}],
}


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process; gives its exit code and what it printed."""

    def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.app(list(words))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_questions_as_they_are_typed_are_answered_for_people(command):
    code, printed, said = command("decide", STATE, "--ask", "Is the car fast?", "--ask", "Which mode? eco | sport")
    assert code == 0, said
    lines = printed.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["q1", "q2"]
    assert "%" in lines[0]


def test_a_whole_request_from_a_file_is_answered_as_json(command, tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST), encoding="utf-8")
    words = ("--questions", str(path), "--ask", "Which mode? eco | sport", "--joint", "--enforce", "--json")
    code, printed, said = command("decide", "-", *words, stdin=STATE)
    assert code == 0, said
    body = json.loads(printed)
    assert [*body["answers"]] == ["night", "q1"]
    assert body["x_rules"]["obeyed"]
    assert 0 < body["x_joint"]["p"] <= 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("decide", STATE), "--ask"),
        (("decide", STATE, "--ask", "Which? a | a"), "twice"),
        (("decide", STATE, "--ask", "Fast?", "--passes", "2"), "x_passes"),
        (("decide", STATE, "--ask", "Fast?", "--enforce"), "x_rules"),
        (("calibrate", "nowhere", "--data", "missing.jsonl"), "missing.jsonl"),
        (("eval", "judgements", "--set", "dev"), "coupled"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(command, args, words):
    code, printed, said = command(*args)
    assert (code, printed, len(said.splitlines())) == (2, "", 1)
    assert words in said
