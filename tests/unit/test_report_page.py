"""The HTML report in a headless Chromium, as wide as a desktop and as a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless_browser import NAMES, Browser, find_browser
from report_cases import CASES

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt install chromium)"
)
LOOK = (Path(__file__).parents[1] / "report_page.js").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for name, make in CASES.items():
        make().report(folder / f"{name}.html")
    return folder


@pytest.mark.parametrize("width", [1280, 820, 390])
@pytest.mark.parametrize("name", CASES)
def test_a_person_can_read_it(name: str, width: int, browser: Any, reports: Path) -> None:
    page = browser.open(reports / f"{name}.html", width)
    assert page.evaluate(LOOK) == []
    assert page.complaints() == []


def test_a_look_at_the_map_gives_the_expert_s_numbers(browser: Any, reports: Path) -> None:
    page = browser.open(reports / "drafting.html", 1280)
    shown = page.evaluate(
        """(() => {
          var map = document.querySelector(".wide image.map"), box = map.getBoundingClientRect();
          var at = { clientX: box.left + box.width * 3.5 / 32, clientY: box.top + box.height * 0.5 / 12 };
          map.dispatchEvent(new PointerEvent("pointermove", at));
          return document.getElementById("tip").textContent;
        })()"""
    )
    experts = CASES["drafting"]().experts
    assert shown.startswith(f"layer 1, expert 3: {experts.uses[0, 3]} uses, ")
    assert shown.endswith(f"{experts.misses[0, 3] + experts.late[0, 3]} misses")
    assert page.complaints() == []


FAULTS = {
    "wide": ("<main>", '<main><div style="width:2000px">x</div>'),
    "overlap": ("<h2>Time</h2>", '<h2>Time</h2><p style="margin-top:-34px">across</p>'),
    "error": ("<main>", "<main><script>undefined_function()</script>"),
    "network": ("<main>", '<main><img src="https://expertree.invalid/x.png">'),
    "empty": ('class="mark"', ""),
    "cut": ('class="axis">ms per token', 'class="axis" dx="-40">ms per token'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_look_sees_what_is_wrong(fault: str, browser: Any, reports: Path, tmp_path: Path) -> None:
    before, after = FAULTS[fault]
    text = (reports / "drafting.html").read_text()
    assert before in text
    (tmp_path / "page.html").write_text(text.replace(before, after))
    page = browser.open(tmp_path / "page.html", 1280)
    assert page.evaluate(LOOK) or page.complaints()
