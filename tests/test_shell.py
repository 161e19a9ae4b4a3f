"""What a shell's user leans on: examples in the help that can be run as they stand, and completion."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from fourleaf import cli

COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_whose_words_the_command_takes(name):
    example = re.search(r"Example: fourleaf (.+)", COMMANDS[name].help)
    assert example is not None
    words = shlex.split(example[1])
    assert words[0] == name
    COMMANDS[name].make_context(name, words[1:])  # raises where it has no such option, or wants more


def test_a_shell_completes_commands_and_options():
    """As bash asks, once `fourleaf --install-completion` has told it how."""

    def completed(*words: str) -> list[str]:
        asked = {
            "_FOURLEAF_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        program = "import sys; sys.argv = ['fourleaf']; from fourleaf.cli import app; app(prog_name='fourleaf')"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **asked}
        )
        return done.stdout.split()

    assert completed("fourleaf", "se") == ["serve"]
    assert "--max-waiting" in completed("fourleaf", "serve", "--max")
