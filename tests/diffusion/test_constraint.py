"""The walk under a grammar, against brute force: a matcher written by hand over an explicit set of strings."""

import itertools
import random

import numpy as np
import pytest

from fourleaf.diffusion.constraint import (
    GapMatcher,
    Trail,
    first_unreachable,
    settled,
    take,
    take_forced,
    takes,
    walk,
)
from fourleaf.diffusion.policy import Canvas

WORDS = ["", "", "a", "b", "ab", "ba", "c", "abc"]  # ids 0 and 1: end and mask
END, MASK, GAP_END = 0, 1, 8
NUM_IDS = 9


class Strings:
    """A matcher whose answers are listed."""

    def __init__(self, answers, text="", reserve=100, ended=False):
        self.answers, self.text, self.reserve, self.ended = frozenset(answers), text, reserve, ended

    @property
    def is_accepting(self):
        return not self.ended and self.text in self.answers

    def accepts(self, token):
        if token == END:
            return self.is_accepting
        if self.ended or not 2 <= token < len(WORDS):
            return False
        return any(answer.startswith(self.text + WORDS[token]) for answer in self.answers)

    def allowed(self):
        return np.array([self.accepts(token) for token in range(NUM_IDS)])

    def allows(self, token):
        return bool(self.allowed()[token])

    def advance(self, token):
        assert self.accepts(token)
        self.ended = token == END
        self.text += "" if token == END else WORDS[token]

    def forced(self):
        tokens, ahead = [], self.copy()
        while len(legal := np.flatnonzero(ahead.allowed())) == 1:
            tokens.append(int(legal[0]))
            ahead.advance(tokens[-1])
        return tokens

    def copy(self):
        return Strings(self.answers, self.text, self.reserve, self.ended)

    def adopt(self, other):
        self.text, self.ended, self.reserve = other.text, other.ended, other.reserve

    def ending(self, limit, goal=()):
        """The shortest, by trying all."""
        goal, level = list(goal) or [END], [([], self)]
        for _ in range(limit + 1):
            for tokens, here in level:
                if takes(here, goal):
                    found = tokens + ([END] if goal == [END] else [])
                    return found if len(found) <= limit else None
            level = [
                ([*tokens, int(token)], after)
                for tokens, here in level
                for token in np.flatnonzero(here.allowed())
                if token != END and (after := here.copy()).advance(token) is None
            ]
        return None


def some_answers(rng):
    letters = ["".join(p) for n in range(6) for p in itertools.product("abc", repeat=n)]
    return rng.sample(letters, rng.randint(1, 6))


def chooser(logits):
    """`choose` of a model with these logits [N, Y]: greedy, renormalised over what is allowed."""

    def choose(row, allowed):
        masked = np.where(allowed, logits[row], -np.inf)
        probability = np.exp(masked - masked.max())
        return int(masked.argmax()), float(probability.max() / probability.sum())

    return choose


def free_choices(logits, rows):
    everything = np.ones(NUM_IDS, dtype=bool)
    everything[[MASK, GAP_END]] = False
    return {row: chooser(logits)(row, everything) for row in rows}


def diffuse(answers, rng, *, size, max_tokens, tau=0.6, reserve=100):
    """A whole answer from a model of random logits, block by block. -> (tokens, passes)."""
    matcher, done, passes = Strings(answers, reserve=reserve), [], 0
    while len(done) < max_tokens and END not in done:
        canvas = Canvas.blank(len(done), min(size, max_tokens - len(done)), MASK)
        front, guesses, masked = 0, {}, set(range(len(canvas.tokens)))
        while front < len(canvas.tokens) and not matcher.ended:
            logits = rng.normal(size=(len(canvas.tokens), NUM_IDS)) * 4
            open_rows = masked - guesses.keys()
            found = walk(
                matcher, canvas, front, chooser(logits), free_choices(logits, open_rows),
                tau=tau, end_id=END, left=max_tokens - len(done) - front, guesses=guesses,
            )  # fmt: skip
            assert found.front > front, "every pass settles at least one row"
            assert front not in guesses, "the first open row is never guessed"
            assert not set(found.guesses) & set(guesses), "a guess lives one pass"
            canvas.reveal(found.rows, found.tokens)
            masked -= set(found.rows)
            front, guesses, passes = found.front, found.guesses, passes + 1
        done += canvas.tokens[:front].tolist()
    return done, passes


def text_of(tokens):
    return "".join(WORDS[token] for token in tokens if token != END)


def test_every_answer_is_one_of_the_listed_strings_whatever_the_model_says():
    for seed in range(60):
        rng = random.Random(seed)
        answers = some_answers(rng)
        tokens, _ = diffuse(answers, np.random.default_rng(seed), size=rng.choice([1, 3, 8]), max_tokens=20)
        assert tokens[-1] == END
        assert text_of(tokens) in answers


