"""The version of this source tree; ``pyproject.toml`` reads it from here."""

VERSION = "0.1.0"
