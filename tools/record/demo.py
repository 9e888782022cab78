"""Make ``sidecar/record/recordings/demo.jsonl``: a real OpenCode, a scripted model, one small story.

Run it to renew the recording: ``python -m tools.record.demo``. The hooks
are written by the shim's own recorder (``DURABLE_STREAM_RECORD``); only the
paths of the machine are replaced, and noise is left out.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from bridge.opencode.capture.shapes import source_of
from bridge.opencode.capture.table import rule_for
from bridge.opencode.link.frames import HookItem
from tests.real.model_server import ModelRequest, ModelServer, Step
from tests.real.opencode import RealOpenCode
from tools.install_opencode import binary_path

REPOSITORY = Path(__file__).parents[2]
RECORDING = REPOSITORY / "sidecar" / "record" / "recordings" / "demo.jsonl"

FILES = {
    "login.py": "def check(name, password, users):\n    return users.get(name) is password\n",
    "test_login.py": (
        "from login import check\n\n"
        "def test_right_password():\n"
        '    typed = "".join(["s3", "same"])\n'
        '    assert check("ada", typed, {"ada": "s3same"})\n\n'
        'if __name__ == "__main__":\n    test_right_password()\n    print("1 passed")\n'
    ),
}

PROMPTS = ("The login test fails. Find out why and fix it.", "Thanks. Commit it.")

CHILDREN = {
    "Look at login.py": [
        Step(calls=[("read", {"filePath": "{project}/login.py"})]),
        Step(say="check() compares the two strings with `is`: identity, not equality."),
    ],
    "Look at the test": [
        Step(calls=[("read", {"filePath": "{project}/test_login.py"})]),
        Step(say="The test builds the password at run time, so it is equal but not the same object."),
    ],
}

FIRST = [
    Step(calls=[("bash", {"command": "python3 test_login.py", "description": "Run the test"})]),
    Step(
        reason="The assertion fails for a right password. I let two agents look, one at each file.",
        calls=[("task", {"description": name, "prompt": name, "subagent_type": "general"}) for name in CHILDREN],
    ),
    Step(calls=[("edit", {"filePath": "{project}/login.py", "oldString": "is password", "newString": "== password"})]),
    Step(calls=[("bash", {"command": "python3 test_login.py", "description": "Run the test again"})]),
    Step(say="Fixed: `check` compared passwords with `is`; it uses `==` now, and the test passes.", usage=2140),
]

SECOND = [
    Step(calls=[("bash", {"command": "git commit -qam 'Compare passwords by value'", "description": "Commit"})]),
    Step(say="Committed.", usage=2390),
]


def story(project: Path) -> Any:
    """The model's script: the next step of a part, derived from the conversation so far."""

    def answer(request: ModelRequest) -> Step | None:
        if not request.has_tools:
            return Step(say="Fix the failing login test")
        messages = request.body["messages"]
        prompt, since = "", 0
        for message in messages:
            if message["role"] == "user":
                content = message["content"]
                text = content if isinstance(content, str) else "\n".join(p.get("text", "") for p in content)
                prompt, since = text, 0
            elif message["role"] == "assistant":
                since += 1
        script = next((steps for name, steps in CHILDREN.items() if prompt.startswith(name)), None)
        if script is None:
            script = SECOND if "Commit" in prompt else FIRST
        step = script[min(since, len(script) - 1)]
        calls = [(tool, json.loads(json.dumps(a).replace("{project}", str(project)))) for tool, a in step.calls]
        return Step(calls=calls, say=step.say, reason=step.reason, usage=step.usage)

    return answer


def main() -> None:
    """Record, clean and write."""
    with tempfile.TemporaryDirectory() as directory, ModelServer() as model:
        raw = Path(directory) / "raw.jsonl"
        plugin = (
            f'import {{ create }} from "{REPOSITORY}/plugin-shim/src/plugin.js";\n'
            f'export default create({{ command: ["true"], home: "{directory}/home" }});\n'
        )
        with RealOpenCode(
            binary_path(),
            model.port,
            config={"permission": {"bash": {"*": "allow", "git commit*": "ask"}}},
            plugins={"durable-stream.js": plugin},
            files=FILES,
            environment={
                "DURABLE_STREAM_RECORD": str(raw),
                **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
                **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
            },
        ) as client:
            model.answer = story(client.project)
            with client.events() as events:
                session = client.create_session(title="")
                client.prompt_async(session, PROMPTS[0])
                events.wait_type("session.idle", session=session)
                mark = events.mark()
                client.prompt_async(session, PROMPTS[1])
                asked = events.wait_type("permission.asked", session=session)
                client.reply_permission(asked["properties"]["id"], "once")
                events.wait_type("session.idle", session=session, since=mark)
            client.terminate()
            RECORDING.parent.mkdir(exist_ok=True)
            RECORDING.write_text(clean(raw.read_text(), client.root))
    print(f"{RECORDING}: {len(RECORDING.read_text().splitlines())} hooks", file=sys.stderr)


def clean(text: str, root: Path) -> str:
    """Leave out noise, and replace the machine's paths with a developer's."""
    lines = []
    for line in text.splitlines():
        fields = json.loads(line)
        item = HookItem(fields["hook"], fields["t"], fields.get("input"), fields.get("output"))
        if not item.hook.startswith("__") and rule_for(source_of(item)) is not None:
            lines.append(line)
    text = "\n".join(lines) + "\n"
    text = text.replace(f"{root}/project", "/home/ada/shop").replace(str(root), "/home/ada")
    return re.sub(re.escape(str(root)).lstrip("/") + "/project", "home/ada/shop", text)


if __name__ == "__main__":
    main()
