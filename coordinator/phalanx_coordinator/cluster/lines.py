"""On which line of a cluster file each key stands. ``tomllib`` does not tell, so the lines are scanned beside it.

The scan knows the layout people write (a key a line, ``[[worker]]`` headers). Where it finds nothing, as in inline
tables, it answers with the nearest line it knows.
"""

import re

_RECORD = re.compile(r"""\s*\[\[\s*(["']?)worker\1\s*\]\]""")
_TABLE = re.compile(r"""\s*\[\[?\s*["']?([A-Za-z0-9_-]+)""")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[.=]""")


def is_record_header(line: str) -> bool:
    """Whether a ``[[worker]]`` table begins here."""
    return _RECORD.match(line) is not None


def is_table_header(line: str) -> bool:
    """Whether any table begins here."""
    return _TABLE.match(line) is not None and "=" not in line


class Lines:
    """Line numbers, from 1, of the keys at the top and in each ``[[worker]]`` table of ``text``."""

    def __init__(self, text: str) -> None:
        self._top: dict[str, int] = {}
        self._records: list[dict[str, int]] = []
        self._headers: list[int] = []
        scope: dict[str, int] | None = self._top
        for number, line in enumerate(text.split("\n"), start=1):
            if is_record_header(line):
                scope = {}
                self._records.append(scope)
                self._headers.append(number)
            elif (table := _TABLE.match(line)) and is_table_header(line):
                self._top.setdefault(table[1], number)
                scope = None
            elif scope is not None and (key := _KEY.match(line)):
                scope.setdefault(key[1] or key[2] or key[3] or "", number)

    def top(self, key: str) -> int | None:
        """The line of a key or table at the top."""
        return self._top.get(key)

    def record(self, index: int, key: str | None = None) -> int | None:
        """The line of a key of the record ``index`` (from 0); of its header where it has no such key."""
        if index >= len(self._records):
            return self._top.get("worker")
        header = self._headers[index]
        return header if key is None else self._records[index].get(key, header)
