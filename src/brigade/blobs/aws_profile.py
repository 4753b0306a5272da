"""Credentials and settings from `~/.aws`, which `obstore` does not read.

Static keys and `credential_process` are read here; a profile that needs single sign-on or a role is left to boto3,
where that is installed.
"""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import msgspec

from brigade.errors import ConfigError, PermissionDenied

__all__ = ["Profile", "aws_profile"]

_FOR_BOTO3 = ("sso_session", "sso_start_url", "role_arn", "login_session")


@dataclass(slots=True)
class Profile:
    """What a profile says: settings for the client, and where its credentials come from if they change."""

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    provider: Callable[[], Any] | None = None


def aws_profile(name: str | None) -> Profile | None:
    """The named profile, or AWS_PROFILE's, or the default one; None where the default one isn't there."""
    wanted = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    profile = wanted or "default"
    shared = _read("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    settings = _read("AWS_CONFIG_FILE", "~/.aws/config")
    section = "default" if profile == "default" else f"profile {profile}"
    found = {**_section(settings, section), **_section(shared, profile)}
    if not found:
        if wanted:
            raise ConfigError(f"AWS profile {profile!r} is neither in ~/.aws/config nor in ~/.aws/credentials")
        return None
    made = Profile()
    for key, target in (("region", "region"), ("endpoint_url", "endpoint")):
        if found.get(key):
            made.config[target] = found[key]
    if found.get("aws_access_key_id") and found.get("aws_secret_access_key"):
        made.config["access_key_id"] = found["aws_access_key_id"]
        made.config["secret_access_key"] = found["aws_secret_access_key"]
        if found.get("aws_session_token"):
            made.config["session_token"] = found["aws_session_token"]
    elif found.get("credential_process"):
        command = found["credential_process"]
        made.provider = lambda: _from_process(command, profile)
    elif any(found.get(key) for key in _FOR_BOTO3):
        made.provider = _from_boto3(profile)
    return made


def _read(variable: str, fallback: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    path = os.path.expanduser(os.environ.get(variable) or fallback)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend it, or set {variable}") from None
    return parser


def _section(parser: configparser.RawConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}


def _from_process(command: str, profile: str) -> dict[str, Any]:
    """Credentials as the profile's own command prints them."""
    try:
        ran = subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=60)  # noqa: S603
        said: Any = msgspec.json.decode(ran.stdout)
        expires = said.get("Expiration")
        return {
            "access_key_id": said["AccessKeyId"],
            "secret_access_key": said["SecretAccessKey"],
            "token": said.get("SessionToken"),
            "expires_at": None if expires is None else datetime.fromisoformat(expires).astimezone(UTC),
        }
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, KeyError, ValueError) as error:
        raise PermissionDenied(f"credential_process of AWS profile {profile!r} failed: {error}") from error


def _from_boto3(profile: str) -> Callable[[], Any]:
    try:
        provider: Any = import_module("obstore.auth.boto3").Boto3CredentialProvider
        session: Any = import_module("boto3").Session(profile_name=profile)
    except ImportError:
        raise ConfigError(
            f"AWS profile {profile!r} uses single sign-on or a role, which needs boto3: pip install boto3, or export "
            f"keys with `aws configure export-credentials --profile {profile}`"
        ) from None
    made: Callable[[], Any] = provider(session)
    return made
