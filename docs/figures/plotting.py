"""The look of the documentation's figures: wide lines and large type, so that a telephone shows them too."""

from pathlib import Path

# Okabe and Ito's colours, told apart by most colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9")


def figure(height=3.6, rows=1, columns=1, **options):
    """Return a figure five inches wide, and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update(
        {
            "font.size": 11,
            "axes.grid": True,
            "grid.color": "0.9",
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "lines.linewidth": 2,
            "svg.hashsalt": "pytensor-rope",
        }
    )
    return plt.subplots(
        rows, columns, figsize=(5, height), layout="constrained", facecolor="white", **options
    )


def save(fig, path: Path) -> None:
    """Write an SVG that is the same each time."""
    fig.savefig(path, metadata={"Date": None})
    print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
