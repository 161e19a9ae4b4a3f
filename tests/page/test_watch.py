"""The canvas view in a browser: what is drawn is what was sent, live and when going back."""

import json
import threading
import time
from pathlib import Path

import pytest

from fourleaf.serve.capabilities import ALL_FIELDS, Abilities

MODEL = Path(__file__).parent / "reels"
SAY = "I'm freezing, wipers on fast, and text Sarah that I'm running ten minutes late"


@pytest.fixture
def able(scripted):
    """Scripted answers by an engine that tells how sure it was."""

    def make(*answers: str):
        engine = scripted(*answers)
        engine.abilities = Abilities(fields=ALL_FIELDS, modes=("ar", "diffuse"))
        return engine

    return make


def ask(page, text: str) -> None:
    page.get_by_label("What to say").fill(text)
    page.get_by_role("button", name="Watch", exact=True).click()


def finished(page) -> None:
    page.wait_for_selector(".player:not([hidden])")
    page.evaluate("() => fourleaf.views.get('watch').player.pause()")


def replayed(page, moment: str) -> None:
    page.evaluate(
        f"() => {{ const {{ player }} = fourleaf.views.get('watch'); player.pause(); player.seek({moment}); }}"
    )


def cells(page, lane: int = 0) -> list[list[str]]:
    """[state, text] of every cell of a lane."""
    return page.evaluate(
        "lane => [...document.querySelectorAll('.lane')[lane].querySelectorAll('.canvas .cell')]"
        ".map(cell => [cell.classList[1], cell.textContent])",
        lane,
    )


def test_a_race_of_the_bundled_model(visit, cabin_url):
    page = visit(cabin_url)
    ask(page, SAY)
    finished(page)
    replayed(page, "player.duration")
    for lane in (0, 1):
        shown = cells(page, lane)
        assert {state for state, _ in shown} <= {"committed", "after"}
        assert shown[0] == ["committed", "‹call›"]
    verdict = page.locator(".verdict").inner_text()
    assert "tokens a forward in diffuse" in verdict
    assert "in ar" in verdict
    tpf = [float(text) for text in page.locator(".lead-meter dd").all_inner_texts()]
    assert tpf[0] > tpf[1] > 0.9
    assert page.evaluate("() => fourleaf.views.get('watch').lanes.map(lane => lane.reel.mode)") == ["diffuse", "ar"]
    bars, tokens = page.evaluate(
        """async () => {
          const { barsOf } = await import('/page/track.js');
          const { playback, reel } = fourleaf.views.get('watch').lanes[1];
          return [barsOf(playback).map(bar => bar[1]), reel.usage.completion_tokens];
        }"""
    )
    assert bars == [1] * (tokens - 1)  # the end token is none of the answer's
    assert page.locator(".track-row").count() == 2


def test_scrubbing_shows_each_pass_and_comes_back_to_the_same(visit, serve, able):
    page = visit(serve(able("One two three. " * 5)))
    ask(page, "count")
    finished(page)
    replayed(page, "player.duration")
    end = cells(page)
    assert "".join(text for _, text in end).replace("␣", " ").rstrip("∎") == "One two three. " * 5
    replayed(page, "0")
    assert all(state in ("masked", "revealed") for state, _ in cells(page))
    page.get_by_role("button", name="One step on").click()
    first = cells(page)
    page.get_by_role("button", name="One step on").click()
    page.get_by_role("button", name="One step back").click()
    assert cells(page) == first
    replayed(page, "player.duration")
    assert cells(page) == end
    revealed = page.evaluate(
        """() => {
          const seen = [];
          const lane = fourleaf.views.get('watch').lanes[0];
          for (let n = 0; n <= lane.playback.moments.length; n += 1)
            seen.push(lane.playback.sceneAt(n).blocks.flatMap(b => b.cells).filter(c => c.text !== null).length);
          return seen;
        }"""
    )
    assert revealed == sorted(revealed)


def test_nothing_moves_by_itself_where_motion_is_not_wanted(visit, serve, able):
    page = visit(serve(able("One two three. " * 5)), reduced_motion="reduce")
    ask(page, "count")
    page.wait_for_selector(".player:not([hidden])")
    state = "() => { const { player } = fourleaf.views.get('watch'); return [player.isPlaying, player.time]; }"
    assert page.evaluate(state)[0] is False
    page.get_by_label("Position in the answer").press("Home")
    page.get_by_role("button", name="Play", exact=True).click()
    playing, time_shown = page.evaluate(state)
    assert not playing
    assert 0 < time_shown < page.evaluate("() => fourleaf.views.get('watch').player.duration")


def test_the_range_scrubs_by_keyboard(visit, serve, able):
    page = visit(serve(able("One two three. " * 5)))
    ask(page, "count")
    finished(page)
    replayed(page, "player.duration")
    page.get_by_label("Position in the answer").focus()
    page.keyboard.press("Home")
    assert any(state == "masked" for state, _ in cells(page)) or cells(page) == []
    page.keyboard.press("End")
    assert all(state in ("committed", "after") for state, _ in cells(page))


