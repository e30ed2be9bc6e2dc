#!/usr/bin/env python3
"""Makes the compact recorded runs (*.bin) that the allocator's tests replay.

    make.py run OUT_DIR INPUT...        one file per recorded device
    make.py vectors OUT_FILE INPUT      computed cases

A run comes from a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot, read by an unpickler that knows no globals) or from the
JSON form of one, in which addresses are in units of 512 bytes, an event is [action, address, bytes, stream, pool] and a device has
`events`, `final`, `initial` and `summary`. Frames and names are left out: only sizes, addresses, streams and pools are kept.

Recording usually starts late, so what was there before the first event is rebuilt by undoing all events from the final state. The
size of a block that was live then and freed later is not in a snapshot. It follows from the rule for splitting: a rest of at most
1 MiB in an ordinary large segment stays with its block, so such a gap belongs to it, and where the gap is larger, an allocation
that starts within 1 MiB of the rounded request while the block lives marks its end.

The format, all numbers LEB128 (z: zigzag): "oomrun1\\n"; then per run the fields in write_run(), in that order.
"""

import gzip
import json
import pathlib
import pickle
import sys

UNIT = 512
MIB = 1 << 20
STATES = {"active_allocated": "A", "active_pending_free": "P", "active_awaiting_free": "P", "inactive": "-"}
OPS = {"a": 0, "f": 1, "r": 2, "c": 3, "e": 4, "o": 5, "S": 6, "F": 7, "M": 8, "U": 9}  # e: empty_cache


