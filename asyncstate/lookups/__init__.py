"""The sources of a lookup join: functions, tables in memory, HTTP services and databases.

Only re-exports. The adapters need optional packages, which are imported when they are opened.
"""

from asyncstate.lookups.database import DatabaseLookup, PostgresLookup
from asyncstate.lookups.http import HttpLookup
from asyncstate.lookups.lookup_source import Key, Lookup, Rows
from asyncstate.lookups.table_lookup import TableLookup

__all__ = ["DatabaseLookup", "HttpLookup", "Key", "Lookup", "PostgresLookup", "Rows", "TableLookup"]
