"""`brigade ack`, `nack`, `extend` and `release`: end or change a lease that `dequeue`, or anybody else, took."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from brigade.cli.common import connected, json_option, print_json, say, url_option, when
from brigade.cli.lease import PREFIX, Told, clear_files, lease_options, shell, told
from brigade.errors import StaleLease
from brigade.machine import State
from brigade.model import Ack, Extend, Lease, Message, Nack, Release, Settlement

__all__ = ["ack", "extend", "nack", "release"]


@click.command(short_help="The work is done.")
@lease_options()
@click.option("--result", metavar="JSON", help="Kept in history. Text that is not JSON is kept as text.")
@url_option
@json_option
def ack(result: str | None, url: str, as_json: bool, **lease: Any) -> None:
    """The work is done: the message is never handed out again.

    The message is the one that `dequeue` exported, or that the options name. A lease that is no longer current ends
    with 4: somebody else has the message, and nothing was changed.

    \b
    Examples:
      eval "$(brigade dequeue tasks)" && brigade ack --result '{"sent": true}'
      brigade ack --queue tasks --id order-42 --token TOKEN
    """
    which = told(lease)
    message, _ = _settle(url, which, lambda message: Ack(message, None if result is None else _value(result)))
    clear_files(which)
    _tell(message, State.SUCCEEDED, "acked", as_json=as_json)


@click.command(short_help="The work failed.")
@lease_options()
@click.option("--error", metavar="TEXT", help="What went wrong. Kept in history, and with a dead letter.")
@click.option("--delay", type=float, metavar="SECONDS", help="Retry after this long, whatever the backoff says.")
@click.option("--no-penalty", is_flag=True, help="Don't count the attempt.")
@click.option("--reject", is_flag=True, help="Don't retry: it fails for good, whatever attempts are left.")
@url_option
@json_option
def nack(
    error: str | None,
    delay: float | None,
    no_penalty: bool,
    reject: bool,
    url: str,
    as_json: bool,
    **lease: Any,
) -> None:
    """The work failed: the message is retried after the policy's backoff until its attempts are spent.

    \b
    Examples:
      brigade nack --error "mail server is down"
      brigade nack --delay 60 --no-penalty
      brigade nack --reject --error "not an order"
    """
    if reject and (no_penalty or delay is not None):
        raise click.UsageError("--reject takes neither --delay nor --no-penalty: the message is not retried")
    which = told(lease)
    message, answer = _settle(url, which, lambda message: Nack(message, error, delay, not no_penalty, reject))
    clear_files(which)
    failed = answer is State.FAILED
    what = "nacked, and failed for good" if failed else "nacked; it will be retried"
    _tell(message, State.FAILED if failed else State.READY, what, as_json=as_json)


@click.command(short_help="Hold the lease for longer.")
@click.argument("seconds", type=float, required=False)
@lease_options()
@url_option
@json_option
def extend(seconds: float | None, url: str, as_json: bool, **lease: Any) -> None:
    """Hold the message for SECONDS from now, or for the policy's lease length.

    Standard output is an export of the new BRIGADE_QUEUE_LEASE_EXPIRES_AT, for `eval`.

    \b
    Examples:
      brigade extend 600
      eval "$(brigade extend 600)"
    """
    message, answer = _settle(url, told(lease), lambda message: Extend(message, seconds))
    assert isinstance(answer, Lease)
    expires = when(answer.expires_at)
    if as_json:
        print_json({"queue": message.queue, "id": message.id, "expires_at": expires})
        return
    click.echo(shell({f"{PREFIX}LEASE_EXPIRES_AT": expires}, terminal=sys.stdout.isatty()), nl=False)
    say(f"{message.id} is held until {expires}", err=True)


@click.command(short_help="Give the message back.")
@lease_options()
@click.option("--delay", type=float, default=0.0, metavar="SECONDS", help="Hand it out only after this long.")
@url_option
@json_option
def release(delay: float, url: str, as_json: bool, **lease: Any) -> None:
    """Give the message back, without counting the attempt: somebody else may have it at once.

    \b
    Examples:
      brigade release
      brigade release --delay 60
    """
    which = told(lease)
    message, _ = _settle(url, which, lambda message: Release(message, delay))
    clear_files(which)
    _tell(message, State.READY, "released", as_json=as_json)


def _settle(url: str, which: Told, make: Callable[[Message], Settlement]) -> tuple[Message, Lease | State]:
    name = which.name
    with connected(url) as hub:
        queue = hub.queue(name, create=False)
        message = which.message(queue)
        answer = queue.settle([make(message)])[0]
    if isinstance(answer, StaleLease):
        raise answer
    return message, answer


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _tell(message: Message, state: State, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": message.queue, "id": message.id, "state": state.value})
    else:
        say(f"{message.id} {what}")
