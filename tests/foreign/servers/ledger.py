"""What the small servers write down, so that a test can tell what ran: a line for each fact."""

import os


def note(tool: str, name: str, fact: str) -> None:
    path = os.environ.get("FOREIGN_LEDGER")
    if path is None:
        return
    # one write of a short line to a file opened for appending is not torn
    line = f"{os.getpid()} {tool} {name} {fact}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)
