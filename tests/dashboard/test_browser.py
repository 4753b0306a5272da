"""The dashboard in a real browser."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from brigade import Backoff, Failure, Hub, Nack, QueuePolicy
from brigade.server.serve import Serving
from served import BRIGADE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=45_000)
AT_ONCE = Backoff(base=0, maximum=0, jitter=None)
PARKING = QueuePolicy(failure=Failure("retry", 0), backoff=AT_ONCE)
Tab = Any


def enqueue(store: str, queue: str, *payloads: str) -> None:
    """As somebody at a shell does."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("BRIGADE_")}
    for payload in payloads:
        command = [BRIGADE, "enqueue", queue, payload, "--url", store]
        subprocess.run(command, check=True, capture_output=True, env=known, timeout=100)


def fill(hub: Hub, name: str) -> None:
    """A queue with something of everything."""
    queue = hub.queue(name, policy=PARKING)
    queue.enqueue_many([{"n": n} for n in range(8)])
    done, *held = queue.claim(4, owner="worker-1")
    queue.ack(done, result={"ok": True})
    queue.settle([Nack(message, f"ValueError: no {n}") for n, message in enumerate(held[:2])])
    queue.enqueue("in line", group="g")
    queue.enqueue("later", delay=3600, attributes={"tenant": "acme"}, correlation_id="c-1")


def pages(hub: Hub, name: str) -> dict[str, str]:
    """Every page, with something on it."""
    held = next(iter(hub.queue(name).peek(1))).id
    return {
        "overview": "/",
        "queue": f"/queues/{name}",
        "messages": f"/queues/{name}/messages",
        "message": f"/queues/{name}/message?id={held}",
        "failures": "/failures",
        "failures of a queue": f"/queues/{name}/failures",
        "workers": "/workers",
        "history": f"/history?queue={name}",
        "system": "/system",
    }


def test_a_message_enqueued_in_a_shell_is_seen_without_a_reload(hub: Hub, store: str, tab: Tab, name: str) -> None:
    hub.queue(name)
    page = tab.open("/")
    row = page.locator(f"#q-{name}")
    expect(row.locator("td").first).to_have_text("0")
    page.evaluate("window.sameDocument = true")
    enqueue(store, name, '{"n": 1}')
    expect(row.locator("td").first).to_have_text("1")
    assert page.evaluate("window.sameDocument") is True


def test_a_queue_that_is_new_appears_by_itself(hub: Hub, store: str, tab: Tab, name: str) -> None:
    page = tab.open("/")
    page.evaluate("window.sameDocument = true")
    enqueue(store, name, "hello")
    expect(page.locator(f"#q-{name} td").first).to_have_text("1")
    assert page.evaluate("window.sameDocument") is True


def test_a_queue_is_paused_and_resumed(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name)
    page = tab.open(f"/queues/{name}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("The queue is paused")).to_be_visible()
    assert queue.stats().paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("hands messages out again")).to_be_visible()
    assert not queue.stats().paused


def test_a_purge_asks_first(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name)
    queue.enqueue_many(range(3))
    page = tab.open(f"/queues/{name}")
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_contain_text("This drops 3 messages")
    page.get_by_role("dialog").get_by_text("Cancel").click()
    assert queue.stats().ready == 3
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.get_by_text("3 messages were dropped")).to_be_visible()
    assert queue.stats().total == 0


def test_failures_are_grouped_and_brought_back(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name, policy=PARKING)
    queue.enqueue_many(range(250))
    queue.settle([Nack(message, f"TimeoutError: {message.data} s") for message in queue.claim(200)])
    queue.settle([Nack(message, "KeyError: 'x'") for message in queue.claim(50)])
    page = tab.open(f"/queues/{name}/failures")
    groups = page.locator("table").first.locator("tbody tr")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("TimeoutError")
    expect(groups.first.locator("td").first).to_have_text("200")
    page.locator('table >> nth=1 >> input[name="id"]').first.check()
    page.get_by_role("button", name="Redrive chosen").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator("#jobs")).to_contain_text("1 brought back")
    assert queue.stats().ready == 1
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator("#jobs")).to_contain_text("249 brought back")
    assert queue.stats().ready == 250


