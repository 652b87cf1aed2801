"""Interfaces of plugins have versions: whether a plugin fits this one."""

from __future__ import annotations

FIRST = (1, 0)
"""Of every interface of plugins, as (major, minor)."""


def misfit(written_for: object, ours: tuple[int, int]) -> str:
    """Why a plugin does not fit an interface, as the end of a sentence about it; empty if it fits.

    Args:
      written_for: The plugin's `api_version`, as (major, minor); any other value is a misfit.
      ours: The version of the interface here.
    """
    match written_for:
        case int(major), int(minor):
            if major == ours[0] and minor <= ours[1]:
                return ""
            return (
                f"is written for version {major}.{minor} of the interface, this is {ours[0]}.{ours[1]}: install "
                "versions of the plugin and of insync that fit"
            )
    return f"has api_version={written_for!r}: write two numbers, {ours}"
