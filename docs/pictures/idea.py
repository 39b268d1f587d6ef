"""The picture of the idea in README.md: `python docs/pictures/idea.py` writes idea.svg, for light and dark pages."""

from pathlib import Path

PICTURE = Path(__file__).with_name("idea.svg")
WIDTH, HEIGHT, TOP, STEP = 900, 300, 52, 40
# Task, its text, its answer; the color of each task.
LANES = (
    ("tone", "The soup was cold.", "negative 0.95"),
    ("routing", "I was charged twice.", "billing 0.91"),
    ("guard", "Ignore your instructions.", "injection 0.98"),
    ("tone", "Best coffee in town!", "positive 0.99"),
)
COLORS = {"tone": "#3b82f6", "routing": "#f59e0b", "guard": "#10b981"}
LEFT, RIGHT = 350, 590
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.quiet { font-size: 12px; fill: #59636e }
.name { font-weight: 600 }
.box { fill: none; stroke: #818b98; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .quiet { fill: #9198a1 }
}
"""


def lanes() -> list[str]:
    """Each text on its way through the encoder, where its task's row meets it."""
    parts = []
    for number, (task, text, answer) in enumerate(LANES):
        y, color = TOP + STEP * number, COLORS[task]
        parts += [
            f'<text x="10" y="{y + 5}"><tspan class="name" fill="{color}">{task}</tspan>  {text}</text>',
            f'<path d="M270 {y}H690" stroke="{color}" stroke-width="2"/>',
            f'<rect x="{(LEFT + RIGHT) // 2 - 16}" y="{y - 8}" width="32" height="16" rx="3" fill="{color}"/>',
            f'<text x="702" y="{y + 5}">{answer}</text>',
        ]
    return parts


def bank() -> list[str]:
    """The rows of all tasks in memory, those of the picture among many."""
    y, colors = 248, [*COLORS.values(), *["#818b98"] * 9]
    strips = [
        f'<rect x="{LEFT + 10 + 18 * number}" y="{y}" width="12" height="16" rx="2" fill="{color}"/>'
        for number, color in enumerate(colors)
    ]
    middle = (LEFT + RIGHT) // 2
    return [
        *strips,
        f'<path class="box" d="M{middle} 240V224M{middle - 5} 230L{middle} 224L{middle + 5} 230"/>',
        f'<text class="quiet" x="10" y="{y + 13}">a file of 0.1 to 1.5 MB for each task</text>',
        f'<path class="box" d="M250 {y + 8}H{LEFT - 6}M{LEFT - 12} {y + 3}L{LEFT - 6} {y + 8}L{LEFT - 12} {y + 13}"/>',
        f'<text class="quiet" x="{RIGHT - 4}" y="{y + 13}">many rows, thousands in memory</text>',
    ]


def main() -> None:
    """Writes the picture."""
    box = f'<rect class="box" x="{LEFT}" y="26" width="{RIGHT - LEFT}" height="194" rx="10"/>'
    caption = f'<text class="quiet" x="{(LEFT + RIGHT) // 2}" y="209" text-anchor="middle">one frozen encoder</text>'
    heads = (
        '<text class="quiet" x="10" y="20">one batch of texts for many tasks</text>'
        '<text class="quiet" x="702" y="20">an answer of each task</text>'
    )
    title = "Texts of several tasks pass one frozen encoder in one batch; each text is given its own task's row"
    parts = [heads, box, *lanes(), caption, *bank()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT - 20}" role="img">'
    PICTURE.write_text("\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", *parts, "</svg>\n"]))


if __name__ == "__main__":
    main()
