"""What speed is measured on: prompts, how they are to be answered, and what is right where anything is.

The cabin's test sets are predictable: of an answer's tokens, most are markup, names of tools and choices. `copying` has
requests whose answers are mostly names, places and messages that no training example held. `random` has prompts of
random tokens, continued at a high temperature and without the tokens that begin a call or end an answer: little can be
foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError
from fourleaf.measure.evaluate import SETS, examples_of
from fourleaf.tasks.cabin.compose import Composer, make_side
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.phrases import corpus, held_out
from fourleaf.tasks.cabin.schema import FREE_TEXT, Example, answer_text, messages, same_answer
from fourleaf.tasks.cabin.testsets import copied_values

COPYING, RANDOM = "copying", "random"
NAMES = (*SETS, COPYING, RANDOM)

# Of an answer's characters, what must be copied; a name takes several tokens and a tool's name one or two, so this is
# more than half of the tokens.
COPIED_SHARE = 0.2
RANDOM_PROMPT_TOKENS = 32
RANDOM_ANSWER_TOKENS = 64
# At 1, a model that knows little but calls comes back to them whatever the prompt is.
RANDOM_TEMPERATURE = 2.0
NEVER = -100.0


@dataclass(frozen=True)
class Workload:
    """examples: one a prompt, with the right answer; None where no answer is right or wrong."""

    name: str
    prompts: list[list[int]]
    examples: list[Example] | None
    params: GenerateParams

    def of(self, index: int, params: GenerateParams) -> GenerateParams:
        """How prompt `index` is answered: each has random numbers of its own."""
        return replace(params, choice=index) if params.temperature else params

    def is_right(self, engine: Engine, index: int, tokens: list[int]) -> bool:
        """tokens: an answer, with or without its end token. Only where there are examples."""
        assert self.examples is not None
        told = tokens[:-1] if tokens[-1:] == [engine.end_id] else tokens
        return same_answer(self.examples[index], engine.tokenizer.decode(told))


def check_workload(name: str) -> None:
    """Raises ConfigError where there is no workload of this name."""
    if name not in NAMES:
        raise ConfigError(f"there is no set {name!r}; choose {', '.join(NAMES)}")


def workload(engine: Engine, name: str, count: int, params: GenerateParams) -> Workload:
    """The first `count` prompts of a workload, to be answered by `params`. Raises ConfigError for an unknown one."""
    check_workload(name)
    if name == RANDOM:
        limit = min(params.max_tokens, RANDOM_ANSWER_TOKENS)
        never = tuple((token, NEVER) for token in sorted(_controls(engine)))
        drawn = replace(params, temperature=RANDOM_TEMPERATURE, max_tokens=limit, logit_bias=never)
        return Workload(name, list(islice(_random_prompts(engine), count)), None, drawn)
    examples = list(islice(copying(), count)) if name == COPYING else examples_of(name, count)
    return Workload(name, [engine.chat.render(messages(e)) for e in examples], examples, params)


def copying() -> Iterator[Example]:
    """Endless requests of one or two calls from the held-out side of names, places, titles and messages, each of whose
    copied texts is unseen, and whose answers are mostly copied. Always the same ones in the same order."""
    random = Random("copying")
    material = corpus(additions=False)
    fillers = Fillers(material, unseen=True)
    composer = Composer(make_side(material, lambda text: not held_out(text), fillers))
    seen: set[str] = set()
    while True:
        example = composer.example(random, random.choice((1, 1, 2)), repair=False, typo=False)
        is_unseen = copied_values([example]) <= fillers.drawn  # patterns and whole utterances hold some, too
        if is_unseen and copied_share(example) >= COPIED_SHARE and example.utterance not in seen:
            seen.add(example.utterance)
            yield example


def copied_share(example: Example) -> float:
    """Of the answer's characters, the part that stands in the utterance as it does in the answer."""
    copied = [str(v) for c in example.calls for name, v in c.arguments.items() if (c.name, name) in FREE_TEXT]
    return sum(map(len, copied)) / len(answer_text(example))


def _random_prompts(engine: Engine) -> Iterator[list[int]]:
    """Endless prompts of ordinary tokens, each as likely as any other."""
    random = Random(RANDOM)
    controls = _controls(engine)
    ordinary = [token for token in range(engine.tokenizer.vocab_size) if token not in controls]
    while True:
        yield random.choices(ordinary, k=RANDOM_PROMPT_TOKENS)


def _controls(engine: Engine) -> set[int]:
    masks = [] if engine.mask_id is None else [engine.mask_id]
    return {*engine.tokenizer.controls.values(), engine.end_id, *masks}