def test_dead_letters_go_back_from_the_queue_they_failed_in(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name, policy=QueuePolicy(failure=Failure("dead-letter", 0, f"{name}.dlq")))
    queue.enqueue("x")
    queue.nack(queue.claim()[0], error="IOError: disk on fire")
    page = tab.open(f"/queues/{name}/failures")
    expect(page.get_by_text("IOError: disk on fire").first).to_be_visible()
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator("#jobs")).to_contain_text("1 brought back")
    assert (queue.stats().ready, hub.queue(f"{name}.dlq").stats().ready) == (1, 0)


def test_messages_are_filtered_and_deleted_in_bulk(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name)
    queue.enqueue_many([{"to": "ada"}, {"to": "grace"}, {"to": "alan"}])
    page = tab.open(f"/queues/{name}/messages")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Text in id or payload").fill("grace")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Everything the filter shows").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete 1 message?")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("1 messages were deleted")).to_be_visible()
    assert sorted(message.data["to"] for message in queue.peek(9)) == ["ada", "alan"]


def test_a_message_in_flight_is_released(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name)
    queue.enqueue("x")
    (held,) = queue.claim(visibility=600)
    page = tab.open(f"/queues/{name}/message?id={held.id}")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("1 messages were taken back")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("released")
    assert queue.claim()[0].attempt == 1


def test_a_message_is_edited_and_sent_again(hub: Hub, tab: Tab, name: str) -> None:
    queue = hub.queue(name)
    queue.enqueue({"to": "ada"}, attributes={"tenant": "acme"})
    (first,) = queue.peek()
    page = tab.open(f"/queues/{name}/message?id={first.id}")
    page.get_by_text("Edit and resend").click()
    page.locator("textarea").fill('{"to": "grace"}')
    page.get_by_label("Delete this one").check()
    page.get_by_role("button", name="Enqueue a copy").click()
    expect(page.get_by_text("A copy was enqueued")).to_be_visible()
    (left,) = queue.peek(5)
    assert (left.data, dict(left.attributes)) == ({"to": "grace"}, {"tenant": "acme"})


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>{{7*7}}"


def test_what_users_put_in_stays_text(hub: Hub, tab: Tab, name: str) -> None:
    policy = QueuePolicy(failure=Failure("dead-letter", 0, f"{name}.dlq"))
    queue = hub.queue(name, policy=policy)
    more: dict[str, Any] = {"attributes": {HOSTILE: HOSTILE}, "correlation_id": HOSTILE}
    queue.enqueue({HOSTILE: HOSTILE}, id=HOSTILE, **more)
    (held,) = queue.claim(owner=HOSTILE, visibility=600)
    queue.state(held).save({HOSTILE: HOSTILE})
    queue.enqueue(HOSTILE, group=HOSTILE, id=f"{HOSTILE}-grouped", **more)
    queue.enqueue(HOSTILE.encode(), content_type=f"text/{name}", id=f"{HOSTILE}-done", **more)
    queue.enqueue(HOSTILE, id=f"{HOSTILE}-dead", **more)
    for message in queue.claim(3, owner=HOSTILE):
        if message.id.endswith("done"):
            queue.ack(message, result={HOSTILE: HOSTILE})
        elif message.id.endswith("dead"):
            queue.nack(message, error=HOSTILE)
        else:
            queue.release(message)
    queue.clear_queue_cache()
    page = tab.open("/")
    for path in ("", "/messages", "/failures"):
        tab.open(f"/queues/{name}{path}")
    for end in ("", "-grouped", "-done", "-dead"):
        page.goto(f"{tab.base}/queues/{name}/messages")
        query = page.evaluate("(id) => new URLSearchParams({id}).toString()", HOSTILE + end)
        tab.open(f"/queues/{name}/message?{query}")
        expect(page.locator("h1")).to_contain_text(HOSTILE + end)
        expect(page.locator("main")).to_contain_text("<script>alert(1)</script>")
    expect(page.locator(".timeline")).to_contain_text(HOSTILE)
    tab.open(f"/queues/{name}.dlq/messages")
    page.locator("tbody a").first.click()
    expect(page.locator(".banner")).to_contain_text(HOSTILE)
    tab.open(f"/queues/{name}/failures")
    page.get_by_role("button", name="Redrive all").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    tab.open("/workers")
    expect(page.locator("#crew")).to_contain_text(HOSTILE)
    tab.open(f"/history?queue={name}")
    expect(page.locator("main")).to_contain_text(f"{HOSTILE[:12]}…")
    page.goto(f"{tab.base}/queues/{name}/messages?text=%3Cscript%3Ealert(4)%3C/script%3E&done=%3Cb%3E")
    assert page.locator("main script, main img, b").count() == 0


