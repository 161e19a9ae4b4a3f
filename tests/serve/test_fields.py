"""Fields of a chat request that an engine with all abilities honours: what reaches it, and what comes back."""

import json

import openai
import pytest
from pydantic import BaseModel

from fourleaf.errors import RequestError
from fourleaf.serve.capabilities import ABILITIES, ALL_FIELDS, Abilities, Wishes, document
from fourleaf.tasks.cabin.schema import TOOLS
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.constraint import Constraint, Tool, Tools

SAID = [{"role": "user", "content": "hi"}]
KINDS = ("json_schema", "json_object", "regex", "choices", "tools")
TEA = {"type": "function", "function": {"name": "make_tea", "parameters": {"type": "object", "properties": {}}}}
COFFEE = {"type": "function", "function": {"name": "make_coffee"}}
THINKER = (
    "{%- for m in messages -%}<|user|>{{ m.content }}{%- endfor -%}<|assistant|>"
    "{%- if enable_thinking is defined and not enable_thinking -%}<think></think>{%- else -%}<think>{%- endif -%}"
)

FREE = {"grammar": False}


@pytest.fixture
def able(scripted):
    """Makes an engine that says it can do everything."""

    def make(*answers: str, **options):
        engine = scripted(*answers, **options)
        engine.abilities = Abilities(fields=ALL_FIELDS, constraints=KINDS)
        return engine

    return make


@pytest.fixture
def client_and(able, client_of):
    def connect(*answers: str, **options):
        engine = able(*answers)
        return client_of(engine, **{"fixed_tools": None} | options), engine

    return connect


def ask(client, **fields):
    return client.chat.completions.create(model="cabin", messages=SAID, **fields)


def test_every_field_reaches_the_engine(client_and):
    client, engine = client_and("Hi.")
    ask(
        client,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"40": 5, "12": -100},
        seed=3,
        stop=["END", "FIN"],
        extra_body={
            "top_k": 5,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "mode": "auto",
            "lossless": True,
            "modes": ["ar", "draft"],
            "priority": "batch",
            "policy": "entropy",
            "entropy_bound": 0.3,
            "tokens_per_pass": 2,
            "edit_threshold": 0.8,
            "threshold": 0.7,
        },
    )
    params = engine.params[0]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 5, 0.05)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.1, 0.2, 1.1)
    assert params.logit_bias == ((12, -100.0), (40, 5.0))
    assert (params.seed, params.stop) == (3, ("END", "FIN"))
    assert (params.mode, params.lossless, params.modes, params.priority) == ("auto", True, ("ar", "draft"), "batch")
    assert (params.policy, params.entropy_bound, params.tokens_per_pass) == ("entropy", 0.3, 2)
    assert (params.edit_threshold, params.threshold) == (0.8, 0.7)


def test_each_field_of_the_engine_can_be_wished_for():
    """A field that GenerateParams gains is refused until the table has it, never dropped."""
    for name in ALL_FIELDS - {"mode", "policy"} - ABILITIES.fields:
        wishes = Wishes()
        wishes.add(name, object(), "wire_name")
        with pytest.raises(RequestError, match="wire_name is not supported here") as caught:
            wishes.params(ABILITIES)
        assert caught.value.param == "wire_name"


