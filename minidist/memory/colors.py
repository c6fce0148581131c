"""One color for each quantity, in every plot, picture and lesson.

All colors are light enough for dark digits (a contrast of at least 4.5 to 1: WCAG 2.1, 1.4.3). Model states have the
hues of ZeRO's Figure 1. Temporary arrays are paler than what they are made of: gathered parameters are pale blue, a
bucket of gradients is pale orange.
"""

DARK = "#1a1a1a"  # digits and words
BLUE, ORANGE, GREEN, RED, PURPLE = "#4c8ed9", "#e8893a", "#58a55c", "#d65f5f", "#9d86c7"
GREY = "#9a9a9a"  # lines and quantities without a color; readable on white and on black
LIGHT = "#dddddd"
QUANTITIES = {
    **{"parameters": BLUE, "gradients": ORANGE, "optimizer": GREEN, "stash": "#7fa9d6", "outer": "#9cc79e"},
    **{"error": "#e7b3b6", "secondary": "#b59a6b"},
    **{"activations": PURPLE, "ends": "#c9bddd", "persistent": "#5fc4c9", "gathered": "#a9cbf2", "bucket": "#f6cfae"},
    **{"messages": RED, "workspace": LIGHT},
}
RANKS = (BLUE, ORANGE, GREEN, RED)  # for pictures that distinguish ranks instead of quantities
