"""An address that is not local is reached over verified TLS alone, and the password is nowhere to be seen."""

from __future__ import annotations

import shutil
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
from pydantic import ValidationError

from sidecar.config import ConfigError, load_config, secrets_of
from sidecar.notify_config import TeamConfig
from sidecar.team.address import settings
from sidecar.team.connection import connect
from sidecar.team.errors import TeamUnavailable
from streams.errors import StreamError
from tests.postgres import Postgres

SECRET = "Hunter2-very-secret"


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Path]]:
    """A Postgres with TLS and a password, and the certificate of its authority. Its name is ``team.test``."""
    place = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(place / "ca.pem")
    found = Postgres(SECRET, ssl="on", fsync="off")
    ca.issue_cert("team.test").private_key_and_cert_chain_pem.write_to_path(found.data / "server.crt")
    shutil.copy(found.data / "server.crt", found.data / "server.key")
    for name in ("server.crt", "server.key"):
        (found.data / name).chmod(0o600)
        found.own(found.data / name)
    yield found.start(), place / "ca.pem"
    found.close()


def given(walled: tuple[Postgres, Path], host: str = "team.test", **more: Any) -> dict[str, Any]:
    """The keywords for an address elsewhere, which is on this machine nevertheless."""
    server, ca = walled
    address = f"postgresql://boss@{host}:{server.port}/postgres?sslrootcert={ca}"
    return settings(address, SECRET, {}) | {"hostaddr": "127.0.0.1"} | more


def test_another_machine_is_reached_over_tls(walled: tuple[Postgres, Path]) -> None:
    with psycopg.connect(**given(walled)) as connection:
        row = connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert row == (True,)


@pytest.mark.parametrize("wrong", [{"host": "other.test"}, {"sslrootcert": "system"}])
def test_no_other_name_and_no_other_authority(walled: tuple[Postgres, Path], wrong: dict[str, str]) -> None:
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(**given(walled, **wrong))


def test_a_server_without_tls_is_refused(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        elsewhere = settings(f"postgresql://boss@team.test:{postgres.port}/postgres", None, {})
        psycopg.connect(**elsewhere, hostaddr="127.0.0.1")


@pytest.mark.parametrize(
    ("address", "environ", "mode"),
    [
        ("postgresql://u@127.0.0.1/x", {}, None),
        ("postgresql://u@[::1]/x", {}, None),
        ("postgresql:///x?host=/run/postgresql", {}, None),
        ("postgresql://u@10.0.0.1/x", {}, "verify-full"),
        ("postgresql://u@127.0.0.1.example.org/x", {}, "verify-full"),
        ("postgresql://u@localhost/x", {"PGHOSTADDR": "10.0.0.1"}, "verify-full"),
        ("postgresql://u@localhost/x", {"PGSERVICE": "other"}, "verify-full"),
    ],
)
def test_only_this_machine_needs_no_tls(address: str, environ: dict[str, str], mode: str | None) -> None:
    assert settings(TeamConfig(database=address).database, None, environ).get("sslmode") == mode


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://boss:{SECRET}@h/x",
        f"postgresql://boss@h/x?password={SECRET}",
        "postgresql://boss@h/x?sslmode=disable",
        "postgresql://boss@h/x?hostaddr=10.0.0.1",
        "postgresql://boss@h/x?options=-csearch_path=x",
        f"postgresql://boss:{SECRET}@[h/x",
        "mysql://h/x",
        f"host=h password={SECRET}",
    ],
)
def test_bad_addresses_are_refused_without_their_secret(address: str) -> None:
    with pytest.raises(ValidationError):
        TeamConfig(database=address)
    with pytest.raises(ConfigError) as refused:
        load_config(None, team={"database": address})
    assert SECRET not in str(refused.value) + refused.value.advice


def test_the_password_is_in_no_error_and_no_list_of_processes(walled: tuple[Postgres, Path]) -> None:
    server, _ = walled
    config = server.config(password=SECRET + "-wrong")
    with pytest.raises(TeamUnavailable) as refused:
        connect(config)
    told = [
        str(refused.value),
        "".join(traceback.format_exception(refused.value)),
        repr(config),
        config.model_dump_json(),
    ]
    with connect(server.config()) as connection:
        told += [repr(connection), subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout]
        try:
            connection.execute("SELECT broken")
        except psycopg.Error as error:
            told.append("".join(traceback.format_exception(error)))
    assert [text for text in (*told, server.log) if SECRET in text] == []
    assert secrets_of(load_config(None, team={"database": server.address(), "password": SECRET})) == {"team": SECRET}


def test_a_server_that_is_away_is_said_in_one_line(walled: tuple[Postgres, Path]) -> None:
    with pytest.raises(StreamError) as away:
        connect(TeamConfig(database="postgresql://boss@127.0.0.1:1/postgres", password=SECRET))  # type: ignore[arg-type]
    assert away.value.code == "team-unavailable"
    assert "\n" not in str(away.value)