def test_the_walk_with_no_threshold_is_constrained_greedy_decoding_row_by_row():
    for seed in range(100):
        rng = random.Random(seed)
        matcher, logits = Strings(some_answers(rng)), np.random.default_rng(seed).normal(size=(9, NUM_IDS))
        twin, expected = matcher.copy(), []
        for row in range(9):
            legal = [token for token in range(NUM_IDS) if twin.accepts(token)]
            expected.append(max(legal, key=lambda token: logits[row, token]))
            twin.advance(expected[-1])
            if expected[-1] == END:
                break
        found = walk(matcher, Canvas.blank(0, 9, MASK), 0, chooser(logits), {}, tau=-1.0, end_id=END)
        assert found.tokens == expected
        assert found.rows == list(range(len(expected)))


def test_a_token_is_final_only_while_its_renormalised_probability_exceeds_the_threshold():
    logits = np.zeros((3, NUM_IDS))
    logits[0, [2, 3]] = 1.0, 0.9  # unsure, and the first: final all the same
    logits[1, [2, 6]] = 5.0, 9.0  # sure of "c", which is not legal; of the legal ones sure of "a"
    logits[2, [2, 3]] = 2.0, 1.9  # unsure
    answers = ["".join(p) for p in itertools.product("ab", repeat=3)]
    found = walk(Strings(answers), Canvas.blank(0, 3, MASK), 0, chooser(logits), {}, tau=0.6, end_id=END)
    assert found.rows == [0, 1]
    assert found.tokens == [2, 2]
    assert found.confidence[0] < 0.6 < found.confidence[1] < 1
    assert found.front == 2


def test_forced_tokens_are_final_without_asking_the_model():
    def never(row, allowed):
        raise AssertionError("nothing is to be chosen")

    matcher = Strings(["ca"])
    found = walk(matcher, Canvas.blank(0, 5, MASK), 0, never, {}, tau=0.9, end_id=END)
    assert found.tokens == [6, 2, END]
    assert found.confidence == [1.0, 1.0, 1.0]
    assert matcher.ended


def test_forced_tokens_do_not_outrun_the_canvas():
    matcher = Strings(["ca"])
    found = walk(matcher, Canvas.blank(0, 2, MASK), 0, chooser(np.zeros((2, NUM_IDS))), {}, tau=0.9, end_id=END)
    assert found.tokens == [6, 2]
    assert not matcher.ended
    assert take_forced(matcher, 5) == [END]


def test_guesses_lie_right_of_the_front_and_are_sure_and_no_end():
    logits = np.zeros((6, NUM_IDS))
    logits[3, 2] = logits[4, END] = logits[5, 3] = 30.0
    choices = free_choices(logits, range(6))
    answers = ["".join(p) for p in itertools.product("abc", repeat=6)]
    found = walk(Strings(answers), Canvas.blank(0, 6, MASK), 0, chooser(logits), choices, tau=0.9, end_id=END)
    assert found.front == 1
    assert sorted(found.guesses) == [3, 5]
    assert found.guesses[3][0] == 2


def test_a_guess_is_final_when_the_walk_reaches_it_and_the_grammar_takes_it():
    answers = ["aab", "bab"]
    sure = np.zeros((3, NUM_IDS))
    sure[0, 2] = 30.0
    found = walk(
        Strings(answers), Canvas.blank(0, 3, MASK), 0, chooser(sure), {}, tau=0.9, end_id=END, guesses={1: (2, 0.95)}
    )
    assert found.tokens == [2, 2, 3]  # the guess, and what it forces
    assert found.confidence == [pytest.approx(1), 0.95, 1.0]


def test_a_guess_that_the_grammar_refuses_stops_the_walk_and_is_no_guess_any_more():
    answers = ["aab", "abb", "aac"]
    found = walk(
        Strings(answers), Canvas.blank(0, 3, MASK), 0, chooser(np.zeros((3, NUM_IDS))), {}, tau=0.9, end_id=END,
        guesses={1: (6, 0.99), 2: (3, 0.99)},
    )  # fmt: skip
    assert found.rows == [0]
    assert found.front == 1
    assert found.guesses == {}


def test_a_pinned_row_is_taken_and_never_written():
    canvas = Canvas.blank(0, 3, MASK, {1: 6})
    matcher = Strings(["aca", "acb"])
    found = walk(matcher, canvas, 0, chooser(np.zeros((3, NUM_IDS))), {}, tau=-1, end_id=END)
    assert found.rows == [0, 2]
    assert matcher.text[:2] == "ac"


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_an_answer_ends_within_any_limit_that_one_of_the_listed_strings_fits(max_tokens):
    for seed in range(25):
        rng = random.Random(seed)
        answers = some_answers(rng)
        shortest = len(Strings(answers).ending(20))
        tokens, _ = diffuse(answers, np.random.default_rng(seed), size=3, max_tokens=max_tokens)
        assert len(tokens) <= max_tokens
        assert (tokens[-1] == END) == (shortest <= max_tokens), (answers, tokens)


