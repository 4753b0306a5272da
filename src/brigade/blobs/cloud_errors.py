"""What an object store meant by an error: told apart by status and code, since `obstore` folds several into one.

412 means that the condition did not hold; 409, but for Azure's "already exists", that two writers met and that this
one was not applied; 429, and 503 with a code that says so, that the store wants fewer requests and did nothing. A
time-out, a connection cut in the middle or any other 5xx leaves a write in doubt. A text that is not known is a
doubt too, which is never wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from brigade.errors import BrigadeError, ConfigError, PermissionDenied, StoreUnavailable

__all__ = ["Cause", "Place", "Trouble", "diagnose", "explain", "from_status"]

_STATUS = re.compile(r"non-2xx status code: (\d{3})|\bstatus: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)|\"reason\": ?\"(\w+)\"")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+)")
_SENTENCE = re.compile(r"<Message>([^<]{1,300})")
_METADATA = ("169.254.169.254", "metadata.google.internal", "fd00:ec2::254")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "AccountNotFound"}
_BAD_NAME = {"InvalidBucketName", "InvalidResourceName", "OutOfRangeInput"}
_SLOW = {
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "ServerBusy",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "TooManyRequests",
    "rateLimitExceeded",
}
_EXISTS = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite"}
_IDENTITY = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "RequestTimeTooSkewed",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "NoAuthenticationInformation",
    "InvalidSecurity",
}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


class Cause(Enum):
    """What to do about an error is one of these."""

    ABSENT = "the object is not there"
    LOST = "the condition did not hold"
    AGAIN = "two writers met, nothing was applied"
    SLOW = "the store wants fewer requests, nothing was applied"
    UNREACHABLE = "no connection, nothing was sent"
    DOUBT = "it may or may not have been applied"
    NO_BUCKET = "the bucket is not there"
    NO_CREDENTIALS = "no credentials were found"
    IDENTITY = "the credentials are not accepted"
    DENIED = "the credentials lack a right"
    REGION = "the bucket is in another region"
    WRONG = "the store rejected the request"


NOT_APPLIED = frozenset({Cause.AGAIN, Cause.SLOW, Cause.UNREACHABLE})
"""A write with one of these may simply be tried again."""

TRY_AGAIN = NOT_APPLIED | {Cause.DOUBT}
"""What reads and deletes, which may be repeated, are tried again after."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A diagnosed error; `said` is the part of the store's answer worth showing."""

    cause: Cause
    status: int = 0
    code: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What error messages say about where they happened."""

    scheme: str
    bucket: str
    endpoint: str

    @property
    def noun(self) -> str:
        return "container" if self.scheme == "az" else "bucket"

    def __str__(self) -> str:
        return f"{self.noun} {self.bucket!r} at {self.endpoint}"


def diagnose(error: BaseException) -> Trouble:
    """What an exception of `obstore` means."""
    text = str(error)
    status_found, code_found, kind = _STATUS.search(text), _CODE.search(text), _KIND.search(text)
    status = int(status_found[1] or status_found[2]) if status_found else 0
    code = next((part for part in code_found.groups() if part), "") if code_found else ""
    sentence = _SENTENCE.search(text)
    said = code or (sentence[1] if sentence else text.partition("\n")[0][:300])
    if any(address in text for address in _METADATA):
        return Trouble(Cause.NO_CREDENTIALS, 0, "", said)
    if code.isdigit():
        status, code = int(code), ""
    if status:
        return from_status(status, code, said)
    if code:
        return Trouble(Cause.DENIED if code == "AccessDenied" else _by_code(code) or Cause.DOUBT, 0, code, said)
    if kind is not None:
        return Trouble(Cause.UNREACHABLE if kind[1] == "Connect" else Cause.DOUBT, 0, "", _reason(kind[1]))
    if "redirect without LOCATION" in text:
        return Trouble(Cause.REGION, 0, "", said)
    if isinstance(error, FileNotFoundError):
        return Trouble(Cause.ABSENT, 404, "", said)
    if any(sign in text for sign in ("redentials", "token", "private key", "service account")):
        return Trouble(Cause.NO_CREDENTIALS, 0, "", said)
    return Trouble(Cause.DOUBT, 0, "", said)


def from_status(status: int, code: str, said: str = "") -> Trouble:
    """What an HTTP answer that is not a success means."""
    return Trouble(_by_code(code) or _by_status(status, code), status, code, said or code)


def _by_code(code: str) -> Cause | None:
    if code in _NO_BUCKET:
        return Cause.NO_BUCKET
    if code in _SLOW:
        return Cause.SLOW
    if code in _EXISTS:
        return Cause.LOST
    if code in _IDENTITY:
        return Cause.IDENTITY
    if code in _REGION:
        return Cause.REGION
    return Cause.WRONG if code in _BAD_NAME else None


def _by_status(status: int, code: str) -> Cause:
    match status:
        case 404 | 410:
            return Cause.ABSENT
        case 304 | 412:
            return Cause.LOST
        case 409:
            return Cause.AGAIN
        case 429:
            return Cause.SLOW
        case 401:
            return Cause.IDENTITY
        case 403:
            return Cause.DENIED
        case 301 | 307 | 308:
            return Cause.REGION
        case 408:
            return Cause.DOUBT
        case 400 if code == "RequestTimeout":
            return Cause.DOUBT
        case _:
            return Cause.DOUBT if status >= 500 or status < 400 else Cause.WRONG


def _reason(kind: str) -> str:
    reasons = {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "the answer was cut short"}
    return reasons.get(kind, "the connection was cut")


_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (profile=…), or run where a role gives them",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run where a managed identity gives them",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run where a service account is attached",
}
_KEYS = {
    "s3": "the access key, the secret key and the session token",
    "az": "the account's name and key, or the SAS token",
    "gs": "the service account's key",
}


def explain(trouble: Trouble, verb: str, place: Place, tries: int = 1) -> BrigadeError:
    """The error for the caller: names the bucket, says what is wrong and what to check."""
    said = f" ({trouble.said})" if trouble.said else ""
    match trouble.cause:
        case Cause.NO_BUCKET:
            return ConfigError(f"{place} does not exist{said}; create it, or check the URL's name, endpoint and region")
        case Cause.NO_CREDENTIALS:
            return PermissionDenied(f"no credentials were found for {place}; {_CREDENTIALS[place.scheme]}")
        case Cause.IDENTITY:
            return PermissionDenied(f"{place} does not accept the credentials{said}; check {_KEYS[place.scheme]}")
        case Cause.DENIED if verb in ("create", "swap", "copy", "delete"):
            return PermissionDenied(
                f"the credentials may not {verb} objects in {place}{said}: it is read-only for them; grant the rights "
                "that docs/cloud.md lists"
            )
        case Cause.DENIED:
            return PermissionDenied(
                f"the credentials may not {verb} objects in {place}{said}; check them, and grant the rights that "
                "docs/cloud.md lists"
            )
        case Cause.REGION:
            return ConfigError(f"{place} is in another region{said}; name it with region=")
        case Cause.WRONG:
            return ConfigError(f"{place} rejected the {verb}{said}, status {trouble.status}; check the URL's options")
        case Cause.UNREACHABLE:
            return StoreUnavailable(
                f"nothing answers at {place.endpoint} ({tries} tries); check that the store runs, the endpoint in the "
                "URL, and the network"
            )
        case Cause.SLOW:
            return StoreUnavailable(f"{place} keeps asking for fewer requests{said}; try again later, or use less")
        case _:
            return StoreUnavailable(f"{place} failed to {verb} ({tries} tries){said}; check it and try again")