def test_a_stop_is_cut_out_wherever_it_falls(client_and):
    text = "One two. " * 6 + "Three END four"
    for stop in ("END", ["zzz", "Three", "END"]):
        client, _ = client_and(text)
        whole = ask(client, stop=stop).choices[0]
        expected = text[: min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text)]
        assert (whole.message.content, whole.finish_reason) == (expected, "stop")
        chunks = list(ask(client, stop=stop, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_answers(client_and):
    client, engine = client_and("One.", "Two, and more.", "Three.")
    completion = ask(client, n=3, temperature=1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == ["One.", "Two, and more.", "Three."]
    assert [params.choice for params in engine.params] == [0, 1, 2]
    assert len({params.seed for params in engine.params}) == 1, "one seed, told apart by the choice"
    usage = completion.usage
    assert usage.completion_tokens == sum(map(len, ("One.", "Two, and more.", "Three."))) + 3
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert len(usage.model_extra["fourleaf"]["choices"]) == 3


def test_several_streamed_answers(client_and):
    client, _ = client_and("One.", "Two, and more.", "Three.")
    texts = ["", "", ""]
    reasons: list[str | None] = [None, None, None]
    roles = []
    for chunk in ask(client, n=3, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        roles += [choice.index] if choice.delta.role else []
    assert texts == ["One.", "Two, and more.", "Three."]
    assert reasons == ["stop"] * 3
    assert roles == [0, 1, 2]


def test_a_fault_in_one_of_several_answers_ends_the_request_and_not_the_server(client_and):
    client, engine = client_and("One two three. " * 9)
    engine.fault_at = 3
    with pytest.raises(openai.InternalServerError):
        ask(client, n=3)
    assert ask(client).choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_belong_to_their_tokens(client_and, stream, byte_tokenizer, call_text):
    """Bug kind 55: they get mixed up on the way."""
    said = "Ça va?" + call_text("make_tea")
    client, _ = client_and(said)
    answered = ask(client, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        found = [one for chunk in answered for one in (chunk.choices[0].logprobs or _None).content]
    else:
        found = answered.choices[0].logprobs.content
    ids = byte_tokenizer.encode_markup(said)
    assert [one.logprob for one in found] == [pytest.approx(-token / 1000) for token in ids]
    assert b"".join(bytes(one.bytes) for one in found) == said.encode()
    assert all(len(one.top_logprobs) == 2 for one in found)
    assert found[0].top_logprobs[0].logprob == found[0].logprob
    assert found[0].model_extra["pass"] == 1


class _None:
    content: tuple = ()


def test_no_logprobs_unless_asked(client_and):
    client, engine = client_and("Hi.")
    assert ask(client).choices[0].logprobs is None
    assert engine.params[0].logprobs is None
    assert len(ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs) == 0


def test_a_format_is_a_constraint(client_and):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    client, engine = client_and('{"a": 1}')
    ask(client, response_format={"type": "json_object"})
    ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    ask(client, response_format={"type": "text"})
    assert [params.constraint for params in engine.params] == [
        Constraint("json_object"),
        Constraint("json_schema", json.dumps(schema)),
        None,
    ]


def test_the_sdks_parser_gets_its_object(client_and):
    class Answer(BaseModel):
        a: int

    client, engine = client_and('{"a": 1}')
    parsed = client.chat.completions.parse(model="cabin", messages=SAID, response_format=Answer)
    assert parsed.choices[0].message.parsed == Answer(a=1)
    assert engine.params[0].constraint.kind == "json_schema"


TEA_TOOL = Tool("make_tea", json.dumps(TEA["function"]["parameters"]))


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ({}, Tools((TEA_TOOL, Tool("make_coffee")))),
        ({"tool_choice": "required"}, Tools((TEA_TOOL, Tool("make_coffee")), "required")),
        (
            {"tool_choice": {"type": "function", "function": {"name": "make_coffee"}}},
            Tools((TEA_TOOL, Tool("make_coffee")), "named", "make_coffee"),
        ),
        ({"parallel_tool_calls": False}, Tools((TEA_TOOL, Tool("make_coffee")), parallel=False)),
        (
            {"response_format": {"type": "json_object"}},
            Tools((TEA_TOOL, Tool("make_coffee")), otherwise=Constraint("json_object")),
        ),
    ],
)
def test_tools_are_a_constraint(client_and, call_text, fields, tools):
    client, engine = client_and(call_text("make_tea"))
    completion = ask(client, tools=[TEA, COFFEE], **fields)
    assert completion.choices[0].finish_reason == "tool_calls"
    assert engine.params[0].constraint == Constraint("tools", tools)


def test_what_tools_in_the_weights_may_be_called_is_the_engines_affair_until_a_request_forces_some(
    client_and, call_text
):
    client, engine = client_and(call_text("set_ac", on=True), fixed_tools=TOOLS)
    for fields in ({}, {"tools": TOOLS[:2]}, {"tools": TOOLS[:2], "extra_body": FREE}):
        ask(client, **fields)
    assert [params.constraint for params in engine.params] == [None] * 3
    assert [params.grammar for params in engine.params] == [True, True, False]
    ask(client, tools=TOOLS[:2], tool_choice="required", extra_body=FREE)
    ask(client, tools=TOOLS[:2], parallel_tool_calls=False)
    forced, single = (params.constraint.value for params in engine.params[3:])
    assert (forced.choice, len(forced.offered)) == ("required", 2)
    assert (single.choice, single.is_either, single.parallel) == ("auto", True, False)
    assert len(single.offered) == len(TOOLS), "held to some of its tools, the model would call one that nobody meant"


def test_tools_that_a_prompt_names_make_a_grammar_unless_it_is_turned_off(client_and, call_text):
    client, engine = client_and(call_text("set_ac", on=True))
    ask(client, tools=TOOLS[:2])
    ask(client, tools=TOOLS[:2], extra_body=FREE)
    assert engine.params[0].constraint.value.choice == "auto"
    assert not engine.params[0].constraint.value.is_either, "text may come before calls"
    assert engine.params[1].constraint is None


def test_a_call_cannot_be_forced_without_tools_or_to_an_unknown_one(client_and):
    client, _ = client_and("Hi.")
    for fields in (
        {"tool_choice": "required"},
        {"tools": [TEA], "tool_choice": {"type": "function", "function": {"name": "make_coffee"}}},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **fields)
        assert caught.value.param == "tool_choice"


def test_a_model_that_thinks_is_told_whether_to(client_of, able, byte_tokenizer):
    """Pitfall 15 and bug kind 58: a thought that the prompt opened must not come out as the answer."""
    engine = able("hm</think>Yes.", "Yes.", "hm")
    engine.chat = ChatTemplate(THINKER, byte_tokenizer)
    client = client_of(engine, fixed_tools=None)
    thought = ask(client, reasoning_effort="high", response_format={"type": "json_object"})
    message = thought.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("Yes.", "hm")
    assert thought.usage.completion_tokens_details.reasoning_tokens == 3
    assert engine.params[0].constraint == Constraint("json_object", reasoning="open")
    plain = ask(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert plain.choices[0].message.content == "Yes."
    assert engine.prompts[1].endswith("<think></think>")
    cut = ask(client, max_tokens=2).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("", "length")
    assert cut.message.model_extra["reasoning_content"] == "hm"


def test_capabilities_say_what_is_honoured(client_of, able, scripted):
    for engine in (able("Hi."), scripted("Hi.")):
        client = client_of(engine)
        found = client.get("/capabilities?model=cabin", cast_to=dict[str, object])
        assert found == json.loads(json.dumps(document(engine, fixed_tools=True)))
        listed = client.get("/capabilities", cast_to=dict[str, object])
        assert listed["data"] == [found]
    assert found["fields"] == sorted(ABILITIES.fields)
