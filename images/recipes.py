# SPDX-License-Identifier: Apache-2.0
"""What goes into which image, as `recipes.toml` says; the Containerfile's steps need it without any dependency."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RECIPES: Final[dict[str, dict[str, Any]]] = tomllib.loads((ROOT / "images/recipes.toml").read_text())
"""By part."""


def packages_of_others(part: str) -> set[str]:
    """Return the packages of the wheel that a part's image does not carry: every other part's, and local mode's."""
    every = {package for recipe in RECIPES.values() for package in recipe["packages"]} | {"simulator"}
    return every - set(RECIPES[part]["packages"])
