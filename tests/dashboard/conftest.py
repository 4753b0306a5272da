"""One server and one browser for all tests of the dashboard."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import brigade
from brigade import Hub
from brigade.server.serve import Serving
from served import served

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parents[2] / ".venv/axe/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('dashboard')}/store?fsync=false"


@pytest.fixture(scope="session")
def serving(store: str) -> Iterator[Serving]:
    with served(store) as one:
        yield one


@pytest.fixture(scope="session")
def hub(store: str) -> Iterator[Hub]:
    """The store as any other process sees it."""
    with brigade.connect(store) as hub:
        yield hub


@pytest.fixture
def name() -> str:
    """A queue name that nobody has used."""
    return f"q-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def http(serving: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serving.address, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser. Its driver keeps an event loop going, so it ends before other modules' tests start theirs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    switches = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    with playwright.sync_playwright() as made:
        browser = made.chromium.launch(
            executable_path=path, args=[*switches, "--disable-component-update", "--disable-sync"]
        )
        yield browser
        browser.close()


class Tab:
    """A tab, and everything it complained about."""

    def __init__(self, context: Any, base: str) -> None:
        self.base = base
        self.page = context.new_page()
        self.page.set_default_timeout(45_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message: Any) -> None:
        if "Content Security Policy" in message.text or "Refused to" in message.text:
            self.complaints.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a script ran: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Any:
        """Go to a page and wait until it is live."""
        self.page.goto(self.base + path)
        self.page.locator("#live.on").wait_for()
        return self.page


@pytest.fixture
def new_tab(chromium: Any, serving: Serving) -> Generator[Callable[..., Tab], None, None]:
    """Tabs of windows of their own. No script of others may run, nothing may be asked of other hosts."""
    made: list[tuple[Any, Tab]] = []

    def make(base: str = serving.address, **options: Any) -> Tab:
        context = chromium.new_context(**options)
        tab = Tab(context, base)
        made.append((context, tab))
        return tab

    yield make
    for context, tab in made:
        context.close()
        assert tab.complaints == []
        assert [url for url in tab.requests if not url.startswith(tab.base)] == []


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    return new_tab(viewport={"width": 1280, "height": 860})


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker as a script."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make setup")
    return AXE.read_text(encoding="utf-8")
