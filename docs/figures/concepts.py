"""
Draw the figures of docs/concepts.md, beside this file.

    python docs/figures/concepts.py
"""

from pathlib import Path

import numpy as np
from plotting import COLOURS, figure, save

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
INK = "0.25"
FAINT = "0.93"


def main() -> None:
    draw_rotation()
    draw_pairings()
    draw_steps()
    draw_window()
    draw_ring()
    draw_queries()


def draw_rotation():
    fig, axes = blank(height=2.7, columns=2, width_ratios=(1.15, 1))
    key, query, theta = 2, 5, np.radians(24)
    left, right = axes
    circle(left)
    for position, colour, name in ((key, BLUE, "key"), (query, ORANGE, "query")):
        arrow(left, position * theta, colour)
        x, y = 1.13 * np.cos(position * theta), 1.13 * np.sin(position * theta)
        left.text(
            x, y, f"{name} at {position}", color=colour, ha="left" if x > 0.3 else "center", va="bottom"
        )
    between = np.linspace(key * theta, query * theta, 50)
    left.plot(0.45 * np.cos(between), 0.45 * np.sin(between), color=INK, linewidth=1.5)
    left.text(0, -0.45, "(5 − 2) θ", ha="center", va="center", color=INK)
    left.set(xlim=(-1.3, 1.9), ylim=(-1.15, 1.6), aspect="equal")

    for i, speed in enumerate((1.0, 0.4, 0.12, 0.03)):
        x, y = 2.6 * (i % 2), -2.9 * (i // 2)
        circle(right, (x, y))
        for position in range(6):
            arrow(right, position * speed, GREEN, (x, y), alpha=0.2 if position < 5 else 1)
        right.text(x, y + 1.15, f"pair {i}", ha="center", fontsize=10, color=INK)
    right.set(xlim=(-1.2, 3.8), ylim=(-4.05, 1.6), aspect="equal")
    save(fig, HERE / "rotation.svg")


def draw_pairings():
    fig, (ax,) = blank(height=2.3)
    pairings = {"half": lambda i: (i, i + 4), "adjacent": lambda i: (2 * i, 2 * i + 1)}
    for row, (name, pair) in enumerate(pairings.items()):
        y = -2.1 * row
        ax.text(-0.7, y, f'"{name}"', ha="right", va="center")
        for i, colour in enumerate((BLUE, ORANGE, GREEN, PINK)):
            first, second = pair(i)
            for place in (first, second):
                box(ax, place, y, str(place), colour)
            middle, reach = (first + second) / 2, (second - first) / 2
            angles = np.linspace(0, np.pi, 40)
            height = 0.35 if name == "adjacent" else 0.55
            ax.plot(middle + reach * np.cos(angles), y + 0.42 + height * np.sin(angles), color=colour)
    ax.set(xlim=(-2.9, 7.6), ylim=(-2.7, 1.1))
    save(fig, HERE / "pairings.svg")


def draw_steps():
    """Draw the angles that a float32 product can have near 1,000,000 radians, and those of 32 bits a turn."""
    fig, (left, right) = blank(height=2.5, columns=2)
    start, spacing = 1_000_000.0, float(np.spacing(np.float32(1_000_000)))
    angles = np.arange(start, start + 2 * np.pi, spacing)
    left.plot(np.cos(angles), np.sin(angles), ".", color=ORANGE, markersize=4)
    left.text(0, 0, f"float32 product\nat 1,000,000:\n{len(angles)} steps a turn", ha="center", va="center")
    circle(right, color=BLUE, linewidth=2.5)
    right.text(0, 0, f"turns in 32 bits,\nanywhere:\n{2**32:,}\nsteps a turn", ha="center", va="center")
    for ax in (left, right):
        ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    save(fig, HERE / "steps.svg")


def draw_window():
    sinks, window, tokens = 2, 4, 12
    fig, (ax,) = blank(height=3.6)
    for query in range(tokens):
        for key in range(query + 1):
            if key < sinks:
                colour = BLUE
            elif key > query - window:
                colour = ORANGE
            else:
                colour = FAINT
            ax.add_patch(rectangle(key, -query, 0.88, colour))
    ax.text(tokens / 2 - 0.5, 1.0, "key", ha="center", va="bottom")
    ax.text(-1.1, -tokens / 2 + 0.5, "query", rotation=90, ha="right", va="center")
    for row, (name, colour) in enumerate({"sink": BLUE, "window": ORANGE, "forgotten": FAINT}.items()):
        ax.add_patch(rectangle(7.6, -0.4 - 1.25 * row, 0.88, colour))
        ax.text(8.4, -0.4 - 1.25 * row, name, va="center")
    ax.set(xlim=(-2, 12.5), ylim=(-tokens + 0.4, 2), aspect="equal")
    save(fig, HERE / "window.svg")


def draw_ring():
    sinks, ring, tokens = 4, 8, 15
    fig, (ax,) = blank(height=1.6)
    for slot in range(sinks):
        box(ax, slot, 0, str(slot), BLUE)
    for position in range(tokens - ring, tokens):
        place = (position - sinks) % ring
        box(ax, sinks + 0.5 + place, 0, str(position), ORANGE)
    ax.text(1.5, 0.75, "sinks: written once", ha="center", fontsize=10)
    ax.text(8, 0.75, "ring: each token in the oldest's place", ha="center", fontsize=10)
    newest = sinks + 0.5 + (tokens - 1 - sinks) % ring
    for place, name in ((newest, "newest"), (newest + 1, "oldest")):
        ax.text(place, -0.65, name, ha="right" if name == "newest" else "left", va="top", fontsize=10)
    ax.set(xlim=(-0.7, 12.1), ylim=(-1.3, 1.2))
    save(fig, HERE / "ring.svg")


def draw_queries():
    fig, (ax,) = blank(height=3.2)
    sinks, first, query = 4, 11, 18  # the sinks, the window's oldest token, and the query's own
    copy = sinks + query - first
    ax.plot([-0.6, query + 1], [0, 0], color="0.7", linewidth=1.5, zorder=0)
    for position in range(query + 1):
        colour = BLUE if position < sinks else ORANGE if position >= first else FAINT
        ax.add_patch(rectangle(position, 0, 0.8, colour))
    for place, y, keys, colour, name in (
        (query, 2.0, (first, query), ORANGE, "query at i"),
        (copy, -2.0, (0, sinks - 1), BLUE, "its copy at S + W − 1"),
    ):
        sign = np.sign(y)
        ax.plot([place, place], [0.5 * sign, y], color=colour)
        for key in range(keys[0], keys[1] + 1):
            ax.plot([place, key], [y, 0.5 * sign], color=colour, linewidth=1, alpha=0.55)
        outwards = {"ha": "right", "va": "bottom"} if sign > 0 else {"ha": "left", "va": "top"}
        ax.text(place + 0.2, y + 0.15 * sign, name, color=colour, **outwards)
    ax.text(1.5, 0.65, "sinks", ha="center", va="bottom", color=INK, fontsize=10)
    ax.text(7.2, 0.65, "forgotten", ha="center", va="bottom", color=INK, fontsize=10)
    ax.text(14.5, -0.65, "window", ha="center", va="top", color=INK, fontsize=10)
    ax.set(xlim=(-0.9, query + 1), ylim=(-3, 3))
    save(fig, HERE / "queries.svg")


def blank(height, columns=1, **options):
    """Return a figure without axes' lines, and its axes."""
    fig, axes = figure(height=height, columns=columns, **options)
    axes = np.atleast_1d(axes)
    for ax in axes:
        ax.axis("off")
    return fig, axes


def circle(ax, centre=(0, 0), color="0.8", **style):
    angles = np.linspace(0, 2 * np.pi, 100)
    ax.plot(centre[0] + np.cos(angles), centre[1] + np.sin(angles), color=color, **{"linewidth": 1, **style})


def arrow(ax, angle, colour, start=(0, 0), alpha=1.0):
    end = (start[0] + np.cos(angle), start[1] + np.sin(angle))
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "alpha": alpha,
        "shrinkA": 0,
        "shrinkB": 0,
        "linewidth": 1.8,
    }
    ax.annotate("", xy=end, xytext=start, arrowprops=style)


def box(ax, x, y, text, colour):
    ax.add_patch(rectangle(x, y, 0.88, colour))
    ax.text(x, y, text, ha="center", va="center", color="white", fontweight="bold")


def rectangle(x, y, side, colour):
    from matplotlib.patches import Rectangle

    return Rectangle((x - side / 2, y - side / 2), side, side, facecolor=colour, linewidth=0)


if __name__ == "__main__":
    main()
