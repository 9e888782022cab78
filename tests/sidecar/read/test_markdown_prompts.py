"""What was pasted into a prompt cannot act in a viewer of the Markdown export."""

from __future__ import annotations

from sidecar.read.transcript.markdown import markdown_lines
from sidecar.read.transcript.model import Prompt, Reading, Session, Turn


def test_a_prompt_has_neither_html_nor_images() -> None:
    text = "a < b\n<script>alert(1)</script> \\<img src=x> ![i](http://evil/x.png) \\![j](http://evil)\n<!-- x"
    turn = Turn("m", items=[Prompt("e", 1, "user", text)])
    written = "\n".join(markdown_lines([Session("ses_1", "ses_1", turns=[turn])], Reading()))
    for live in ("<script", "</script", "<img", "![", "<!--"):
        assert live not in written
    assert "a < b" in written and "alert(1)" in written
