"""The commands about decisions: parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fourleaf.conversions import AsJson, Threads


def decide(
    state: Annotated[str, typer.Argument(help="What the questions are about; - reads it from stdin.")],
    ask: Annotated[
        list[str] | None,
        typer.Option(
            help='A question: "Is it fast?", "Which mode? eco | sport" or "How loud? low < high". Repeatable.'
        ),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="JSON file with questions as /v1/systemone takes them, or a whole request.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the bundled model by default.")] = None,
    joint: Annotated[bool, typer.Option("--joint", help="All on one canvas, each answer seeing the others.")] = False,
    passes: Annotated[int | None, typer.Option(help="--joint: denoise passes at most.")] = None,
    rotations: Annotated[int, typer.Option(help="Option orders to average over.")] = 1,
    enforce: Annotated[bool, typer.Option("--enforce", help="Obey the request's x_rules.")] = False,
    as_json: AsJson = False,
    threads: Threads = None,
) -> None:
    """Answer typed questions about a state, with probabilities.

    Example: fourleaf decide 'It is dark.' --ask 'Is it night?' --ask 'Which mode? eco | sport'
    """
    from fourleaf.checkpoint.files import read_json
    from fourleaf.decide.answers import answer_lines, wire_response
    from fourleaf.decide.decider import Decider
    from fourleaf.decide.questions import parse_request
    from fourleaf.decide.shorthand import typed_questions
    from fourleaf.engine import Engine, bundled_path
    from fourleaf.errors import RequestError

    document: dict[str, Any] = {} if questions is None else read_json(questions)
    if "questions" not in document:
        document = {"questions": document}
    document["questions"] = document["questions"] | typed_questions(ask or [])
    if not document["questions"]:
        raise RequestError("Nothing is asked: give --ask or --questions.", param="ask")
    given = {"x_joint": joint or None, "x_passes": passes, "x_rotations": rotations, "x_enforce": enforce or None}
    document |= {name: value for name, value in given.items() if value is not None}
    text = sys.stdin.read() if state == "-" else state
    request = parse_request({"model": "", **document, "state": text})
    engine = Engine.load(model or bundled_path(), num_threads=threads)
    decision = Decider.of(engine).decide(request)
    if as_json:
        print(json.dumps(wire_response(decision, request, engine.name), ensure_ascii=False))
    else:
        print("\n".join(answer_lines(decision)))


def calibrate(
    model: Annotated[Path, typer.Argument(help="Checkpoint folder; decisions.json is written into it.")],
    data: Annotated[
        Path | None,
        typer.Option(help='JSON lines of {"state", "questions", "answers"}; judgements by default.'),
    ] = None,
    groups: Annotated[int, typer.Option(min=20, max=500, help="How many groups of judgements to fit on.")] = 300,
    picture: Annotated[Path | None, typer.Option(help="Write a reliability diagram to this SVG file.")] = None,
    threads: Threads = None,
) -> None:
    """Fit the temperatures that make a model's decisions mean what they say.

    Example: fourleaf calibrate runs/cabin/model
    """
    from fourleaf.measure.temperatures import main_calibrate

    main_calibrate(
        model, data=data, groups=groups, picture=picture, num_threads=threads, out=sys.stdout, progress=sys.stderr
    )
