"""Constraints as token masks: what may be written is what the constraint says, and nothing else ends an answer."""

import json
import random
import re

import numpy as np
import pytest

from fourleaf.diffusion.constraint import GapMatcher, first_unreachable, take, take_forced
from fourleaf.errors import ConfigError, RequestError
from fourleaf.text import grammar as grammar_module
from fourleaf.text.constraint import Constraint, Tool, Tools
from fourleaf.text.grammar import SLACK, compile_constraint
from fourleaf.text.router import Router, fold
from fourleaf.text.tokenizer import Tokenizer

WINDOW = Tool(
    "set_window",
    json.dumps({
        "type": "object",
        "properties": {"window": {"enum": ["driver", "all"]}, "position": {"type": "integer", "maximum": 100}},
        "required": ["window", "position"],
        "additionalProperties": False,
    }),
)  # fmt: skip
SAY = Tool("say", json.dumps({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}))


def is_taken(tokenizer, constraint, text):
    """Whether `text`, in which tags are control tokens, is a whole answer."""
    matcher = compile_constraint(constraint, tokenizer).matcher()
    for token in tokenizer.encode_markup(text):
        if not matcher.accepts(token):
            return False
        matcher.advance(token)
    return matcher.is_accepting


def random_answer(tokenizer, constraint, seed, limit=400):
    """Tokens drawn evenly from what is allowed, ended by what the matcher proposes when the limit comes near."""
    rng, matcher, tokens = random.Random(seed), compile_constraint(constraint, tokenizer).matcher(), []
    while not matcher.ended:
        legal = np.flatnonzero(matcher.allowed()).tolist()
        assert legal, "nothing is legal and the answer has not ended"
        if (special := [t for t in legal if t in tokenizer.special_ids]) and rng.random() < 0.2:
            legal = special
        tokens.append(rng.choice(legal))
        matcher.advance(tokens[-1])
        if len(tokens) > limit and not matcher.ended:
            tokens += matcher.ending(10_000) or []
            assert tokens[-1] == tokenizer.end_id
            break
    return tokens[:-1]


def test_choices_are_the_only_answers(tokenizer):
    constraint = Constraint("choices", ("yes", "no", "not sure"))
    assert [is_taken(tokenizer, constraint, text) for text in ("yes", "no", "not sure")] == [True] * 3
    assert [is_taken(tokenizer, constraint, text) for text in ("ye", "not", "yes ", "")] == [False] * 4


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        (r"^\d{2}:\d{2}$", ["07:30"], ["7:30", "07:300", "a07:30"]),
        ("a|bc", ["a", "bc"], ["ac", "abc"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        (r"x/y\$", ["x/y$"], ["x/y"]),
        (r"[^/]+/\\", ["ab/\\"], ["a/b"]),
        ("Zürich|東京", ["Zürich", "東京"], ["Zurich"]),
        ("a\nb", ["a\nb"], ["anb"]),
        (r"[\d/]\d[]\d]", ["/15", "12]"], ["a12", "1/2"]),
        (r"\d+", ["07"], ["٣", "1٣"]),
        (r"\w+", ["Zürich", "東京", "a_1"], ["a-b", "a\u0301", "a\u200db"]),
        (r"[^\w,]\S[^\s]", ["-a-"], ["a--", "-\x1d-", "--\x1d", "-- "]),
        (r"[^\D][^\W]", ["1é"], ["٣a", "1\u0301"]),
    ],
)
def test_an_expression_matches_the_whole_answer(tokenizer, expression, matching, others):
    constraint = Constraint("regex", expression)
    assert [text for text in matching if not is_taken(tokenizer, constraint, text)] == []
    assert [text for text in others if is_taken(tokenizer, constraint, text)] == []


def test_any_object_is_taken_and_nothing_else_for_json_object(tokenizer):
    constraint = Constraint("json_object")
    assert is_taken(tokenizer, constraint, '{"a": [1, null, {"b": "c"}]}')
    assert not is_taken(tokenizer, constraint, "[1]")
    for seed in range(20):
        assert isinstance(json.loads(tokenizer.decode(random_answer(tokenizer, constraint, seed))), dict)


def test_an_object_that_lists_its_properties_has_no_others(tokenizer):
    constraint = Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert is_taken(tokenizer, constraint, '{"a": 1}')
    assert not is_taken(tokenizer, constraint, '{"a": 1, "b": 2}')


def test_an_answer_may_end_only_where_the_grammar_is_satisfied(tokenizer):
    matcher = compile_constraint(Constraint("choices", ("ab", "abab")), tokenizer).matcher()
    assert not matcher.allowed()[tokenizer.end_id]
    assert not matcher.accepts(tokenizer.end_id)
    for token in tokenizer.encode("ab"):
        matcher.advance(token)
    assert matcher.allowed()[tokenizer.end_id]
    matcher.advance(tokenizer.end_id)
    assert not matcher.allowed().any()
    assert matcher.forced() == []


