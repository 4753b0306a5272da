"""TLS and mutual TLS, with certificates made here."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

import brigade
from brigade import ConfigError, StoreUnavailable
from brigade.server.auth.tls import TLS
from brigade.server.auth.tokens import mint
from brigade.server.serve import ServerConfig, Serving
from served import served


class Authority:
    """Makes certificates and writes them to files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key, days=2).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._cert = made.sign(self._key, hashes.SHA256())
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def issue(self, name: str, *, client: bool = False, days: int = 1) -> tuple[str, str]:
        """A certificate for this machine, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key, days).add_extension(names, critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        cert, secret = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(cert), str(secret)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def https(ours: Authority) -> Iterator[Serving]:
    cert, key = ours.issue("server")
    with served(f"memory://{uuid.uuid4().hex}", tls=TLS.of(cert, key, None)) as serving:
        yield serving


@pytest.fixture(scope="module")
def mutual(ours: Authority) -> Iterator[Serving]:
    cert, key = ours.issue("mutual-server")
    tls = TLS.of(cert, key, ours.file)
    with served(f"memory://{uuid.uuid4().hex}", host="0.0.0.0", tls=tls) as serving:
        yield serving


def at_home(serving: Serving) -> str:
    return serving.address.replace("0.0.0.0", "127.0.0.1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be reached is not tried for long."""
    monkeypatch.setattr("brigade.stores.remote.store.PATIENCE", 0.1, raising=False)
    monkeypatch.setattr("brigade.stores.remote.client.PATIENCE", 0.1)


def works(url: str, **options: Any) -> None:
    with brigade.connect(url, **options) as hub:
        queue = hub.queue("tasks")
        queue.enqueue({"n": 1})
        (message,) = queue.claim(1, wait=30)
        queue.ack(message)


def fails(url: str, **options: Any) -> None:
    with pytest.raises(StoreUnavailable) as caught, brigade.connect(url, **options):
        pass
    assert "key" not in str(caught.value).lower() or "private" not in str(caught.value).lower()


def test_a_client_that_knows_the_authority_is_served(https: Serving, ours: Authority) -> None:
    assert https.address.startswith("https://")
    works(https.address, ca=ours.file)
    works(https.address.replace("127.0.0.1", "localhost"), ca=ours.file)
    works(f"{https.address}?ca={ours.file}")


def test_a_client_that_does_not_know_the_authority_refuses(https: Serving, theirs: Authority) -> None:
    fails(https.address)
    fails(https.address, ca=theirs.file)
    fails(https.address.replace("https://", "http://"))


def test_a_certificate_for_another_name_or_another_time_is_refused(ours: Authority) -> None:
    cert, key = ours.issue("expired", days=-1)
    with served(f"memory://{uuid.uuid4().hex}", tls=TLS.of(cert, key, None)) as serving:
        fails(serving.address, ca=ours.file)


def test_mutual_tls_lets_in_clients_with_a_certificate_of_ours_alone(
    mutual: Serving, ours: Authority, theirs: Authority
) -> None:
    cert, key = ours.issue("client", client=True)
    works(at_home(mutual), ca=ours.file, cert=cert, key=key)
    fails(at_home(mutual), ca=ours.file)
    other_cert, other_key = theirs.issue("stranger", client=True)
    fails(at_home(mutual), ca=ours.file, cert=other_cert, key=other_key)
    old_cert, old_key = ours.issue("old", client=True, days=-1)
    fails(at_home(mutual), ca=ours.file, cert=old_cert, key=old_key)


def test_a_token_is_still_needed_behind_mutual_tls(ours: Authority) -> None:
    cert, key = ours.issue("both-server")
    mine, my_key = ours.issue("both-client", client=True)
    options = {"ca": ours.file, "cert": mine, "key": my_key}
    tls = TLS.of(cert, key, ours.file)
    with served(f"memory://{uuid.uuid4().hex}", auth="tokens", tls=tls) as serving:
        with pytest.raises(brigade.PermissionDenied), brigade.connect(serving.address, **options):
            pass
        made, text = mint("one", ["*:all"], now_ms=0)
        store: Any = serving.service.hub.store
        loop = serving.service.hub.loop
        asyncio.run_coroutine_threadsafe(store.write_token(made.id, made.body()), loop).result(30)
        gate: Any = serving.service.gate
        asyncio.run_coroutine_threadsafe(gate.load(), loop).result(30)
        works(serving.address, token=text, **options)


def test_files_that_cannot_be_used_are_named(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    cert, key = ours.issue("files")
    _, other_key = theirs.issue("files")
    broken = tmp_path / "broken.pem"
    broken.write_text("not PEM")
    for wrong in (
        (str(broken), key, None),
        ("/no/such.pem", key, None),
        (cert, other_key, None),
        (cert, key, str(broken)),
    ):
        with pytest.raises(ConfigError, match="tls_"):
            TLS.of(*wrong)
    for alone in ((None, key, None), (None, None, ours.file)):
        with pytest.raises(ConfigError, match="tls_cert is not"):
            TLS.of(*alone)
    assert TLS.of(None, None, None) is None
    for options in ({"ca": str(broken)}, {"cert": str(broken)}, {"cert": cert, "key": other_key}, {"key": key}):
        with pytest.raises(ConfigError, match=r"ca|cert|key"), brigade.connect("https://localhost:1", **options):
            pass
    with pytest.raises(ConfigError, match="are for https://"), brigade.connect("http://localhost:1", ca=ours.file):
        pass


def test_only_mutual_tls_counts_as_authentication(ours: Authority) -> None:
    cert, key = ours.issue("counts")
    with pytest.raises(ConfigError, match="nothing checks who asks"):
        ServerConfig(url="memory://x", host="0.0.0.0", tls=TLS.of(cert, key, None))
    ServerConfig(url="memory://x", host="0.0.0.0", tls=TLS.of(cert, key, ours.file))
