"""The files that a person or a tool gave along, and those that a page may show as images. Pure."""

from __future__ import annotations

import re
from typing import Any

from sidecar.read.fields import as_mapping, as_text
from sidecar.read.wording import bytes_text

MOST_IMAGE_BYTES = 2 * 1024 * 1024
"""A larger image is only named: a browser would be slow with it."""

_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
"""An image that a browser shows without running anything, as SVG may."""


def is_image(url: str) -> bool:
    """True for a ``data:`` URL of an image that is safe to show, and not too large."""
    return len(url) <= MOST_IMAGE_BYTES * 4 // 3 + 64 and _IMAGE.fullmatch(url) is not None


def attached(parts: list[Any]) -> tuple[list[str], list[str]]:
    """The names of the files in ``parts``, with the size of each image; and ``data:`` URLs of images that are safe to
    show."""
    names, images = [], []
    for part in (each for each in map(as_mapping, parts) if each.get("type") == "file"):
        kind, url = as_text(part.get("mime")), part.get("url")
        name = as_text(part.get("filename")) or kind or "file"
        if kind.startswith("image/"):
            # Of an image that was too long to keep, only the length of its text is known. Base64 makes 4 bytes of 3.
            length = as_mapping(url).get("bytes") or len(as_text(url).partition(",")[2].rstrip("="))
            size = length * 3 // 4 if isinstance(length, int) else 0
            name += f", {bytes_text(size)}" if size else ""
            if isinstance(url, str) and size <= MOST_IMAGE_BYTES and _IMAGE.fullmatch(url):
                images.append(url)
        names.append(name)
    return names, images