def test_control_tokens_other_than_the_tags_are_never_allowed(tokenizer):
    for constraint in (Constraint("json_object"), Constraint("tools", Tools((WINDOW, SAY)))):
        matcher = compile_constraint(constraint, tokenizer).matcher()
        for token in tokenizer.encode('{"a": "') if constraint.kind == "json_object" else tokenizer.encode("Hi"):
            matcher.advance(token)
        tags = {tokenizer.token_id("<tool_call>"), tokenizer.end_id}
        assert {t for t in tokenizer.special_ids if matcher.allowed()[t]} <= tags


def test_ids_that_the_model_has_beyond_the_tokenizer_are_never_allowed(tokenizer):
    matcher = compile_constraint(Constraint("json_object"), tokenizer, tokenizer.vocab_size + 64).matcher()
    assert matcher.allowed().shape == (tokenizer.vocab_size + 64,)
    assert not matcher.allowed()[tokenizer.vocab_size :].any()
    assert not matcher.accepts(tokenizer.vocab_size + 1)


def test_forced_tokens_are_the_only_way_on_and_divided_as_the_tokenizer_divides_them(tokenizer):
    constraint = Constraint("tools", Tools((WINDOW, SAY), "required"))
    for seed in range(15):
        text = tokenizer.decode(answer := random_answer(tokenizer, constraint, seed, limit=60))
        matcher = compile_constraint(constraint, tokenizer).matcher()
        for token in answer:
            if forced := matcher.forced():
                legal = np.flatnonzero(matcher.allowed()).tolist()
                assert legal == forced[:1]
                assert token == forced[0]
            matcher.advance(token)
        assert text.startswith('<tool_call>{"name": "')
    matcher = compile_constraint(constraint, tokenizer).matcher()
    assert tokenizer.encode_markup('<tool_call>{"name": "s')[: len(matcher.forced())] == matcher.forced()


def test_a_copy_goes_its_own_way_and_an_adopted_place_is_gone_on_from(tokenizer):
    matcher = compile_constraint(Constraint("choices", ("ab", "ac")), tokenizer).matcher()
    twin = matcher.copy()
    twin.advance(tokenizer.encode("a")[0])
    assert matcher.accepts(tokenizer.encode("a")[0])
    matcher.adopt(twin)
    assert not matcher.accepts(tokenizer.encode("a")[0])
    assert matcher.accepts(tokenizer.encode("c")[0])


@pytest.mark.parametrize("choice", ["auto", "required", "named", "none"])
def test_calls_come_back_through_the_router_as_they_were_asked_for(tokenizer, choice):
    constraint = Constraint("tools", Tools((WINDOW, SAY), choice, "say" if choice == "named" else None))
    num_calls = 0
    for seed in range(25):
        router = Router(tokenizer)
        message = fold([*router.feed(random_answer(tokenizer, constraint, seed, limit=80)), *router.finish()])
        num_calls += len(message.tool_calls)
        assert "<tool_call>" not in message.content
        for call in message.tool_calls:
            assert call.name in (("say",) if choice == "named" else ("set_window", "say"))
        if choice in ("required", "named"):
            assert message.tool_calls
            assert message.content == ""
    assert (num_calls > 0) == (choice != "none")


def test_without_parallel_calls_there_is_one(tokenizer):
    call = '<tool_call>{"name": "say", "arguments": {"text": "a"}}</tool_call>'
    assert is_taken(tokenizer, Constraint("tools", Tools((SAY,))), call + call)
    assert not is_taken(tokenizer, Constraint("tools", Tools((SAY,), parallel=False)), call + call)


def test_an_answer_without_calls_keeps_to_the_format_that_was_asked_for(tokenizer):
    constraint = Constraint("tools", Tools((SAY,), otherwise=Constraint("choices", ("yes", "no"))))
    call = '<tool_call>{"name": "say", "arguments": {"text": "a"}}</tool_call>'
    assert is_taken(tokenizer, constraint, "yes")
    assert is_taken(tokenizer, constraint, call)
    assert not is_taken(tokenizer, constraint, "maybe")
    assert not is_taken(tokenizer, constraint, "yes" + call)


def test_a_text_that_spells_a_tag_opens_no_call(tokenizer):
    matcher = compile_constraint(Constraint("tools", Tools((SAY,))), tokenizer).matcher()
    for token in tokenizer.encode('<tool_call>{"name": "nothing of the kind"'):
        matcher.advance(token)
    assert matcher.is_accepting


