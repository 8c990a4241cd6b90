"""The manifest: one parquet row per checked task, which the server can choose its rows by."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from swe_rollout.validation.results import Record

NAME = "manifest.parquet"


def write_manifest(records: Sequence[Record], folder: Path) -> Path:
    """Write it aside and rename it. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = pa.struct(
        [
            ("kind", pa.string()),
            ("reward", pa.float64()),
            ("reason", pa.string()),
            ("seconds", pa.float64()),
            ("log", pa.string()),
        ]
    )
    schema = pa.schema(
        [
            ("task_id", pa.string()),
            ("mode", pa.string()),
            ("result", pa.string()),
            ("reason", pa.string()),
            ("runs", pa.list_(run)),
            ("seconds", pa.float64()),
            ("docker_image", pa.string()),
            ("repo", pa.string()),
            ("checked_at", pa.timestamp("us", tz="UTC")),
        ]
    )
    rows = [
        {name: value for name, value in asdict(record).items() if name in schema.names}
        | {"checked_at": datetime.fromisoformat(record.checked_at)}
        for record in records
    ]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".manifest-") as aside:
        whole = Path(aside, NAME)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), whole)
        return whole.replace(folder / NAME)
