"""Pictures of the page at three sizes, for the docs, from a server that runs: `page_pictures.py URL FOLDER`.

Wants Chromium, playwright and pillow (extras `test` and `dev`).
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}
WISHES = (
    "open my window halfway",
    "heat my seat, level three, and warm the steering wheel",
    "blue ambient light, forty percent",
    "take me to Central Station, no tolls, and stop at a bakery",
    "play Norah Jones, volume fifteen",
)


def watch(page: Page) -> None:
    """A finished race, at a quarter of its time."""
    page.locator(".chip").first.click()
    page.wait_for_selector(".player:not([hidden])")
    page.evaluate(
        "() => { const { player } = fourleaf.views.get('watch'); player.pause(); player.seek(player.duration / 4); }"
    )


def cabin(page: Page) -> None:
    """The car after some wishes."""
    for wish in WISHES:
        page.get_by_label("What to say to the car").fill(wish)
        page.get_by_role("button", name="Say it").click()
        page.wait_for_function("() => !fourleaf.views.get('cabin').isBusy")
    page.wait_for_timeout(2000)  # the marks of what changed fade


def decide(page: Page) -> None:
    """The first example, answered."""
    page.locator("[data-act=decide]").click()
    page.locator("table.answers").wait_for()
    page.locator("table.answers").scroll_into_view_if_needed()


def chat(page: Page) -> None:
    """One wish, and its answer."""
    page.get_by_label("Message", exact=True).fill(WISHES[1])
    page.locator("[data-act=send]").click()
    page.wait_for_function("() => !fourleaf.views.get('chat').abort")


PICTURES: tuple[tuple[str, str, str, Callable[[Page], None]], ...] = (
    ("watch", "desktop", "light", watch),
    ("watch", "tablet", "light", watch),
    ("watch", "phone", "dark", watch),
    ("cabin", "desktop", "dark", cabin),
    ("decide", "desktop", "light", decide),
    ("chat", "phone", "light", chat),
)


def main(url: str, folder: Path) -> None:
    """Takes all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-sync"]
        )
        for view, size, scheme, prepare in PICTURES:
            width, height = SIZES[size]
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            page.set_default_timeout(90_000)
            page.goto(f"{url}/#{view}")
            page.wait_for_selector(".view")
            prepare(page)
            page.evaluate("() => document.activeElement.blur()")
            drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            drawn.quantize(96).save(folder / f"{view}-{size}.png", optimize=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
