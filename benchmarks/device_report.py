"""What benchmarks/device.py measured, as a page: ratios, the goals of the design, and a table."""

from __future__ import annotations

# What has to run comes first, should the time run out.
SHAPES = ["8,100,20,128", "16,200,40,256", "1,1500,200,500", "16,500,80,256", "32,300,50,512", "4,1500,200,1024"]
LARGER = ["32,300,50,512", "16,500,80,256", "4,1500,200,1024", "1,1500,200,500"]


def derived(row: dict) -> dict:
    """Ratios of a row's times; None where one is missing."""
    us = row["us"]

    def ratio(a: float | None, b: float | None) -> float | None:
        return a / b if a is not None and b else None

    def less(a: float | None, b: float | None) -> float | None:
        return a - b if a is not None and b is not None else None

    best = us.get("graph", us.get("eager"))
    return {
        "over_floor": ratio(best, row["floor_us"]),
        "torchaudio_over_eager": ratio(us.get("torchaudio"), us.get("eager")),
        "log_probs_backward_over_fill": ratio(less(us.get("log_probs"), us.get("log_probs_forward")), us.get("fill")),
    }


def table(results: dict) -> str:
    """Markdown, one line per row."""

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    head = ["B,T,U,V", "dtype", "eager us", "graph us", "predicted", "floor", "x floor", "torchaudio / eager"]
    head += ["forward", "lattice", "predicted", "backward of log-probs / fill", "memory", "error", "torchaudio's"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for row in results["rows"]:
        us, predicted = row.get("us", {}), row.get("predicted_us", {})
        cells = [row["shape"], row["dtype"], cell(us.get("eager"), ".1f"), cell(us.get("graph"), ".1f")]
        cells += [
            cell(predicted.get("step"), ".1f"),
            cell(row.get("floor_us"), ".1f"),
            cell(row.get("over_floor"), ".2f"),
        ]
        cells += [cell(row.get("torchaudio_over_eager"), ".1f"), cell(us.get("forward"), ".1f")]
        cells += [cell(us.get("lattice"), ".1f"), cell(predicted.get("lattice"), ".1f")]
        cells += [cell(row.get("log_probs_backward_over_fill"), ".2f"), cell(row.get("extra_memory"), ".2f")]
        cells += [cell(row.get(f"{who}gradient_error"), ".1e") for who in ("", "torchaudio_")]
        lines.append("| " + " | ".join(cells) + " |")
        problem = row.get("error") or ("DISAGREES with the float64 lattice" if not row.get("agrees", True) else None)
        if problem:
            lines.append(f"| {row['shape']} | {row['dtype']} | {problem} |")
    return "\n".join(lines)


def goals(results: dict) -> dict[str, bool | None]:
    """What the kernels were designed for, and whether this run shows it; None where it was not measured."""
    rows = [row for row in results["rows"] if "us" in row]
    float32 = [row for row in rows if row["dtype"] == "float32"]

    def every(values: list[bool | None]) -> bool | None:
        return None if not values or None in values else all(values)

    def within(rows: list[dict], key: str, most: float) -> bool | None:
        return every([None if row.get(key) is None else row[key] <= most for row in rows])

    larger = [row for row in rows if row["shape"] in LARGER]
    first = [row for row in float32 if row["shape"] == SHAPES[0]]
    long_ones = [row for row in float32 if ",1500," in row["shape"]]
    ratios = [row.get("torchaudio_over_eager") for row in float32]
    return {
        "agrees with float64": every([row["agrees"] for row in rows]),
        "at most 1.3 x the floor on the larger shapes": within(larger, "over_floor", 1.3),
        "at least 5 x torchaudio": every([None if ratio is None else ratio >= 5 for ratio in ratios]),
        f"under 60 us from a graph on {SHAPES[0]}": every(
            [row["us"].get("graph") and row["us"]["graph"] < 60 for row in first]
        ),
        "gradient error at most 1e-5 on T = 1500": within(long_ones, "gradient_error", 1e-5),
        "backward of log-probs at most 1.3 x a fill on the larger shapes": within(
            larger, "log_probs_backward_over_fill", 1.3
        ),
    }


def report(results: dict) -> str:
    """All of a run that fits on a page, the table last."""
    about = "\n".join(f"{key}: {value}" for key, value in results["about"].items())
    words = {True: "yes", False: "NO", None: "not measured"}
    met = "\n".join(f"{words[met]:>12}  {goal}" for goal, met in goals(results).items())
    kernels = "\n".join(
        f"{row['shape']} {row['dtype']}: " + ", ".join(f"{name} {us:.1f}" for name, us in row["kernels_us"].items())
        for row in results["rows"]
        if row.get("kernels_us")
    )
    parts = [about, f"kernels of an eager step, us\n{kernels}" if kernels else "", met, table(results)]
    return "\n\n".join(part for part in parts if part)
