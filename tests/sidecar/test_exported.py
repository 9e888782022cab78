"""A file for ``import`` that is odd or hostile is refused, without hanging and without filling the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.care import exported
from sidecar.care.exported import Seal, check, header, read
from sidecar.failure import Failure
from sidecar.read.catalog import Catalog
from streams.identity import seeded_identity
from streams.store import Record

NOW = 1_700_000_000_000


def event(type_: str = "execution.output", ts: int = NOW, **payload: Any) -> dict[str, Any]:
    given = {
        "type": type_,
        "stream_id": "ses_1",
        "idempotency_key": f"{type_}:{len(payload)}",
        "actor": "build",
        "source": {"agent": "build", "adapter": "opencode"},
        "payload": {"session": "ses_1", **payload},
        "metadata": {},
    }
    return {**seeded_identity(1).stamp(given).fields(), "ts": ts}


def written(path: Path, *lines: str) -> Path:
    head = json.dumps(header("ses_1", ["ses_1"], "log", NOW))
    seal = Seal()
    path.write_bytes(b"".join([*(seal.line(f"{line}\n".encode()) for line in (head, *lines)), seal.last()]))
    return path


def code(path: Path) -> str:
    with pytest.raises(Failure) as refused:
        check(path, NOW)
    return refused.value.code


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert code(tmp_path / "pipe") == "not-an-export"
    assert code(Path("/dev/zero")) == "not-an-export"


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    deep = '{"event":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert code(written(tmp_path / "a", deep)) == "damaged-export"
    (tmp_path / "b").write_text("[" * 100_000)
    assert code(tmp_path / "b") == "not-an-export"


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "MAX_LINE", 10_000)
    file = written(tmp_path / "a", json.dumps({"event": event(text="x" * 20_000)}))
    assert code(file) == "damaged-export"


@pytest.mark.parametrize("ts", [2**53 - 1, NOW + 86_400_001])
def test_a_time_in_the_future_is_damage(tmp_path: Path, ts: int) -> None:
    assert code(written(tmp_path / "a", json.dumps({"event": event(ts=ts)}))) == "damaged-export"
    assert check(written(tmp_path / "b", json.dumps({"event": event(ts=NOW + 60_000)})), NOW) == (1, 0)


def test_an_imported_ask_waits_for_nobody(tmp_path: Path) -> None:
    asked = event("workflow.checkpoint", kind="permission", state="asked", request="per_1", permission="bash")
    (found,) = read(written(tmp_path / "a", json.dumps({"event": asked})), NOW)
    assert found is not None and found.metadata["history"] is True
    catalog = Catalog()
    catalog.apply(Record(found, 0, 0, ""))
    assert catalog.asks() == []