class Relay:
    """Stands before the server, and can cut every connection."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._to = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._to)
            except OSError:
                return
            self._open |= {ours, theirs}
            self._start(self._carry, ours, theirs)

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _carry(self, ours: socket.socket, theirs: socket.socket) -> None:
        back = self._start(self._pump, theirs, ours)
        self._pump(ours, theirs)
        back.join()
        ours.close()
        theirs.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def relay(serving: Serving) -> Generator[Relay, None, None]:
    made = Relay(serving.address)
    yield made
    made.close()


def test_a_stream_that_drops_goes_on_where_it_was(
    hub: Hub, store: str, relay: Relay, new_tab: Callable[..., Tab], name: str
) -> None:
    hub.queue(name)
    tab = new_tab(relay.address)
    page = tab.open(f"/queues/{name}")
    page.evaluate("window.sameDocument = true")
    expect(page.locator(".uplot").first).to_be_visible()
    streams = len([url for url in tab.requests if "/live" in url])
    assert streams == 1
    with page.expect_request(re.compile("/live")) as again:
        relay.cut()
    enqueue(store, name, "x")
    expect(page.locator("#figures dd").first).to_have_text("1")
    expect(page.locator("#live")).to_have_class(re.compile("on"))
    assert re.fullmatch("[0-9]{13}", again.value.all_headers()["last-event-id"])
    times = page.evaluate("brigadeCharts.rows.map((row) => row[0])")
    assert times == sorted(set(times))
    assert page.evaluate("window.sameDocument") is True


def test_the_keyboard_leads_everywhere(hub: Hub, tab: Tab, name: str) -> None:
    hub.queue(name)
    page = tab.open("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type(name)
    expect(page.locator("#queues tr:visible")).to_have_count(1)
    page.get_by_placeholder("Filter queues").blur()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(name)
    page.locator("#live.on").wait_for()
    for key, title in (("w", "Workers"), ("h", "History"), ("d", "Dead letters"), ("s", "System")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
        page.locator("#live.on").wait_for()
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != before


def test_news_leave_the_filter_and_the_chosen_row_alone(hub: Hub, store: str, tab: Tab, name: str) -> None:
    chosen, other = f"{name}-chosen", f"{name}-other"
    hub.queue(chosen)
    hub.queue(other)
    page = tab.open("/")
    page.keyboard.press("/")
    page.keyboard.type(chosen.upper())
    shown = page.locator("#queues tr:visible")
    expect(shown).to_have_count(1)
    page.get_by_placeholder("Filter queues").blur()
    page.keyboard.press("j")
    for queue in (other, chosen):
        enqueue(store, queue, "x")
        expect(page.locator(f"#q-{queue} td.num").first).to_have_text("1")
    hub.queue(f"{name}-new")
    expect(page.locator(f"#q-{name}-new")).to_be_attached()
    expect(shown).to_have_count(1)
    expect(page.get_by_placeholder("Filter queues")).to_have_value(chosen.upper())
    expect(page.locator("#queues tr.at")).to_have_attribute("id", f"q-{chosen}")
    page.get_by_placeholder("Filter queues").fill('"] *{')
    expect(shown).to_have_count(0)
    page.get_by_placeholder("Filter queues").fill("")
    expect(page.locator(f"#q-{other}")).to_be_visible()


def test_a_hidden_tab_costs_nothing(hub: Hub, serving: Serving, tab: Tab, name: str) -> None:
    """Where the tab is left for another page of another kind, the stream ends, and with it the polling."""
    hub.queue(name)
    tab.open(f"/queues/{name}")
    assert serving.desk is not None
    assert serving.desk.watch.looking == 1
    hide = (
        "() => { Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    tab.page.evaluate(hide)
    expect(tab.page.locator("#live")).to_have_text("asleep")
    for _ in range(600):
        if not serving.desk.watch.looking and not serving.desk.watch.polls:
            break
        tab.page.wait_for_timeout(100)
    assert (serving.desk.watch.looking, serving.desk.watch.polls) == (0, False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_pages_fit_and_are_accessible(
    hub: Hub, new_tab: Callable[..., Tab], axe: str, name: str, width: int, scheme: str
) -> None:
    fill(hub, name)
    tab = new_tab(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
    for title, path in pages(hub, name).items():
        page = tab.open(path)
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, title
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told = [
            (one["id"], [node["html"][:200] for node in one["nodes"]][:3], one["help"]) for one in found["violations"]
        ]
        assert told == [], f"{title} at {width} pixels, {scheme}"
