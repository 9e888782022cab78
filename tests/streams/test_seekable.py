"""The compressed form without files: what becomes a frame, that other tools read it, and that no bit is unguarded."""

from __future__ import annotations

import io
from collections.abc import Iterable
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyzstd import SeekableZstdFile, decompress

from streams.stores import seekable
from streams.stores.seekable import (
    FOOTER_BYTES,
    BadFrame,
    Frame,
    Frames,
    cut,
    decode_frame,
    encode_frame,
    encode_tables,
    parse_tables,
    tables_size,
)

LINES = [b'{"line":%d,"text":"%b"}\n' % (n, Random(n).randbytes(n % 70).hex().encode()) for n in range(120)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seekable, "FRAME_BYTES", 700)


def encode(lines: Iterable[bytes]) -> bytes:
    frames: list[Frame] = []
    data = b""
    start = 0
    for piece in cut(lines):
        frame = encode_frame(piece)
        frames.append(Frame(len(data), len(frame), start, len(piece), crc32(frame)))
        data, start = data + frame, start + len(piece)
    return data + encode_tables(frames)


def tables(file: bytes) -> Frames:
    size = tables_size(file[-FOOTER_BYTES:])
    if size > len(file):
        raise BadFrame("shorter than its tables")
    return parse_tables(file[len(file) - size :], len(file))


def decode(file: bytes) -> bytes:
    frames = tables(file)
    found = [frames[number] for number in range(len(frames))]
    return b"".join(decode_frame(frame, file[frame.at : frame.at + frame.size]) for frame in found)


@given(st.lists(st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"\n")), max_size=30))
def test_frames_hold_whole_lines(pieces: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(seekable, "FRAME_BYTES", 100)
        frames = list(cut(pieces))
    assert b"".join(frames) == b"".join(pieces)
    assert all(frame.endswith(b"\n") for frame in frames[:-1]) and all(frames)
    assert all(len(frame) <= 100 or frame.count(b"\n", 0, -1) == 0 for frame in frames)


@pytest.mark.usefixtures("small")
def test_other_tools_read_it() -> None:
    """Any zstd tool reads it all; what knows the seekable format seeks, and finds no frame but ours."""
    lines = b"".join(LINES)
    file = encode(LINES)
    assert decompress(file) == lines and decode(file) == lines
    with SeekableZstdFile(io.BytesIO(file)) as theirs:
        for start in range(0, len(lines), 97):
            theirs.seek(start)
            assert theirs.read(150) == lines[start : start + 150]
        info = theirs.seek_table_info
    assert info is not None and info[0] == len(tables(file)) + 1 and info[2] == len(lines)
    assert len(tables(file)) > 10


def test_nothing_at_all_is_a_file_too() -> None:
    file = encode([])
    assert decode(file) == decompress(file) == b"" and tables(file).size == 0
    assert tables(file).number_at(0) == 0 == len(tables(file))


@pytest.mark.usefixtures("small")
def test_every_flipped_bit_is_found() -> None:
    file = bytearray(encode(LINES[:40]))
    for bit in range(len(file) * 8):
        file[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            decode(bytes(file))
        file[bit // 8] ^= 1 << bit % 8
    assert decode(bytes(file)) == b"".join(LINES[:40])


@pytest.mark.usefixtures("small")
def test_a_file_cut_at_every_byte_is_found() -> None:
    file = encode(LINES[:40])
    for size in range(len(file)):
        with pytest.raises(BadFrame):
            decode(file[:size])


@pytest.mark.usefixtures("small")
def test_a_seek_table_that_lies_costs_no_memory() -> None:
    """Its checksums may be right: frames are never decompressed beyond what it says, nor taken for less."""
    bomb = encode_frame(bytes(50_000_000))
    for length in (1, 10, 49_999_999, 50_000_001, 2**32 - 1):
        frame = Frame(0, len(bomb), 0, length, crc32(bomb))
        assert parse_tables(encode_tables([frame]), len(bomb) + len(encode_tables([frame])))[0] == frame
        with pytest.raises(BadFrame, match="not as long as"):
            decode_frame(frame, bomb)
