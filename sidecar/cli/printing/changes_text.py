"""Print the result of ``changes``: grouped on a terminal; in a pipe, one line for each edit and decision; or only
diffs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Output, fitted, padded, shortened
from sidecar.cli.printing.records import ROOMY, SHORT_ID
from sidecar.cli.shared.project import shown_directory
from sidecar.read.changes.changes import Decision, Edit, TurnChanges, sums, totals
from sidecar.read.changes.edits import diff_lines, short_path
from sidecar.read.wording import counted, iso_time, local_time, one_line

if TYPE_CHECKING:
    from sidecar.read.changes.approvals import Approval
    from sidecar.read.sessions import Sessions

PIPED = (
    "time",
    "stream",
    "session",
    "event",
    "actor",
    "action",
    "what",
    "added",
    "removed",
    "approval",
    "prompt",
    "undone",
)
"""The header line for a pipe."""

_DIFF_INDENT = "    "
_WIDEST_NAME = 50


def print_rows(out: Output, turns: Sequence[TurnChanges]) -> None:
    """Print tab-separated lines for a pipe: every edit of a file and every decision, in order."""
    if turns:
        out.cells(*PIPED)
    for turn in turns:
        for each in _in_order(turn):
            if isinstance(each, Edit):
                counts = (_count(each.added), _count(each.removed))
                said = (each.tool, each.change.file, *counts, _approved(each.approvals))
            else:
                said = (_action(each), each.approval.what, "", "", each.approval.text)
            out.cells(
                iso_time(each.ts),
                turn.stream,
                turn.session,
                each.event,
                each.actor,
                *said,
                turn.prompt,
                "undone" * turn.undone,
            )


def print_diffs(out: Output, turns: Sequence[TurnChanges]) -> None:
    """Print only the diffs, for a program that shows or applies patches."""
    for turn in turns:
        for edit in turn.edits:
            for line, _ in diff_lines(edit.change.patch) if edit.change.patch else ():
                out.text(line)


def print_on_terminal(out: Output, catalog: Sessions, turns: Sequence[TurnChanges], *, with_diffs: bool) -> None:
    """Print a heading for each session, a line for each turn with its files and decisions below, and the totals at the
    end."""
    session = ""
    for turn in turns:
        if turn.session != session:
            if session:
                out.text()
            session = turn.session
            _print_session(out, catalog, turn)
        when = local_time(turn.first_ts, "%Y-%m-%d %H:%M")
        undone = [("undone  ", "yellow")] if turn.undone else []
        prompt = (turn.prompt or "(prompt unknown)", "bold cyan" if turn.prompt else "dim")
        out.line([(f"{when}  ", "dim"), *undone, prompt])
        _print_turn(out, turn, catalog.ran_in(turn.stream), with_diffs=with_diffs)
    if turns:
        out.text()
        out.prose("", _totals_text(turns), "bold")


def _print_session(out: Output, catalog: Sessions, turn: TurnChanges) -> None:
    known = catalog.sessions.get(turn.session)
    title = one_line(known.title) if known is not None and known.title else "(no title)"
    name = one_line(turn.session)
    parts = (
        shown_directory(catalog.directory(turn.stream)),
        known.agent if known is not None and catalog.root(turn.session) != turn.session else "",
        name if out.width >= WHOLE_ID_WIDTH else shortened(name),
    )
    out.line([(title, "bold"), *((f"  {one_line(part)}", "dim") for part in parts if part)])


def _print_turn(out: Output, turn: TurnChanges, directory: str, *, with_diffs: bool) -> None:
    names = {file: one_line(short_path(file, directory)) for file in turn.files()}
    width = min(max(map(len, names.values()), default=0), _WIDEST_NAME)
    shown: list[tuple[int, list[Edit] | Decision]] = [(edits[-1].ts, edits) for edits in turn.files().values()]
    shown += [(decision.ts, decision) for decision in turn.decisions]
    for _, each in sorted(shown, key=lambda pair: pair[0]):
        if isinstance(each, Decision):
            said = [(f"{_action(each)} {one_line(each.approval.what)}", "")]
            _print_row(out, each, said, each.approval.text, is_bad=each.approval.reply == "reject")
            continue
        said = [(padded(names[each[0].change.file], width), ""), ("  ", ""), *_stat(each)]
        approvals = [approval for edit in each for approval in edit.approvals]
        _print_row(out, each[-1], said, _approved(approvals), is_bad=False)
        if with_diffs:
            for edit in each:
                for line, style in diff_lines(edit.change.patch) if edit.change.patch else ():
                    out.text(_DIFF_INDENT + line.rstrip("\r"), style)


def _print_row(out: Output, each: Edit | Decision, said: list[tuple[str, str]], approval: str, *, is_bad: bool) -> None:
    """Print time, id, agent and action, with the approval next to them, or below if there is no room."""
    from rich.cells import cell_len

    roomy = out.width >= ROOMY
    gap = "  " if roomy else " "
    head = [
        (f"  {local_time(each.ts, '%H:%M:%S')}{gap}{each.event[-SHORT_ID:]}{gap}", "dim"),
        (fitted(each.actor, 12 if roomy else 8) + gap, ""),
    ]
    style = "red" if is_bad else "yellow"
    indent, length = (sum(cell_len(text) for text, _ in parts) for parts in (head, said))
    if not approval or indent + length + 2 + cell_len(approval) <= out.width:
        out.line([*head, *said, *([("  " + approval, style)] if approval else [])])
        return
    if len(said) == 1:
        out.lines(head, *said[0], most=3)
    else:
        out.line([*head, *said])
    out.lines([(" " * indent, "")], approval, style, most=2)


def _in_order(turn: TurnChanges) -> Iterator[Edit | Decision]:
    both: list[Edit | Decision] = [*turn.edits, *turn.decisions]
    return iter(sorted(both, key=lambda each: each.ts))


def _action(decision: Decision) -> str:
    return one_line(decision.approval.ask.permission)


def _approved(approvals: Sequence[Approval]) -> str:
    return ", ".join(dict.fromkeys(approval.text for approval in approvals))


def _count(lines: int | None) -> str:
    return "" if lines is None else str(lines)


def _stat(edits: Sequence[Edit]) -> list[tuple[str, str]]:
    """``+3 −1  (2 edits)``; ``rewritten`` if the old content is not known."""
    times = [(f"  ({len(edits)} edits)", "dim")] if len(edits) > 1 else []
    changed = sums(edits)
    if changed["added"] is None:
        return [("rewritten", "yellow"), *times]
    return [(f"+{changed['added']} ", "green"), (f"−{changed['removed']}", "red"), *times]


def _totals_text(turns: Sequence[TurnChanges]) -> str:
    found = totals(turns)
    said = []
    if found["files"]:
        rewritten = f" and {found['rewritten']} rewritten" if found["rewritten"] else ""
        said = [f"{counted(found['files'], 'file')} changed, +{found['added']} −{found['removed']}{rewritten}"]
    said += [f"{found[reply]} {reply}" for reply in ("approved", "rejected") if found[reply]]
    if found["turns"]:
        said.append(f"in {counted(found['turns'], 'turn')} of {counted(found['sessions'], 'session')}")
    if found["undone"]:
        said.append(f"{counted(found['undone'], 'turn')} undone")
    return " · ".join(said)
