"""Held-out exact match during a run: patterns that neither training nor a test set draws in this form, and groups of
judgements of a seed that training does not use.

Decoded by the engine, many prompts at once, so that what is watched is what will be served.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import parse_request
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.model.transformer import Transformer
from fourleaf.tasks.cabin.compose import Composer, make_side
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.generator import draw
from fourleaf.tasks.cabin.phrases import corpus, held_out
from fourleaf.tasks.cabin.schema import Example, messages, same_answer
from fourleaf.tasks.judgements.difficulty import SIZES
from fourleaf.tasks.judgements.generator import FAMILIES
from fourleaf.tasks.judgements.generator import draw as draw_group
from fourleaf.tasks.judgements.group import Group
from fourleaf.tasks.judgements.wording import TRAINING
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.trainer import Evaluate

_SEED = "cabin held-out during training"
_MAX_TOKENS = 300


@cache
def examples(num: int) -> tuple[Example, ...]:
    """The same `num` examples in every run."""
    material = corpus(additions=True)
    composer = Composer(make_side(material, held_out, Fillers(material, unseen=False)))
    random = Random(_SEED)
    return tuple(draw(composer, random) for _ in range(num))


def evaluator(tokenizer: Tokenizer, chat: ChatTemplate) -> Evaluate:
    """A function (model, objective, number of examples) -> share of exact answers by mode, TPF, and one sample."""

    def evaluate(model: Transformer, objective: str, num: int) -> dict[str, Any]:
        engine = Engine("training", model, tokenizer, chat)
        asked = examples(num)
        prompts = [chat.render(messages(example)) for example in asked]
        found: dict[str, Any] = {}
        for mode in ("ar", "diffuse") if objective == "joint" else ("ar",):
            params = GenerateParams(mode=mode, max_tokens=_MAX_TOKENS)  # type: ignore[arg-type]
            answers = engine.generate_many(prompts, params)
            texts = [tokenizer.decode(ids) for ids, _ in answers]
            right = [same_answer(example, text) for example, text in zip(asked, texts, strict=True)]
            found[mode] = sum(right) / num
            shown = right.index(False) if False in right else 0  # an error says more than one more success
            found["sample"] = {"utterance": asked[shown].utterance, "answer": texts[shown], "exact": right[shown]}
            usages = [last.usage for _, last in answers if last.usage is not None]
            if mode == "diffuse":
                forwards = sum(u.forwards for u in usages)
                found["tpf"] = round(sum(u.completion_tokens for u in usages) / max(1, forwards), 3)
        return found

    return evaluate


@cache
def groups(num: int) -> tuple[Group, ...]:
    """The same `num` groups of judgements in every run, with training's names and wordings."""
    random = Random("judgements held-out during training")
    kinds = [(random.choice(list(FAMILIES)), random.choices(list(SIZES), list(SIZES.values()))[0]) for _ in range(num)]
    return tuple(draw_group(family, size, random, TRAINING) for family, size in kinds)


def judging(evaluate: Evaluate, tokenizer: Tokenizer, chat: ChatTemplate) -> Evaluate:
    """What `evaluate` finds and, of a quarter as many groups of judgements, the share of questions and of whole groups
    answered right: alone, and where the model denoises, jointly."""

    def both(model: Transformer, objective: str, num: int) -> dict[str, Any]:
        decider = Decider(Engine("training", model, tokenizer, chat))
        found: dict[str, Any] = {}
        for mode in ("alone", "together") if objective == "joint" else ("alone",):
            hits = [_right(decider, group, joint=mode == "together") for group in groups(max(1, num // 4))]
            found[mode] = {
                "questions": round(sum(map(sum, hits)) / sum(map(len, hits)), 4),
                "groups": round(sum(map(all, hits)) / len(hits), 4),
            }
        return evaluate(model, objective, num) | {"judgements": found}

    return both


def _right(decider: Decider, group: Group, *, joint: bool) -> list[bool]:
    asked = {"model": "", "state": group.state, "questions": group.questions, "x_joint": joint}
    answers = decider.decide(parse_request(asked)).answers
    return [answer.chosen == right for answer, right in zip(answers, group.answers, strict=True)]
