"""What users see when a cloud store can't be used: which one, what is wrong, what to check; nothing half-written."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import ConfigError, PermissionDenied, StoreUnavailable
from brigade.blobs.aws_profile import aws_profile
from brigade.blobs.cloud_connect import connect_bucket
from brigade.blobs.cloud_errors import Cause, diagnose, from_status
from brigade.stores.opening import parse_url
from brigade.testing.servers.azurite import az_url
from brigade.testing.servers.fixtures import azurite_server, moto_server, seaweedfs_server
from brigade.testing.servers.running import free_ports
from brigade.testing.servers.s3 import READER_KEY, s3_url

__all__ = ["azurite_server", "moto_server", "seaweedfs_server"]

QUICK = "&retries=1&timeout=3"


async def fails(url: str, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        await brigade.connect_async(url).open()
    return str(caught.value)


class TestS3:
    async def test_a_missing_bucket(self, seaweedfs_server: str) -> None:
        said = await fails(s3_url(seaweedfs_server, bucket="not-there"), ConfigError)
        assert "bucket 'not-there'" in said
        assert seaweedfs_server in said
        assert "create it" in said

    async def test_an_unknown_access_key(self, seaweedfs_server: str) -> None:
        said = await fails(s3_url(seaweedfs_server, key="nobody"), PermissionDenied)
        assert "InvalidAccessKeyId" in said
        assert "access key" in said

    async def test_a_wrong_secret(self, seaweedfs_server: str) -> None:
        url = s3_url(seaweedfs_server).replace("secret_key=", "secret_key=not-")
        assert "SignatureDoesNotMatch" in await fails(url, PermissionDenied)

    async def test_no_secret_is_shown(self, seaweedfs_server: str) -> None:
        url = s3_url(seaweedfs_server, bucket="not-there")
        assert "brigade-secret" not in await fails(url, ConfigError)

    async def test_an_endpoint_that_is_down(self) -> None:
        (port,) = free_ports(1)
        said = await fails(s3_url(f"http://127.0.0.1:{port}") + QUICK, StoreUnavailable)
        assert f"http://127.0.0.1:{port}" in said
        assert "check that the store runs" in said

    async def test_a_read_only_bucket_can_be_looked_at_and_not_written(self, seaweedfs_server: str) -> None:
        prefix = f"errors/{uuid.uuid4().hex}"
        async with brigade.connect_async(s3_url(seaweedfs_server, prefix)) as hub:
            await (await hub.queue("tasks")).enqueue("x")
        async with brigade.connect_async(s3_url(seaweedfs_server, prefix, key=READER_KEY)) as hub:
            queue = await hub.queue("tasks")
            assert (await queue.stats()).ready == 1
            for write in (queue.enqueue("y"), queue.enqueue(b"y" * 300_000), queue.claim(), hub.queue("other")):
                with pytest.raises(PermissionDenied, match="read-only"):
                    await write
        async with brigade.connect_async(s3_url(seaweedfs_server, prefix)) as hub:
            assert await hub.queues() == ["tasks"]
            assert [message.data for message in await (await hub.queue("tasks")).claim(10)] == ["x"]

    async def test_the_command_says_it_in_one_line(self, seaweedfs_server: str) -> None:
        ran = subprocess.run(
            [Path(sys.executable).parent / "brigade", "stats", "--url", s3_url(seaweedfs_server, bucket="not-there")],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 2
        assert ran.stderr.count("\n") == 1
        assert "does not exist" in ran.stderr

    async def test_no_credentials_anywhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (port,) = free_ports(1)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        url = f"s3://some-bucket?endpoint=http://127.0.0.1:{port}&retries=0&timeout=2&connect_timeout=1"
        assert "AWS_ACCESS_KEY_ID" in await fails(url, PermissionDenied)


class TestAzure:
    async def test_a_missing_container(self, azurite_server: str) -> None:
        said = await fails(az_url(azurite_server, container="not-there"), ConfigError)
        assert "container 'not-there'" in said

    async def test_a_wrong_key(self, azurite_server: str) -> None:
        said = await fails(az_url(azurite_server, key="bm90IHRoZSBrZXk="), PermissionDenied)
        assert "AuthorizationFailure" in said
        assert "check them" in said

    async def test_no_account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
        assert "account=NAME" in await fails("az://box", ConfigError)

    async def test_a_connection_string(self, azurite_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from brigade.testing.servers.azurite import ACCOUNT, ACCOUNT_KEY, CONTAINER

        text = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={azurite_server};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        async with brigade.connect_async(f"az://{CONTAINER}/errors/{uuid.uuid4().hex}") as hub:
            assert await hub.queues() == []


@pytest.mark.parametrize(
    "url, part",
    [
        ("s3://", "needs a bucket"),
        ("az://", "needs a container"),
        ("s3://b/a//b", "empty part"),
        ("s3://b/../c", "a dot"),
        ("s3://b?endpoint=localhost:9000", "https://host"),
        ("s3://b?colour=red", "has no option 'colour'"),
        ("gs://b?region=eu", "has no option 'region'"),
        ("s3://b?timeout=soon", "number of seconds"),
        ("s3://b?retries=-1", "whole number"),
        ("s3://b?concurrency=0", "concurrency"),
        ("s3://b?style=hosted", "path or virtual"),
        ("s3://b?allow_http=perhaps", "true or false"),
        ("s3://b?access_key=me", "secret_key"),
        ("s3://b?access_key=a&secret_key=b&ca_file=/nowhere.pem", "/nowhere.pem"),
        ("s3://b?profile=nobody-has-this", "nobody-has-this"),
    ],
)
def test_a_bad_url_is_refused_before_anything_is_sent(url: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        connect_bucket(*parse_url(url, {}))


def test_options_may_be_given_beside_the_url(seaweedfs_server: str) -> None:
    options: dict[str, Any] = {"endpoint": seaweedfs_server, "access_key": "brigade", "secret_key": "brigade-secret"}
    with brigade.connect(f"s3://brigade/errors/{uuid.uuid4().hex}", **options, timeout=5, poll_interval=1) as hub:
        assert hub.queues() == []


def test_without_obstore_the_extra_is_named() -> None:
    script = "import sys; sys.modules['obstore'] = None; import brigade; brigade.connect('s3://bucket').open()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'bucket-brigade[cloud]'" in ran.stderr


def test_importing_brigade_does_not_import_obstore() -> None:
    script = "import sys, brigade; brigade.connect('memory://').close(); print('obstore' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


class TestPlaces:
    def config(self, url: str) -> dict[str, Any]:
        return connect_bucket(*parse_url(url + "&access_key=a&secret_key=b", {})).once.config

    def test_aws_is_spoken_to_by_virtual_host(self) -> None:
        config = self.config("s3://jobs?region=eu-west-1")
        assert config["virtual_hosted_style_request"] is True or config["virtual_hosted_style_request"] == "true"
        assert config["region"] == "eu-west-1"

    def test_other_endpoints_by_path_unless_told_otherwise(self) -> None:
        assert self.config("s3://jobs?endpoint=https://minio.local")["endpoint"] == "https://minio.local"
        hosted = self.config("s3://jobs?endpoint=https://minio.local:9000&style=virtual")
        assert hosted["endpoint"] == "https://jobs.minio.local:9000"

    async def test_virtual_hosts_work_on_a_real_server(self, moto_server: str) -> None:
        """And through an HTTP proxy, since nothing else answers to such a name here."""
        url = s3_url("http://s3.amazonaws.com", f"errors/{uuid.uuid4().hex}") + f"&style=virtual&proxy={moto_server}"
        async with brigade.connect_async(url) as hub:
            queue = await hub.queue("tasks")
            await queue.enqueue("x", group="g")
            for message in await queue.claim():
                await queue.ack(message)
            assert (await queue.stats()).ready == 0
        path = s3_url(moto_server, url.partition("?")[0].removeprefix("s3://brigade/"))
        async with brigade.connect_async(path) as hub:
            assert await hub.queues() == ["tasks"]


class TestProfiles:
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        (tmp_path / "credentials").write_text("[work]\naws_access_key_id = KEY\naws_secret_access_key = s%cret\n")
        process = f"{sys.executable} {tmp_path}/keys.py"
        (tmp_path / "config").write_text(
            "[profile work]\nregion = eu-north-1\nendpoint_url = http://127.0.0.1:9\n"
            f"[profile outside]\ncredential_process = {process}\n[profile sso]\nsso_session = corp\n"
        )
        (tmp_path / "keys.py").write_text(
            'print(\'{"Version": 1, "AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": "T", '
            '"Expiration": "2030-01-01T00:00:00Z"}\')'
        )

    def test_keys_and_settings_are_read(self) -> None:
        found = aws_profile("work")
        assert found is not None
        assert found.config == {
            "region": "eu-north-1",
            "endpoint": "http://127.0.0.1:9",
            "access_key_id": "KEY",
            "secret_access_key": "s%cret",
        }
        bucket = connect_bucket(*parse_url("s3://jobs?profile=work", {}))
        assert bucket.place.endpoint == "http://127.0.0.1:9"
        assert bucket.once.config["region"] == "eu-north-1"

    def test_a_process_gives_credentials(self) -> None:
        found = aws_profile("outside")
        assert found is not None
        assert found.provider is not None
        given = found.provider()
        assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("K", "S", "T")
        assert given["expires_at"].year == 2030

    def test_a_profile_that_is_not_there(self) -> None:
        assert aws_profile(None) is None
        with pytest.raises(ConfigError, match="'home'"):
            aws_profile("home")


@pytest.mark.parametrize(
    "status, code, cause",
    [
        (412, "PreconditionFailed", Cause.LOST),
        (409, "BlobAlreadyExists", Cause.LOST),
        (409, "ConditionalRequestConflict", Cause.AGAIN),
        (409, "OperationAborted", Cause.AGAIN),
        (429, "", Cause.SLOW),
        (503, "SlowDown", Cause.SLOW),
        (503, "ServerBusy", Cause.SLOW),
        (503, "", Cause.DOUBT),
        (500, "InternalError", Cause.DOUBT),
        (504, "", Cause.DOUBT),
        (400, "RequestTimeout", Cause.DOUBT),
        (400, "ExpiredToken", Cause.IDENTITY),
        (400, "InvalidArgument", Cause.WRONG),
        (403, "AccessDenied", Cause.DENIED),
        (403, "RequestTimeTooSkewed", Cause.IDENTITY),
        (404, "NoSuchKey", Cause.ABSENT),
        (404, "NoSuchBucket", Cause.NO_BUCKET),
        (301, "PermanentRedirect", Cause.REGION),
    ],
)
def test_answers_are_told_apart(status: int, code: str, cause: Cause) -> None:
    assert from_status(status, code).cause is cause


def test_what_is_not_understood_leaves_a_doubt() -> None:
    assert diagnose(Exception("something new")).cause is Cause.DOUBT
