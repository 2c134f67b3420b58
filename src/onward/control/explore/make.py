"""Creation of the bonus that a config names.

The result is ``None`` where the config names none, so an algorithm only has to test ``is not None``.
"""

from __future__ import annotations

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.seeds import Seeds
from onward.control.explore.bonus import Bonus


def make_bonus(spec: EnvSpec, num: int, config: BonusConfig, seeds: Seeds) -> Bonus | None:
    """Returns the bonus of ``config.bonus`` for ``num`` slots. Raises ControlError where it cannot work."""
    if config.bonus == "count":
        from onward.control.explore.counts import CountBonus

        return CountBonus(spec, config, seeds)
    if config.bonus == "rnd":
        from onward.control.explore.rnd import RandomDistillation

        return RandomDistillation(spec, num, config, seeds)
    if config.bonus == "icm":
        from onward.control.explore.icm import IntrinsicCuriosity

        return IntrinsicCuriosity(spec, num, config, seeds)
    return None
