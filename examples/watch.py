"""Two agents and an effect, to copy. They import nothing from Durable Stream, because events are plain dictionaries.

``Watcher`` sees every step of every session and counts the tools that fail. At the third failure of a
tool it sends ``Reporter`` a command. ``Reporter`` asks for an effect: a line in a file.
"""

from pathlib import Path


class Watcher:
    """``receive`` decides, ``apply`` remembers. Neither acts, so both can be replayed."""

    name = "watcher"
    events = ("execution.step",)

    def __init__(self):
        self.failures = {}

    def receive(self, event):
        step = event["payload"]
        code = (step.get("metadata") or {}).get("exit")
        failed = step.get("status") == "error" or code not in (None, 0)
        if event["type"] != "execution.step" or step.get("kind") != "tool" or not failed:
            return []
        tool = step.get("tool", "?")
        outputs = [{"type": "watcher.failed", "payload": {"tool": tool, "step": event["id"]}}]
        if self.failures.get(tool, 0) + 1 == 3:
            outputs.append({"to": "reporter", "type": "report", "payload": {"text": f"{tool} failed three times"}})
        return outputs

    def apply(self, event):
        if event["type"] == "watcher.failed":
            tool = event["payload"]["tool"]
            self.failures[tool] = self.failures.get(tool, 0) + 1


class Reporter:
    """Takes the command ``report``, from the watcher, the command line, or any NATS client."""

    name = "reporter"

    def __init__(self):
        self.written = 0

    def receive(self, event):
        if event["type"] == "report":
            return [{"effect": "append_line", "payload": {"text": event["payload"]["text"]}}]
        if event["type"] == "effect.completed":
            return [{"type": "reporter.written", "payload": event["payload"]["result"]}]
        return []

    def apply(self, event):
        if event["type"] == "reporter.written":
            self.written += 1


async def append_line(args, key):
    """Add a line to ``report.txt`` in your home directory. The key makes a repetition after a crash harmless."""
    path = Path.home() / "report.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    if not any(line.endswith(key) for line in lines):
        path.write_text("\n".join([*lines, f"{args['text']}  #{key}"]) + "\n")
    return {"path": str(path)}


append_line.effect_class = "idempotent"
