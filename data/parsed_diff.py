"""From R2E-Gym's ParsedCommit form back to a diff."""

from typing import Any

Json = dict[str, Any]

LINE_MARKS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
"""A note's content has no blank in front: `\\ No newline at end of file`."""


def rebuild_diff(parsed: Json) -> str:
    """The diff that a ParsedCommit stands for, as `git apply` takes it."""
    lines: list[str] = []
    for diff in parsed["file_diffs"]:
        path = diff["header"]["file"]["path"]
        lines.append(f"diff --git a/{path} b/{path}")
        if diff["header"]["misc_line"]:
            lines.append(diff["header"]["misc_line"])
        index = diff["index_line"]
        if index:
            mode = f" {index['mode']}" if index["mode"] else ""
            lines.append(f"index {index['old_commit_hash']}..{index['new_commit_hash']}{mode}")
        if diff["minus_file"] and diff["plus_file"]:
            lines += [f"--- {diff['minus_file']['path']}", f"+++ {diff['plus_file']['path']}"]
        for hunk in diff["hunks"]:
            lines.append(_hunk_line(hunk["descriptor"]))
            lines += [LINE_MARKS[line["type"]] + line["content"] for line in hunk["line_group"]["all_lines"]]
    return "".join(f"{line}\n" for line in lines)


def python_diff(parsed: Json) -> str:
    """The part of a ParsedCommit that R2E-Gym validates its rows with: Python files, tests among them."""
    diffs = [diff for diff in parsed["file_diffs"] if diff["header"]["file"]["path"].endswith(".py")]
    return rebuild_diff({**parsed, "file_diffs": diffs})


def _hunk_line(descriptor: Json) -> str:
    def place(part: Json) -> str:
        return str(part["start"]) if part["length"] is None else f"{part['start']},{part['length']}"

    section = f" {descriptor['section']}" if descriptor["section"] else ""
    return f"@@ -{place(descriptor['old_range'])} +{place(descriptor['new_range'])} @@{section}"
