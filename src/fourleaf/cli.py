"""The commands: parse, call, print. What they call is imported when they run, so that --help answers at once."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from fourleaf import conversions, decisions, listings, serving, training
from fourleaf.conversions import AsJson, Threads
from fourleaf.errors import FourleafError

if TYPE_CHECKING:
    from fourleaf.engine.request import Decoder, GenerateParams

USER_ERROR = 2
DEFAULT_THRESHOLD = 0.95  # the engine's, which --help must not load
INTERRUPTED = 130


class _Commands(TyperGroup):
    """A user's mistake is one line on stderr and exit code 2, never a traceback."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except TyperException as error:
            _fail(error.format_message())
        except FourleafError as error:
            _fail(str(error))
        except (KeyboardInterrupt, Abort):
            code = INTERRUPTED
        sys.exit(code)


def _fail(message: str) -> NoReturn:
    print(f"fourleaf: {' '.join(message.split()).replace('Value error, ', '')}", file=sys.stderr)
    sys.exit(USER_ERROR)


app = typer.Typer(
    cls=_Commands,
    name="fourleaf",
    help="Block diffusion language models: train, serve and measure them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Scored(StrEnum):
    """What test sets exist for."""

    cabin = "cabin"
    judgements = "judgements"
    sudoku = "sudoku"


Model = Annotated[Path | None, typer.Option("--model", help="Checkpoint folder; the bundled model by default.")]
Mode = Annotated[
    str | None,
    typer.Option(
        help="ar: one token a forward. draft (the default): the same tokens, proposed in blocks and verified. "
        "diffuse: blocks, several tokens a forward. auto: for each block the cheapest."
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help=f"diffuse: a pass reveals what is more certain than this, 0 to 1; {DEFAULT_THRESHOLD} by default."
    ),
]
Grammar = Annotated[
    bool,
    typer.Option(
        "--grammar/--no-grammar",
        help="Hold answers to text or calls of the tools in the model's weights, if it has any.",
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="With a temperature: same seed, same answer.")]
MaxTokens = Annotated[int | None, typer.Option(help="Limit of an answer, in tokens.")]
Show = Annotated[bool, typer.Option("--show", help="Draw the canvas on stderr while it fills.")]
Delay = Annotated[float, typer.Option(min=0, max=10, help="With --show: seconds to rest on each pass.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fourleaf {version('fourleaf')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version_: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _load(model: Path | None, threads: int | None) -> tuple[Decoder, list[dict[str, Any]] | None]:
    """The engine, and the tools in its model's weights."""
    from fourleaf.checkpoint.tools import fixed_tools
    from fourleaf.engine import Engine, bundled_path

    path = model or bundled_path()
    return Engine.load(path, num_threads=threads), fixed_tools(path)


def _params(
    mode: str | None, threshold: float | None, temperature: float, seed: int, *, grammar: bool
) -> GenerateParams:
    """What the options say. Raises RequestError for a value outside its limits."""
    from fourleaf.engine.request import GenerateParams

    given = {name: value for name, value in (("mode", mode), ("threshold", threshold)) if value is not None}
    return GenerateParams(temperature=temperature, seed=seed, grammar=grammar, **given)  # type: ignore[arg-type]


def _of_engine(params: GenerateParams, engine: Decoder, mode: str | None, threshold: float | None) -> GenerateParams:
    """The same, in the model's own mode where none was named."""
    from fourleaf.serve.capabilities import abilities

    named = ("threshold",) if threshold is not None else ()
    return params if mode is not None else replace(params, mode=abilities(engine).mode_for(named))  # type: ignore


@app.command()
def run(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")],
    model: Model = None,
    mode: Mode = None,
    threshold: Threshold = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    max_tokens: MaxTokens = None,
    grammar: Grammar = True,
    threads: Threads = None,
    as_json: AsJson = False,
    show: Show = False,
    delay: Delay = 0.08,
) -> None:
    """Answer one request, and say how fast it was.

    Example: fourleaf run 'open all windows' --mode diffuse --show
    """
    from fourleaf.serve.conversation import Conversation
    from fourleaf.serve.terminal import CanvasView, answer_lines, speed_line

    # Checked before the model is loaded: a mistake should not have to wait.
    params = _params(mode, threshold, temperature, seed, grammar=grammar)
    said = sys.stdin.read().strip() if text == "-" else text
    engine, tools = _load(model, threads)
    params = _of_engine(params, engine, mode, threshold)
    view = CanvasView(engine.tokenizer, sys.stderr, delay) if show else nullcontext()
    with view as canvas:
        answer = Conversation(engine, tools, params, max_tokens).say(said, canvas.show if canvas else None)
    if as_json:
        print(json.dumps(answer.document(), ensure_ascii=False))
    else:
        print("\n".join(answer_lines(answer.message)))
    print(speed_line(answer.finish, params), file=sys.stderr)


@app.command()
def chat(
    model: Model = None,
    mode: Mode = None,
    threshold: Threshold = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    max_tokens: MaxTokens = None,
    grammar: Grammar = True,
    threads: Threads = None,
    show: Show = False,
    delay: Delay = 0.08,
) -> None:
    """Talk to a model. /clear forgets what was said; /quit or Ctrl-D ends.

    Example: fourleaf chat --mode auto --temperature 0.7
    """
    from fourleaf.errors import RequestError
    from fourleaf.serve.conversation import Conversation
    from fourleaf.serve.terminal import CanvasView, answer_lines, said_lines, speed_line

    params = _params(mode, threshold, temperature, seed, grammar=grammar)
    engine, tools = _load(model, threads)
    params = _of_engine(params, engine, mode, threshold)
    conversation = Conversation(engine, tools, params, max_tokens)
    for said in said_lines(sys.stdin):
        if said == "/quit":
            break
        if said == "/clear":
            conversation.clear()
            continue
        try:
            with CanvasView(engine.tokenizer, sys.stderr, delay) if show else nullcontext() as canvas:
                answer = conversation.say(said, canvas.show if canvas else None)
        except RequestError as error:
            print(f"fourleaf: {error}", file=sys.stderr)
            continue
        print("\n".join(answer_lines(answer.message)))
        print(speed_line(answer.finish, params), file=sys.stderr)


@app.command("eval")
def evaluate(
    task: Annotated[Scored, typer.Argument(help="What to score on.")],
    set_: Annotated[
        str,
        typer.Option(
            "--set",
            help="fillers, patterns or dev; coupled, control, twin, copy, unknowable or ninth, several with commas "
            "between; 4x4 or 9x9; or all.",
        ),
    ] = "all",
    mode: Annotated[str, typer.Option(help="ar, diffuse or both.")] = "both",
    n: Annotated[int | None, typer.Option(min=1, help="Only the first n examples of each set.")] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(help=f"diffuse: 0 to 1, {DEFAULT_THRESHOLD} by default; several times to compare several."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Limit of an answer, in tokens.")] = 512,
    grammar: Grammar = True,
    model: Model = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    failures: Annotated[Path | None, typer.Option(help="Write each wrong answer to this file, as JSON lines.")] = None,
    draw: Annotated[
        int | None,
        typer.Option(min=0, help="judgements, sudoku: seed of the test set; the public one by default."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="judgements: write a bar chart to this SVG file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap's resamples.")] = 0,
    threads: Threads = None,
) -> None:
    """Score a model on held-out examples: exact match by mode and tag, groups of judgements by arm, or puzzles.

    Example: fourleaf eval cabin --set patterns --mode both --n 200
    """
    common: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "num_threads": threads,
        "json_file": json_,
        "out": sys.stdout,
        "progress": sys.stderr,
    }
    if task is Scored.judgements:
        from fourleaf.measure.judgements import main_judgements

        main_judgements(set_, draw=draw, limit=n, picture=picture, **common)
    elif task is Scored.sudoku:
        from fourleaf.measure.sudoku import main_sudoku

        main_sudoku(set_, draw=draw, count=n, **common)
    else:
        from fourleaf.measure.evaluate import main_eval

        thresholds = threshold or [DEFAULT_THRESHOLD]
        options = {"limit": n, "max_tokens": max_tokens, "grammar": grammar, "failures_file": failures}
        main_eval(set_, mode, thresholds, **options, **common)


@app.command()
def bench(
    n: Annotated[int, typer.Option(min=1, help="Prompts of each set.")] = 50,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="fillers, patterns (by default), dev, copying, random; several times for several."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="ar, draft, diffuse, auto, 'mixed auto'; 'held ar', 'held draft', 'held diffuse' under the grammar of "
            "the model's tools; several times for several, all by default."
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="diffuse: a pass reveals what is more certain than this, 0 to 1.")
    ] = DEFAULT_THRESHOLD,
    max_tokens: Annotated[int, typer.Option(help="Limit of an answer, in tokens.")] = 512,
    goodput: Annotated[
        float, typer.Option(min=0, help="Seconds for each arm at 1, 4 and 16 requests at once; 0 leaves that out.")
    ] = 3.0,
    verify: Annotated[int, typer.Option(min=0, help="Prompts on which draft must give the tokens of ar.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads, of every arm.")] = 1,
    transformers: Annotated[
        bool, typer.Option("--transformers/--no-transformers", help="Time the same weights in transformers, too.")
    ] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a forward goes.")] = False,
    model: Model = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap's resamples.")] = 0,
) -> None:
    """Measure speed: every mode against ar, ar against transformers, on the same weights and prompts.

    Example: fourleaf bench --n 20 --arm ar --arm draft
    """
    from fourleaf.measure.benchmark import Asked, main_bench

    default = Asked()
    asked = Asked(
        sets=tuple(set_ or default.sets),
        count=n,
        arms=tuple(arm or default.arms),
        threshold=threshold,
        max_tokens=max_tokens,
        goodput_seconds=goodput,
        verified=verify,
        with_transformers=transformers,
        with_profile=profile,
        seed=seed,
    )
    if not main_bench(asked, model=model, num_threads=threads, json_file=json_, out=sys.stdout, progress=sys.stderr):
        raise typer.Exit(1)


for command in (
    training.train,
    serving.serve,
    *(listings.ls, listings.show, listings.doctor),
    *(conversions.quantize, conversions.convert, conversions.pull, conversions.plan),
    *(decisions.decide, decisions.calibrate),
):
    app.command()(command)


if __name__ == "__main__":
    app()
