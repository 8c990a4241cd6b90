"""What outlives the server: which sessions there were and how they ended, how far the rows were given out, and what is
known of each row."""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from pydantic import TypeAdapter

from swe_rollout import locks
from swe_rollout.errors import StartupError
from swe_rollout.leases import Place
from swe_rollout.remembered import Remembered, interrupted
from swe_rollout.row_health import RowHealth
from swe_rollout.session import Mode, Session

log = logging.getLogger(__name__)

_APPLICATION = 0x53574552
_VERSION = 1
_SCHEMA = f"""
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, request_key TEXT, request_digest TEXT NOT NULL, mode TEXT NOT NULL, group_id TEXT NOT NULL,
        task_id TEXT NOT NULL, opened_at TEXT NOT NULL, ended_at REAL, view TEXT);
    CREATE INDEX sessions_by_end ON sessions (ended_at);
    CREATE TABLE places (
        mode TEXT PRIMARY KEY, row_order TEXT NOT NULL, epoch INTEGER NOT NULL, position INTEGER NOT NULL);
    PRAGMA application_id = {_APPLICATION};
    PRAGMA user_version = {_VERSION};
"""
_ADDED = """
    CREATE TABLE IF NOT EXISTS rows (
        mode TEXT NOT NULL, task_id TEXT NOT NULL, ended INTEGER NOT NULL, health TEXT NOT NULL,
        PRIMARY KEY (mode, task_id))
"""
"""A journal made before it was kept has the same version: it lacks nothing that cannot be added."""
_HEALTH = TypeAdapter(RowHealth)