def test_a_token_gives_way_only_where_brute_force_finds_no_ending():
    for seed in range(80):
        rng = random.Random(seed)
        matcher = Strings(some_answers(rng))
        left = rng.randint(1, 8)
        if matcher.ending(left) is None:
            continue
        for token in np.flatnonzero(matcher.allowed()).tolist():
            behind = matcher.copy()
            behind.advance(token)
            fits = token == END or behind.ending(left - 1) is not None
            after = matcher.copy()
            put = take(after, token, left, END)
            assert (put == token) == fits
            assert after.text == matcher.text + WORDS[put]


def test_without_a_reserve_nothing_is_hurried():
    matcher = Strings(["aaaaaaaa", "b"], reserve=0)
    assert take(matcher, 2, 2, END) == 2


def test_where_nothing_fits_the_limit_endings_are_not_watched_any_more():
    matcher = Strings(["aaaaaaaa", "bbbbbbbbbb"])
    assert take(matcher, 2, 4, END) == 2
    assert matcher.reserve == 0


def test_drawn_tokens_stand_up_to_the_first_that_gives_way():
    """`draft` keeps what `ar` would have: behind a token that gave way nothing stands."""
    for seed in range(100):
        rng = random.Random(seed)
        answers = some_answers(rng)
        left = rng.randint(len(Strings(answers).ending(20)), 10)
        drawn, ahead = [], Strings(answers)
        while not ahead.ended and len(drawn) < left:
            drawn.append(int(rng.choice(np.flatnonzero(ahead.allowed()).tolist())))
            ahead.advance(drawn[-1])
        one_by_one, matcher = [], Strings(answers)
        for token in drawn:
            one_by_one += settled(matcher, [token], left - len(one_by_one), END)
            if one_by_one[-1] != token:
                break
        together = Strings(answers)
        assert settled(together, drawn, left, END) == one_by_one
        assert together.text == matcher.text


def test_masks_along_proposals_are_those_of_constrained_decoding():
    for seed in range(60):
        rng = random.Random(seed)
        matcher, tokens = Strings(some_answers(rng)), []
        ahead = matcher.copy()
        while not ahead.ended:
            tokens.append(int(rng.choice(np.flatnonzero(ahead.allowed()).tolist())))
            ahead.advance(tokens[-1])
        trail, twin = Trail(matcher, tokens), matcher.copy()
        for index in range(len(tokens)):
            if rng.random() < 0.7:  # asked in any rising order
                assert (trail.allowed(index) == twin.allowed()).all()
            twin.advance(tokens[index])
        assert matcher.text == ""


def test_a_mask_behind_a_forbidden_proposal_is_never_handed_out():
    trail = Trail(Strings(["ab", "ac"]), [3, 2])
    assert trail.allowed(0)[2]
    with pytest.raises(AssertionError, match="forbids"):
        trail.allowed(1)


def test_a_gap_ends_where_its_pins_are_legal_and_within_its_limit():
    answers = ["".join(p) for n in range(1, 7) for p in itertools.product("ab", repeat=n)]
    answers = [answer + "c" for answer in answers if len(answer) >= 3]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        gap = GapMatcher(Strings(answers), [6], limit=4, gap_end_id=GAP_END, end_id=END)
        canvas = Canvas.blank(0, 5, MASK)
        found = walk(gap, canvas, 0, chooser(rng.normal(size=(5, NUM_IDS))), {}, tau=-1, end_id=GAP_END, left=5)
        assert found.tokens[-1] == GAP_END
        assert len(found.tokens) <= 5
        assert text_of([t for t in found.tokens if t != GAP_END]) + "c" in answers


def test_a_template_that_the_grammar_cannot_take_is_found_before_anything_is_generated():
    matcher = Strings(["abcab", "abcb", "ba"])
    assert first_unreachable(matcher, [2, [6], 2]) is None
    assert first_unreachable(matcher, [2, [6, 6], 2]) == 1
    assert first_unreachable(matcher, [[6], 2]) == 0
    assert first_unreachable(matcher, [0, [6]]) == 1
    assert first_unreachable(matcher, [2, [6], 1, [3]]) is None
    assert matcher.text == ""


def test_bug_31_no_pass_is_without_progress_when_no_token_passes_the_threshold():
    answers = ["".join(p) for p in itertools.product("abc", repeat=5)]
    tokens, passes = diffuse(answers, np.random.default_rng(0), size=8, max_tokens=12, tau=1.0)
    assert text_of(tokens) in answers
    assert passes <= len(tokens)


def test_bug_49_the_mask_id_is_never_chosen():
    for seed in range(30):
        rng = random.Random(seed)
        tokens, _ = diffuse(some_answers(rng), np.random.default_rng(seed), size=4, max_tokens=12)
        assert MASK not in tokens
