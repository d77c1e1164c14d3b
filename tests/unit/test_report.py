"""The HTML report's text: nothing from outside, nothing unescaped, reasons for what is missing, honest figures."""

from __future__ import annotations

import base64
import html.parser
import itertools
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from expertree.errors import DeviceError
from expertree.profile.report import palette, report_html
from expertree.profile.report.chart import Axis, Chart, text_width
from expertree.profile.report.details import _without_folders
from expertree.profile.report.markup import Markup, element
from expertree.profile.report.png import png_url
from expertree.profile.report.scales import Scale, number, round_up
from expertree.profile.report.timeline import overlap, typical_step
from report_cases import CASES, HOSTILE
from sample_profile import sample_profile


class Reader(html.parser.HTMLParser):
    """Checks that tags close, and keeps what could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", CASES)
def test_a_page_needs_nothing_else(name: str) -> None:
    text = report_html(CASES[name]())
    found = read(text)
    assert all(link.startswith("data:") for link in found.links)
    assert found.handlers == []
    assert found.scripts == (1 if name == "dense" else 1 + ('id="experts"' in text))
    assert len(text.encode()) < 2_000_000
    assert "nan" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL).lower().split()


def test_names_from_files_stay_text() -> None:
    text = report_html(CASES["hostile"]())
    assert "<script>alert" not in text and "<img" not in text and "\x1b" not in text and "\x00" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 5
    assert "</script><script>alert" not in text
    assert str(element("a", HOSTILE[:9], title='"<')) == '<a title="&quot;&lt;">&lt;/script&gt;</a>'
    assert element("b", Markup("<i></i>")) == "<b><i></i></b>"


def test_what_is_missing_says_why() -> None:
    dense = report_html(CASES["dense"]())
    assert dense.count("A dense model has no experts") >= 3
    assert report_html(CASES["plain"]()).count("No drafts: every step ran the last token alone") >= 4
    assert "No token was decoded" in report_html(CASES["prompts only"]())
    assert "every expert was in memory whenever it was needed" not in report_html(CASES["drafting"]())
    assert 'class="missing">' not in re.sub(
        r'<p class="missing">Nothing was looked for.*?</p>', "", report_html(CASES["drafting"]())
    )


def test_folders_are_nobody_s_business() -> None:
    shown = {"/a b/c.gguf": "c.gguf", "eagle3:/a/b.gguf": "eagle3:b.gguf", "head:C:\\q\\z.gguf": "head:z.gguf"}
    assert all(_without_folders(path) == name for path, name in shown.items())
    assert all(_without_folders(words) == words for words in ("8GiB", "2.78 GB/s", "ngram:4", "models/x.gguf"))


def test_overlap_is_what_intervals_share() -> None:
    profile = sample_profile(n_steps=6)
    step = typical_step(profile)
    assert step is not None
    found = overlap(profile, step)
    n = 200_000  # points in time
    begin, wall = profile.steps.start[step], profile.steps.wall[step]
    at = begin + (np.arange(n) + 0.5) / n * wall

    def covered(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        change = np.zeros(n + 1)
        np.add.at(change, np.searchsorted(at, begins), 1)
        np.add.at(change, np.searchsorted(at, ends), -1)
        return np.cumsum(change[:-1]) > 0

    e, r = profile.events, profile.reads
    mine = (e.step == step) & (e.zone != 9)
    computing, reading = covered(e.begin[mine], e.end[mine]), covered(r.begin, r.end)
    measured = [mask.mean() * wall for mask in (computing, reading, computing & reading)]
    assert np.allclose([found.computing, found.reading, found.both], measured, atol=1e-4 * wall)
    assert found.both > 0 and found.computing + found.waiting == pytest.approx(wall, rel=1e-6)


def test_neighbours_differ_without_colour() -> None:
    def lightness(color: str) -> float:
        linear = [(int(color[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return float((np.dot(linear, (0.2126, 0.7152, 0.0722))) ** (1 / 2.2))

    phases = [phase.style for phase in palette.PHASES]
    for stack in (phases, [palette.HIT, palette.LATE, palette.MISS], list(palette.MEMORY), list(palette.READS)):
        for a, b in itertools.pairwise(stack):
            assert abs(lightness(a.color) - lightness(b.color)) > 0.12 or a.pattern != b.pattern, (a.name, b.name)
    ramp = palette.shades(np.linspace(0, 1, 50))
    light = [lightness("#" + "".join(f"{c:02x}" for c in color)) for color in ramp.tolist()]
    assert np.all(np.diff(light) < 1e-9) and light[0] - light[-1] > 0.8


def test_axes_and_numbers() -> None:
    assert [number(v) for v in (0, 0.034, 0.25, 3.14159, 12.5, 1250.4)] == [
        "0",
        "0.034",
        "0.25",
        "3.14",
        "12.5",
        "1,250",
    ]
    assert [round_up(v) for v in (0.0, 7.2, 83.0, 0.3)] == pytest.approx([1.0, 8.0, 100.0, 0.3])
    for high in (0.004, 1, 7, 93, 12345):
        for width in (120, 356, 912):
            chart = Chart(width, 200, Axis("x", 0, high), Axis.from_zero("y", high))
            labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([^<]+)', chart.svg("test"))
            spans = [(float(x) - text_width(t) / 2, float(x) + text_width(t) / 2) for x, t in labels]
            assert spans and all(a[1] < b[0] for a, b in itertools.pairwise(spans))
            assert spans[-1][1] <= width
    assert Scale(2, 2, 0, 10)(2) == 0


def test_a_picture_holds_the_pixels() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 5, 3)).astype(np.uint8)
    data = base64.b64decode(png_url(pixels).partition(",")[2])
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at], "big")
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + size]), np.uint8).reshape(3, 16)
    assert (rows[:, 1:].reshape(3, 5, 3) == pixels).all() and not rows[:, 0].any()


def test_a_full_disk_is_an_error_with_the_name(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no-folder.*cannot be written"):
        CASES["nothing"]().report(tmp_path / "no-folder" / "report.html")


@pytest.mark.parametrize("name", ["drafting", "plain", "dense", "nothing"])
def test_plots_as_files(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from expertree.profile.plots import write_plots

    written = [path.stem for path in write_plots(CASES[name](), tmp_path)]
    assert (
        written
        == {
            "drafting": ["time", "experts", "budget", "drafts"],
            "plain": ["time", "experts", "budget"],
            "dense": ["time", "drafts"],
            "nothing": ["experts"],
        }[name]
    )
    assert all((tmp_path / f"{name}.png").read_bytes()[1:4] == b"PNG" for name in written)
