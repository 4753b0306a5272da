"""`brigade-chaos`: real processes on real stores under faults, judged; or a long run without, with `--soak`.

examples:
  brigade-chaos --minutes 5                     every arena that this machine has, five minutes each
  brigade-chaos --arena file --arena postgres   only these
  brigade-chaos --arena s3 --seed 7 --json      the same faults again, as JSON
  brigade-chaos --minutes 3 --spark             with a Spark job in the crew, and the Spark audit beside the judge
  brigade-chaos --json > chaos.json; brigade-chaos --read chaos.json --markdown   a table of a run, for documents
  brigade-chaos --soak --minutes 30             mixed load without faults: memory, and what is left behind
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from brigade.testing.chaos.arenas import ARENAS, why_not
from brigade.testing.chaos.auditing import apart, why_not_spark
from brigade.testing.chaos.markdown import as_markdown
from brigade.testing.chaos.plan import FLEET
from brigade.testing.chaos.report import as_text
from brigade.testing.chaos.run import CREW, Report, chaos
from brigade.testing.chaos.soak import SoakReport, soak

__all__ = ["main"]

SOAKED = ("file", "sqlite", "s3")
LEAST_WITH_SPARK = 2.0


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: every promise was kept; 1: one was broken, or memory grew; 2: wrong usage."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.read:
        return _tell([report for path in given.read for report in _read(parser, path)], given)
    given.spark = _wants_spark(parser, given)
    signal.signal(signal.SIGTERM, _leave)
    names = given.arena or list(SOAKED if given.soak else ARENAS)
    folder = Path(given.keep or tempfile.mkdtemp(prefix="brigade-chaos-")).absolute()
    reports: list[Report] = []
    try:
        for name in names:
            reason = why_not(name)
            if reason is not None:
                _say(f"{name}: left out, {reason}")
                continue
            reports.append(_run(name, folder / name, given))
            if not (given.json or given.markdown):
                print("\n".join(_shown(reports[-1])), flush=True)
    finally:
        if not given.keep and all(report.ok for report in reports):
            shutil.rmtree(folder, ignore_errors=True)
    return _tell(reports, given, shown=True)


def _tell(reports: Sequence[Report], given: argparse.Namespace, *, shown: bool = False) -> int:
    """All reports in the form that was asked for; as text they may have been `shown` one by one."""
    if given.json:
        sys.stdout.buffer.write(msgspec.json.encode(reports) + b"\n")
    elif given.markdown:
        print(as_markdown(reports))
    elif not shown:
        print("\n".join(line for report in reports for line in _shown(report)))
    return 0 if reports and all(report.ok for report in reports) else 1


def _read(parser: argparse.ArgumentParser, path: str) -> list[Report]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[Report])
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"{path} has no reports of `brigade-chaos --json`: {error}")


def _run(name: str, folder: Path, given: argparse.Namespace) -> Report:
    seconds = 60 * given.minutes
    if given.soak:
        return soak(name, folder, seed=given.seed, seconds=seconds, say=_say)
    crew, audit = ((*CREW, FLEET), apart) if given.spark else (CREW, None)
    return chaos(name, folder, seed=given.seed, seconds=seconds, crew=crew, audit=audit, say=_say)


def _wants_spark(parser: argparse.ArgumentParser, given: argparse.Namespace) -> bool:
    """A short run would be over before Spark is at work."""
    if given.soak and given.spark:
        parser.error("--soak watches memory that Brigade uses, and Java's is its own; leave --spark out")
    if given.soak or given.spark is False or (given.spark is None and given.minutes < LEAST_WITH_SPARK):
        return False
    reason = why_not_spark()
    if reason is not None and given.spark:
        parser.error(reason)
    if reason is not None:
        _say(f"without Spark: {reason}")
    return reason is None


def _shown(report: Report) -> Iterator[str]:
    yield as_text(report)
    for one in report.memory if isinstance(report, SoakReport) else ():
        how = "flat" if one.flat else "GROWING"
        yield f"  {one.name}: {one.first_mib} to {one.last_mib} MiB, {one.grew_mib:+} by the fit: {how}"


def _leave(number: int, _frame: object) -> None:
    """Take down what was set up: servers, mounts and the crew."""
    sys.exit(128 + number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    about, _, examples = (__doc__ or "").partition("examples:")
    parser = argparse.ArgumentParser(
        prog="brigade-chaos",
        description=about.strip(),
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arena", action="append", choices=ARENAS, help="where to run; may be given again")
    parser.add_argument("--minutes", type=_minutes, default=1.0, metavar="M", help="for each arena (default 1)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16), metavar="N", help="for faults and crew")
    parser.add_argument("--soak", action="store_true", help="no faults: watch memory and what is left behind")
    parser.add_argument(
        "--spark",
        action=argparse.BooleanOptionalAction,
        help=f"a Spark job in the crew, and the Spark audit (on from {LEAST_WITH_SPARK:g} minutes where there is Java)",
    )
    parser.add_argument("--keep", metavar="DIR", help="keep journals and logs there")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="reports as JSON")
    forms.add_argument("--markdown", action="store_true", help="reports as a table in Markdown, a column for each")
    parser.add_argument(
        "--read", action="append", metavar="FILE", help="run nothing: show what --json told before; may be given again"
    )
    return parser


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60 * 24:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1440")
    return value


if __name__ == "__main__":
    sys.exit(main())
