"""Answers a list of utterances in both modes, right or wrong, as a Markdown page.

    python scripts/tryout.py docs/tryout.txt > docs/tryout.md

The list was written without looking at the generator or at any test set; nothing was taken out of it afterwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fourleaf.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams, Mode

MODES: tuple[Mode, ...] = ("diffuse", "ar")


def answers(engine: Engine, utterances: list[str], mode: Mode) -> list[str]:
    """The markup of each answer, its calls on lines of their own."""
    prompts = [engine.chat.render([{"role": "user", "content": text}]) for text in utterances]
    done = engine.generate_many(prompts, GenerateParams(mode=mode, max_tokens=300))
    texts = [engine.tokenizer.decode(ids) for ids, _ in done]
    return [text.replace("<tool_call>", "").replace("</tool_call>", "\n").strip() for text in texts]


def main() -> None:
    """Reads the command line, prints the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("utterances", type=Path, help="one a line")
    parser.add_argument("--model", type=Path, default=bundled_path(), help="checkpoint folder")
    arguments = parser.parse_args()
    utterances = arguments.utterances.read_text(encoding="utf-8").splitlines()
    engine = Engine.load(arguments.model)
    found = {mode: answers(engine, utterances, mode) for mode in MODES}
    print("# Utterances as a new user would write them\n")
    print(f"`python scripts/tryout.py {arguments.utterances}`: every answer, right or wrong.")
    for number, text in enumerate(utterances):
        print(f"\n## {number + 1}. {text}")
        same = len({found[mode][number] for mode in MODES}) == 1
        for mode in MODES[:1] if same else MODES:
            print(f"\n{'diffuse and ar' if same else mode}\n\n```\n{found[mode][number]}\n```")


if __name__ == "__main__":
    main()
