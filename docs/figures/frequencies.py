"""
Draw the figures of docs/frequencies.md: wavelengths-*.svg and axes.svg, beside this file.

    python docs/figures/frequencies.py
"""

from pathlib import Path

import numpy as np
from plotting import COLOURS, figure, save

from pytensor_rope.frequencies import (
    NTK,
    Axial,
    Default,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    MRoPE,
    Proportional,
    YaRN,
)

HERE = Path(__file__).parent
HEAD_DIM = 128
PAIRS = np.arange(HEAD_DIM // 2)
TRAINED = 4096
FACTOR = 8.0

STRETCHING = {
    "Default": Default(),
    "Linear": Linear(factor=FACTOR),
    "NTK": NTK(factor=FACTOR),
    "YaRN": YaRN(factor=FACTOR, original_max_position_embeddings=TRAINED),
    "Llama3": Llama3(
        factor=FACTOR, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=TRAINED
    ),
}
DYNAMIC = DynamicNTK(factor=2.0, original_max_position_embeddings=TRAINED)
# Factors made up for the figure: a model's own come with its configuration.
LONGROPE = LongRoPE(
    short_factor=np.geomspace(1, 1.5, HEAD_DIM // 2),
    long_factor=np.geomspace(1, 32, HEAD_DIM // 2),
    original_max_position_embeddings=TRAINED,
)
ASSIGNMENTS = {
    "MRoPE, section 16, 24, 24": MRoPE(section=(16, 24, 24)),
    "MRoPE, section 24, 20, 20, interleaved": MRoPE(section=(24, 20, 20), interleaved=True),
    "Axial, alternate or not": Axial(),
    "Proportional, a quarter turns": Proportional(partial_rotary_factor=0.25),
}


def main() -> None:
    draw_stretching()
    draw_lengths()
    draw_axes()


def wavelengths(scheme, length=None):
    """Return how many positions each pair takes for a turn."""
    return 2 * np.pi / scheme.inverse_frequencies(HEAD_DIM, length=length)


def draw_stretching():
    fig, (top, bottom) = figure(height=6.2, rows=2, sharex=True)
    dashes = ("-", "-", "-", "--", "-.")
    for (name, scheme), colour, dash in zip(STRETCHING.items(), COLOURS, dashes, strict=False):
        colour = "0.25" if name == "Default" else colour
        top.plot(PAIRS, wavelengths(scheme), dash, color=colour, label=name)
        bottom.plot(PAIRS, wavelengths(scheme) / wavelengths(Default()), dash, color=colour)
    mark(top, TRAINED, "trained length")
    mark(top, TRAINED * FACTOR, "stretched length")
    top.set(yscale="log", ylabel="wavelength (tokens)")
    top.legend(loc="lower right", fontsize=10, frameon=False)
    bottom.set_yscale("log", base=2)
    bottom.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    bottom.set(xlabel="pair of dimensions", ylabel="times the plain wavelength", xlim=(0, 63))
    save(fig, HERE / "wavelengths-schemes.svg")


def draw_lengths():
    fig, (top, bottom) = figure(height=6.2, rows=2, sharex=True, sharey=True)
    plain = wavelengths(Default())
    shades = ("0.25", "#56B4E9", "#0072B2", "#00436B")
    for length, colour in zip((4096, 8192, 16_384, 32_768), shades, strict=True):
        name = f"{length:,} tokens" if length > TRAINED else f"up to {length:,} tokens"
        top.plot(PAIRS, wavelengths(DYNAMIC, length) / plain, color=colour, label=name)
    for length, colour, name in (
        (4096, "0.25", "up to 4,096 tokens"),
        (4097, "#0072B2", "from 4,097 tokens"),
    ):
        bottom.plot(PAIRS, wavelengths(LONGROPE, length) / plain, color=colour, label=name)
    for ax, title in ((top, "DynamicNTK, factor 2"), (bottom, "LongRoPE, factors made up for this figure")):
        ax.set_yscale("log", base=2)
        ax.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        ax.set_ylabel("times the plain wavelength")
        ax.set_title(title, fontsize=11, loc="left")
        ax.legend(loc="upper left", fontsize=10, frameon=False)
    bottom.set(xlabel="pair of dimensions", xlim=(0, 63))
    save(fig, HERE / "wavelengths-lengths.svg")


def draw_axes():
    fig, ax = figure(height=3.9)
    names = {
        "time, or text": COLOURS[0],
        "height or row": COLOURS[1],
        "width or column": COLOURS[2],
        "still": "0.88",
    }
    colours = list(names.values())
    for row, (title, scheme) in enumerate(ASSIGNMENTS.items()):
        follows = np.array(scheme.axes(HEAD_DIM))
        if scheme.n_axis == 2:
            follows = follows + 1
        follows[scheme.inverse_frequencies(HEAD_DIM) == 0] = 3
        for axis, colour in enumerate(colours):
            ax.vlines(PAIRS[follows == axis], -row - 0.25, -row + 0.25, color=colour, linewidth=4)
        ax.text(-0.5, -row + 0.32, title, fontsize=10, va="bottom")
    for name, colour in zip(names, colours, strict=True):
        ax.plot([], [], color=colour, linewidth=6, label=name)
    fig.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)
    ax.set(xlabel="pair of dimensions", xlim=(-0.7, 63.7), ylim=(-3.4, 0.8), yticks=[])
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    save(fig, HERE / "axes.svg")


def mark(ax, length, name):
    ax.axhline(length, color="0.5", linewidth=1, linestyle=":")
    ax.text(0.5, length * 1.15, name, color="0.35", fontsize=10)


if __name__ == "__main__":
    main()
