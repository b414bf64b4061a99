"""What the run found, as a Markdown table for people and as JSON for programs."""
import json


def quantile(values, q):
    """The nearest-rank quantile, or None of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def ms(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"


class Report:
    """Checks that passed or failed, and figures that are only shown."""

    def __init__(self):
        self.rows = []

    def check(self, name, passed, seen=""):
        self._row(name, "pass" if passed else "FAIL", seen)
        return passed

    def figure(self, name, seen):
        self._row(name, "", seen)

    def skip(self, name, why):
        self._row(name, "skipped", why)

    def _row(self, name, result, seen):
        self.rows.append({"name": name, "result": result, "seen": str(seen)})
        print(f"{result or '    ':8} {name}: {seen}", flush=True)

    def failed(self):
        return [r for r in self.rows if r["result"] == "FAIL"]

    def table(self):
        width = max((len(r["name"]) for r in self.rows), default=4)
        lines = [f"| {'what':{width}} | result  | seen |", f"|{'-' * (width + 2)}|---------|------|"]
        lines += [f"| {r['name']:{width}} | {r['result']:7} | {r['seen']} |" for r in self.rows]
        return "\n".join(lines)

    def as_json(self):
        return json.dumps(self.rows, indent=1)