class NoGlobals(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot names no globals, this one asks for {module}.{name}")


class Out:
    def __init__(self):
        self.data = bytearray()

    def n(self, value):
        if value < 0:
            raise ValueError(f"negative: {value}")
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def z(self, value):
        self.n(value * 2 if value >= 0 else -value * 2 - 1)

    def text(self, value):
        raw = value.encode()
        self.n(len(raw))
        self.data += raw


def rounded(size):
    return max(512, (size + 511) // 512 * 512)


def from_pickle(path):
    """Devices of a PyTorch snapshot in the JSON form."""
    with open(path, "rb") as file:
        snapshot = NoGlobals(file).load()
    text = snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", "")
    short = {"alloc": "a", "segment_alloc": "S", "segment_free": "F", "segment_map": "M", "segment_unmap": "U", "oom": "o"}
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = [s for s in snapshot["segments"] if s.get("device", 0) == device]
        if len(trace) < 2:
            continue
        streams = sorted({s["stream"] for s in segments} | {e["stream"] for e in trace})
        pools = sorted({tuple(s.get("segment_pool_id", (0, 0))) for s in segments} | {(0, 0)})
        bounds = [
            (s["address"], s["address"] + s["total_size"], pools.index(tuple(s.get("segment_pool_id", (0, 0))))) for s in segments
        ]

        def pool_of(address):
            return next((p for low, high, p in bounds if low <= address < high), 0)

        events = []
        for i, e in enumerate(trace):
            action, address = e["action"], e.get("addr", 0)
            if action == "snapshot":
                continue
            if action == "free_requested":
                after = trace[i + 1] if i + 1 < len(trace) else {}
                done = after.get("action") == "free_completed" and after["addr"] == address
                action = "f" if done else "r"
            elif action == "free_completed":
                before = trace[i - 1] if i else {}
                if before.get("action") == "free_requested" and before["addr"] == address:
                    continue
                action = "c"
            else:
                action = short[action]
            if action == "o":
                events.append(["o", e["device_free"], e["size"], streams.index(e["stream"]), 0])
            else:
                events.append([action, address // UNIT, e["size"], streams.index(e["stream"]), pool_of(address)])
        final = []
        for s in sorted(segments, key=lambda s: s["address"]):
            blocks = [[b["size"], b.get("requested_size", 0), STATES[b["state"]]] for b in s["blocks"]]
            final.append(
                [
                    s["address"] // UNIT,
                    s["total_size"] // UNIT,
                    s["allocated_size"],
                    streams.index(s["stream"]),
                    s["segment_type"],
                    s.get("is_expandable", False),
                    blocks,
                    pools.index(tuple(s.get("segment_pool_id", (0, 0)))),
                ]
            )
        yield {"device": device, "events": events, "final": final, "settings": text, "summary": {}}


def undo(device):
    """Segments {address: [units, stream, small, pool]} and blocks {address: [bytes or None, requested]} before the first event."""
    segments, blocks, expandable = {}, {}, False
    for address, units, _, stream, kind, grows, rows, pool in device["final"]:
        expandable |= grows
        if not grows:
            segments[address] = [units, stream, kind == "small", pool]
        at = address
        for size, requested, state in rows:
            if state != "-":
                blocks[at] = [size, requested]
            at += size // UNIT
    for action, address, size, stream, *pool in reversed(device["events"]):
        if action == "a":
            if blocks.pop(address, None) is None:
                raise ValueError("the trace ends before the segments do")
        elif action in "fc":
            blocks[address] = [None, size]
        elif action == "S":
            segments.pop(address)
        elif action == "F":
            segments[address] = [size // UNIT, stream, size == 2 * MIB, pool[0] if pool else 0]
    if expandable and blocks:
        raise ValueError("a late start with expandable segments is not rebuilt")
    return segments, blocks


def fill_sizes(device, segments, blocks):
    for start, (units, _, small, _) in segments.items():
        live = sorted(a for a in blocks if start <= a < start + units)
        for address, after in zip(live, live[1:] + [start + units]):
            size, requested = blocks[address]
            if size is not None:
                continue
            size = rounded(requested)
            gap = (after - address) * UNIT - size
            if not small and 0 < gap <= MIB:
                size += gap
            elif not small and gap > MIB:
                for action, other, *_ in device["events"]:
                    if action in "fr" and other == address:
                        break
                    if action == "a" and address * UNIT + size <= other * UNIT <= address * UNIT + size + MIB:
                        size = (other - address) * UNIT
                        break
            blocks[address][0] = size


def grouped(device, limit):
    """Requests, each followed by the segment events that it causes; empty_cache written out as `e`.

    Where segments are given back right before a request, it is a retry of that request if the device's limit says that it could not
    be served otherwise, and the program's own empty_cache if not."""
    reserved = sum(units * UNIT for units, *_ in device["before"][0].values())
    held = []
    for event in [*device["events"], ["end", 0, 0, 0]]:
        action = event[0]
        if action in "SFMU":
            held.append(event)
            continue
        if action == "s":
            continue
        given = 0
        while given < len(held) and held[given][0] in "FU":
            given += 1
        wanted = event[2] if action == "o" else sum(e[2] for e in held[given:])
        retry = action in "ao" and limit and reserved + wanted > limit
        if given and not retry:
            yield ["e", 0, 0, 0]
            yield from held[:given]
        if held[given:] and action not in "ao":
            raise ValueError("segments taken without a request")
        if action != "end":
            yield event
            yield from held if retry else held[given:]
        reserved += sum(e[2] if e[0] in "SM" else -e[2] for e in held)
        held = []


def write_run(out, name, source, settings, limits, device, expected):
    out.text(name)
    out.text(source)
    out.text(settings)
    out.n(1)  # addresses are given
    for limit in limits or (0, 0):  # the driver's refusals follow from any limit between these; 0: none recorded
        out.n(limit)
    out.n(0)  # memory fraction: bytes
    for key in ("retries", "ooms", "reserved_peak", "allocated_peak", "final_reserved", "final_allocated"):
        out.n(expected.get(key, 0))
    segments, blocks = device["before"]
    out.n(len(segments))
    last = 0
    live = []
    for address in sorted(segments):
        units, stream, small, pool = segments[address]
        inside = sorted(a for a in blocks if address <= a < address + units)
        out.z(address - last)
        last = address
        out.n(units)
        out.n(stream * 2 + small)
        out.n(pool)
        out.n(len(inside))
        at = address
        for a in inside:
            size, requested = blocks[a]
            out.n(a - at)
            out.n(size // UNIT)
            out.n(requested)
            at = a + size // UNIT
            live.append(a)
    number = {address: i for i, address in enumerate(live)}
    count, last = len(live), 0
    events = list(device["grouped"])
    out.n(len(events))
    for action, address, size, stream, *pool in events:
        pool = pool[0] if pool else 0
        out.n(OPS[action] * 2 + (stream != 0 or pool != 0))
        if stream or pool:
            out.n(stream)
            out.n(pool)
        if action in "frc":
            out.n(count - number[address])
        elif action != "e":
            out.n(size)
            if action != "o":
                out.z(address - last)
                last = address
            if action == "a":
                number[address] = count
                count += 1
    final = sorted(device["final"])
    out.n(len(final))
    last = 0
    for address, units, _, stream, kind, grows, rows, pool in final:
        out.z(address - last)
        last = address
        out.n(units)
        out.n(stream * 4 + grows * 2 + (kind == "small"))
        out.n(pool)
        out.n(len(rows))
        for size, requested, state in rows:
            out.n(size // UNIT * 4 + "-AP".index(state))
            if state != "-":
                out.n(requested)


def make_run(path, out_dir):
    path = pathlib.Path(path)
    if path.name.endswith(".json.gz"):
        with gzip.open(path) as file:
            record = json.load(file)
        name = path.name[: -len(".json.gz")]
        where = record["source"]
        source = f"{where['repository']} {where['path']} {where['commit']}, torch {record['torch']}"
        settings = (record["settings"] or {}).get("PYTORCH_CUDA_ALLOC_CONF", "")
        devices = record["devices"]
    else:
        name, source = path.stem, path.name
        devices = list(from_pickle(path))
        settings = devices[0]["settings"] if devices else ""
    for device in devices:
        segments, blocks = undo(device)
        fill_sizes(device, segments, blocks)
        for address, units, stream, kind, _, rows, *pool in device.get("initial", []):
            if segments[address] != [units, stream, kind == "small", pool[0] if pool else 0]:
                raise ValueError(f"{name}: another segment at {address}")
            for at, size, requested in rows:
                if blocks[at][1] != requested or (size is not None and blocks[at][0] != size):
                    raise ValueError(f"{name}: another block at {at}: {blocks[at]}, expected {size}, {requested}")
        device["before"] = segments, blocks
        summary = device["summary"]
        limits = summary.get("device_limit")
        device["grouped"] = list(grouped(device, limits[0] if limits else 0))
        reserved = peak = sum(units * UNIT for units, *_ in segments.values())
        for event in device["events"]:
            reserved += event[2] if event[0] in "SM" else -event[2] if event[0] in "FU" else 0
            peak = max(peak, reserved)
        expected = {
            "retries": summary.get("retries", 0),
            "ooms": sum(e[0] == "o" for e in device["events"]),
            "reserved_peak": peak,
            "allocated_peak": summary.get("peak_allocated_blocks", 0),
            "final_reserved": reserved,
            "final_allocated": sum(s for row in device["final"] for s, _, state in row[6] if state == "A"),
        }
        out = Out()
        out.data += b"oomrun1\n"
        full = name if len(devices) == 1 else f"{name}_{device['device']}"
        write_run(out, full, source, settings, limits, device, expected)
        target = pathlib.Path(out_dir) / f"{full}.bin"
        target.write_bytes(out.data)
        print(f"{target.name}: {len(device['events'])} events, {len(out.data)} bytes")


def conf_text(settings):
    """The settings of a computed case as a user would spell them."""
    parts = []
    for key, value in settings.items():
        if key == "max_split_size":
            parts.append(f"max_split_size_mb:{value // MIB}")
        elif key == "roundup_power2_divisions":
            parts.append("roundup_power2_divisions:[" + ",".join(f"{1 << i}:{d}" for i, d in enumerate(value)) + "]")
        elif key == "gc_threshold":
            parts.append(f"garbage_collection_threshold:{value}")
        elif key == "expandable":
            parts.append(f"expandable_segments:{value}")
        elif key == "large_segment_size":
            parts.append(f"large_segment_size_mb:{value // MIB}")
        elif key not in ("device_limit", "fraction_limit"):
            raise ValueError(f"unknown setting {key}")
    return ",".join(parts)


def make_vectors(out_file, path):
    with gzip.open(path) as file:
        cases = json.load(file)["cases"]
    out = Out()
    out.data += b"oomrun1\n"
    actions = {"segment_alloc": "S", "segment_free": "F", "segment_map": "M", "segment_unmap": "U"}
    for case in cases:
        settings, answer = case["settings"], case["expected"]
        if answer["ooms"]:
            raise ValueError("cases that run out of memory are not written")
        out.text(case["name"])
        out.text("computed by another replay, not measured")
        out.text(conf_text(settings))
        out.n(0)  # no addresses
        limit = settings.get("device_limit", 0)
        out.n(limit)
        out.n(limit)
        out.n(settings.get("fraction_limit", 0))
        for key in ("retries", None, "peak_reserved", "peak_allocated", "final_reserved", "final_allocated"):
            out.n(answer[key] if key else 0)
        out.n(0)
        rows, number, count = [], {}, 0
        for i, request in enumerate(case["requests"]):
            if request[0] == "a":
                _, tensor, size, stream = request
                rows.append(("a", size, stream))
                number[tensor] = count
                count += 1
            elif request[0] == "f":
                rows.append(("f", count - number[request[1]], 0))
            else:
                rows.append(("e", 0, 0))
            rows += [(actions[a], size, stream) for a, size, stream in answer["segment_events"].get(str(i), [])]
        out.n(len(rows))
        for action, value, stream in rows:
            out.n(OPS[action] * 2 + (stream != 0))
            if stream:
                out.n(stream)
                out.n(0)
            if action != "e":
                out.n(value)
        out.n(0)
    pathlib.Path(out_file).write_bytes(out.data)
    print(f"{out_file}: {len(cases)} cases, {len(out.data)} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "run":
        for each in sys.argv[3:]:
            make_run(each, sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "vectors":
        make_vectors(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
