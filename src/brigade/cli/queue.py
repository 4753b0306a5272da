"""`brigade queue`: create a queue, change its policy, pause and resume it, empty or remove it."""

from __future__ import annotations

from typing import Any

import click

from brigade.cli.common import (
    confirm,
    connected,
    console,
    counted,
    json_option,
    print_json,
    queue_argument,
    say,
    url_option,
    yes_option,
)
from brigade.cli.policy import changed, policy_options, policy_table
from brigade.errors import ConfigError, QueueNotFound
from brigade.policy import QueuePolicy, encode_policy

__all__ = ["queue"]


@click.group(short_help="Create, change, pause, empty or delete a queue.")
def queue() -> None:
    """Queues and their policies.

    \b
    Examples:
      brigade queue create tasks --mode hybrid --dead-letter-queue tasks_dlq
      brigade queue policy tasks --visibility 120
      brigade queue pause tasks
    """


@queue.command(short_help="Create a queue.")
@queue_argument("name")
@policy_options
@url_option
@json_option
def create(name: str, url: str, as_json: bool, **options: Any) -> None:
    """Create the queue NAME with a policy. A queue that is there with the same policy is left as it is.

    \b
    Examples:
      brigade queue create tasks
      brigade queue create tasks --mode hybrid --max-retries 5 --dead-letter-queue tasks_dlq
      brigade queue policy tasks --json | brigade queue create copy --policy -
    """
    given = any(value is not None for value in options.values())
    wanted = changed(QueuePolicy(), options) if given else None
    with connected(url, create=True) as hub:
        try:
            stored, made = hub.queue(name, create=False).policy, False
        except QueueNotFound:
            stored, made = hub.queue(name, policy=wanted).policy, True
    if wanted is not None and wanted != stored:
        fields = ", ".join(stored.differences(wanted))
        raise ConfigError(
            f"queue {name!r} exists with another policy, which differs in {fields}; "
            f"`brigade queue policy {name}` shows it and, with options, changes it"
        )
    if as_json:
        print_json({"queue": name, "created": made, "policy": encode_policy(stored)})
    else:
        say(f"queue {name} {'created' if made else 'is there already; nothing was changed'}")


@queue.command(short_help="Show or change a queue's policy.")
@queue_argument("name")
@policy_options
@url_option
@json_option
def policy(name: str, url: str, as_json: bool, **options: Any) -> None:
    """Show the policy of the queue NAME. With options, change those fields for everybody, and leave the others.

    Workers and claimers that are running take up a change within half a minute.

    \b
    Examples:
      brigade queue policy tasks
      brigade queue policy tasks --visibility 120 --ttl none
      brigade queue policy tasks --json > policy.json
    """
    given = any(value is not None for value in options.values())
    with connected(url) as hub:
        stored = hub.queue(name, create=False).policy
        if given:
            stored = hub.queue(name, policy=changed(stored, options), replace=True).policy
    if as_json:
        print_json(encode_policy(stored))
    else:
        console().print(policy_table(stored))


@queue.command(short_help="Hand nothing out.")
@queue_argument("name")
@url_option
@json_option
def pause(name: str, url: str, as_json: bool) -> None:
    """Hand nothing out of the queue NAME until `resume`. Enqueue goes on, and what is in flight may be settled.

    \b
    Examples:
      brigade queue pause tasks
    """
    with connected(url) as hub:
        hub.queue(name, create=False).pause()
    _tell(name, "paused", True, f"queue {name} is paused; `brigade queue resume {name}` ends that", as_json=as_json)


@queue.command(short_help="Hand out again.")
@queue_argument("name")
@url_option
@json_option
def resume(name: str, url: str, as_json: bool) -> None:
    """Hand messages of the queue NAME out again.

    \b
    Examples:
      brigade queue resume tasks
    """
    with connected(url) as hub:
        hub.queue(name, create=False).resume()
    _tell(name, "paused", False, f"queue {name} hands out again", as_json=as_json)


@queue.command(short_help="Drop a queue's messages.")
@queue_argument("name")
@yes_option
@url_option
@json_option
def purge(name: str, yes: bool, url: str, as_json: bool) -> None:
    """Drop every message of the queue NAME that is not in flight, and every parked failure. History stays.

    \b
    Examples:
      brigade queue purge tasks
      brigade queue purge tasks --yes
    """
    with connected(url) as hub:
        target = hub.queue(name, create=False)
        if not yes:
            stats = target.stats()
            count = stats.ready + stats.delayed + stats.failed
            confirm(
                f"Drop {counted(count, 'message')} of queue {name}, of which {stats.failed:,} have failed?", yes=yes
            )
        dropped = target.purge()
    _tell(name, "purged", dropped, f"{counted(dropped, 'message')} dropped", as_json=as_json)


@queue.command(short_help="Remove a queue and all in it.")
@queue_argument("name")
@yes_option
@url_option
@json_option
def delete(name: str, yes: bool, url: str, as_json: bool) -> None:
    """Remove the queue NAME with its messages, failures, workflow state and history.

    Stop its producers and consumers first: whoever still has it open may leave pieces behind.

    \b
    Examples:
      brigade queue delete tasks
      brigade queue delete tasks --yes
    """
    with connected(url) as hub:
        target = hub.queue(name, create=False)
        if not yes:
            stats = target.stats()
            confirm(
                f"Delete queue {name} with {stats.ready + stats.delayed:,} waiting, {stats.in_flight:,} in flight, "
                f"{stats.failed:,} failed, and the history of {stats.succeeded + stats.dead_lettered:,}?",
                yes=yes,
            )
        target.delete()
    _tell(name, "deleted", True, f"queue {name} deleted", as_json=as_json)


def _tell(name: str, what: str, value: Any, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": name, what: value})
    else:
        say(text)
