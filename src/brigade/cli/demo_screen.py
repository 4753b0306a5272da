"""What the demo shows: a live picture on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from brigade.cli.demo_crew import Crew
from brigade.cli.demo_proof import Proof

__all__ = ["Screen"]

COLORS = {"working": "green", "waiting": "dim", "starting": "dim", "done": "cyan", "killed": "bold red"}


class Screen:
    """Tells the story once, however often it is updated."""

    def __init__(self, console: Console, messages: int) -> None:
        self._console = console
        self._messages = messages
        self._live: Live | None = None
        self._told: set[str] = set()
        self._tenth = 0

    def say(self, text: str) -> None:
        self._console.print(text)

    def _once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.say(text)

    def intro(self, root: Path, workers: int) -> None:
        self.say(f"[bold]Brigade[/]: a queue in {root}, {workers} processes, no broker.\n")

    def enqueued(self, messages: int, seconds: float) -> None:
        self.say(f"[green]✓[/] {messages:,} messages enqueued in {seconds:.2f} s, each one safe on disk (fsync)")

    @contextlib.contextmanager
    def live(self, crew: Crew) -> Generator[None, None, None]:
        self.say(
            f"[green]✓[/] {len(crew.members)} workers started; one in 20 messages fails at first, one in 250 always"
        )
        if not self._console.is_terminal:
            yield
            self.update(crew, over=True)
            return
        with Live(self._picture(crew), console=self._console, refresh_per_second=10, transient=True) as self._live:
            yield
        self._live = None
        self.update(crew, over=True)

    def update(self, crew: Crew, *, over: bool = False) -> None:
        if crew.victim is not None:
            self._once(
                "killed",
                f"[red]✗[/] {crew.victim.name} killed with SIGKILL while it held {crew.left_behind} messages",
            )
            if over or crew.recovered:
                self._once("recovered", "[green]↻[/] its leases ran out, and the other workers took over")
        if self._live is not None:
            self._live.update(self._picture(crew))
        elif not self._console.is_terminal:
            tenth = 10 * crew.settled // self._messages
            if tenth > self._tenth:
                self._tenth = tenth
                self.say(f"  {crew.settled:,} of {self._messages:,} done, {crew.retries} retries so far")

    def _picture(self, crew: Crew) -> Group:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("worker", "state", "holds", "processed", "retried", "dead", "recovered"):
            table.add_column(name, justify="left" if name in ("worker", "state") else "right", min_width=8)
        for member in crew.members:
            table.add_row(
                member.name,
                f"[{COLORS[member.state]}]{member.state}[/]",
                *(f"{n:,}" for n in (member.holding, member.processed, member.retrying, member.dead, member.recovered)),
            )
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._messages, completed=crew.settled, width=50),
            f"{crew.settled:,} of {self._messages:,}",
        )
        return Group("", bar, table)

    def summary(self, proof: Proof) -> None:
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        rows = (
            ("enqueued", f"{proof.enqueued:,}", ""),
            ("processed", f"{proof.processed:,}", "each id exactly once in history"),
            ("dead-lettered", f"{proof.dead_lettered:,}", f"{proof.letters:,} letters wait in the dead-letter queue"),
            ("lost", f"{proof.lost:,}", "enqueued, but not in history"),
            ("ended twice", f"{proof.twice:,}", ""),
            ("retried", f"{proof.retried:,}", "failed attempts that got another go"),
            (
                "leases recovered",
                f"{proof.recovered:,}",
                f"of {proof.killed}, which was killed" if proof.killed else "nobody was killed",
            ),
            ("storage requests a message", f"{proof.requests / proof.enqueued:.3f}", "by producer and workers"),
            ("time", f"{proof.seconds:.1f} s", ""),
        )
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        if proof.holds:
            self.say(
                f"[bold green]Nothing was lost:[/] {proof.enqueued:,} enqueued = {proof.processed:,} processed "
                f"+ {proof.dead_lettered:,} dead-lettered."
            )
        else:
            self.say("[bold red]Something is off:[/] the figures above don't add up. Please report this.")
