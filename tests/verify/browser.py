"""A page as a real Chromium lays it out, without any network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

TIMEOUT_S: Final = 120

_MEASURE: Final = """<script>addEventListener("load", () => {
  const box = it => it.getBoundingClientRect();
  const found = {
    text: document.body.innerText,
    fetched: performance.getEntriesByType("resource").map(it => it.name),
    dead_links: [...document.querySelectorAll("a[href^='#']")].map(it => it.getAttribute("href"))
      .filter(it => !document.getElementById(it.slice(1))),
    overflow_px: document.documentElement.scrollWidth - innerWidth,
    pictures: [...document.querySelectorAll("svg.plots")].map(it => [box(it).width, box(it).height]),
    picture_texts: [...document.querySelectorAll("svg.plots text")].map(it => it.textContent),
    ink: [...document.querySelectorAll("svg.plots text")].filter(it => it.textContent.startsWith("Latency"))
      .map(it => getComputedStyle(it).fill),
    named_rows: [...document.querySelectorAll("details[open] tr.named")].filter(it => box(it).height > 0).length,
  };
  const told = document.createElement("pre");
  told.id = "measured";
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});</script>"""


def look(page: Path, directory: Path, *, width_px: int = 1280) -> dict[str, Any]:
    """What a script that is put into a copy of the page measures there."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "Chromium is missing: scripts/setup test installs it"
    copy = directory / "measured.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{_MEASURE}</body>"), encoding="utf-8")
    command = [
        chromium,
        "--headless",
        "--no-sandbox",  # it refuses to have one where tests run as root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={directory / 'chromium'}",
        f"--window-size={width_px},900",
        "--dump-dom",
        copy.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert measured is not None, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(measured[1]))
    return found