class Journal:
    """`<work dir>/journal.sqlite3`, of one server at a time. Thread-safe.

    Invariants:
    - what `opened` and `ended` were told survives the death of the process when they return (not of the machine:
      they do not wait for the disk);
    - a session that has ended is never written again, and a place never goes back;
    - nothing in it opens the trainer's API: of a request only digests are kept;
    - a file that this server cannot read is left as it is.

    A file that cannot be written any more is logged and otherwise ignored: sessions matter more.
    """

    def __init__(self, work_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open it, or make it. `clock` gives Unix time.

        Raises `StartupError` when another server works in `work_dir`, or the file there is not a sound journal.
        """
        self.path = work_dir / "journal.sqlite3"
        self._clock = clock
        self._lock = threading.Lock()
        self._owner = _own(work_dir)
        try:
            if self.path.exists():
                _check(self.path)
            else:
                _create(self.path)
            self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.execute(_ADDED)
        except (OSError, sqlite3.Error) as error:
            os.close(self._owner)
            raise _refused(self.path, f"cannot be used: {error}") from None
        except StartupError:
            os.close(self._owner)
            raise

    def place(self, mode: Mode, order: str) -> Place:
        """How far the rows of `mode` were given out, in the `order` they have now; the start for another order."""
        with self._transaction() as database:
            row = database.execute("SELECT row_order, epoch, position FROM places WHERE mode = ?", (mode,)).fetchone()
            if row is not None and row[0] == order:
                return Place(row[1], row[2])
            if row is not None:
                log.warning("%s: rows, shuffle or seed have changed since the last start: from the first epoch", mode)
            database.execute("INSERT OR REPLACE INTO places VALUES (?, ?, 0, 0)", (mode, order))
        return Place(0, 0)

    def rows(self, mode: Mode) -> dict[str, RowHealth]:
        """What is known of the rows of `mode`, by task id, also of those that are gone from the data."""
        with self._transaction() as database:
            rows = database.execute("SELECT task_id, health FROM rows WHERE mode = ?", (mode,)).fetchall()
        return {task_id: _HEALTH.validate_json(health) for task_id, health in rows}

    def remembered(self) -> list[Remembered]:
        """The sessions of earlier starts, earliest end first. Those that were open have failed now."""
        with self._transaction() as database:
            now = self._clock()
            open_then = database.execute("SELECT id, mode, group_id, task_id FROM sessions WHERE ended_at IS NULL")
            for row in open_then.fetchall():
                view = json.dumps(interrupted(*row))
                database.execute("UPDATE sessions SET ended_at = ?, view = ? WHERE id = ?", (now, view, row[0]))
            rows = database.execute(
                "SELECT id, mode, group_id, request_key, request_digest, opened_at, ended_at, view FROM sessions"
                " ORDER BY ended_at"
            ).fetchall()
        return [
            Remembered(id_, mode, group, key, digest, opened, max(0.0, now - ended), json.loads(view))
            for id_, mode, group, key, digest, opened, ended, view in rows
        ]

    def opened(self, session: Session, place: Place) -> None:
        """`session` exists from now on, and the rows of its mode were given out up to `place`."""
        opened_at = session.opened_at.isoformat(timespec="milliseconds")
        names = (session.id, session.request_key, session.request_digest, session.mode, session.group_id)
        self._write(
            session.id,
            ("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)", (*names, session.task.id, opened_at)),
            # Sessions may come here in another order than they leased.
            (
                "UPDATE places SET epoch = ?, position = ? WHERE mode = ? AND (epoch, position) < (?, ?)",
                (*place, session.mode, *place),
            ),
        )

    def ended(self, session: Session, health: RowHealth) -> None:
        """`session` has the outcome that it has now, and its row is known by `health` from now on."""
        view = json.dumps(session.view(before_it_is_told=True) | {"client_session_id": None})
        end = "UPDATE sessions SET ended_at = ?, view = ? WHERE id = ? AND ended_at IS NULL"
        self._write(
            session.id,
            (end, (self._clock(), view, session.id)),
            # Sessions of one row may come here in another order than they ended.
            (
                "INSERT INTO rows VALUES (?, ?, ?, ?) ON CONFLICT (mode, task_id) DO UPDATE"
                " SET ended = excluded.ended, health = excluded.health WHERE ended < excluded.ended",
                (session.mode, session.task.id, health.ended, _HEALTH.dump_json(health).decode()),
            ),
        )

    def forget(self, keep: float) -> None:
        """Drop the sessions that ended more than `keep` seconds ago."""
        with self._transaction() as database:
            database.execute("DELETE FROM sessions WHERE ended_at <= ?", (self._clock() - keep,))

    def close(self) -> None:
        """Let another server have it. Idempotent; what is told afterwards is lost."""
        with self._lock:
            if self._owner >= 0:
                self._database.close()
                os.close(self._owner)
                self._owner = -1

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise

    def _write(self, session_id: str, *statements: tuple[str, tuple[object, ...]]) -> None:
        try:
            with self._transaction() as database:
                for statement, values in statements:
                    database.execute(statement, values)
        except sqlite3.Error as error:
            log.error("%s: cannot write %s: %s", session_id, self.path, error)


def _own(work_dir: Path) -> int:
    path = work_dir / "server.lock"
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        fd = locks.take(path, create=True)
    except OSError as error:
        raise StartupError(f"AGENT_SERVER_WORK_DIR={work_dir}: {error.strerror}; choose another folder") from None
    if fd is None:
        raise StartupError(
            f"another server works in AGENT_SERVER_WORK_DIR={work_dir} (process {path.read_text().strip()}): "
            "stop it, or choose another folder"
        )
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _create(path: Path) -> None:
    """Whole or not at all: a journal that exists has its schema."""
    aside = path.with_name(f".{path.name}")
    aside.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(aside)) as database:
        database.executescript(_SCHEMA)
    aside.chmod(0o600)
    aside.rename(path)


def _check(path: Path) -> None:
    """Raise `StartupError` unless `path` is a sound journal; looks, and writes nothing."""
    with path.open("rb") as file:
        header = file.read(100)
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(b"SQLite format 3\0"):
        raise _refused(path, "is not an SQLite file")
    if application != _APPLICATION:
        raise _refused(path, "belongs to another program")
    if version != _VERSION:
        raise _refused(path, f"has version {version}, and this server reads version {_VERSION}")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise _refused(path, f"is damaged ({' '.join(found.split())})")


def _refused(path: Path, why: str) -> StartupError:
    return StartupError(
        f"the journal {path} {why}: move it away to start without the sessions it remembers, "
        "or set AGENT_SERVER_WORK_DIR to another folder"
    )
