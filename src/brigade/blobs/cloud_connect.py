"""From a URL's parts to `obstore` clients, with credentials from where they usually are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from brigade.blobs.aws_profile import aws_profile
from brigade.blobs.cloud_errors import Place
from brigade.errors import ConfigError

__all__ = ["Bucket", "connect_bucket", "load_obstore"]


@dataclass(slots=True)
class Bucket:
    """A connected bucket: `once` tries each request one time, `stream` is for what may be repeated part by part.

    `listing` is `once` with connections of its own: each keeps a buffer for the largest answer that came over it.
    """

    place: Place
    prefix: str
    once: Any
    stream: Any
    listing: Any
    timeout: float = 30.0
    retries: int = 4
    concurrency: int = 32
    insecure: bool = False
    ca_file: str | None = None
    proxy: str | None = None


def load_obstore() -> Any:
    """The `obstore` package, which is not needed for anything else."""
    try:
        import_module("obstore.store")
        return import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "cloud object stores need the obstore package: pip install 'bucket-brigade[cloud]'"
        ) from error


def connect_bucket(scheme: str, place: str, options: Mapping[str, Any]) -> Bucket:
    """Make the clients for `bucket/prefix`. Nothing is sent yet."""
    obstore = load_obstore()
    name, _, prefix = place.partition("/")
    prefix = prefix.strip("/")
    noun = "container" if scheme == "az" else "bucket"
    if not name:
        raise ConfigError(f"{scheme}:// needs a {noun}: write {scheme}://{noun} or {scheme}://{noun}/prefix")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ConfigError(
            f"prefix {prefix!r} has an empty part or a dot as a part; write {scheme}://{name}/some/prefix"
        )
    maker, config, endpoint, extra = {"s3": _s3, "az": _az, "gs": _gs}[scheme](obstore, name, options)
    client = _client(options, endpoint)
    timeout = options.get("timeout", 30.0)

    def make(retries: int) -> Any:
        try:
            return maker(
                name,
                config=config,
                client_options=client,
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=timeout * (retries + 1))},
                **extra,
            )
        except (obstore.exceptions.BaseError, ValueError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{scheme}://{name} cannot be used: {reason}; check its options") from error

    return Bucket(
        Place(scheme, name, endpoint),
        f"{prefix}/" if prefix else "",
        make(0),
        make(options.get("retries", 4)),
        make(0),
        timeout,
        options.get("retries", 4),
        options.get("concurrency", 32),
        options.get("insecure", False),
        options.get("ca_file"),
        options.get("proxy"),
    )


def _client(options: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "timeout": timedelta(seconds=options.get("timeout", 30.0)),
        "connect_timeout": timedelta(seconds=options.get("connect_timeout", 5.0)),
        "user_agent": "bucket-brigade",
        "allow_http": options.get("allow_http", endpoint.startswith("http://")),
    }
    if options.get("insecure"):
        made["allow_invalid_certificates"] = True
    if options.get("proxy"):
        made["proxy_url"] = options["proxy"]
    if options.get("ca_file"):
        try:
            with open(options["ca_file"], "rb") as file:
                made["root_certificate"] = file.read()
        except OSError as error:
            raise ConfigError(f"option 'ca_file': cannot read {options['ca_file']!r}: {error.strerror}") from None
    return made


def _s3(obstore: Any, bucket: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], str, dict[str, Any]]:
    found = aws_profile(options.get("profile")) if _needs_profile(options) else None
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if found is not None:
        config.update(found.config)
        if found.provider is not None:
            extra["credential_provider"] = found.provider
    for option, name in (
        ("access_key", "access_key_id"),
        ("secret_key", "secret_access_key"),
        ("session_token", "session_token"),
        ("encryption", "server_side_encryption"),
        ("kms_key", "sse_kms_key_id"),
    ):
        if option in options:
            config[name] = options[option]
    if ("access_key" in options) != ("secret_key" in options):
        raise ConfigError("options 'access_key' and 'secret_key' belong together; give both")
    if options.get("anonymous"):
        config["skip_signature"] = True
    if not options.get("bulk_delete", True):
        config["disable_bulk_delete"] = True
    region = options.get("region") or _env("AWS_REGION", "AWS_DEFAULT_REGION") or config.get("region") or "us-east-1"
    config["region"] = region
    own = options.get("endpoint") or _env("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    own = own or config.pop("endpoint", None)
    style = options.get("style") or ("path" if own or "." in bucket else "virtual")
    config["virtual_hosted_style_request"] = style == "virtual"
    endpoint = (own or f"https://s3.{region}.amazonaws.com").rstrip("/")
    if own:
        parts = urlsplit(endpoint)
        hosted = style == "virtual" and not (parts.hostname or "").startswith(f"{bucket}.")
        config["endpoint"] = f"{parts.scheme}://{bucket}.{parts.netloc}" if hosted else endpoint
        config["aws_endpoint_url_s3"] = config["endpoint"]
    return obstore.store.S3Store, config, endpoint, extra


def _needs_profile(options: Mapping[str, Any]) -> bool:
    """A profile is looked at unless something that comes before it says who this is."""
    if options.get("anonymous") or "access_key" in options:
        return False
    return "profile" in options or not _env(
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )


def _az(obstore: Any, _container: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], str, dict[str, Any]]:
    config: dict[str, Any] = {}
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    for key, name in (("AccountName", "account_name"), ("AccountKey", "account_key"), ("BlobEndpoint", "endpoint")):
        if key in parts:
            config[name] = parts[key]
    if "SharedAccessSignature" in parts:
        config["sas_key"] = parts["SharedAccessSignature"].lstrip("?")
    for option, name in (
        ("account", "account_name"),
        ("account_key", "account_key"),
        ("sas", "sas_key"),
        ("tenant_id", "tenant_id"),
        ("client_id", "client_id"),
        ("client_secret", "client_secret"),
        ("azure_cli", "use_azure_cli"),
        ("anonymous", "skip_signature"),
        ("endpoint", "endpoint"),
    ):
        if option in options:
            config[name] = options[option]
    account = config.get("account_name") or _env("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ConfigError(
            "az:// needs a storage account: add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME or "
            "AZURE_STORAGE_CONNECTION_STRING"
        )
    endpoint = config.get("endpoint") or _env("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return obstore.store.AzureStore, config, endpoint or f"https://{account}.blob.core.windows.net", {}


def _gs(obstore: Any, _bucket: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], str, dict[str, Any]]:
    config: dict[str, Any] = {}
    for option, name in (
        ("service_account", "service_account"),
        ("token", "bearer_token"),
        ("anonymous", "skip_signature"),
        ("endpoint", "base_url"),
    ):
        if option in options:
            config[name] = options[option]
    endpoint = config.get("base_url") or _env("GOOGLE_BASE_URL") or "https://storage.googleapis.com"
    return obstore.store.GCSStore, config, endpoint, {}


def _env(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
