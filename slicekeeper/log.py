# SPDX-License-Identifier: Apache-2.0
"""Logging: one line of JSON per event on standard error, or plain text for a person."""

import logging
import sys

from pythonjsonlogger.json import JsonFormatter


def configure(level: str = "info", style: str = "json") -> None:
    """Send all logging of this process to standard error.

    `style` is `json` or `text`; the keyword arguments given by `extra=` become fields of the JSON line.
    """
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(
            JsonFormatter(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            )
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
