"""Draw the state diagram of docs/internals/states.md from the table in brigade.machine.

Run `python scripts/state_diagram.py` to write the page, `--check` to say whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from brigade import machine

PAGE = Path(__file__).parent.parent / "docs" / "internals" / "states.md"
BEGIN = "<!-- begin: scripts/state_diagram.py -->"
END = "<!-- end: scripts/state_diagram.py -->"


def drawn(page: str) -> str:
    """The page with the diagram between its markers replaced."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has lost its markers; put {BEGIN} and {END} back")
    return f"{head}{BEGIN}\n```mermaid\n{machine.diagram()}```\n{END}{tail}"


def main() -> int:
    """Write the page, or with `--check` compare it; returns the exit status."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = drawn(page)
    if "--check" in sys.argv[1:]:
        if page != wanted:
            sys.stderr.write(f"{PAGE} is out of date; run python scripts/state_diagram.py\n")
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
