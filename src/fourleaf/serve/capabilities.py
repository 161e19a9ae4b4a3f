"""What the engine behind the server can do: the one table that decides which request fields are honoured.

A field of `GenerateParams` that is not in the table is accepted at its default and otherwise refused by the name that
the client wrote. An engine that can do more has an `abilities` of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fourleaf.decide import calibration
from fourleaf.decide.questions import MAX_JOINT, MAX_LEVELS, MAX_OPTIONS, MAX_ROTATIONS
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import MODES, POLICIES, Decoder, GenerateParams
from fourleaf.errors import RequestError
from fourleaf.serve.body import renamed, shown
from fourleaf.text.constraint import KINDS
from fourleaf.text.grammar import is_available
from fourleaf.text.tokenizer import Tokenizer

_OF_PASSES = {"policy", "threshold", "tokens_per_pass", "entropy_bound", "edit_threshold"}


@dataclass(frozen=True)
class Abilities:
    """fields: of GenerateParams. default_mode: of a request that names none and says nothing about passes. constraints:
    kinds. concurrent: requests decoded at a time. scores: whether the log-probabilities of a prompt's own tokens can be
    had."""

    fields: frozenset[str]
    modes: tuple[str, ...] = MODES
    default_mode: str = GenerateParams.mode
    policies: tuple[str, ...] = POLICIES
    constraints: tuple[str, ...] = ()
    concurrent: int = 1
    scores: bool = False

    def mode_for(self, named: Collection[str]) -> str:
        """The mode of a request that names none, but these fields: who says what a pass reveals means `diffuse`."""
        mode = GenerateParams.mode if not _OF_PASSES.isdisjoint(named) else self.default_mode
        return mode if mode in self.modes or not self.modes else self.modes[0]


ALL_FIELDS = frozenset(one.name for one in fields(GenerateParams))

# The engine, all of it; what its model or an absent library leaves out is taken away below.
# Drafting is the default: it answers as `ar` does, several times as fast, however well the canvas was trained.
ENGINE = Abilities(fields=ALL_FIELDS, default_mode="draft", constraints=KINDS, concurrent=16, scores=True)

# Any other decoder, one request at a time.
ABILITIES = Abilities(
    fields=frozenset({"mode", "threshold", "temperature", "max_tokens", "seed"}),
    modes=("ar", "diffuse"),
    policies=("threshold",),
)

# With these, an answer's speed and its tokens are decided by what the fields are not: their defaults ask for nothing.
_DEFAULTS = {one.name: one.default for one in fields(GenerateParams)}


def abilities(engine: Decoder) -> Abilities:
    """An engine's abilities; a model that cannot denoise has mode `ar` alone."""
    if not isinstance(engine, Engine):
        return getattr(engine, "abilities", ABILITIES)
    config, known = engine.model.config, ENGINE
    if not is_available():
        known = replace(known, constraints=())
    if not config.bd_edits:
        known = replace(known, policies=tuple(policy for policy in POLICIES if policy != "edit"))
    return known if config.is_block_diffusion else replace(known, modes=("ar",), policies=())


@dataclass(frozen=True)
class Wish:
    """A value that a request gives for a field of GenerateParams, and what the client called it."""

    value: Any
    param: str


@dataclass
class Wishes:
    """What one request asks of the decoding, before it is held against what the engine can do."""

    by_field: dict[str, Wish] = field(default_factory=dict)

    def add(self, name: str, value: Any, param: str | None = None) -> None:
        """Notes a wish; None is none."""
        assert name in ALL_FIELDS
        if value is not None:
            self.by_field[name] = Wish(value, param or name)

    def params(self, able: Abilities) -> GenerateParams:
        """The parameters, if the engine can honour them.

        Raises RequestError naming the client's field for what the engine cannot do or GenerateParams does not take.
        """
        kept: dict[str, Any] = {}
        for name, wish in self.by_field.items():
            if name in able.fields:
                kept[name] = wish.value
            elif wish.value != _DEFAULTS[name]:
                raise RequestError(
                    f"{wish.param} is not supported here: leave it out or set it to what asks for nothing, "
                    f"not {shown(wish.value)}. GET /v1/capabilities says what is.",
                    param=wish.param,
                    code="unsupported_value",
                )
        self._check_choices(able)
        kept.setdefault("mode", able.mode_for(self.by_field))
        try:
            return GenerateParams(**kept)
        except RequestError as error:
            raise renamed(error, {name: wish.param for name, wish in self.by_field.items()}) from None

    def _check_choices(self, able: Abilities) -> None:
        for name, here, known in (("mode", able.modes, MODES), ("policy", able.policies, POLICIES)):
            wish = self.by_field.get(name)
            if wish is None or wish.value in here or wish.value not in known:  # GenerateParams refuses the unknown
                continue
            raise RequestError(
                f"{wish.param} {wish.value!r} is not available here; {', '.join(here) or 'no policy'} is.",
                param=wish.param,
                code="unsupported_value",
            )


def _decisions(engine: Decoder) -> dict[str, Any] | None:
    """What `/v1/systemone` can do with the model; None where the engine has none of its own."""
    config = getattr(getattr(engine, "model", None), "config", None)
    if config is None:
        return None
    limits = {"max_options": MAX_OPTIONS, "max_levels": MAX_LEVELS, "max_joint_questions": MAX_JOINT}
    folder = getattr(engine, "folder", None)
    calibrated = folder is not None and (folder / calibration.FILE).is_file()
    joint = bool(config.is_block_diffusion)
    return {"joint": joint, "calibrated": calibrated, **limits, "max_rotations": MAX_ROTATIONS}


# Spellings of the tokens around prefix, suffix and middle in models that were trained to fill in the middle.
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def fim_tokens(tokenizer: Tokenizer, mask_id: int | None) -> tuple[int, int, int] | None:
    """Ids of `FIM`, where the tokenizer has them and the model has not made one its mask."""
    prefix, suffix, middle = (tokenizer.controls.get(token) for token in FIM)
    if prefix is None or suffix is None or middle is None or mask_id in (prefix, suffix, middle):
        return None
    return prefix, suffix, middle


def _infill(engine: Decoder, able: Abilities) -> dict[str, Any] | None:
    """What `/v1/infill` can do with the model. right_context: which modes see what is pinned behind a gap while they
    fill it, and how far: in the gap's block, up to the next gap. fim_prompt: whether `/v1/fim/completions` gives the
    suffix in the prompt, in a form that the model was trained on."""
    if "infill" not in able.fields:
        return None
    modes = [mode for mode in ("diffuse", "draft", "ar") if mode in able.modes]
    seen = {mode: "block" if mode == "diffuse" else "none" for mode in modes}
    forms = fim_tokens(engine.tokenizer, getattr(engine, "mask_id", None))
    return {"modes": modes, "right_context": seen, "fim_prompt": forms is not None}


def document(engine: Decoder, fixed_tools: bool) -> Mapping[str, Any]:
    """For `GET /v1/capabilities`: what this model and engine honour."""
    able = abilities(engine)
    return {
        "id": engine.name,
        "object": "capabilities",
        "max_context": engine.max_context,
        "modes": list(able.modes),
        "default_mode": able.mode_for(()),
        "policies": list(able.policies),
        "fields": sorted(able.fields),
        "constraints": list(able.constraints),
        "prompt_logprobs": able.scores,
        "concurrent_requests": able.concurrent,
        "tools": "fixed" if fixed_tools else "any",
        "tool_markup": engine.chat.markup.syntax,
        "reasoning": engine.chat.thinks,
        "infill": _infill(engine, able),
        "decisions": _decisions(engine),
    }
