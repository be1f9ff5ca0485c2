"""Committed windows made smaller in number, or dropped: compaction and retention at one destination.

Belongs here: which parts and windows are joined, how that is proven and made visible, how old windows go. Not here: an
ordinary commit (`commit/publish.py`), which exports are looked after and when (`rivet_assets/upkeep`).
"""
