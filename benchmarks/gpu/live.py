"""What lived at the highest instant of an allocator's recorded history (torch.cuda.memory._snapshot())."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def place(frames: list[Row]) -> tuple[str, str]:
    """The innermost Python function that is not the allocator's, and the model's file it was called from."""
    inner = next((f for f in frames if f["filename"].endswith(".py")), None)
    model = next((f for f in frames if "/models/" in f["filename"] or "modeling_" in f["filename"]), None)
    return (inner["name"] if inner else "", f"{model['name']}:{model['line']}" if model else "")


def live_at_peak(snapshot: Row, device: int = 0) -> list[Row]:
    """Blocks that were asked for before the peak and given back after it, the largest first."""
    live: dict[int, Row] = {}
    highest, total, at_peak = 0, 0, {}
    changed = False
    for event in snapshot["device_traces"][device]:
        action, address = event["action"], event["addr"]
        if action == "alloc":
            live[address] = event
            total += event["size"]
            if total > highest:
                highest, changed = total, True
        elif action == "free_completed" and address in live:
            if changed:
                at_peak, changed = dict(live), False
            total -= live.pop(address)["size"]
    if changed:
        at_peak = dict(live)
    out = []
    for event in sorted(at_peak.values(), key=lambda e: -e["size"]):
        inner, model = place(event.get("frames", []))
        out.append({"bytes": event["size"], "made_by": inner, "made_in": model})
    return out


KINDS = {
    "alloc": "a",
    "free_requested": "",
    "free_completed": "f",
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "M",
    "segment_unmap": "U",
}


def requests_of(snapshot: Row, device: int = 0) -> Row:
    """The history in short: [kind, address, bytes, stream, place], places once in a list; addresses relative to the lowest."""
    events = [event for event in snapshot["device_traces"][device] if KINDS.get(event["action"])]
    base = min((event["addr"] for event in events), default=0)
    places: dict[str, int] = {}
    out = []
    for event in events:
        inner, model = place(event.get("frames", [])) if event["action"] == "alloc" else ("", "")
        at = places.setdefault(f"{inner}|{model}", len(places))
        out.append([KINDS[event["action"]], event["addr"] - base, event["size"], event["stream"], at])
    return {"places": list(places), "events": out}
