"""The end of the demo where there is Spark: its history as tables, a report, and an audit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from brigade.errors import ConfigError

__all__ = ["report_on"]


def report_on(url: str, root: Path, say: Callable[[str], None]) -> bool:
    """Collect, report and audit; False if a guarantee is broken. Without Spark or Java it says so, and that is all."""
    try:
        from brigade.spark.java import prepare_java
        from brigade.spark.session import local_session

        if find_spec("pyspark") is None:
            raise ConfigError("Spark is not installed; pip install 'bucket-brigade[spark]'")
        prepare_java()
    except ConfigError as error:
        say(f"\nThe report and the audit are left out: {error}")
        return True
    say("\nSpark starts, to collect history …")
    session = local_session("brigade demo")
    try:
        from brigade.spark.audit import audit
        from brigade.spark.history import collect
        from brigade.spark.history.engines import DuckEngine, Engine, SparkEngine
        from brigade.spark.report import page, report

        tables = str(root / "history")
        done = collect(session, url, tables)
        say(f"[green]✓[/] {done.messages:,} messages and {done.attempts:,} leases collected in {done.seconds:.1f} s")
        engine: Engine = SparkEngine(session, tables) if find_spec("duckdb") is None else DuckEngine(tables)
        verdict = audit(engine)
        made = report(engine)
    finally:
        session.stop()
    place = Path(tempfile.gettempdir()) / "brigade-demo.html"
    place.write_text(page(made), encoding="utf-8")
    broken = [finding.title for finding in verdict.findings if not finding.holds]
    if broken:
        say(f"[bold red]The audit found what must not be:[/] {'; '.join(broken)}")
    else:
        say(f"[green]✓[/] the audit: every guarantee holds over {verdict.attempts:,} leases")
    say(f"[green]✓[/] the report: {place}")
    return verdict.holds
