import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourleaf.text.calls import Markup
from fourleaf.text.router import ContentDelta, ReasoningDelta, Router, ToolCallStart, fold
from fourleaf.text.stops import StopFilter, StopFinder
from fourleaf.text.tokenizer import Tokenizer

CALL = '<tool_call>{"name": "set_fan", "arguments": {"level": 3}}</tool_call>'


def twin(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What is kept and the stop that ends it, by looking at every beginning of the text in turn."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def through(stops: list[str], portions: list[str]) -> tuple[list[str], str | None]:
    """What each portion lets out, the rest at the end, and what ended it."""
    filtered = StopFilter(stops)
    return [*map(filtered.feed, portions), filtered.close()], filtered.found


def cuts(text: str) -> list[list[str]]:
    """Every way to cut a text into portions."""
    found = []
    for count in range(len(text)):
        for places in combinations(range(1, len(text)), count):
            edges = [0, *places, len(text)]
            found.append([text[a:b] for a, b in pairwise(edges)])
    return found or [[text]]


@pytest.mark.parametrize(
    ("text", "stops", "kept", "found"),
    [
        ("one\ntwo", ["\n"], "one", "\n"),
        ("a###b", ["###", "##"], "a", "##"),  # the shorter one is complete first
        ("abcd", ["bcd", "d"], "a", "bcd"),  # both are complete at once: the one that begins first
        ("abcd", ["bcx", "c"], "ab", "c"),
        ("aab", ["ab"], "a", "ab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("stop", ["stop"], "", "stop"),
        ("sto", ["stop"], "sto", None),
        ("na na", ["na na na"], "na na", None),
        ("zwölf Grad é!", ["é"], "zwölf Grad ", "é"),
        ("🙂🙃", ["🙃"], "🙂", "🙃"),
        ("text", [], "text", None),
    ],
)
def test_a_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut(text, stops, kept, found):
    assert twin(text, stops) == (kept, found)
    for portions in [*cuts(text)[:600], list(text), [text], ["", *text, ""]]:
        pieces, ended = through(stops, portions)
        assert ("".join(pieces), ended) == (kept, found)


@settings(max_examples=300, deadline=None)
@given(st.text("abc", max_size=14), st.lists(st.text("abc", min_size=1, max_size=5), max_size=4), st.randoms())
def test_any_text_any_stops_any_cut(text: str, stops: list[str], rng: random.Random):
    kept, found = twin(text, stops)
    places = sorted(rng.sample(range(len(text) + 1), rng.randint(0, len(text) // 2)))
    edges = [0, *places, len(text)]
    pieces, ended = through(stops, [text[a:b] for a, b in pairwise(edges)])
    assert ("".join(pieces), ended) == (kept, found)


def test_nothing_is_held_back_longer_than_it_may_be_the_beginning_of_a_stop():
    filtered = StopFilter(["User:", "\n\n"])
    assert filtered.feed("Hello Us") == "Hello "
    assert filtered.feed("a") == "Usa"
    assert filtered.feed("\n") == ""
    assert filtered.feed("x") == "\nx"
    assert filtered.feed("UserUser:more") == "User"
    assert filtered.found == "User:"
    assert filtered.feed("never") == ""
    assert filtered.close() == ""


def test_a_long_stop_over_a_text_that_nearly_holds_it_is_found():
    stop = "a" * 500 + "b"
    pieces, found = through([stop], ["a" * 7] * 300 + ["b", "c"])
    assert found == stop
    assert "".join(pieces) == "a" * (2100 - 500)


def finder(tokenizer: Tokenizer, stops: list[str], **options) -> StopFinder:
    return StopFinder(stops, Router(tokenizer, **options))


def last_token(found: StopFinder, ids: list[int]) -> int | None:
    """Index of the token after which the answer ends."""
    return next((i for i, token_id in enumerate(ids) if found.feed(token_id)), None)


def test_a_stop_may_begin_and_end_inside_tokens(tokenizer: Tokenizer):
    ids = tokenizer.encode("the window is open")
    pieces = [tokenizer.decode([token_id]) for token_id in ids]
    assert len(pieces) < len("the window is open") - 6
    for begin in range(18):
        for end in range(begin + 1, 19):
            stop = "the window is open"[begin:end]
            kept, _ = twin("the window is open", [stop])
            found = finder(tokenizer, [stop])
            last = last_token(found, ids)
            assert last is not None
            assert found.num_kept == len(kept)
            assert len("".join(pieces[: last + 1])) >= len(kept) + len(stop) > len("".join(pieces[:last]))


def test_a_stop_across_the_edge_of_a_block_is_found(byte_tokenizer: Tokenizer):
    """Tokens come block by block; what is found does not depend on where one ends."""
    text = "x" * 30 + "STOP" + "y" * 30
    found = finder(byte_tokenizer, ["STOP"])
    assert last_token(found, byte_tokenizer.encode(text)) == 33
    assert (found.found, found.num_kept) == ("STOP", 30)


@settings(max_examples=150, deadline=None)
@given(st.text("aé🙂\n", max_size=12), st.lists(st.text("aé🙂\n", min_size=1, max_size=3), min_size=1, max_size=3))
def test_kind_58_a_stop_inside_characters_of_several_tokens(byte_tokenizer: Tokenizer, text, stops):
    """Every byte is a token here, so each character comes in pieces."""
    kept, stop = twin(text, stops)
    found = finder(byte_tokenizer, stops)
    last = last_token(found, byte_tokenizer.encode(text))
    assert found.found == stop
    if stop is not None:
        assert (last, found.num_kept) == (len((kept + stop).encode()) - 1, len(kept))


def test_broken_bytes_are_the_text_that_a_client_sees(byte_tokenizer: Tokenizer):
    first, *_ = byte_tokenizer.encode("é")
    plain = byte_tokenizer.encode("ab")
    found = finder(byte_tokenizer, ["\ufffda"])
    assert last_token(found, [plain[1], first, *plain]) == 2
    assert found.num_kept == 1


def test_a_stop_that_no_text_can_hold_is_never_found(byte_tokenizer: Tokenizer):
    assert last_token(finder(byte_tokenizer, ["\ud83d"]), byte_tokenizer.encode("🙂")) is None


def test_a_control_token_spells_no_stop_and_a_spelled_one_does(tokenizer: Tokenizer):
    ids = [*tokenizer.encode_markup(CALL), *tokenizer.encode("ok")]
    assert last_token(finder(tokenizer, ["<tool_call>", "set_fan", "}"]), ids) is None
    spelled = tokenizer.encode("see <tool_call>")
    assert last_token(finder(tokenizer, ["<tool_call>"]), spelled) is not None


def test_thoughts_and_calls_are_not_searched_and_no_stop_goes_across_them(tokenizer: Tokenizer):
    ids = tokenizer.encode_markup(f"<think>stop</think>st{CALL}op, then stop. More")
    found = finder(tokenizer, ["stop"])
    last = last_token(found, ids)
    assert last is not None
    assert tokenizer.decode(ids[: last + 1]).endswith("then stop")
    assert found.num_kept == len("stop, then ")
    assert last_token(finder(tokenizer, ["stop"], reasoning=True), tokenizer.encode("stop, think")) is None


def test_a_call_that_is_broken_is_text_and_searched_as_such(tokenizer: Tokenizer):
    ids = tokenizer.encode_markup("<tool_call>{not a call}</tool_call> and more")
    found = finder(tokenizer, ["not a"])
    last = last_token(found, ids)
    assert last is not None
    assert ids[last] == tokenizer.token_id("</tool_call>")


@pytest.mark.parametrize("stops", [["\n"], ["op"], ["3"], ["stop", "st"], ["zzz"]])
def test_finder_and_filter_agree_for_every_portioning(tokenizer: Tokenizer, stops):
    """The engine ends where the stream of the server does, and the stream takes nothing back."""
    ids = tokenizer.encode_markup(f"<think>stop 3</think>go\n{CALL}\nstep by stop 3\n<think>op</think> the end")
    for markup in (Markup(), Markup(lines=True)):
        found = finder(tokenizer, stops, markup=markup)
        last = last_token(found, ids)
        for size in (1, 2, 5, len(ids)):
            router, filtered, events = Router(tokenizer, markup), StopFilter(stops), []
            for begin in range(0, len(ids), size):
                events += filtered.passed(router.feed(ids[begin : begin + size]))
            if last is None:
                events += [*filtered.passed(router.finish()), *filtered.closing()]
            message = fold(events)
            if last is not None:
                assert filtered.found == found.found
                assert len(message.content) == found.num_kept
            assert not any(stop in message.content for stop in stops)


def test_what_was_held_back_comes_before_what_ended_the_text():
    filtered = StopFilter(["ab"])
    events = [ContentDelta("xa"), ReasoningDelta("b"), ContentDelta("ba"), ToolCallStart(0, "f"), ContentDelta("b")]
    expected = [ContentDelta("x"), ContentDelta("a"), ReasoningDelta("b"), ContentDelta("b"), ContentDelta("a"),
                ToolCallStart(0, "f"), ContentDelta("b")]  # fmt: skip
    assert [*filtered.passed(events), *filtered.closing()] == expected
    assert filtered.found is None


def test_nothing_comes_behind_a_stop():
    filtered = StopFilter(["ab"])
    events = [ContentDelta("1ab2"), ToolCallStart(0, "f"), ContentDelta("3")]
    assert [*filtered.passed(events), *filtered.closing()] == [ContentDelta("1")]