def test_thoughts_are_free_and_what_follows_is_not(tokenizer):
    choices = ("yes", "no")
    is_open, is_optional = (Constraint("choices", choices, reasoning=kind) for kind in ("open", "optional"))
    assert is_taken(tokenizer, is_open, "Hm, {maybe}.</think>\n\nyes")
    assert not is_taken(tokenizer, is_open, "yes")
    assert is_taken(tokenizer, is_optional, "yes")
    assert is_taken(tokenizer, is_optional, "<think>Hm.</think>no")
    assert not is_taken(tokenizer, is_optional, "<think>Hm.</think>maybe")


def test_endings_are_watched_from_the_length_of_the_shortest_answer_and_some_more(tokenizer):
    assert compile_constraint(Constraint("choices", ("no",)), tokenizer).reserve == SLACK + 2
    assert compile_constraint(Constraint("tools", Tools((SAY,))), tokenizer).reserve == 0
    assert compile_constraint(Constraint("tools", Tools((SAY,), "required")), tokenizer).reserve > SLACK


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "[a-z]*END"),
        Constraint("regex", "(ab|cd)*x{12}"),
        Constraint("regex", ".{5,}"),
        Constraint("json_object"),
        Constraint("json_schema", json.dumps({"type": "string", "minLength": 12})),
        Constraint("json_schema", json.dumps({"type": "array", "items": {"pattern": "^x+,$", "type": "string"}})),
        Constraint("json_schema", json.dumps({"type": "integer", "exclusiveMinimum": 48, "multipleOf": 10})),
        Constraint(
            "json_schema",
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "a": {"type": "integer", "exclusiveMinimum": 48, "multipleOf": 10},
                        "b": {"type": "string", "format": "uri"},
                    },
                    "required": ["a", "b"],
                }
            ),
        ),
        Constraint("tools", Tools((WINDOW, SAY), "required", markup="xml", separator="\n")),
        Constraint("choices", ("yes",), reasoning="open"),
    ],
    ids=lambda constraint: f"{constraint.kind}-{str(constraint.value)[:24]}",
)
def test_an_ending_is_legal_from_wherever_an_answer_stands(tokenizer, constraint):
    for seed in range(4):
        tokens = random_answer(tokenizer, constraint, seed, limit=25)
        matcher = compile_constraint(constraint, tokenizer).matcher()
        for index, token in enumerate(tokens):
            if index % 5 == 0:
                ending = matcher.ending(10_000)
                assert ending is not None
                ahead = matcher.copy()
                for step in ending:
                    ahead.advance(step)
                assert ahead.ended
                assert matcher.ending(len(ending) - 1) is None or len(matcher.ending(len(ending) - 1)) < len(ending)
            matcher.advance(token)


@pytest.mark.parametrize("reasoning", ["optional", "open"])
def test_an_answer_comes_to_its_end_before_a_thought_and_within_one(tokenizer, reasoning):
    inner = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "c": inner}, "required": ["b", "c"]}
    for constraint in (
        Constraint("json_schema", json.dumps(schema), reasoning),
        Constraint("tools", Tools((Tool("t", json.dumps(schema)),), "required"), reasoning),
    ):
        matcher = compile_constraint(constraint, tokenizer).matcher()
        thought = "<think>" if reasoning == "optional" else ""
        assert len(matcher.ending(80)) > 5
        for token in tokenizer.encode_markup(thought + 'well, "a": {'):
            matcher.advance(token)
        found = matcher.ending(80)
        assert found
        assert found[0] == tokenizer.controls["</think>"]
        assert "<think>" not in tokenizer.decode(found)


