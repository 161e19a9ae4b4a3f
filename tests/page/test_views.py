"""The cabin, the decisions and the numbers in a browser, with the bundled model; and what holds for every view."""

import json
import re

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from fourleaf.tasks.cabin.schema import TOOLS

VIEWS = ("watch", "cabin", "chat", "decide", "numbers")


def drive(page: Page, text: str) -> None:
    page.get_by_label("What to say to the car").fill(text)
    page.get_by_role("button", name="Say it").click()
    page.wait_for_function("() => !fourleaf.views.get('cabin').isBusy")


def test_committed_calls_move_the_car(visit, serve, scripted, call_text):
    answers = (
        call_text("set_window", window="driver", position=50)
        + call_text("set_seat_heating", seat="passenger", level=3),
        call_text("set_temperature", zone="all", celsius=25) + call_text("adjust_temperature", zone="rear", delta=-2),
        call_text("navigate", destination="Bergen", avoid="ferries") + call_text("add_stop", place="Voss"),
        "Sorry, I can't do that.",
    )
    page = visit(serve(scripted(*answers)), "cabin")
    state = "() => fourleaf.cabin.state"
    drive(page, "open my window halfway")
    assert page.evaluate(state)["windows"] == {"driver": 50, "passenger": 0, "rear_left": 0, "rear_right": 0}
    expect(page.locator("[data-part=window-driver] .percent")).to_have_text("50%")
    assert page.locator("[data-part=window-driver] .glass").get_attribute("height") == "50"
    assert page.locator("[data-part=seat-passenger] .pip.hot").count() == 3
    drive(page, "warmer")
    expect(page.locator("[data-part=zone-rear] text")).to_have_text("23°")
    expect(page.locator("[data-part=zone-driver] text")).to_have_text("25°")
    drive(page, "take us to Bergen")
    expect(page.locator(".tile", has_text="Route")).to_contain_text("via Voss, no ferries")
    before = page.evaluate(state)
    drive(page, "sing")
    assert page.evaluate(state) == before
    logged = page.locator(".log code").all_inner_texts()
    assert json.loads(logged[-1]) == {"name": "set_window", "arguments": {"window": "driver", "position": 50}}
    assert len(logged) == 6


def test_the_bundled_model_moves_the_car(visit, cabin_url):
    said = "open my window halfway"
    body = {"model": "cabin", "messages": [{"role": "user", "content": said}], "max_tokens": 512}
    answer = httpx2.post(f"{cabin_url}/v1/chat/completions", json=body, timeout=60).json()
    calls = [one["function"] for one in answer["choices"][0]["message"].get("tool_calls", [])]
    assert calls, "the model answers a plain wish with a call"
    page = visit(cabin_url, "cabin")
    drive(page, said)
    logged = [json.loads(text) for text in page.locator(".log code").all_inner_texts()]
    assert logged[::-1] == [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]


def test_every_tool_changes_the_state_or_says_something(visit, serve, scripted):
    """By the tools' own schemas: one call of each."""

    def value(schema: dict) -> object:
        if "enum" in schema:
            return schema["enum"][-1]
        return {"integer": schema.get("maximum", 1), "boolean": True, "string": "x"}[schema["type"]]

    calls = [
        {
            "name": tool["function"]["name"],
            "arguments": json.dumps({k: value(v) for k, v in tool["function"]["parameters"]["properties"].items()}),
        }
        for tool in TOOLS
    ]
    page = visit(serve(scripted("hi")), "cabin")
    page.wait_for_selector(".view")
    found = page.evaluate(
        """async calls => {
          const { applied, parked } = await import('/page/carstate.js');
          return calls.map(call => applied(parked(), call));
        }""",
        calls,
    )
    for call, got in zip(calls, found, strict=True):
        assert got["changed"], call
        assert "undefined" not in got["words"], call
    bad = page.evaluate(
        "async () => (await import('/page/carstate.js')).applied({}, { name: 'fly', arguments: '{}' })",
    )
    assert bad["changed"] == []


