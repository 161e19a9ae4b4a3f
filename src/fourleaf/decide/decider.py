"""The front door to decisions: a request in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fourleaf.decide.answers import Answer, Decision, broken_rules
from fourleaf.decide.calibration import INDEPENDENT, JOINT, REVEALED, Temperatures
from fourleaf.decide.canvas import Floats, Path, Reader, Reading, averaged, denoise
from fourleaf.decide.questions import DecisionRequest, Question, rotations_of
from fourleaf.decide.rules import Rule, best_tuple, parse_rules
from fourleaf.decide.sheet import Printer, Sheet
from fourleaf.engine.engine import Engine
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.model.state import State


class Decider:
    """Answers decision requests with an engine's model.

    Independent questions are read one after the other, each in forwards of its own behind a prefill of the state, so
    that an answer has the same bits whatever else is asked.
    """

    def __init__(self, engine: Engine, temperatures: Temperatures | None = None, *, causal: bool | None = None) -> None:
        """causal: read by next-token logits; by default only where the model cannot denoise."""
        self.name, self.model, self.max_context = engine.name, engine.model, engine.max_context
        self._printer = Printer(engine.tokenizer, engine.chat, engine.mask_id)
        self._mask_id = engine.mask_id
        self._temperatures = temperatures or Temperatures()
        self._causal = not engine.model.config.is_block_diffusion if causal is None else causal

    @classmethod
    def of(cls, engine: Engine) -> Decider:
        """With the temperatures that the engine's checkpoint folder holds, if it holds any."""
        folder = getattr(engine, "folder", None)
        return cls(engine, None if folder is None else Temperatures.load(folder))

    def decide(self, request: DecisionRequest, check: Callable[[], None] | None = None) -> Decision:
        """check: called before each forward; what it raises ends the work.

        Raises InvalidDecisionError for rules that cannot be read or obeyed, ContextLengthError for a request that
        does not fit the model's context, RequestError for a joint request to a model that cannot denoise.
        """
        rules = parse_rules(request.rules, request.questions)
        reader = Reader(self.model, self._printer.letters, self._mask_id, check)
        return self._joint(request, rules, reader) if request.joint else self._independent(request, rules, reader)

    def _independent(self, request: DecisionRequest, rules: Sequence[Rule], reader: Reader) -> Decision:
        sheets = [
            [self._sheet(request.state, [question], [order]) for order in rotations_of(question, request.rotations)]
            for question in request.questions
        ]
        prefix = self._printer.shared_prefix(request.state)
        shared = reader.prefill(prefix)
        readings = []
        for orders in sheets:
            found = []
            for sheet in orders:
                state, rest = self._behind(shared, prefix, sheet, reader)
                if self._causal:
                    found.append(reader.read_causal(state, rest, sheet))
                else:
                    found += reader.read(state, rest, sheet, {}, [0])
            readings.append(averaged(found))
        p = [self._calibrated(INDEPENDENT, q, r.log_p) for q, r in zip(request.questions, readings, strict=True)]
        chosen = _choose(request.questions, p, rules if request.enforce else ())
        answers = tuple(
            Answer(question, np.exp(log_p), chosen[question.id], reading.mass)
            for question, log_p, reading in zip(request.questions, p, readings, strict=True)
        )
        return self._decision(answers, rules, reader, [sheet for orders in sheets for sheet in orders])

    def _joint(self, request: DecisionRequest, rules: Sequence[Rule], reader: Reader) -> Decision:
        if not self.model.config.is_block_diffusion:
            raise RequestError(
                f"{self.name} is an AR model and has no canvas: x_joint needs a block diffusion checkpoint. Leave "
                "x_joint out to have each question answered alone.",
                param="x_joint",
            )
        questions = request.questions
        turns = max(len(rotations_of(question, request.rotations)) for question in questions)
        sheets = []
        for turn in range(turns):
            orders = [(own := rotations_of(question, request.rotations))[turn % len(own)] for question in questions]
            sheets.append(self._sheet(request.state, questions, orders, [rule.text for rule in rules if rule.text]))
        path = self._fill(request, sheets, reader)
        log_p = [path.at[slot].log_p for slot in range(len(questions))]
        chosen = _choose(questions, log_p, rules if request.enforce else ())
        answers = tuple(
            Answer(question, np.exp(log_p[i]), chosen[question.id], path.at[i].mass, np.exp(path.first[i].log_p))
            for i, question in enumerate(questions)
        )
        product = float(np.exp(sum(values[a.chosen] for values, a in zip(log_p, answers, strict=True))))
        order = tuple(tuple(questions[slot].id for slot in slots) for slots in path.order)
        return self._decision(answers, rules, reader, sheets, order=order, tuple_p=product)

    def _fill(self, request: DecisionRequest, sheets: Sequence[Sheet], reader: Reader) -> Path:
        """All turned sheets see the same answers revealed; what they say of the others is averaged."""
        waiting = [list(sheet.prompt) for sheet in sheets]
        states = [reader.prefill(()) for _ in sheets]

        def read(known: Mapping[int, int], wanted: Sequence[int]) -> list[Reading]:
            found = []
            for i, (state, sheet) in enumerate(zip(states, sheets, strict=True)):
                found.append(reader.read(state, waiting[i], sheet, known, wanted))
                waiting[i] = []
            means = [averaged([readings[at] for readings in found]) for at in range(len(wanted))]
            questions = [request.questions[slot] for slot in wanted]
            return [
                Reading(self._calibrated(REVEALED if known else JOINT, question, mean.log_p), mean.mass)
                for question, mean in zip(questions, means, strict=True)
            ]

        size = len(request.questions)
        return denoise(read, size, request.passes or self._temperatures.passes or size, request.threshold)

    def _sheet(
        self,
        state: str,
        questions: Sequence[Question],
        orders: Sequence[tuple[int, ...]],
        rules: Sequence[str] = (),
    ) -> Sheet:
        sheet = self._printer.sheet(state, questions, orders, rules)
        needed = len(sheet.prompt) + len(sheet.canvas)
        if needed > self.max_context:
            what = f"question {questions[0].id!r:.60}" if len(questions) == 1 else "these questions"
            raise ContextLengthError(
                f"The state with {what} has {needed:,} tokens, and this model's context is {self.max_context:,}. "
                "Shorten the state, the instructions or the options.",
                param="state",
                code="context_length_exceeded",
            )
        block = self.model.config.block_size or len(sheet.canvas)
        if len(sheet.canvas) > block:
            raise RequestError(
                f"The answers take {len(sheet.canvas)} positions and this model's canvas has {block}: ask fewer "
                "questions at once.",
                param="questions",
            )
        return sheet

    def _behind(self, shared: State, prefix: Sequence[int], sheet: Sheet, reader: Reader) -> tuple[State, list[int]]:
        """A state to write on, and what of the sheet's prompt is still to come."""
        if sheet.prompt[: len(prefix)] == tuple(prefix):
            return shared.clone(), list(sheet.prompt[len(prefix) :])
        return reader.prefill(()), list(sheet.prompt)

    def _calibrated(self, mode: str, question: Question, log_p: Floats) -> Floats:
        return self._temperatures.applied(mode, question.type, log_p)

    def _decision(
        self,
        answers: tuple[Answer, ...],
        rules: Sequence[Rule],
        reader: Reader,
        sheets: Sequence[Sheet],
        *,
        order: tuple[tuple[str, ...], ...] = (),
        tuple_p: float | None = None,
    ) -> Decision:
        return Decision(
            answers=answers,
            input_tokens=sum(len(sheet.prompt) for sheet in sheets),
            output_tokens=sum(sum(sheet.masked) for sheet in sheets),
            forwards=reader.cost.forwards,
            rows=reader.cost.rows,
            passes=len(order) or reader.cost.passes,
            order=order,
            tuple_p=tuple_p,
            broken=broken_rules({answer.question.id: answer.chosen for answer in answers}, rules),
        )


def _choose(questions: Sequence[Question], log_p: Sequence[Floats], rules: Sequence[Rule]) -> dict[str, int]:
    """The likeliest options, or the likeliest tuple that obeys the rules."""
    return best_tuple({question.id: values for question, values in zip(questions, log_p, strict=True)}, rules)