def test_an_ending_leads_to_pinned_tokens_where_it_is_told_to(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    matcher = compile_constraint(Constraint("json_schema", json.dumps(schema)), tokenizer).matcher()
    way = matcher.ending(50, tokenizer.encode('"b": 7}'))
    assert re.fullmatch(r'\{"a": ".*", ', tokenizer.decode(way))
    assert matcher.ending(50, tokenizer.encode('"c": 7}')) is None


def test_the_same_constraint_is_compiled_once(tokenizer):
    first = compile_constraint(Constraint("choices", ("a", "b"), param="x"), tokenizer)
    assert compile_constraint(Constraint("choices", ("a", "b"), param="y"), tokenizer) is first
    assert compile_constraint(Constraint("choices", ("b", "a")), tokenizer) is not first


def test_without_the_library_the_remedy_is_named(tokenizer, monkeypatch):
    monkeypatch.setattr(grammar_module, "llguidance", None)
    fresh = Tokenizer(tokenizer._inner)
    with pytest.raises(ConfigError, match=r"pip install 'fourleaf\[grammar\]'"):
        compile_constraint(Constraint("json_object"), fresh)
    assert not grammar_module.is_available()


@pytest.mark.parametrize("expression", [r"(a)\1", "(?=a)b", "(", "[^\\s\\S]", r"a\bb"])
def test_an_expression_that_cannot_be_held_to_is_refused_before_generation(tokenizer, expression):
    with pytest.raises(RequestError) as raised:
        compile_constraint(Constraint("regex", expression, param="regex"), tokenizer)
    assert raised.value.param == "regex"


@pytest.mark.parametrize("choices", [(), ("a", "a"), ("a", "")])
def test_choices_that_are_none_are_refused(tokenizer, choices):
    with pytest.raises(RequestError, match="choice"):
        compile_constraint(Constraint("choices", choices), tokenizer)


def test_bug_57_a_token_out_of_order_is_our_fault_and_said_at_once(tokenizer):
    matcher = compile_constraint(Constraint("json_object"), tokenizer).matcher()
    with pytest.raises(AssertionError, match="not legal"):
        matcher.advance(tokenizer.encode("]")[0])
    assert matcher.allowed().any()  # and it has broken nothing


def test_the_cabins_answers_are_taken_as_they_are_trained_and_most_of_their_tokens_are_forced(tokenizer, corpus, tools):
    functions = [tool["function"] for tool in tools]
    offered = tuple(Tool(function["name"], json.dumps(function["parameters"])) for function in functions)
    grammar = compile_constraint(Constraint("tools", Tools(offered)), tokenizer)
    num_tokens = num_forced = 0
    pairs = list(zip(corpus[::2], corpus[1::2], strict=True))
    for asked, answer in random.Random(0).sample(pairs, 150):
        ids, row = [*tokenizer.encode_markup(answer), tokenizer.end_id], 0
        matcher = grammar.matcher(tokenizer.encode(asked))
        while row < len(ids):
            forced = take_forced(matcher, len(ids))
            assert ids[row : row + len(forced)] == forced, answer
            row += len(forced)
            num_forced += len(forced)
            if row < len(ids):
                assert matcher.allowed()[ids[row]], answer
                matcher.advance(ids[row])
                row += 1
        assert matcher.ended
        num_tokens += len(ids)
    assert num_forced > 0.5 * num_tokens


def test_a_gap_in_a_call_is_led_to_the_pinned_text_behind_it(tokenizer):
    constraint = Constraint("tools", Tools((WINDOW, SAY), "required", parallel=False))
    before = tokenizer.encode_markup('<tool_call>{"name": "set_window", "arguments": {"window": "')
    pins = tokenizer.encode_markup('", "position": 7}}</tool_call>')
    for seed in range(10):
        rng, matcher, gap_end = random.Random(seed), compile_constraint(constraint, tokenizer).matcher(), 2
        for token in before:
            matcher.advance(token)
        gap, filling = GapMatcher(matcher, pins, 6, gap_end, tokenizer.end_id), []
        while not filling or filling[-1] != gap_end:
            legal = np.flatnonzero(gap.allowed()).tolist()
            filling.append(take(gap, rng.choice(legal), 7 - len(filling), gap_end))
        assert tokenizer.decode(filling[:-1]) in ("driver", "all")
        for token in [*pins, tokenizer.end_id]:
            matcher.advance(token)


def test_a_template_with_pins_out_of_reach_is_found_before_generation(tokenizer):
    matcher = compile_constraint(Constraint("tools", Tools((WINDOW,), "required")), tokenizer).matcher()
    start = tokenizer.encode_markup('<tool_call>{"name": "set_window", "arguments": {"window": "')
    assert first_unreachable(matcher, [start, 6, tokenizer.encode('", "position": '), 4]) is None
    assert first_unreachable(matcher, [start, 6, tokenizer.encode('", "speed": '), 4]) == 2
    assert first_unreachable(matcher, [tokenizer.encode("no call"), 4]) == 0


def test_ids_without_text_and_other_end_tokens_of_foreign_vocabularies_are_fine(tokenizer):
    far = tokenizer.vocab_size + 40
    foreign = Tokenizer(tokenizer._inner, {"<|im_end|>": far, "<tool_call>": far - 1}, end="<|im_end|>")
    matcher = compile_constraint(Constraint("choices", ("yes", "no")), foreign, far + 25).matcher()
    for token in foreign.encode("yes"):
        assert set(np.flatnonzero(matcher.allowed())) <= set(range(tokenizer.vocab_size)) | {far}
        matcher.advance(token)
    assert np.flatnonzero(matcher.allowed()).tolist() == [far]
    assert matcher.forced() == [far]
    assert matcher.ending(1) == [far]