def test_decisions_come_one_by_one_and_together(visit, cabin_url):
    page = visit(cabin_url, "decide")
    page.get_by_role("button", name="Draw a puzzle").click()
    page.wait_for_function("() => fourleaf.views.get('decide').truth !== null")
    page.locator("[data-act=decide]").click()
    table = page.locator("table.answers")
    table.wait_for()
    count = page.locator(".questions > li").count()
    assert table.locator("tbody tr").count() == count
    assert table.locator(".bars").count() == 2 * count
    expect(table.locator("tfoot")).to_contain_text(f"of {count}")
    assert table.locator(".agree, .contradict").count() == 2
    page.get_by_label("Id of the question").first.fill("")
    page.locator("[data-act=decide]").click()
    expect(page.locator(".fault:visible")).to_have_text("A question has no id.")


def number(page: Page, label: str) -> Locator:
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator("dd").first


def test_numbers_are_those_of_the_metrics(visit, serve, scripted):
    url = serve(scripted("One two three."))
    httpx2.post(
        f"{url}/v1/chat/completions",
        json={"model": "cabin", "messages": [{"role": "user", "content": "hi"}]},
        timeout=30,
    ).raise_for_status()
    page = visit(url, "numbers")
    expect(number(page, "Answers")).to_have_text("1")
    expect(number(page, "Tokens a forward")).to_have_text("7.50")
    expect(number(page, "Drafts that stood")).to_have_text("–")
    expect(number(page, "In line")).to_have_text("0")


def test_numbers_tell_drafts_cache_and_memory(visit, cabin_url):
    body = {"model": "cabin", "messages": [{"role": "user", "content": "open my window halfway"}], "mode": "draft"}
    for _ in range(2):
        httpx2.post(f"{cabin_url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    counted = dict(
        line.split() for line in httpx2.get(f"{cabin_url}/metrics").text.splitlines() if line.startswith("fourleaf_")
    )
    count = {name: float(counted[f"fourleaf_{name}_total"]) for name in ("stood", "proposals")}
    page = visit(cabin_url, "numbers")
    expect(number(page, "Drafts that stood")).to_have_text(f"{100 * count['stood'] / count['proposals']:.1f}%")
    expect(number(page, "Memory")).to_have_text(re.compile(r"^[1-9][\d,]+ MiB$"))
    expect(number(page, "Prompt tokens from the cache")).to_have_text(re.compile(r"^\d+\.\d%$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_fault_of_accessibility(visit, serve, scripted, call_text, scheme):
    page = visit(serve(scripted(call_text("set_ac", on=True))), color_scheme=scheme, bypass_csp=True)
    page.get_by_label("What to say").fill("cool")
    page.get_by_role("button", name="Watch", exact=True).click()
    page.wait_for_selector(".player:not([hidden])")
    page.evaluate("() => fourleaf.views.get('watch').player.pause()")
    faults = []
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        page.wait_for_selector(".view")
        for fault in Axe().run(page).response["violations"]:
            if fault["impact"] in ("serious", "critical"):
                faults.append((view, fault["id"], [node["target"] for node in fault["nodes"]][:4]))
    assert faults == []


@pytest.mark.parametrize("size", [(360, 740), (820, 1180), (1920, 1080)], ids=["phone", "tablet", "desktop"])
def test_no_view_is_wider_than_its_screen(visit, serve, scripted, size):
    page = visit(serve(scripted("hi")), size=size)
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        page.wait_for_selector(".view")
        wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert (view, max(0, wide)) == (view, 0)


def test_tabs_are_walked_with_the_arrows(visit, serve, scripted):
    page = visit(serve(scripted("hi")))
    page.locator("#tab-watch").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.id") == "tab-cabin"
    assert page.locator("#tab-cabin").get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("() => document.activeElement.id") == "tab-numbers"


def test_the_first_paint_comes_within_a_second(visit, serve, scripted):
    page = visit(serve(scripted("hi")))
    page.wait_for_selector(".view")
    page.reload()
    page.wait_for_selector(".view")
    paints = page.evaluate("() => performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)")
    assert paints
    assert paints[0] < 1000
