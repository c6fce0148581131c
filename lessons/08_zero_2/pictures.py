"""The pictures of lesson 08. They draw what the ranks brought back."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from minidist.classroom.lesson import show

SHARDS, BUCKET = "#5a9e6f", "#d99a2b"
Moment = tuple[str, int, int]  # a unit, or "step"; bytes of gradients that are held for good; bytes in buckets


def draw_gradients(steps: Mapping[str, Sequence[Moment]], psi: int, title: str = "") -> None:
    """The gradients that one rank holds, moment after moment of a step, in each of several programs."""
    height = 1.0 + 1.25 * len(steps)
    fig, axes = plt.subplots(len(steps), 1, figsize=(10, height), squeeze=False)
    words = []
    for ax, (name, moments) in zip(axes[:, 0], steps.items(), strict=True):
        places = range(len(moments))
        for_good, in_passing = ([moment[i] / psi for moment in moments] for i in (1, 2))
        ax.bar(places, for_good, width=1.0, color=SHARDS, label="held for good")
        ax.bar(places, in_passing, width=1.0, bottom=for_good, color=BUCKET, label="in buckets")
        ax.axhline(2, color="#888888", ls="--", lw=1.2)
        units = {place: unit for place, (unit, *_) in enumerate(moments) if place == 0 or moments[place - 1][0] != unit}
        for place in list(units)[1:]:
            if units[place] == moments[0][0]:  # the next micro-batch's backward
                ax.axvline(place - 0.5, color="#666666", lw=0.8)
        ax.set_xticks(list(units), list(units.values()), fontsize=8, rotation=35, ha="right", rotation_mode="anchor")
        if ax is not axes[-1, 0]:
            ax.set_xticklabels([])  # those of the last
        ax.set(xlim=(-0.6, len(moments) - 0.4), ylim=(0, 2.75), yticks=[0, 1, 2])
        ax.set_ylabel("bytes, in $\\Psi$", fontsize=9)
        ax.set_title(name, loc="left", fontsize=10, pad=4)
        ax.tick_params(axis="x", length=0, pad=2)
        ax.spines[["top", "right"]].set_visible(False)
        highest = max(moments, key=lambda moment: moment[1] + moment[2])
        words.append(
            f"{name}: {highest[1] / psi:.2f} psi for good and {highest[2] / psi:.2f} psi in buckets at most, at"
            f" {highest[0]}; at the end {sum(moments[-1][1:]) / psi:.2f} psi"
        )
    last = len(next(iter(steps.values()))) - 0.5
    axes[0, 0].text(last, 2.14, "all gradients: $2\\Psi$", ha="right", color="#666666", fontsize=9)
    axes[0, 0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=9)
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.07, right=0.99, top=1 - 0.62 / height, bottom=0.5 / height, hspace=0.3)
    show(
        fig,
        f"{title} Gradients that a rank holds during the backward of a step, from left to right, in bytes of psi; all"
        f" gradients are 2 psi. {'. '.join(words)}.",
    )
