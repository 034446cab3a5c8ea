"""The plugin: an extractor that adds the loss to the algorithm of SB3 that trains it."""

from rl_infonce.sb3.callbacks import InfoNCECallback, make_updates_due, trained_extractors
from rl_infonce.sb3.combined import InfoNCECombinedExtractor
from rl_infonce.sb3.extractor import InfoNCEExtractor

__all__ = [
    "InfoNCECallback",
    "InfoNCECombinedExtractor",
    "InfoNCEExtractor",
    "make_updates_due",
    "trained_extractors",
]
