"""Pictures of a document of measurements: ``rendered(document, kinds, form) -> bytes``.

This needs matplotlib, the extra ``plot``. ``ratios`` are bars of evt's time over each contender's. ``roofline`` shows
the speed of the cases below the limits of the GPU's memory and tensor cores.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evt.bench.changes import Time, times_of
from evt.bench.result import EVT
from evt.errors import TargetError
from evt.plan.cards import Card, find_card

#: The formats of pictures, by suffix.
FORMATS = ("png", "svg", "html")
_COLORS = ("#4c7fd1", "#e08e3c", "#5aa469", "#b15f9b", "#8c8c8c", "#c8504b")
_LONGEST = 60


def draw(document: Mapping[str, Any], kind: str) -> Any:
    """Return a figure. Raise LookupError if the document has nothing to draw."""
    return KINDS[kind](document)


def ratios(document: Mapping[str, Any]) -> Any:
    """Return a chart of evt's time over each contender's, for each case."""
    from matplotlib.figure import Figure

    by_case: dict[str, dict[str, float]] = {}
    for each in times_of(document):
        by_case.setdefault(each.case, {})[each.version] = each.ms
    cases = {name: times for name, times in by_case.items() if EVT in times and len(times) > 1}
    versions = list(dict.fromkeys(version for times in cases.values() for version in times if version != EVT))
    if not cases:
        raise LookupError("no case has times of evt and of another version")
    figure = Figure(figsize=(9, 1.2 + 0.26 * len(cases) * max(2, len(versions))), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(versions)
    for place, version in enumerate(versions):
        rows = [(number, times) for number, times in enumerate(cases.values()) if version in times]
        at = [number + (place - (len(versions) - 1) / 2) * height for number, _ in rows]
        found = [times[EVT] / times[version] for _, times in rows]
        bars = axes.barh(at, found, height, label=f"evt / {version}", color=_COLORS[place % len(_COLORS)])
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
    axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_yticks(range(len(cases)), [_short(name) for name in cases], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time of evt relative to another version; less than 1 is faster")
    axes.set_title(_title(document), fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(versions), fontsize=8)
    return figure


def roofline(document: Mapping[str, Any]) -> Any:
    """Return a chart of the speed of each case over its operations for each byte, with the limits of the GPU."""
    from matplotlib.figure import Figure

    points: dict[str, list[Time]] = {}
    for each in times_of(document):
        if each.flops and each.bytes:
            points.setdefault(each.version, []).append(each)
    if not points:
        raise LookupError("no case has operations and bytes")
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for place, (version, found) in enumerate(points.items()):
        axes.scatter(
            [each.flops / each.bytes for each in found],
            [each.flops / each.ms / 1e9 for each in found],
            s=34 if version == EVT else 16,
            label=version,
            color=_COLORS[place % len(_COLORS)],
            zorder=3,
        )
    card = _card(document)
    if card is not None:
        intensities = [each.flops / each.bytes for found in points.values() for each in found]
        moved = card.bytes_per_us / 1e6
        peak = 2 * card.multiprocessors * card.tensor / card.microseconds(1) / 1e6
        ridge = peak / moved
        low, high = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
        axes.plot([low, ridge, high], [low * moved, peak, peak], color="#444444", linewidth=1)
        axes.annotate(f"{card.name}: {peak:.0f} TFLOP/s (16 bits), {moved:.1f} TB/s", (low, low * moved), fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP for each byte of memory traffic")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.3)
    axes.set_title(_title(document), fontsize=10)
    axes.legend(fontsize=8)
    return figure


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"ratios": ratios, "roofline": roofline}


def rendered(document: Mapping[str, Any], kinds: tuple[str, ...], form: str) -> bytes:
    """Return the pictures as a file of a format: html has all of them, other formats the first.

    Equal documents make equal files. Raise LookupError if the document has nothing to draw.
    """
    if form != "html":
        return _image(draw(document, kinds[0]), form)
    found = []
    for kind in kinds:
        svg = _image(draw(document, kind), "svg").decode()
        found.append(f"<figure>{svg[svg.index('<svg') :]}</figure>")
    title = html.escape(_title(document))
    style = "body{font:15px sans-serif;max-width:60em;margin:2em auto}svg{max-width:100%;height:auto}"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    return f"<!doctype html>{head}{''.join(found)}\n".encode()


def _image(figure: Any, form: str) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "evt", "svg.fonttype": "none"}):
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _card(document: Mapping[str, Any]) -> Card | None:
    """Return the GPU of a document, None if it is unknown."""
    name = ((document.get("machine") or {}).get("gpu") or {}).get("name")
    try:
        return None if name is None else find_card(name)
    except TargetError:
        return None


def _title(document: Mapping[str, Any]) -> str:
    machine = document.get("machine") or {}
    gpu = (machine.get("gpu") or {}).get("name", "")
    torch = (machine.get("versions") or {}).get("torch")
    parts = [gpu.removeprefix("NVIDIA "), f"torch {torch}" if torch else "", str(document.get("when") or "")[:10]]
    return ", ".join(filter(None, parts))


def _short(name: str) -> str:
    plain = re.sub(r"\s+", " ", name)
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 3]}..."


def form_of(path: str) -> str:
    """Return the format of a file name, "" if it is unknown."""
    suffix = Path(path).suffix.removeprefix(".").lower()
    return suffix if suffix in FORMATS else ""
