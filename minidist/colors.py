"""One color for each quantity, in every plot, picture and lesson.

All are light enough for dark digits on them (a contrast of 4.5 to 1 at least: WCAG 2.1, 1.4.3). Model states have the
hues of ZeRO's Figure 1. What comes and goes is paler than what it is made of: a gathered parameter, a bucket of
gradients.
"""

DARK = "#1a1a1a"  # digits and words
BLUE, ORANGE, GREEN, RED, PURPLE = "#4c8ed9", "#e8893a", "#58a55c", "#d65f5f", "#9d86c7"
GREY = "#9a9a9a"  # lines and what is not named; can be read on white and on black
LIGHT = "#dddddd"
QUANTITIES = {
    **{"parameters": BLUE, "gradients": ORANGE, "optimizer": GREEN, "stash": "#7fa9d6"},
    **{"activations": PURPLE, "ends": "#c9bddd", "gathered": "#a9cbf2", "bucket": "#f6cfae"},
    **{"messages": RED, "workspace": LIGHT},
}
RANKS = (BLUE, ORANGE, GREEN, RED)  # where a picture tells ranks apart, and no quantities
