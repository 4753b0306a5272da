"""Every route, with the right that it needs: what is not in this table can't be asked for."""

from __future__ import annotations

from typing import Any

from brigade.errors import BrigadeError
from brigade.model import MessageInfo, Receipt, Stats
from brigade.server import (
    admin,
    choosing,
    dequeueing,
    enqueueing,
    metrics,
    noting,
    openapi,
    operating,
    payloads,
    scanning,
    settling,
    staging,
    subscribing,
    watching,
)
from brigade.server.answers import Answer
from brigade.server.call import Call, Handler, Route, answer
from brigade.server.gate import ANY_RIGHT, Over, Right
from brigade.server.service import Service
from brigade.stores.remote import wire, wire_ports
from brigade.stores.remote.faults import fault_of
from brigade.survey import Page, Story, Tail

__all__ = ["PREFIX", "ROUTES"]

PREFIX = "/v1/queue"
ENQUEUE, CLAIM, READ, ADMIN = (frozenset({right}) for right in (Right.ENQUEUE, Right.CLAIM, Right.READ, Right.ADMIN))
HOLDING = CLAIM | READ
UPKEEP = CLAIM | ADMIN


def _get(
    name: str, handler: Handler, rights: frozenset[Right], takes: Any, gives: Any, summary: str, **more: Any
) -> Route:
    return Route(
        method="GET",
        path=f"{PREFIX}/{name}",
        summary=summary,
        handler=handler,
        rights=rights,
        takes=takes,
        gives=gives,
        **more,
    )


def _post(
    name: str, handler: Handler, rights: frozenset[Right], takes: Any, gives: Any, summary: str, **more: Any
) -> Route:
    return Route(
        method="POST",
        path=f"{PREFIX}/{name}",
        summary=summary,
        handler=handler,
        rights=rights,
        takes=takes,
        gives=gives,
        **more,
    )


async def _healthz(_service: Service, _call: Call, _: None) -> Answer:
    """The process runs."""
    return answer({"status": "ok"})


async def _readyz(service: Service, _call: Call, _: None) -> Answer:
    """The store answers, and the server takes requests."""
    if service.dispatcher.closing:
        return answer({"status": "shutting down"}, status=503)
    try:
        await service.hub.queues()
    except BrigadeError as error:
        return answer({"status": "unavailable", "code": fault_of(error)[1].code}, status=503)
    return answer({"status": "ready"})


def _open(path: str, handler: Handler, gives: Any, summary: str) -> Route:
    """A route that asks nobody who they are."""
    return Route(method="GET", path=path, summary=summary, handler=handler, over=Over.NOTHING, gives=gives)


BULK: tuple[Route, ...] = (
    _post(
        "stage",
        staging.stage,
        ENQUEUE,
        wire_ports.Stage,
        wire_ports.Parts,
        "Make messages of a bulk job durable; nobody sees them yet.",
        streams=True,
    ),
    _post(
        "publish",
        staging.publish,
        ENQUEUE,
        wire_ports.Publish,
        wire.Count,
        "Show all of a bulk job, once.",
        streams=True,
    ),
    _post(
        "unstage",
        staging.unstage,
        ENQUEUE,
        wire_ports.Stage,
        wire.Nothing,
        "Drop what won't be published.",
        streams=True,
    ),
    _get("pieces", scanning.pieces, READ, wire_ports.Pieces, wire_ports.Cut, "Cut a table of a queue into pieces."),
    _post("scan", scanning.scan, READ, wire_ports.Scan, None, "The rows of a piece, as frames.", content=wire.FRAMES),
    _get(
        "history",
        scanning.history_parts,
        READ,
        wire_ports.SinceThen,
        wire_ports.PartsOfHistory,
        "The parts of a queue's history.",
    ),
    _post(
        "history",
        scanning.read_history,
        READ,
        wire_ports.ReadHistory,
        None,
        "The records of a part, as frames.",
        content=wire.FRAMES,
    ),
    _post("lease", choosing.lease, CLAIM, wire_ports.Leasing, wire_ports.GrantList, "Claim, for others to load."),
    _get("note", noting.read_note, CLAIM, wire_ports.NoteName, wire_ports.NoteValue, "Read a note of a stream."),
    _post(
        "note",
        noting.write_note,
        CLAIM,
        wire_ports.NoteName,
        wire_ports.NoteValue,
        "Write a note unless there is one; gives the other one.",
        streams=True,
    ),
    _post("dropNote", noting.drop_note, CLAIM, wire_ports.NoteName, wire.Nothing, "Drop a note."),
)
"""What Spark needs beside the rest: bulk jobs, tables in pieces, notes of streams."""

OPERATORS: tuple[Route, ...] = (
    _post(
        "claimThese", choosing.claim_these, ADMIN, wire_ports.ClaimThese, wire_ports.GrantList, "Claim chosen messages."
    ),
    _post(
        "reprioritize",
        choosing.reprioritize,
        ADMIN,
        wire_ports.Reprioritize,
        wire.Count,
        "Give waiting messages another priority.",
    ),
    _get("browse", operating.browse, READ, wire_ports.Browse, Page, "Messages that wait or are in flight, by page."),
    _get("story", operating.story, READ, wire.One, Story, "A message, and every attempt at it."),
    _get("leases", operating.leases, READ, wire_ports.Few, wire_ports.HeldList, "Who holds what."),
    _get("groups", operating.groups, READ, wire_ports.Few, wire_ports.GroupList, "Groups, the longest first."),
    _get("tail", operating.tail, READ, wire_ports.Tailing, Tail, "What has ended since."),
    _get("outcomes", operating.outcomes, READ, wire_ports.Outcomes, wire_ports.Days, "How messages ended, by day."),
    _post("override", operating.override, ADMIN, wire_ports.Override, wire.Count, "Decide over messages by id."),
)

