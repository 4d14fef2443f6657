"""The page of `eqsat explain --html`: its data, and the page itself in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eqsat.cli import main

PROGRAM = """
import torch

torch.manual_seed(0)

class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.q, self.k, self.v = (torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = self.q(h), self.k(h), self.v(h)
        seen = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v
        return x + torch.nn.functional.silu(seen)  # </script> must not end the data

with torch.no_grad():
    torch.compile(Heads(), backend="eqsat")(torch.randn(2, 32, 64))
"""

ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1400,1000",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    script, path = folder / "heads.py", folder / "page.html"
    script.write_text(PROGRAM)
    assert main(["explain", str(script), "--html", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def stage(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    graphs = json.loads(found.group(1))
    shots = [shot for graph in graphs for shot in graph["snapshots"]]
    changed: dict[str, Any] = next(shot for shot in shots if shot["status"] == "changed")
    return changed


def test_the_data_hangs_together(stage: dict[str, Any]) -> None:
    classes = {group["number"]: group for group in stage["classes"]}
    for group in classes.values():
        assert sum(form["chosen"] for form in group["forms"]) == group["used"]
        for form in group["forms"]:
            assert set(form["classes"]) <= set(classes)
            assert -1 <= form["firing"] < len(stage["firings"])
    for firing in stage["firings"]:
        assert set(firing["matched"]) | set(firing["made"]) | set(firing["roots"]) <= set(classes)
    calls = [node for node in stage["after"] if "(" in node["text"]]
    assert calls and all(classes[node["number"]]["used"] for node in calls if node["number"] >= 0)
    assert sum(node["number"] >= 0 for node in calls) > len(calls) // 2


def test_no_alternative_is_cheaper_than_what_was_chosen(stage: dict[str, Any]) -> None:
    compared = 0
    for group in stage["classes"]:
        chosen = [form["total"] for form in group["forms"] if form["chosen"]]
        for form in group["forms"]:
            if chosen and form["total"] is not None and not form["chosen"]:
                assert form["total"] >= chosen[0]
                compared += 1
    assert compared > 5
    assert chosen_total(stage) == pytest.approx(stage["cost_after"])


def chosen_total(stage: dict[str, Any]) -> float:
    forms = (form for group in stage["classes"] for form in group["forms"])
    return sum(form["own"] for form in forms if form["chosen"])


def test_merged_products_lead_to_their_rule(stage: dict[str, Any]) -> None:
    classes = {group["number"]: group for group in stage["classes"]}
    wide = next(node for node in stage["after"] if node["type"] == "f32[64, 192]")
    form = next(form for form in classes[wide["number"]]["forms"] if form["chosen"])
    assert stage["firings"][form["firing"]]["rule"] == "qkv-merge-bias"


def test_bad_paths_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "heads.py"
    script.write_text("import torch\ntorch.compile(torch.sin, backend='eqsat')(torch.randn(3))\n")
    assert main(["explain", str(script), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none.py"), "--html", "x.html"]) == 2


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ARGUMENTS:
        options.add_argument(argument)
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.get(page.as_uri())
    yield made
    made.quit()


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


def test_the_page_in_a_browser(browser: Any) -> None:
    """A node leads to its rule, the rule to classes, classes to their forms and costs."""
    find = lambda selector: browser.find_elements("css selector", selector)  # noqa: E731
    assert any("post_grad (changed)" in text for text in texts(browser, "#views button"))
    new = [row for row in find("#view .row.new") if "addmm" in row.text]
    new[0].click()
    assert "qkv-merge-bias" in find("#detail")[0].text
    assert "chosen" in " ".join(texts(browser, "#forms tr.chosen"))
    find("#forms .link")[-1].click()
    assert "matched" in find("#detail")[0].text
    find("#detail .link")[0].click()
    assert find("#detail h2")[0].text.startswith("e")
    find("#search")[0].send_keys("sigmoid")
    rows = texts(browser, "#search + .list .row")
    assert 0 < len(rows) < 20
    for title, expected in (("kernels", "k_"), ("fusion", "loop nests")):
        next(tab for tab in find("#views button") if tab.text == title).click()
        assert expected in find("#view")[0].text
    next(tab for tab in find("#views button") if tab.text == "kernels").click()
    find("#view .link")[0].click()
    assert "for (int64_t" in find("#detail pre")[0].text
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
