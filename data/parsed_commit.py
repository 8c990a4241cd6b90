"""A commit in R2E-Gym's ParsedCommit form."""

import ast
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from data.parsed_diff import LINE_MARKS, Json
from data.repository import FIX_DATE, git

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: (.*))?$")
_LINE_TYPES = {mark[0]: kind for kind, mark in LINE_MARKS.items()}


@dataclass(frozen=True)
class Entity:
    """A function or class of one file. `name` has the enclosing classes in front: `Lexer.get_tokens`."""

    ast_type_str: str
    end_lineno: int
    file_name: str
    name: str
    start_lineno: int
    type: str


def parse_commit(repository: Path, old: str, new: str) -> Json:
    """The difference between two commits of text files, none of them renamed."""
    message = git(repository, "log", "-1", "--format=%B", new).strip()
    changed = git(repository, "diff", "--name-only", "--no-renames", "-z", old, new).split("\0")[:-1]
    return {
        "file_diffs": [_file_diff(repository, old, new, path) for path in changed],
        "old_commit_hash": old,
        "new_commit_hash": new,
        "commit_message": message,
        "commit_date": FIX_DATE,
        "metadata": {},
    }


def touched_entities(parsed: Json) -> list[Json]:
    """The functions and classes that the commit adds or changes, as they are in the new files."""
    touched = [
        entity
        for diff in parsed["file_diffs"]
        for hunk in diff["hunks"]
        for entity in hunk["modified_entities"] + hunk["added_entities"]
    ]
    return list({(entity["file_name"], entity["name"]): entity for entity in touched}.values())


def changed_lines(parsed: Json) -> int:
    """How many lines the commit adds or deletes."""
    return sum(
        line["type"] in ("added", "deleted")
        for diff in parsed["file_diffs"]
        for hunk in diff["hunks"]
        for line in hunk["line_group"]["all_lines"]
    )


def _file_diff(repository: Path, old: str, new: str, path: str) -> Json:
    text = git(repository, "diff", "--no-renames", "--no-ext-diff", "--no-color", old, new, "--", path)
    diff: Json = {
        "old_file_content": _content(repository, old, path),
        "new_file_content": _content(repository, new, path),
        "header": {"file": {"path": path}, "misc_line": None},
        "index_line": None,
        "is_binary_file": False,
        "binary_line": None,
        "minus_file": None,
        "plus_file": None,
        "hunks": [],
    }
    entities_before = _entities(path, diff["old_file_content"])
    entities_after = _entities(path, diff["new_file_content"])
    for line in text.split("\n")[1:-1]:
        match = _HUNK.match(line)
        if match:
            diff["hunks"].append(_new_hunk(match))
        elif diff["hunks"]:
            lines = diff["hunks"][-1]["line_group"]["all_lines"]
            kind = _LINE_TYPES[line[0]]
            lines.append({"content": line.removeprefix(LINE_MARKS[kind]), "type": kind})
        elif line.startswith("index "):
            hashes, _, mode = line.removeprefix("index ").partition(" ")
            before, _, after = hashes.partition("..")
            diff["index_line"] = {"old_commit_hash": before, "new_commit_hash": after, "mode": mode}
        elif line.startswith("--- "):
            diff["minus_file"] = {"path": line[4:]}
        elif line.startswith("+++ "):
            diff["plus_file"] = {"path": line[4:]}
        else:
            # A new mode takes two such lines.
            misc = diff["header"]["misc_line"]
            diff["header"]["misc_line"] = f"{misc}\n{line}" if misc else line
    for hunk in diff["hunks"]:
        hunk.update(_hunk_entities(hunk, entities_before, entities_after))
    return diff


def _content(repository: Path, commit: str, path: str) -> str:
    if not git(repository, "ls-tree", commit, "--", path):
        return ""
    return git(repository, "show", f"{commit}:{path}")


def _new_hunk(match: "re.Match[str]") -> Json:
    old_start, old_length, new_start, new_length, section = match.groups()
    return {
        "descriptor": {
            "old_range": {"start": int(old_start), "length": int(old_length) if old_length else None},
            "new_range": {"start": int(new_start), "length": int(new_length) if new_length else None},
            "section": section or "",
        },
        "line_group": {"all_lines": []},
    }


def _entities(path: str, source: str) -> list[Entity]:
    """Functions and classes of a file, outer ones before those inside them."""
    found: list[Entity] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{prefix}{child.name}"
                kind = "class" if isinstance(child, ast.ClassDef) else "function"
                end = child.end_lineno or child.lineno
                found.append(Entity(type(child).__name__, end, path, name, child.lineno, kind))
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(source), "")
    return found


def _hunk_entities(hunk: Json, before: list[Entity], after: list[Entity]) -> Json:
    old_line = hunk["descriptor"]["old_range"]["start"]
    new_line = hunk["descriptor"]["new_range"]["start"]
    old: dict[str, Entity] = {}
    new: dict[str, Entity] = {}
    for line in hunk["line_group"]["all_lines"]:
        if line["type"] == "deleted":
            old.update(_innermost(before, old_line))
        elif line["type"] == "added":
            new.update(_innermost(after, new_line))
        old_line += line["type"] in ("context", "deleted")
        new_line += line["type"] in ("context", "added")
    by_name = {entity.name: entity for entity in after}
    names_before = {entity.name for entity in before}
    modified = {name: by_name[name] for name in [*old, *new] if name in by_name and name in names_before}
    return {
        "modified_entities": [asdict(entity) for entity in modified.values()],
        "added_entities": [asdict(entity) for name, entity in new.items() if name not in names_before],
        "deleted_entities": [asdict(entity) for name, entity in old.items() if name not in by_name],
    }


def _innermost(entities: list[Entity], line: int) -> dict[str, Entity]:
    around = [entity for entity in entities if entity.start_lineno <= line <= entity.end_lineno]
    return {around[-1].name: around[-1]} if around else {}
