"""The channels to a person outside of OpenCode: this machine's desktop, and ``urls`` and ``command`` of ``[notify]``.

A URL of ``apprise`` often holds a password or a token, so the URL never leaves this module: everywhere else, including
the log and ``sidecar.log``, a channel is named by its scheme and a digest of its URL.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from hashlib import sha256
from html import escape
from typing import Any, Final

from sidecar.install.extras import extra_command
from sidecar.notify_config import NotifyConfig

DESKTOP: Final = "desktop"
COMMAND: Final = "command"
SECONDS: Final = 20.0
"""How long a desktop notification or a command may take; ``apprise`` has its own time limits."""


class ChannelError(Exception):
    """A channel did not accept a message; the text says why and what to do, and contains no URL."""


class Channels:
    """Sends messages to a person. ``names`` lists the channels; ``stages`` is the order in which they are used."""

    def __init__(self, config: NotifyConfig) -> None:
        self._urls = {channel_name(url): url for url in config.urls}
        self._command = list(config.command)
        self.stages = [[DESKTOP] * config.desktop, [*([COMMAND] * bool(self._command)), *self._urls]]
        self.names = [name for stage in self.stages for name in stage]

    def faults(self) -> dict[str, str]:
        """The channels whose URL apprise cannot use, or all of them if apprise is missing, each with the reason.

        Nothing is sent.
        """
        found = {}
        for channel, url in self._urls.items():
            try:
                apprise = _library()
                with _listening(apprise):
                    _target(apprise, url)
            except ChannelError as error:
                found[channel] = str(error)
        return found

    async def send(self, channel: str, title: str, text: str) -> None:
        """Send a message. When this returns, the message has been sent, perhaps more than once.

        Raises:
            ChannelError: the channel did not accept the message, or is no longer configured.
        """
        if channel == DESKTOP:
            await asyncio.to_thread(_to_desktop, title, text)
        elif channel == COMMAND and self._command:
            await asyncio.to_thread(_to_command, self._command, title, text)
        elif channel in self._urls:
            await asyncio.to_thread(_by_apprise, channel, self._urls[channel], title, text)
        else:
            raise ChannelError("this channel is no longer in [notify]")


def channel_name(url: str) -> str:
    """The name of a channel: its scheme and a digest of its URL, which distinguishes channels with the same scheme."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+-]{0,19}(?=://)", url)
    return f"{scheme[0].lower() if scheme else 'url'}:{sha256(url.encode()).hexdigest()[:8]}"


def quiet_until(hours: str, now_ms: int, zone: tzinfo | None = None) -> int | None:
    """When the quiet hours that contain ``now_ms`` end, in ms UTC; ``None`` outside of quiet hours. ``zone`` defaults
    to local time.

    ``hours`` looks like ``22:00-07:00``; if it is empty, there are no quiet hours.
    """
    if not hours:
        return None
    now = datetime.fromtimestamp(now_ms / 1000, zone).astimezone(zone)
    begin, end = (int(part[:2]) * 60 + int(part[3:]) for part in hours.split("-"))
    minute = now.hour * 60 + now.minute
    inside = begin <= minute < end if begin <= end else minute >= begin or minute < end
    if not inside:
        return None
    until = now.replace(hour=end // 60, minute=end % 60, second=0, microsecond=0)
    if until <= now:
        until += timedelta(days=1)
    return round(until.timestamp() * 1000)


def _to_desktop(title: str, text: str) -> None:
    if sys.platform == "darwin":
        # The texts are arguments of the script, never a part of it.
        lines = ("on run given", "display notification (item 2 of given) with title (item 1 of given)", "end run")
        script = [word for line in lines for word in ("-e", line)]
        command, name = ["/usr/bin/osascript", *script, "--", title, text], "osascript"
    else:
        found = shutil.which("notify-send")
        if found is None:
            raise ChannelError("`notify-send` is missing; install the package libnotify-bin or libnotify")
        # The body is markup for many desktops, so a model's text must not become a link.
        command, name = [found, "--app-name=durable-stream", "--", title, escape(text, quote=False)], "notify-send"
    try:
        done = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChannelError(f"{name} failed ({type(error).__name__}); check that a desktop session is running") from None
    if done.returncode:
        raise ChannelError(f"{name} ended with code {done.returncode}; check that a desktop session is running")


def _to_command(command: list[str], title: str, text: str) -> None:
    name = os.path.basename(command[0])  # noqa: PTH119 - a command is not a path
    try:
        done = subprocess.run(  # noqa: S603
            command,
            input=text.encode(),
            env=os.environ | {"TITLE": title},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChannelError(f"{name} did not end within {SECONDS:g} s") from None
    except OSError as error:
        raise ChannelError(f"{name} did not start: {error.strerror}; fix the setting `command` in [notify]") from None
    if done.returncode:
        raise ChannelError(f"{name} ended with code {done.returncode}")


class _Codes(logging.Filter):
    """Keeps apprise's messages out of every log, because they may show the URL. Only the HTTP status codes in these
    messages are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.codes += re.findall(r"\berror=(\d{3})\b", record.getMessage())
        return False


@contextmanager
def _listening(apprise: Any) -> Iterator[_Codes]:
    heard = _Codes()
    apprise.logger.addFilter(heard)
    try:
        yield heard
    finally:
        apprise.logger.removeFilter(heard)


def _library() -> Any:
    try:
        import apprise
    except ImportError:
        raise ChannelError(f"the library apprise is missing; run `{extra_command('notify')}`") from None
    return apprise


def _target(apprise: Any, url: str) -> Any:
    target: Any = apprise.Apprise()
    try:
        is_usable = target.add(url)
    except Exception as error:  # noqa: BLE001 - the text of an error of apprise may contain the URL
        raise ChannelError(
            f"apprise cannot use this URL ({type(error).__name__}); fix the setting `urls` in [notify]"
        ) from None
    if not is_usable:
        raise ChannelError(
            "apprise rejects this URL: its scheme is unknown, or the part after the scheme is not valid; fix the "
            "setting `urls` in [notify]"
        )
    return target


def _by_apprise(channel: str, url: str, title: str, text: str) -> None:
    apprise = _library()
    with _listening(apprise) as heard:
        target = _target(apprise, url)
        try:
            sent = target.notify(body=text, title=title)
        except Exception as error:  # noqa: BLE001 - the text of an error of apprise may contain the URL
            raise ChannelError(
                f"apprise could not send to {channel} ({type(error).__name__}); check the URL and the network"
            ) from None
    if not sent:
        why = f"HTTP {heard.codes[-1]}" if heard.codes else "no answer"
        raise ChannelError(
            f"the service behind {channel} did not accept the message ({why}); check the URL and the network"
        )
