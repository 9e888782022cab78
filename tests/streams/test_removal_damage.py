"""What says which records were removed is damaged: it is told, and nothing is served as if it were whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from zlib import crc32

import orjson
import pytest

from streams.errors import BadStore, CorruptLog, MissingFile
from streams.log_reader import LogReader
from streams.stores.removed_files import MANIFEST
from streams.stores.segments import list_segments
from streams.verify import Verification
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

    async def test_a_missing_list_is_one_fault_and_named_by_whoever_meets_it(self, store: Path) -> None:
        path = store / "log" / MANIFEST
        before = Verification(store)
        assert [finding async for finding in before.run()] == []
        path.unlink()
        check = Verification(store)
        (fault,) = [finding async for finding in check.run()]
        assert (fault.kind, fault.file) == ("missing", str(path))
        assert f"{before.summary.pruned} records were pruned" in fault.reason
        assert f"{before.summary.forgotten} records have only a digest for a payload (in ses_2)" in fault.reason
        assert (check.summary.pruned, check.summary.forgotten) == (before.summary.pruned, before.summary.forgotten)
        with pytest.raises(MissingFile, match=f"{re.escape(str(path))}: the list of what was pruned"):
            await open_log(store)
        with pytest.raises(MissingFile, match="the list of what was pruned and forgotten is not there"):
            await collect(LogReader(store).read_all())
        with pytest.raises(MissingFile, match="the list of what was pruned and forgotten is not there"):
            await LogReader(store).glance()

    async def test_beside_a_missing_or_damaged_list_other_faults_are_still_told(self, store: Path) -> None:
        path = store / "log" / MANIFEST
        segment = list_segments(store / "log")[-2].path
        lines = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join([*lines[:-2], lines[-1]]))
        gone = orjson.loads(lines[-2])["position"]
        for damage in (lambda: path.write_bytes(b"{}"), path.unlink):
            damage()
            found = [finding async for finding in Verification(store).run()]
            assert [(fault.kind, fault.position) for fault in found if Path(fault.file) == segment] == [
                ("missing", gone)
            ]
            assert len(found) == 2 and any(Path(fault.file) == path for fault in found), found

    async def test_a_missing_list_of_forgotten_records_alone_can_be_made_anew(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log)
        await log.forget(["ses_1", "ses_2"], at_ms=NOW)
        await log.close()
        (tmp_path / "log" / MANIFEST).unlink()
        (fault,) = await faults(tmp_path)
        assert "(in ses_1, ses_2)" in fault and "`durable-stream forget` of the same writes it anew" in fault
        log = await open_log(tmp_path)
        await log.forget(["ses_1", "ses_2"], at_ms=NOW)
        await log.close()
        assert await faults(tmp_path) == []

    async def test_digests_that_a_prune_left_when_it_was_cut_off_hide_nothing(self, store: Path) -> None:
        """A run without a list is also what is left of a first prune that never came to its list."""
        (run,) = (store / "log").glob("removed-*.keys")
        whole = store.parent / "whole"
        log = await open_log(whole)
        await fill(log)
        await log.close()
        shutil.copy(run, whole / "log")
        assert await faults(whole) == []
        assert await collect(LogReader(whole).read_all()) != []
        segment = list_segments(whole / "log")[-1].path
        segment.write_bytes(segment.read_bytes()[:-1])
        assert await faults(whole) != []

    async def test_missing_digests_are_missing_and_damaged_ones_corrupt(self, store: Path) -> None:
        (path,) = (store / "log").glob("removed-*.keys")
        sound = path.read_bytes()
        for damaged in (sound[:-1], sound[:40] + b"x" + sound[41:], b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            assert re.search(r"keys: the digests of (\d+ )?pruned records", await self.refused(store))
            (fault,) = await faults(store)
            assert fault.startswith(f"{'missing' if damaged is None else 'corrupt'}: {path}: ")

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
        assert "though what came after was pruned" in await self.refused(tmp_path)
