//! Receipts in SQLite, in the file that has the tool's own tables.
