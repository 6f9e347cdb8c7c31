"""Draw the saw-tooth: how full the context is at every call, with no layer, each one, and both.

    python tests/bench/sawtooth.py [--stdout]      writes sawtooth.svg beside this file

The session is the generated one, cut to CALLS calls; the knobs stand below. The picture needs the
standard library alone. It is readable in light and dark: colours follow prefers-color-scheme, and
where that is ignored the picture brings its own light background.
"""

import argparse
import contextlib
import functools
import io
import tempfile
from pathlib import Path

import generate
import replay

CALLS = 150
KNOBS = {"THRESHOLD": 20_000, "CLEAR_AT_LEAST": 0, "PRESERVE_RESULT_TOOLS": {"read_file"}}
PANELS = {
    "no compaction": "",
    "Layer 1: old results cleared": "1",
    "Layer 2: summary at the threshold": "2",
    "both layers": "12",
}
TOP = 50_000  # tokens: the upper end of every panel; what is above is said in words
SVG = Path(__file__).with_name("sawtooth.svg")
WIDTH, HEIGHT, LEFT, UP = 376, 150, 66, 78  # of a panel's plot; where the first one begins
STEP_X, STEP_Y = 444, 228  # from panel to panel
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
         fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .small { font-size: 11px; fill: #57606a }
  .grid { stroke: #d8dee4 } .axis { stroke: #8c959f }
  .limit { stroke: #bc4c00; stroke-dasharray: 6 4; stroke-width: 1.5 } .limit-text { fill: #bc4c00 }
  .line { fill: none; stroke: #0969da; stroke-width: 1.8; stroke-linejoin: round }
  .one { stroke: #1a7f37; stroke-width: 1.5 } .two { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 }
    .small { fill: #9da7b3 } .grid { stroke: #2d333b } .axis { stroke: #6e7681 }
    .limit { stroke: #f0883e } .limit-text { fill: #f0883e }
    .line { stroke: #58a6ff } .one { stroke: #3fb950 } .two { fill: #bc8cff }
  }
"""


def sizes(messages: list, layers: str) -> list:
    """[(estimate before, estimate sent, layers that fired as "", "1", "2" or "12"), ...]."""
    row = {"layers": layers, "marks": "", "knobs": KNOBS}
    history, found = [], []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        agent = replay.Lesson(row, Path(folder), replay.Stub())
        for message in messages:
            if message["role"] == "assistant":
                agent.request(history)
                before = agent.before or replay.s06.estimate_tokens(history)
                after = replay.s06.estimate_tokens(history) if agent.fired else before
                found.append((before, after, agent.fired))
            agent.add(history, message)
    return found


@functools.lru_cache
def series() -> dict:
    """{title: sizes} of the four panels, counted without any tokenizer."""
    replay.use_wheel("")
    messages = generate.generate(CALLS)["messages"]
    return {title: sizes(messages, layers) for title, layers in PANELS.items()}


# --- as SVG ----------------------------------------------------------------------------------


def place(call: float, tokens: float, calls: int) -> tuple:
    """Whole pixels inside a plot for a call's number and a count of tokens."""
    return round(WIDTH * call / calls), round(HEIGHT * (1 - tokens / TOP))


def curve(points: list) -> str:
    """The `points` attribute of the line: before and after each compaction, up to the top edge."""
    corners = []
    for call, (before, after, _) in enumerate(points):
        corners.append(place(call, min(before, TOP), len(points)))
        corners.append(place(call, min(after, TOP), len(points)))
        if after > TOP:
            break
    return " ".join(f"{x},{y}" for x, y in dict.fromkeys(corners))


def marks(points: list) -> list:
    """A green tick under the axis where Layer 1 fired, a purple triangle where Layer 2 did."""
    lines = []
    for call, (before, _, fired) in enumerate(points):
        x, y = place(call, min(before, TOP), len(points))
        if "1" in fired:
            lines.append(f'<path class="one" d="M{x} {HEIGHT + 3}v6"/>')
        if "2" in fired:
            lines.append(f'<path class="two" d="M{x} {y - 2}l-5 -9h10z"/>')
    return lines


def panel(title: str, points: list, number: int) -> list:
    """The lines of one panel."""
    x, y = LEFT + STEP_X * (number % 2), UP + STEP_Y * (number // 2)
    peak, calls = max(before for before, _, _ in points), len(points)
    lines = [f'<g transform="translate({x} {y})">', f'<text class="title" y="-14">{title}</text>']
    for tokens in range(0, TOP + 1, 10_000):
        height = place(0, tokens, calls)[1]
        kind = "grid" if tokens else "axis"
        lines.append(f'<path class="{kind}" d="M0 {height}H{WIDTH}"/>')
        label = f"{tokens // 1000}k" if tokens else "0"
        lines.append(
            f'<text class="small" x="-6" y="{height + 4}" text-anchor="end">{label}</text>'
        )
    for call in range(0, calls, 50):
        where = f'x="{place(call, 0, calls)[0]}" y="{HEIGHT + 24}"'
        lines.append(f'<text class="small" {where} text-anchor="middle">{call}</text>')
    where = f'x="{WIDTH}" y="{HEIGHT + 24}"'
    lines.append(f'<text class="small" {where} text-anchor="end">model calls</text>')
    where = f'transform="rotate(-90)" x="{-HEIGHT // 2}" y="-42"'
    lines.append(f'<text class="small" {where} text-anchor="middle">tokens</text>')
    height = place(0, KNOBS["THRESHOLD"], calls)[1]
    lines.append(f'<path class="limit" d="M0 {height}H{WIDTH}"/>')
    lines.append(f'<polyline class="line" points="{curve(points)}"/>')
    said = f"peak {peak:,}" if peak <= TOP else f"goes on to {peak:,}"
    lines.append(f'<text class="small" x="{WIDTH}" y="-14" text-anchor="end">{said}</text>')
    return [*lines, *marks(points), "</g>"]


def legend(y: int) -> list:
    """The line that explains the signs."""
    limit = f"THRESHOLD = {KNOBS['THRESHOLD']:,}"
    return [
        f'<g transform="translate({LEFT} {y})">',
        '<path class="line" d="M0 -4h22"/><text x="28">tokens in the context, estimated</text>',
        f'<path class="limit" d="M248 -4h26"/><text x="280" class="limit-text">{limit}</text>',
        '<path class="one" d="M442 -8v8m4 -8v8m4 -8v8"/>',
        '<text x="458">Layer 1 clears results</text>',
        '<path class="two" d="M622 0l-5 -9h10z"/><text x="634">Layer 2 writes a summary</text>',
        "</g>",
    ]


def svg(panels: dict) -> str:
    """The whole picture."""
    width, height = STEP_X * 2 + 12, UP + STEP_Y * 2 - 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title">',
        '<title id="title">Tokens in the context at each model call of one session: '
        "without compaction, with Layer 1, with Layer 2, with both</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *legend(30),
    ]
    for number, (title, points) in enumerate(panels.items()):
        lines += panel(title, points, number)
    return "\n".join([*lines, "</svg>", ""])


# --- as plain text ---------------------------------------------------------------------------


def text(title: str, points: list, columns: int = 72, rows: int = 10) -> str:
    """One panel as text: # is context, - the threshold; below, where Layers 1 and 2 fired."""
    calls, step = len(points), TOP // rows
    groups = [
        points[calls * c // columns : max(calls * (c + 1) // columns, calls * c // columns + 1)]
        for c in range(columns)
    ]
    tall = [max(before for before, _, _ in group) for group in groups]
    lines = [f"{title} (peak {max(tall):,})"]
    for row in range(rows, 0, -1):
        empty = "-" if row * step == KNOBS["THRESHOLD"] else " "
        bars = "".join("#" if size > (row - 0.5) * step else empty for size in tall)
        lines.append(f"{row * step // 1000:>4}k |{bars}".rstrip())
    for layer in "12":
        fired = "".join(layer if any(layer in f for _, _, f in group) else " " for group in groups)
        lines.append(f"   L{layer} |{fired}".rstrip())
    return "\n".join(lines)


def main(argv: list | None = None) -> None:
    """Write the picture and print the text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stdout", action="store_true", help="write no file, only print the text")
    args = parser.parse_args(argv)
    panels = series()
    if not args.stdout:
        SVG.write_text(svg(panels), encoding="utf-8")
    print("\n\n".join(text(title, points) for title, points in panels.items()))


if __name__ == "__main__":
    main()
