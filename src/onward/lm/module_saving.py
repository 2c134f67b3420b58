"""Saves a transformers module without transformers' own progress bar, which would lie across Onward's."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_module(module: Any, folder: Path, **options: Any) -> None:
    """Calls ``module.save_pretrained(folder, **options)``. Whether other code sees bars stays as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        module.save_pretrained(folder, **options)
    finally:
        if shown:
            logging.enable_progress_bar()