ROUTES: tuple[Route, ...] = (
    _open("/healthz", _healthz, wire.Status, "The process runs."),
    _open("/readyz", _readyz, wire.Status, "The store answers, and requests are taken."),
    _open("/openapi.json", openapi.openapi, dict[str, Any], "This API, described in OpenAPI 3.1."),
    Route(
        method="GET",
        path="/metrics",
        summary="Counters and gauges for Prometheus.",
        handler=metrics.metrics,
        rights=READ,
        over=Over.ALL,
        content="text/plain",
    ),
    Route(
        method="GET",
        path="/v1/info",
        summary="The server's version, name, time and limits.",
        handler=admin.info,
        rights=ANY_RIGHT,
        over=Over.CALLER,
        gives=wire.Info,
    ),
    _post("enqueue", enqueueing.enqueue, ENQUEUE, None, (Receipt, wire.Enqueued), "Add one message, or many."),
    _post("dequeue", dequeueing.dequeue, CLAIM, wire.Dequeue, wire.Dequeued, "Claim messages, or wait for them."),
    _post(
        "dequeueWithState",
        dequeueing.dequeue_with_state,
        CLAIM,
        wire.Dequeue,
        wire.Dequeued,
        "Claim messages, each with its workflow state.",
    ),
    _post(
        "subscribe",
        subscribing.subscribe,
        CLAIM,
        wire.Subscribe,
        wire.Line,
        "Messages as they come, one JSON object a line.",
        content=wire.NDJSON,
    ),
    _post(
        "subscribeWithState",
        subscribing.subscribe_with_state,
        CLAIM,
        wire.Subscribe,
        wire.Line,
        "Messages as they come, each with its workflow state.",
        content=wire.NDJSON,
    ),
    _post("credit", subscribing.credit, CLAIM, wire.Credit, wire.Credited, "Let a stream send more at once, or less."),
    _post(
        "abandon",
        dequeueing.abandon,
        ANY_RIGHT,
        wire.Abandon,
        wire.Abandoned,
        "Give back what a dequeue with this key won.",
        over=Over.CALLER,
    ),
    _post("load", dequeueing.load, CLAIM, wire.Load, wire.Loaded, "The messages of grants."),
    _post("wait", dequeueing.wait, CLAIM, wire.Wait, wire.Nothing, "Wait until there may be something to claim."),
    _post("ack", settling.ack, CLAIM, wire.Settle, (wire.Settled, wire.Answered), "The work is done."),
    _post("nack", settling.nack, CLAIM, wire.Settle, (wire.Settled, wire.Answered), "The work failed, or is put off."),
    _post("extend", settling.extend, CLAIM, wire.Settle, (wire.Settled, wire.Answered), "Hold a message for longer."),
    _post("release", settling.release, CLAIM, wire.Settle, (wire.Settled, wire.Answered), "Give a message back."),
    _post("settle", settling.settle, CLAIM, wire.SettleBatch, wire.Answered, "Settle many messages, each its own way."),
    _get("payload", payloads.payload, HOLDING, wire.Ref, None, "The bytes of a payload.", content="*/*"),
    _get("watch", watching.watch, READ, wire.Watch, None, "Events, as they happen.", content=wire.EVENTS),
    _get("state", admin.load_state, HOLDING, wire.Ref, wire.StateValue, "Read workflow state."),
    _post("state", admin.save_state, CLAIM, wire.SaveState, wire.SavedState, "Swap workflow state."),
    _get("list", admin.list_queues, ANY_RIGHT, None, wire.Names, "The queues.", over=Over.SOME),
    _get("stats", admin.stats, ANY_RIGHT, wire.QueueOnly, Stats, "How many messages are where."),
    _get("peek", admin.peek, READ, wire.Listing, wire.Found, "What a claim would get now."),
    _get("get", admin.get, READ, wire.One, MessageInfo, "One message, waiting, in flight or ended."),
    _get("failed", admin.failures, READ, wire.Listing, wire.Parked, "Messages that failed for good."),
    _get("policy", admin.read_policy, ANY_RIGHT, wire.QueueOnly, wire.Policy, "Read a policy."),
    _post("open", admin.open_queue, ANY_RIGHT, wire.Opening, wire.Policy, "Open a queue, creating it if need be."),
    _post("policy", admin.write_policy, ADMIN, wire.OpenQueue, wire.Policy, "Create a queue, or replace its policy."),
    _post("redrive", admin.redrive, ADMIN, wire.Redrive, wire.Count, "Bring failures back."),
    _post("purge", admin.purge, ADMIN, wire.Purge, wire.Count, "Drop every message that is not in flight."),
    _post("pause", admin.pause, ADMIN, wire.QueueOnly, wire.Nothing, "Hand nothing out until resume."),
    _post("resume", admin.resume, ADMIN, wire.QueueOnly, wire.Nothing, "Hand messages out again."),
    _post("delete", admin.delete, ADMIN, wire.QueueOnly, wire.Nothing, "Remove a queue and everything in it."),
    _post("sweep", admin.sweep, UPKEEP, wire.QueueOnly, wire.Swept, "Finish what crashes left."),
    _post("forget", admin.forget, UPKEEP, wire.QueueOnly, wire.Nothing, "Finish what was settled; forget the rest."),
    *BULK,
    *OPERATORS,
)
