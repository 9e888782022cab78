"""What says which records were removed is damaged: it is told, and nothing is served as if it were whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from zlib import crc32

import orjson
import pytest

from streams.errors import BadStore, CorruptLog
from streams.log_reader import LogReader
from streams.stores.removed_files import MANIFEST
from streams.stores.segments import list_segments
from tests.streams.opened import collect
from tests.streams.removals import faults, open_log, prune
from tests.streams.retention_contract import NOW, fill


class TestDamage:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> Path:
        log = await open_log(tmp_path)
        await fill(log)
        await prune(log)
        await log.forget(["ses_2"], at_ms=NOW)
        await log.close()
        return tmp_path

    async def refused(self, store: Path) -> str:
        with pytest.raises(BadStore) as opening:
            await open_log(store)
        assert await faults(store) != []
        return str(opening.value)

    async def test_every_damaged_byte_of_the_manifest_is_told(self, store: Path) -> None:
        path = store / "log" / MANIFEST
        sound = path.read_bytes()
        for at in range(0, len(sound), 7):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            assert str(path) in await self.refused(store)
            with pytest.raises(CorruptLog):
                await collect(LogReader(store).read_all())
        for cut in (0, 1, len(sound) // 2, len(sound) - 1):
            path.write_bytes(sound[:cut])
            assert str(path) in await self.refused(store)

    @pytest.mark.parametrize(
        "change",
        [
            {"ranges": [[0, 4]]},
            {"bases": {}},
            {"runs": []},
            {"runs": [["../head", 11, 0]]},
            {"format": 2},
        ],
    )
    async def test_a_manifest_that_is_whole_and_says_what_cannot_be_is_refused(
        self, store: Path, change: dict[str, object]
    ) -> None:
        """Its checksum is right: another program wrote it, or a newer version."""
        path = store / "log" / MANIFEST
        fields = orjson.loads(path.read_bytes())
        del fields["crc"]
        body = orjson.dumps(fields | change, option=orjson.OPT_SORT_KEYS)[1:]
        path.write_bytes(b'{"crc":"%08x",%b' % (crc32(body), body))
        with pytest.raises(BadStore) as opening:
            await open_log(store)
        wanted = "upgrade durable-stream" if "format" in change else "cannot be judged"
        assert str(path) in str(opening.value) and wanted in str(opening.value)
        with pytest.raises(BadStore, match=wanted):
            await collect(LogReader(store).read_all())

    async def test_a_missing_manifest_is_told(self, store: Path) -> None:
        (store / "log" / MANIFEST).unlink()
        assert "missing" in await self.refused(store) or "must follow" in await self.refused(store)
        with pytest.raises(CorruptLog):
            await collect(LogReader(store).read_all())

    async def test_damaged_and_missing_digests_are_told(self, store: Path) -> None:
        (path,) = (store / "log").glob("removed-*.keys")
        sound = path.read_bytes()
        for damaged in (sound[:-1], sound[:40] + b"x" + sound[41:], b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            assert "digests of pruned records" in await self.refused(store)

    async def test_a_missing_record_among_pruned_ones_is_still_told(self, store: Path) -> None:
        for segment in list_segments(store / "log"):
            lines = segment.path.read_bytes().splitlines(keepends=True)
            for n in range(len(lines)):
                segment.path.write_bytes(b"".join(lines[:n] + lines[n + 1 :]))
                await self.refused(store)
                with pytest.raises(CorruptLog):
                    await collect(LogReader(store).read_all())
            segment.path.write_bytes(b"".join(lines))
        assert await faults(store) == []

    async def test_a_pruned_record_or_payload_that_is_there_all_the_same_is_told(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path / "a")
        await fill(log)
        shutil.copytree(tmp_path / "a" / "log", tmp_path / "before")
        await prune(log)
        await log.forget(["ses_2"], at_ms=NOW)
        await log.close()
        for path in (tmp_path / "before").iterdir():
            shutil.copy(path, tmp_path / "a" / "log")
        found = await faults(tmp_path / "a")
        assert any("it was pruned and is there all the same" in fault for fault in found)
        assert any("its payload was forgotten and is there all the same" in fault for fault in found)

    async def test_pruned_records_beyond_the_end_are_told(self, tmp_path: Path) -> None:
        """As when an older copy of the segments is put beside a newer manifest."""
        log = await open_log(tmp_path)
        await fill(log)
        await log.prune({"ses_1": 99}, at_ms=NOW)
        await log.close()
        for segment in list_segments(tmp_path / "log")[1:]:
            segment.path.unlink()
        (tmp_path / "head").unlink()
        assert "not all of them pruned" in await self.refused(tmp_path)
