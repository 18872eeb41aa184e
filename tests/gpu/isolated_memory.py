"""Programs that look at a whole process's memory (contract 9)."""

from __future__ import annotations

from typing import Any

from bench import memory


def cycles_add_nothing() -> dict[str, Any]:
    figures = memory.cycles(memory.cycle)
    assert figures["added_reserved_bytes"] <= 0, figures
    assert figures["added_allocated_bytes"] <= 0, figures
    return figures


def thirty_two_shapes() -> dict[str, Any]:
    figures = memory.thirty_two_shapes()
    assert figures["num_recordings"] == 32 and figures["num_refused"] == 0, figures
    assert figures["is_right"], figures
    assert figures["largest_pool_mib"] >= 256, figures
    assert figures["pool_ratio"] <= 1.3, figures
    return figures


def a_thousand_shapes() -> dict[str, Any]:
    figures = memory.random_shapes(1000)
    assert figures["num_wrong"] == 0, figures
    assert figures["num_exact"] == figures["num_recorded"] == 1000, figures
    assert figures["num_evicted"] > 0, figures
    assert figures["highest_held_mib"] <= figures["budget_mib"], figures
    assert figures["taken_mib"] <= 1.5 * figures["budget_mib"], figures  # segments partly used
    return figures
