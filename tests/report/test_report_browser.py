"""The page in a real browser, at a desk's and a phone's width, light and dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_run import make_run

from jaxrefine.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (1280, 390)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")

# What each frame's document says of itself: how wide it is, and of every text how legible.
RULER = """<!DOCTYPE html><meta name="color-scheme" content="light dark"><body>FRAMES<script>
const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const rgba = text => { const c = text.match(/[\\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; };
const behind = (element, view) => {
  for (; element; element = element.parentElement) {
    const c = rgba(view.getComputedStyle(element).backgroundColor);
    if (c[3] === 1) return c;
  }
  return [255, 255, 255, 1];
};
const measure = frame => {
  const page = frame.contentDocument, view = frame.contentWindow, texts = [];
  page.querySelectorAll("details").forEach(d => d.open = true);
  for (const element of page.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("style, defs, title")) continue;
    const style = view.getComputedStyle(element), inside = element instanceof view.SVGElement;
    const colour = rgba(inside ? style.fill : style.color), ground = behind(element, view);
    const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
    const turn = inside ? element.getScreenCTM() : {a: 1, b: 0}, scale = Math.hypot(turn.a, turn.b);
    texts.push({text: element.textContent.trim().slice(0, 40), contrast: (a + .05) / (b + .05),
                size: parseFloat(style.fontSize) * scale, code: !!element.closest(".code")});
  }
  const root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll, .frame, pre, svg"))
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName + "." + e.className);
  return {width: root.scrollWidth, room: root.clientWidth, wide: wide.slice(0, 5), texts,
          sections: [...page.querySelectorAll("section")].map(s => [s.id, s.getBoundingClientRect().height])};
};
window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"""


def chromium(tmp_path: Path, page: Path, *options: str, dark: bool = False) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    return subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", *scheme, *options, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


def said(stderr: str) -> list[str]:
    """What the page wrote to the console: blocked requests and style errors among it."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("browser") / "run"))


@pytest.fixture(scope="module", params=[False, True], ids=["light", "dark"])
def measured(report: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    frames = "".join(f'<iframe src="{report.as_uri()}" width="{width}" height="900"></iframe>' for width in WIDTHS)
    ruler = report.with_name("ruler.html")
    ruler.write_text(RULER.replace("FRAMES", frames))
    ended = chromium(tmp_path_factory.mktemp("ruler"), ruler, "--dump-dom", dark=request.param)
    assert said(ended.stderr) == []
    found = re.search(r'<pre id="found">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert found, ended.stdout[-500:]
    return dict(zip(WIDTHS, json.loads(unescape(found[1])), strict=True))


def test_the_console_stays_silent(report: Path, tmp_path: Path) -> None:
    ended = chromium(tmp_path, report, "--dump-dom")
    assert said(ended.stderr) == []
    assert '<section id="overview"' in ended.stdout
    loud = report.with_name("loud.html")
    loud.write_text(report.read_text().replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'))
    assert said(chromium(tmp_path, loud, "--dump-dom").stderr), "a page that asks for something is heard"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(measured: Any, width: int) -> None:
    found = measured[width]
    assert found["room"] > 0.9 * width
    assert found["width"] <= found["room"], found["wide"]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_section_has_a_place(measured: Any, width: int) -> None:
    sections = dict(measured[width]["sections"])
    assert {"overview", "rounds", "round-0", "round-1", "round-2", "cost", "steps", "provenance"} <= sections.keys()
    assert min(sections.values()) > 50


@pytest.mark.parametrize("width", WIDTHS)
def test_every_text_can_be_read(measured: Any, width: int) -> None:
    texts = measured[width]["texts"]
    assert len(texts) > 500
    faint = [text for text in texts if text["contrast"] < (3 if text["code"] else 4.5)]
    assert faint == [], "WCAG 2.1's contrast for text; Pygments' own colours reach its contrast for large text"
    small = [text for text in texts if text["size"] < 7]
    assert small == [], "CSS pixels"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_picture_is_in_the_scheme_that_was_asked_for(report: Path, tmp_path: Path, dark: bool) -> None:
    target = tmp_path / "page.png"
    chromium(tmp_path, report, f"--screenshot={target}", "--window-size=1280,1600", dark=dark)
    with Image.open(target) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape == (1600, 1280)
    ground = np.bincount(pixels.ravel()).argmax()
    assert (ground < 60) if dark else (ground > 240)
    assert 0.01 < np.mean(np.abs(pixels.astype(int) - ground) > 60) < 0.4, "there is ink, and more paper than ink"
