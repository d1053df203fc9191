"""The colours of load: from blue (never held) over green and yellow to red (held all the time).

``page_traffic.js`` draws with the same formula.
"""

STEPS = 20
"""Patches of a scale."""


def heat_colour(share: float) -> str:
    """Return the colour of an edge that is held for a share (0 to 1) of the time, as CSS."""
    return f"hsl({round(210 * (1 - min(share, 1.0)))} 70% 45%)"


def heat_scale() -> str:
    """Return the scale of these colours as an element of a page."""
    patches = "".join(
        f'<span class="patch" style="background:{heat_colour(step / STEPS)}"></span>'
        for step in range(STEPS + 1)
    )
    return (
        '<p class="scale" role="img" aria-label="Colours of load, from 0% blue to 100% red">'
        f"<span>busy 0%</span>{patches}<span>100% of the time</span></p>"
    )
