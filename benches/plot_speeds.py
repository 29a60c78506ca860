"""Draws docs/speeds.svg, the picture of the README, from a record of `benches/peers/compare.py`.

    python benches/plot_speeds.py benches/results/2026-11-21-peers.md docs/speeds.svg

Needs the standard library only. Times are on a logarithmic axis, one dot a system, one panel a query.
"""

import math
import re
import sys

# Query and column of the record, and the panel's title.
PANELS = [
    ("median", "lognormal", "Exact median"),
    ("99 quantiles", "lognormal", "99 exact percentiles"),
]
NAMES = {"dfq": "this crate", "DataFusion (Python)": "DataFusion"}
OURS = "dfq"

WIDTH, LEFT, RIGHT = 760, 130, 90
ROW, TITLE, GAP, AXIS = 24, 30, 14, 34

ROWS = re.compile(r"^(\S.*?) {2,}(\S+) {2,}(\S.*?) {2,}([0-9.]+) ")


def read(path):
    """The seconds of each (query, column, system) of a record."""
    with open(path, encoding="utf-8") as record:
        matches = (ROWS.match(line) for line in record)
        return {match.group(1, 2, 3): float(match.group(4)) for match in matches if match}


def label(seconds):
    """Seconds with two significant digits."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def panel(seconds, query, column):
    """Systems and seconds of one query, the fastest first."""
    found = [(time, system) for (q, c, system), time in seconds.items() if (q, c) == (query, column)]
    if not found:
        sys.exit(f"the record has no row of '{query}' over '{column}'")
    return sorted(found)


def draw(seconds):
    """The picture as text."""
    panels = [(title, panel(seconds, query, column)) for query, column, title in PANELS]
    times = [time for _, rows in panels for time, _ in rows]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def across(time):
        return LEFT + (math.log10(time) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    body, top = [], 6
    for title, rows in panels:
        body.append(f'<text class="title" x="{LEFT}" y="{top + 18}">{title}</text>')
        top += TITLE
        bottom = top + ROW * len(rows)
        for power in range(low, high + 1):
            x = across(10.0**power)
            body.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>')
        for index, (time, system) in enumerate(rows):
            kind, y = ("ours" if system == OURS else "theirs"), top + ROW * (index + 0.5)
            body.append(f'<text class="{kind}" x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{NAMES.get(system, system)}</text>')
            body.append(f'<line class="{kind}" x1="{LEFT}" y1="{y:.1f}" x2="{across(time):.1f}" y2="{y:.1f}"/>')
            body.append(f'<circle class="{kind}" cx="{across(time):.1f}" cy="{y:.1f}" r="5"/>')
            body.append(f'<text class="{kind}" x="{across(time) + 12:.1f}" y="{y + 4:.1f}">{label(time)}</text>')
        top = bottom + GAP
    for power in range(low, high + 1):
        body.append(f'<text class="axis" x="{across(10.0**power):.1f}" y="{top + 4}" text-anchor="middle">{10.0**power:g} s</text>')
    height = top + AXIS
    caption = "30 million Float64 in one Parquet file, 2 cores; less is better; logarithmic axis"
    body.append(f'<text class="axis" x="{LEFT}" y="{height - 10}">{caption}</text>')
    style = (
        "text{font:13px sans-serif;fill:#57606a}.title{font-weight:600;fill:#24292f}.axis{font-size:11px}"
        "line{stroke:#8c959f;stroke-width:1.5}.grid{stroke-width:.5;opacity:.5}circle{fill:#8c959f}"
        "text.ours{font-weight:600;fill:#0969da}line.ours{stroke:#0969da;stroke-width:3}circle.ours{fill:#0969da}"
        "@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#e6edf3}text.ours{fill:#58a6ff}"
        "line.ours{stroke:#58a6ff}circle.ours{fill:#58a6ff}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{caption}</title>", f"<style>{style}</style>", *body, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], "w", encoding="utf-8") as picture:
        picture.write(draw(read(sys.argv[1])))


if __name__ == "__main__":
    main()
