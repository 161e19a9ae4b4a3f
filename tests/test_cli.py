"""The commands, run as a user runs them where that is possible without a model, else in this process."""

import json
import socket
import subprocess
import sys

import pytest

from fourleaf import cli
from fourleaf.tasks.cabin.schema import TOOLS


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    program = [sys.executable, "-m", "fourleaf.cli", *words]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error", "COLUMNS": "200", **environment}
    return subprocess.run(program, capture_output=True, text=True, timeout=120, env=variables)


@pytest.fixture
def mistake(capsys):
    """Runs a command in this process that a user got wrong; gives the one line that says so."""

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.app(list(words))
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (2, ""), printed
        assert len(printed.err.splitlines()) == 1, printed.err
        return printed.err

    return run


@pytest.fixture
def invoke(scripted, monkeypatch, capsys):
    """Runs a command in this process, with an engine that answers what it is told to."""

    def run(engine, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cli, "_load", lambda model, threads: (engine, TOOLS))
        with pytest.raises(SystemExit) as ended:
            cli.app(list(words))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_help_names_every_command_and_needs_no_torch():
    program = "import sys\nfrom fourleaf import cli\ntry: cli.app(['--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    for name in ("run", "chat", "serve", "eval", "bench", "train", "quantize"):
        assert f"\n  {name} " in done.stdout


def test_without_a_command_there_is_help():
    done = command()
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_the_version_is_printed():
    assert command("--version").stdout.startswith("fourleaf 0.")


def test_a_mistake_ends_the_process_with_2_and_one_line():
    done = command("run", "hi", "--colour")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fourleaf: No such option: --colour\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["fly"], "fly"),
        (["run"], "'text'"),
        (["run", "hi", "--colour"], "--colour"),
        (["quantize", "nowhere", "new", "--group", "48"], "group_size is 48; it must be one of 32, 64, 128"),
        (["quantize", "nowhere", "new", "--scheme", "awq"], "method is 'awq'; it must be one of rtn, gptq"),
        (["quantize", "nowhere", "new"], "there is no nowhere/config.json"),
        (["convert", "nowhere", "new"], "there is no nowhere/config.json"),
        (["run", "hi", "--mode", "fast"], "ar, draft, diffuse"),
        (["run", "hi", "--threshold", "2"], "threshold"),
        (["run", "hi", "--temperature", "-1"], "temperature"),
        (["run", "hi", "--seed", "-1"], "seed"),
        (["run", "hi", "--threads", "0"], "--threads"),
        (["chat", "--mode", "fast"], "ar, draft, diffuse"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--host", "0.0.0.0"], "FOURLEAF_API_KEY"),
        (["serve", "--host", "nowhere.invalid", "--api-key", "k"], "nowhere.invalid"),
        (["serve", "--api-key", ""], "API key"),
        (["serve", "--api-key", "two words"], "API key"),
    ],
)
def test_a_users_mistake_is_one_line(mistake, words, part):
    assert part in mistake(*words)


def test_a_port_in_use_is_said_before_the_model_is_loaded(mistake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        message = mistake("serve", "--port", port, "--model", "missing")
    assert f"127.0.0.1:{port}" in message
    assert "--port" in message


def test_run_prints_the_calls_and_the_speed(invoke, scripted, call_text):
    answer = call_text("set_window", window="rear_left", position=20) + call_text("set_ac", on=True)
    code, out, err = invoke(scripted(answer), "run", "open up")
    assert code == 0
    assert out == 'set_window(window="rear_left", position=20)\nset_ac(on=true)\n'
    assert "TPF" in err
    assert "tokens/s" in err


def test_run_prints_json(invoke, scripted, call_text):
    engine = scripted(call_text("set_ac", on=True))
    code, out, _ = invoke(engine, "run", "cool", "--json", "--mode", "ar", "--max-tokens", "400", "--show")
    assert code == 0
    document = json.loads(out)
    assert document["tool_calls"] == [{"name": "set_ac", "arguments": {"on": True}}]
    assert document["usage"]["fourleaf"]["mode"] == "ar"
    assert engine.params[0].max_tokens == 400


def test_run_shows_the_canvas_beside_the_answer(invoke, scripted):
    _, out, err = invoke(scripted("Which one?"), "run", "call", "--show")
    assert out == "Which one?\n"
    assert err.splitlines()[0].startswith("block 0 pass 0: Which░")


def test_run_reads_standard_input(invoke, scripted, monkeypatch):
    import io

    engine = scripted("Hi.")
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    invoke(engine, "run", "-")
    assert engine.prompts[0].startswith("<|user|>from a pipe<|system|>")


def test_too_long_a_request_is_a_users_mistake(invoke, scripted):
    code, out, err = invoke(scripted("Hi.", max_context=50), "run", "x" * 100)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "50 tokens" in err


def test_chat_goes_on_until_quit(invoke, scripted, monkeypatch):
    import io

    engine = scripted("One.", "Two.", "Three.")
    lines = f"first\n\n{'x' * 900}\nsecond\n/clear\nthird\n/quit\nfourth\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    engine.max_context = 1000
    code, out, err = invoke(engine, "chat")
    assert code == 0
    assert out.split() == ["One.", "Two.", "Three."]
    assert "Shorten" in err
    assert "first" in engine.prompts[1]
    assert engine.prompts[2].startswith("<|user|>third<|system|>")


def test_ctrl_c_is_no_traceback(invoke, scripted, monkeypatch):
    engine = scripted("Hi.")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    engine.generate = interrupted
    code, _, err = invoke(engine, "run", "hi")
    assert code == 130
    assert "Traceback" not in err


def test_the_commands_default_threshold_is_the_engines():
    from fourleaf.engine.request import DEFAULT_THRESHOLD

    assert cli.DEFAULT_THRESHOLD == DEFAULT_THRESHOLD