def test_stop_in_the_middle_of_a_block_ends_the_request(visit, serve, scripted):
    engine = scripted("x" * 320)
    engine.gate = threading.Semaphore(3)
    page = visit(serve(engine))
    page.get_by_text("How it decodes").click()
    page.get_by_label("side by side").uncheck()
    ask(page, "go")
    page.wait_for_selector(".cell.committed")
    page.locator("[data-act=stop]").first.click()
    engine.gate.release()
    page.get_by_text("Stopped.").first.wait_for()
    until = time.monotonic() + 20
    before = engine.passes
    while time.monotonic() < until and engine.passes < 20:
        engine.gate.release()
        time.sleep(0.02)
        if engine.passes == before and engine.finished == 0:
            break
        before = engine.passes
    assert engine.finished == 0
    assert page.locator(".cell.masked").count() > 0


@pytest.mark.parametrize("name", ["diffuse", "draft"])
def test_recorded_answers_add_up(visit, serve, scripted, name):
    """Streams of the bundled model, kept as files: every reading of them is held to its sums."""
    page = visit(serve(scripted("hi")))
    page.wait_for_selector(".view")
    events = json.loads((MODEL / f"{name}.json").read_text(encoding="utf-8"))
    found = page.evaluate(
        """async ([mode, events]) => {
          const { Reel, Playback } = await import('/page/reel.js');
          const reel = new Reel(mode);
          for (const { name, data, ms } of events) reel.push(name, data, ms);
          const playback = new Playback(reel);
          const scene = playback.sceneAt(playback.moments.length);
          return {
            live: reel.scene.blocks.map(b => b.cells.map(c => [c.state, c.text])),
            played: scene.blocks.map(b => b.cells.map(c => [c.state, c.text])),
            times: playback.moments.map(m => m.ms), tokens: scene.tokens, passes: scene.passes,
            rounds: scene.blocks.filter(b => b.kind === 'round').length, usage: reel.usage.fourleaf,
            completion: reel.usage.completion_tokens, unseen: playback.moments.filter(m => m.isUnseen).length,
          };
        }""",
        [name, events],
    )
    assert found["played"] == found["live"]
    assert found["times"] == sorted(found["times"])
    assert found["tokens"] == found["completion"] - 1  # the end token is none of the answer's
    assert found["passes"] == found["usage"]["passes"]
    states = [state for block in found["played"] for state, _ in block]
    if name == "diffuse":
        assert set(states) == {"committed", "after"}
        assert found["unseen"] > 0
    else:
        assert found["rounds"] == found["usage"]["blocks"]
        assert {"pinned", "stood", "fallen", "corrected"} <= set(states)
        assert "proposed" not in states


@pytest.mark.parametrize("name", ["diffuse", "draft"])
def test_the_bars_of_a_race_are_what_each_pass_or_round_decided(visit, serve, scripted, name):
    page = visit(serve(scripted("hi")))
    page.wait_for_selector(".view")
    events = json.loads((MODEL / f"{name}.json").read_text(encoding="utf-8"))
    bars, tokens, blocks, passes = page.evaluate(
        """async ([mode, events]) => {
          const { Reel, Playback } = await import('/page/reel.js');
          const { barsOf } = await import('/page/track.js');
          const reel = new Reel(mode);
          for (const { name, data, ms } of events) reel.push(name, data, ms);
          const { usage } = reel;
          return [barsOf(new Playback(reel)), usage.completion_tokens, usage.fourleaf.blocks, usage.fourleaf.passes];
        }""",
        [name, events],
    )
    times, decided = zip(*bars, strict=True)
    assert list(times) == sorted(times)
    if name == "diffuse":
        assert len(bars) == passes
        assert sum(decided) >= tokens - 1  # rows behind the end are revealed, too
    else:
        assert blocks <= len(bars) <= blocks + 1  # the first token is the prefill's
        assert sum(decided) == tokens - 1


def test_edits_are_marked_and_stay_so(visit, serve, scripted):
    page = visit(serve(scripted("hi")))
    page.wait_for_selector(".view")
    found = page.evaluate(
        """async () => {
          const { Reel } = await import('/page/reel.js');
          const reel = new Reel('diffuse');
          const frame = (pass, cells) => reel.push('frame', { block: 0, pass, position: 0, rows: 3, cells }, pass);
          frame(0, [[0, 'a'], [1, 'b']]);
          frame(1, [[1, 'c'], [2, '']]);
          const edited = reel.scene.blocks[0].cells[1];
          reel.push('commit', { position: 0, tokens: 2, cells: ['a', 'c'], content: 'ac', reasoning: '' }, 2);
          return [edited, reel.scene.blocks[0].cells[1]];
        }"""
    )
    assert (found[0]["state"], found[0]["text"], found[0]["was"]) == ("edited", "c", "b")
    assert (found[1]["state"], found[1]["isEdited"], found[1]["was"]) == ("committed", True, "b")


def test_a_long_answer_replays_at_thirty_frames_a_second(visit, serve, scripted):
    """2,000 tokens, recorded, then drawn as fast as the browser can: what a frame costs, not what a display does."""
    engine = scripted("word " * 400)
    page = visit(serve(engine))
    page.get_by_text("How it decodes").click()
    page.get_by_label("side by side").uncheck()
    page.evaluate("() => fourleaf.settings.set('max_tokens', 2100)")
    ask(page, "go")
    finished(page)
    cost = page.evaluate(
        """() => {
          const { player } = fourleaf.views.get('watch');
          const began = performance.now();
          const frames = 300;
          for (let i = 0; i <= frames; i += 1) player.seek(player.duration * i / frames);
          document.body.getBoundingClientRect();
          return (performance.now() - began) / frames;
        }"""
    )
    assert len(cells(page)) >= 2000
    assert cost < 1000 / 30
